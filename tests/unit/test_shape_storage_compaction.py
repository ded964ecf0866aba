"""Compaction: fewer items, the same rows, for whoever reads from wherever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.shapes.storage import ShapeStorage, ShapeStore, compaction
from penstock.shapes.storage.compaction import absorbed_updates, merge_updates
from tests.shape_log import (
    START,
    Item,
    Rows,
    apply,
    log_items,
    read,
    read_in_chunks,
    ready_shape,
    reopened,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShapeStore]:
    store = ShapeStore(tmp_path / "store", chunk_bytes=1000)
    store.recover()
    yield store
    store.close()


def _update(tx: int, key: str, **value: str) -> Item:
    return Item(tx, 0, "u", key, {"id": key, **value}, True)


def _written(store: ShapeStore, items: list[Item]) -> ShapeStorage:
    storage = ready_shape(store, "a", 0)
    storage.append_to_log(log_items(items))
    store.commit(Lsn(items[-1].tx + 1))
    store.loop.turn(idle=True)
    return storage


def _busy_key(count: int) -> list[Item]:
    first = [Item(10, 0, "i", "k", {"id": "k", "a": "0", "b": "0"}, True)]
    return [*first, *[_update(10 + n, "k", **{"ab"[n % 2]: str(n)}) for n in range(1, count)]]


def test_updates_of_a_key_become_one_at_the_place_of_the_last() -> None:
    first = {"key": "k", "value": {"id": "1", "a": "1"}, "old_value": {"a": "0"}}
    second = {"key": "k", "value": {"id": "1", "a": "2", "b": None}, "old_value": {"a": "1", "b": "é"}}
    headers = {"operation": "update", "relation": ["public", "t"]}
    first["headers"] = {**headers, "txids": [7], "lsn": "10", "op_position": 4, "last": True}
    second["headers"] = {**headers, "txids": [9], "lsn": "20", "op_position": 2}
    merged = json.loads(merge_updates(json.dumps(item).encode() for item in (first, second)))
    assert merged == {
        "key": "k",
        "value": {"id": "1", "a": "2", "b": None},
        "old_value": {"a": "0", "b": "é"},
        "headers": {**headers, "txids": [7, 9], "lsn": "20", "op_position": 2},
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("iude")), max_size=30))
def test_an_update_is_taken_in_by_the_next_item_of_its_key_if_that_is_one(
    items: list[tuple[int, str]],
) -> None:
    keys = np.array([key for key, _ in items], np.int64)
    kinds = np.array([ord(kind) for _, kind in items], np.int64)
    absorbed, previous = absorbed_updates(keys, kinds)
    for number, (key, kind) in enumerate(items):
        later = [other for other in range(number + 1, len(items)) if items[other][0] == key]
        taken = kind == "u" and bool(later) and items[later[0]][1] == "u"
        assert absorbed[number] == taken
        if taken:
            assert previous[later[0]] == number
    assert np.count_nonzero(previous >= 0) == np.count_nonzero(absorbed)


def test_a_log_that_is_compacted_is_smaller_and_gives_the_same_rows(store: ShapeStore) -> None:
    storage = _written(store, _busy_key(200))
    rows, size = apply({}, read(storage)), storage.bytes_on_disk
    assert storage.compact()
    texts = read(storage)
    assert apply({}, texts) == rows
    assert len(texts) < 40
    assert storage.bytes_on_disk < size / 3
    log = store.files / "shapes" / "a" / "log"
    assert {path.name for path in log.iterdir()} == {
        "last_persisted_txn_offset.bin",
        "log.compacted.1.chunk.bin",
        "log.compacted.1.jsonfile.bin",
        "log.latest.1.chunk.bin",
        "log.latest.1.jsonfile.bin",
    }


def test_a_reader_anywhere_in_the_old_range_goes_on_to_the_same_rows(store: ShapeStore) -> None:
    items = []
    for tx in range(10, 200):
        key = f"k{tx % 7}"
        kind = "i" if tx < 17 else "d" if tx % 50 == 0 else "i" if tx > 50 and tx % 50 == 7 else "u"
        items.append(Item(tx, 0, kind, key, {"id": key, f"c{tx % 3}": str(tx)}, True))
    storage = _written(store, items)
    expected = apply({}, read(storage))
    read_before = {item.offset: read(storage, START, item.offset) for item in items}
    assert storage.compact()
    for offset, before in read_before.items():
        assert apply(apply({}, before), read(storage, offset)) == expected
    for offset in list(read_before)[::10]:
        answers = read_in_chunks(storage, offset)
        assert [text for answer in answers for text in answer] == read(storage, offset)


def test_what_comes_after_compaction_is_appended_and_compacted_again(
    store: ShapeStore, tmp_path: Path
) -> None:
    items = _busy_key(400)
    storage = _written(store, items[:200])
    assert storage.compact()
    storage.append_to_log(log_items(items[200:]))
    store.commit(Lsn(1000))
    store.loop.turn(idle=True)
    assert storage.compact()
    assert storage.files.compacted == 2
    assert not storage.compact(), "there is nothing more to merge"
    rows = apply({}, (item.json() for item in items))
    assert apply({}, read(storage)) == rows
    again = reopened(store, tmp_path / "store", chunk_bytes=1000)
    again.recover()
    recovered = again.open("a", 0)
    assert apply({}, read(recovered)) == rows
    assert recovered.readable_offset == items[-1].offset
    again.close()


def test_the_newest_chunks_are_left_as_they_are(store: ShapeStore) -> None:
    items = _busy_key(200)
    storage = _written(store, items)
    newest = storage.files.latest_index(storage.directory).all()[-2]
    assert storage.compact(keep_chunks=2)
    after = LogOffset(newest.min_tx, newest.min_op)
    assert read(storage, after) == [item.json() for item in items if item.offset > after]


def test_the_last_item_left_of_a_transaction_says_so(store: ShapeStore) -> None:
    """What said so before is part of a later update."""
    first = [Item(10, 0, "i", "a", {"id": "a"}), Item(10, 2, "i", "b", {"id": "b"}, True)]
    second = [Item(20, 0, "i", "c", {"id": "c"}), Item(20, 2, "u", "a", {"id": "a", "x": "1"}, True)]
    rest = [_update(tx, "a", x=str(tx)) for tx in range(30, 100)]
    storage = _written(store, [*first, *second, *rest])
    assert storage.compact()
    texts = [json.loads(text) for text in read(storage, START, LogOffset(29, 0))]
    offsets = [(int(item["headers"]["lsn"]), item["headers"]["op_position"]) for item in texts]
    assert offsets == [(10, 0), (10, 2), (20, 0)]
    assert [item["headers"].get("last", False) for item in texts] == [False, True, True]


def test_keys_that_share_a_fingerprint_are_not_merged(
    store: ShapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compaction, "hash_ranges", lambda buffer, starts, ends: np.zeros(len(starts), np.int64)
    )
    inserts = [Item(5, 2 * n, "i", f"k{n}", {"id": f"k{n}"}) for n in range(3)]
    items = [*inserts, *[_update(10 + n, f"k{n // 2 % 3}", c=str(n)) for n in range(100)]]
    storage = _written(store, items)
    rows = apply({}, read(storage))
    assert storage.compact()
    assert apply({}, read(storage)) == rows


def test_windows_bound_what_is_looked_at_together(store: ShapeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ITEMS_MAX", 20)
    storage = _written(store, _busy_key(200))
    rows = apply({}, read(storage))
    assert storage.compact()
    assert apply({}, read(storage)) == rows


def test_a_full_disk_leaves_the_log_as_it_was(store: ShapeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = _written(store, _busy_key(200))
    before, names = read(storage), set((store.files / "shapes/a/log").iterdir())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.shapes.storage.compaction.os.fdatasync", fail)
    with pytest.raises(OSError, match="No space left"):
        storage.compact()
    monkeypatch.undo()
    assert read(storage) == before
    assert set((store.files / "shapes/a/log").iterdir()) == names


def test_readers_and_appends_go_on_while_a_log_is_compacted(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path, chunk_bytes=1000)
    store.recover()
    storage = ready_shape(store, "a", 0)
    store.start()
    items, wrong, done = _busy_key(1500), list[LogOffset](), threading.Event()
    expected: dict[LogOffset, Rows] = {START: {}}
    row: dict[str, str] = {}
    for item in items:
        row = row | item.value
        expected[item.offset] = {"k": row}

    def follow() -> None:
        while not done.is_set():
            up_to = storage.readable_offset
            if apply({}, read(storage, START, up_to)) != expected[up_to]:
                wrong.append(up_to)

    reader = threading.Thread(target=follow)
    reader.start()
    for item in items:
        storage.append_to_log(log_items([item]))
        store.commit(Lsn(item.tx + 1))
        if item.tx % 100 == 0:
            store.wait_flushed(Lsn(item.tx + 1), 60)
            storage.compact()
    done.set()
    reader.join()
    assert not wrong
    assert storage.files.compacted > 3
    store.close()

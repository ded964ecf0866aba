"""Shapes on disk: what is where, when it counts, what is given up and what is not."""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from penstock import failpoints
from penstock.core.errors import SourceBusyError, StorageError
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.shapes.storage import ShapeStorage, ShapeStore, SnapshotChunk, place
from penstock.shapes.storage.records import BLOCK_BYTES_MAX
from tests.conftest import WAIT_S, wait_until
from tests.shape_log import (
    START,
    Item,
    abandon,
    log_items,
    read,
    read_in_chunks,
    ready_shape,
    reopened,
    shape_items,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShapeStore]:
    """Not started: a test says when something becomes durable (`loop.turn`)."""
    store = ShapeStore(tmp_path / "store", chunk_bytes=300)
    store.recover()
    yield store
    store.close()


def inserts(tx: int, count: int = 1, size: int = 1, first: int = 0) -> list[Item]:
    numbers = range(first, first + count)
    return [Item(tx, 2 * n, "i", f"k{tx}.{n}", {"c": "x" * size}) for n in numbers]


def texts(items: list[Item]) -> list[bytes]:
    return [item.json() for item in items]


# The formats


def test_files_have_the_documented_layout(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    items = [Item(500, 0, "i", "k", {"c": "1"}), Item(500, 2, "u", "kk", {"c": "2"})]
    storage.append_to_log(log_items(items))
    storage.append_to_log(log_items(inserts(600, 3)))
    store.commit(Lsn(601))
    store.loop.turn(idle=True)
    directory = store.files / "shapes" / "a"
    assert (directory / "snapshot" / "chunk_0.jsonl").read_bytes().endswith(b"\n\x04")
    log, records = (directory / "log" / "log.latest.0.jsonfile.bin").read_bytes(), []
    at = 0
    while at < len(log):
        tx, op, key_size = struct.unpack_from(">QQI", log, at)
        key = log[at + 20 : at + 20 + key_size]
        kind, flag, json_size = struct.unpack_from(">BBQ", log, at + 20 + key_size)
        at += 30 + key_size + json_size
        records.append((tx, op, key, chr(kind), flag, log[at - json_size : at]))
    expected = [*items, *inserts(600, 3)]
    assert records == [(i.tx, i.op, i.key.encode(), i.kind, 0, i.json()) for i in expected]
    index = (directory / "log" / "log.latest.0.chunk.bin").read_bytes()
    sizes = [30 + len(item.key) + len(item.json()) for item in expected]
    keys = [len(item.key) for item in expected]
    assert struct.unpack(">8Q", index) == (500, 0, 0, 0, 600, 0, sum(sizes[:3]), sum(keys[:3]))
    boundary = (directory / "log" / "last_persisted_txn_offset.bin").read_bytes()
    assert struct.unpack_from(">QQ", boundary) == (600, 4)


def test_a_chunk_ends_with_the_item_that_brings_it_to_the_threshold(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    items = inserts(100, 8)
    size = len(items[0].json())
    per_chunk = -(-300 // size)
    for item in items:  # in pieces: where chunks end does not depend on it
        storage.append_to_log(log_items([item], whole=item is items[-1]))
    assert [len(answer) for answer in read_in_chunks(storage)] == [per_chunk] * (8 // per_chunk) + [
        rest for rest in [8 % per_chunk] if rest
    ]
    assert storage.get_chunk_end_log_offset(START) == items[per_chunk - 1].offset
    assert storage.get_chunk_end_log_offset(items[-1].offset) is None


def test_no_answer_ends_in_a_transaction_that_has_not_ended(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    storage.append_to_log(log_items(inserts(100)))
    storage.append_to_log(log_items(inserts(200, 9), whole=False))
    store.commit(Lsn(101))
    for _ in range(2):  # in the buffer, then in the files
        assert storage.get_chunk_end_log_offset(START) is None
        assert storage.readable_offset == storage.last_seen_txn_offset == LogOffset(100, 0)
        assert storage.last_seen_offset == LogOffset(200, 16)
        assert read(storage) == texts(inserts(100))
        store.loop.turn(idle=True)
    storage.append_to_log(log_items(inserts(200, 1, first=9)))
    assert len(read(storage)) == 11


def test_blocks_are_bounded_and_large_items_whole(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    items = [*inserts(100, 1200, size=10), *inserts(200, 3, size=700_000), *inserts(300, 3, size=100_000)]
    storage.append_to_log(log_items(items))
    store.commit(Lsn(301))
    for _ in range(2):
        blocks = list(storage.get_log_stream(START, storage.readable_offset))
        assert b"".join(blocks) == b",\n".join(texts(items))
        assert all(len(block) <= BLOCK_BYTES_MAX or block.count(b'"key"') == 1 for block in blocks)
        assert all(block.count(b'"key"') <= 500 for block in blocks)
        store.loop.turn(idle=True)
        assert not storage.is_buffered(START)


# Snapshots


def rows(count: int, start: int = 0) -> tuple[bytes, np.ndarray]:
    lines = [b'{"row":%03d}\n' % n for n in range(start, start + count)]  # 12 bytes each
    return b"".join(lines), np.cumsum([len(line) for line in lines])


def content(chunk: SnapshotChunk | None, start: int = 0) -> bytes:
    assert chunk is not None
    return b"".join(chunk.blocks(start))


def test_a_snapshot_is_readable_while_it_is_written(store: ShapeStore) -> None:
    storage, told = store.open("a", 0), threading.Event()
    storage.on_snapshot_progress = told.set
    states: list[str] = [storage.snapshot_state]
    assert storage.snapshot_chunk(0) is None
    writer = storage.make_new_snapshot()
    states.append(storage.snapshot_state)
    writer.write(*rows(2))
    assert told.is_set()
    first = storage.snapshot_chunk(0)
    assert first is not None
    assert (content(first), first.complete, first.is_last) == (b'{"row":000},\n{"row":001}', False, False)
    writer.write(*rows(30, 2))
    grown = storage.snapshot_chunk(0)
    assert grown is not None
    assert grown.complete
    assert grown.size == 300
    assert content(first) + content(grown, first.size) == content(grown)
    writer.close(b'{"end":1}')
    assert [*states, storage.snapshot_state] == ["none", "writing", "complete"]
    last = storage.snapshot_chunk(1)
    assert last is not None
    assert last.is_last
    assert content(last).endswith(b',\n{"end":1}')
    assert storage.snapshot_chunk(2) is None
    whole = content(grown) + b",\n" + content(last)
    assert whole == b"".join([rows(32)[0], b'{"end":1}']).replace(b"\n", b",\n")


@pytest.mark.parametrize("count", [0, 25, 50])
def test_the_end_of_a_snapshot_stands_alone_after_a_full_chunk(store: ShapeStore, count: int) -> None:
    storage = store.open("a", 0)
    writer = storage.make_new_snapshot()
    if count:
        writer.write(*rows(count))
    writer.close(b'{"end":1}')
    assert storage.snapshot_chunks == count // 25 + 1
    assert content(storage.snapshot_chunk(count // 25)) == b'{"end":1}'
    assert storage.bytes_on_disk == 12 * count + len(b'{"end":1}\n')


def test_a_shape_that_was_not_ready_is_gone_after_a_crash(store: ShapeStore, tmp_path: Path) -> None:
    ready_shape(store, "ready", 0)
    store.commit(Lsn(10))
    store.loop.turn()
    store.open("writing", 1).make_new_snapshot().write(*rows(3))
    unready = store.open("complete", 2)
    unready.make_new_snapshot().close(b"{}")
    unready.append_to_log(log_items(inserts(20)))
    store.commit(Lsn(21))
    store.loop.turn(idle=True)
    again = reopened(store, tmp_path / "store")
    found = again.recover()
    assert list(found) == ["ready"]
    assert found["ready"].definition_json == '{"shape": "ready"}'
    assert found["ready"].facts == '{"lsn": 0}'
    assert [path.name for path in (again.files / "shapes").iterdir()] == ["ready"]
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda shape: (shape / "shape.json").write_text('{"format_version": 99}'),
        lambda shape: (shape / "shape.json").write_text("{"),
        lambda shape: (shape / "snapshot" / "chunk_0.jsonl").write_bytes(b"{}\n"),
        lambda shape: (shape / "snapshot" / "chunk_0.jsonl").unlink(),
        lambda shape: (shape / "log" / "log.latest.0.jsonfile.bin").write_bytes(b"short"),
        lambda shape: (shape / "log" / "log.latest.0.jsonfile.bin").unlink(),
        lambda shape: (shape / "log" / "last_persisted_txn_offset.bin").write_bytes(b"\0" * 100),
    ],
)
def test_a_shape_that_is_damaged_or_of_another_version_is_removed_alone(
    store: ShapeStore, tmp_path: Path, damage: object
) -> None:
    for slot, handle in enumerate(["a", "b"]):
        ready_shape(store, handle, slot).append_to_log(log_items(inserts(20)))
    store.commit(Lsn(21))
    store.loop.turn(idle=True)
    store.commit(Lsn(30))
    store.loop.turn()
    damage(store.files / "shapes" / "a")  # type: ignore[operator]
    again = reopened(store, tmp_path / "store")
    assert list(again.recover()) == ["b"]
    assert read(again.open("b", 1)) == texts(inserts(20))
    again.close()


# Durability


def test_one_datasync_makes_many_shapes_durable(
    store: ShapeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in range(100):
        ready_shape(store, f"s{slot}", slot)
    store.append(shape_items((slot, inserts(20)) for slot in range(100)))
    store.commit(Lsn(21))
    synced: list[int] = []
    monkeypatch.setattr("penstock.shapes.storage.commit_log.os.fdatasync", synced.append)
    store.loop.turn()
    assert len(synced) == 2  # the beginning of the segment, and the record
    monkeypatch.undo()
    again = reopened(store, tmp_path / "store")
    assert len(again.recover()) == 100
    assert all(read(again.open(f"s{slot}", slot)) == texts(inserts(20)) for slot in range(100))
    again.close()


def test_flushes_are_reported_with_the_position_and_every_shapes_offset(tmp_path: Path) -> None:
    reports: list[tuple[int, Mapping[int, LogOffset]]] = []
    store = ShapeStore(tmp_path, on_flushed=lambda end, offsets: reports.append((end, offsets)))
    store.recover()
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(3)]
    store.append(shape_items([(0, inserts(20)), (2, inserts(20, 2))]))
    storages[1].append_to_log(log_items(inserts(30), whole=False))
    store.commit(Lsn(21))
    assert not reports
    assert storages[0].last_persisted_txn_offset == START
    store.loop.turn()
    assert reports == [(21, {0: LogOffset(20, 0), 2: LogOffset(20, 2)})]
    assert store.position == Lsn(21)
    assert storages[1].last_persisted_offset == LogOffset(30, 0)
    assert storages[1].last_persisted_txn_offset == START
    store.close()


def test_events_are_not_readable_before_they_are_durable(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    storage.append_to_log(log_items(inserts(10)))
    storage.append_to_log(log_items(inserts(20), durable_first=True))
    storage.append_to_log(log_items(inserts(30)))
    assert storage.last_seen_txn_offset == LogOffset(30, 0)
    assert storage.readable_offset == LogOffset(10, 0)
    store.commit(Lsn(31))
    storage.append_to_log(log_items(inserts(40)))
    assert storage.readable_offset == LogOffset(10, 0)
    store.loop.turn()
    assert storage.readable_offset == LogOffset(40, 0)
    storage.append_to_log(log_items(inserts(50)))
    assert storage.readable_offset == LogOffset(50, 0)


def test_what_was_seen_is_dropped_item_by_item(store: ShapeStore) -> None:
    storage = ready_shape(store, "a", 0)
    storage.append_to_log(log_items(inserts(10, 3)))
    storage.append_to_log(log_items([*inserts(10, 3), *inserts(20, 2)]))
    storage.append_to_log(log_items(inserts(10, 3)))
    assert read(storage) == texts([*inserts(10, 3), *inserts(20, 2)])


def test_a_missing_record_of_the_commit_log_removes_all_shapes(store: ShapeStore, tmp_path: Path) -> None:
    """A gap would be taken for a transaction that changed nothing."""
    ready_shape(store, "a", 0)
    for number in range(3):
        store.commit(Lsn(10 + number))
        store.loop.turn()
        store.loop.log.close()  # each in its own segment
    segments = sorted((store.files / "commits").iterdir())
    segments[1].unlink()
    again = reopened(store, tmp_path / "store")
    assert again.recover() == {}
    again.close()


def test_a_record_that_is_cut_short_was_never_durable(store: ShapeStore, tmp_path: Path) -> None:
    storage = ready_shape(store, "a", 0)
    for tx in (10, 20):
        storage.append_to_log(log_items(inserts(tx)))
        store.commit(Lsn(tx + 1))
        store.loop.turn()
    (segment,) = (store.files / "commits").iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    again = reopened(store, tmp_path / "store")
    again.recover()
    assert again.position == Lsn(11)
    storage = again.open("a", 0)
    assert read(storage) == texts(inserts(10))
    storage.append_to_log(log_items(inserts(20)))
    again.commit(Lsn(21))
    again.loop.turn()
    last = reopened(again, tmp_path / "store")
    last.recover()
    assert read(last.open("a", 0)) == texts([*inserts(10), *inserts(20)])
    last.close()


def test_another_position_to_begin_at_may_lie_below(store: ShapeStore, tmp_path: Path) -> None:
    storage = ready_shape(store, "a", 0)
    store.commit(Lsn(1000))
    store.loop.turn()
    storage.cleanup()
    store.begin_at(Lsn(50))
    ready_shape(store, "b", 0)
    store.commit(Lsn(60))
    store.loop.turn()
    again = reopened(store, tmp_path / "store")
    assert list(again.recover()) == ["b"]
    assert again.position == Lsn(60)
    again.close()


def test_only_one_process_has_a_store_open(store: ShapeStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Another process"):
        ShapeStore(tmp_path / "store")


# Failures


@pytest.fixture
def _failpoints_start_anew() -> Iterator[None]:
    failpoints._reached.clear()
    yield
    failpoints._reached.clear()


def test_a_shape_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    failed: list[tuple[int, OSError]] = []
    store = ShapeStore(tmp_path, on_failed=lambda slot, error: failed.append((slot, error)))
    store.recover()
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(20)]
    store.commit(Lsn(9))
    store.loop.turn(idle=True)
    (store.files / "shapes" / "s3").rename(tmp_path / "taken away")
    store.append(shape_items((slot, inserts(10)) for slot in range(20)))
    store.commit(Lsn(11))
    store.loop.turn(idle=True)
    assert [slot for slot, _ in failed] == [3]
    assert storages[3].is_gone
    store.append(shape_items((slot, inserts(20)) for slot in range(20)))
    store.commit(Lsn(21))
    store.loop.turn(idle=True)
    assert store.position == Lsn(21)
    assert len(failed) == 1
    for storage in storages[:3]:
        assert read(storage) == texts([*inserts(10), *inserts(20)])
    assert store.loop.buffered_bytes == 0
    store.close()


@pytest.mark.usefixtures("_failpoints_start_anew")
@pytest.mark.parametrize("shapes", [1, 20])
def test_a_full_disk_under_a_shapes_file_is_waited_for_while_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: int
) -> None:
    failed: list[int] = []
    store = ShapeStore(tmp_path, on_failed=lambda slot, error: failed.append(slot))
    store.recover()
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(shapes)]
    store.append(shape_items((slot, inserts(10)) for slot in range(shapes)))
    store.commit(Lsn(11))
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "shapes.file_write=enospc")
    store.loop.turn(idle=True)
    assert store.loop.buffered_bytes > 0
    assert read(storages[0]) == texts(inserts(10))
    store.loop.turn(idle=True)
    assert store.loop.buffered_bytes == 0
    assert read(storages[0]) == texts(inserts(10))
    assert failed == []
    store.close()


@pytest.mark.usefixtures("_failpoints_start_anew")
@pytest.mark.parametrize("shapes", [1, 20])
def test_a_full_disk_under_a_shapes_file_fails_that_shape_before_others_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: int
) -> None:
    failed: list[int] = []
    store = ShapeStore(tmp_path, on_failed=lambda slot, error: failed.append(slot), buffer_bytes_max=100)
    store.recover()
    for slot in range(shapes):
        ready_shape(store, f"s{slot}", slot)
    store.append(shape_items((slot, inserts(10)) for slot in range(shapes)))
    store.commit(Lsn(11))
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "shapes.file_write=enospc")
    store.loop.turn(idle=True)
    assert failed == [0]
    store.close()


@pytest.mark.usefixtures("_failpoints_start_anew")
@pytest.mark.parametrize("name", ["shapes.commit_write", "shapes.commit_written"])
def test_a_full_disk_under_the_commit_log_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is reported durable until it is; readers have it all the same."""
    store = ShapeStore(tmp_path)
    store.recover()
    storage = ready_shape(store, "a", 0)
    store.start()
    monkeypatch.setenv("PENSTOCK_FAILPOINT", f"{name}=enospc")
    storage.append_to_log(log_items(inserts(10)))
    assert read(storage) == texts(inserts(10))
    store.commit(Lsn(11))
    assert store.wait_flushed(Lsn(11), 60)
    assert store.problem is None
    store.close()
    again = ShapeStore(tmp_path)
    assert list(again.recover()) == ["a"]
    assert read(again.open("a", 0)) == texts(inserts(10))
    again.close()


def test_a_store_that_ends_before_a_commit_is_written_writes_none_that_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position says that everything up to it is there."""
    store = ShapeStore(tmp_path)
    store.recover()
    storage = ready_shape(store, "a", 0)
    store.start()
    storage.append_to_log(log_items(inserts(10)))
    store.commit(Lsn(11))
    assert store.wait_flushed(Lsn(11), WAIT_S)

    write, begun, refused = store.loop.log.write, threading.Event(), threading.Event()

    def refuse_the_first(packed: bytes) -> None:
        if refused.is_set():
            write(packed)
            return
        begun.set()
        assert store.loop._stopped.wait(WAIT_S)
        refused.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store.loop.log, "write", refuse_the_first)
    for tx in (20, 30):
        storage.append_to_log(log_items(inserts(tx)))
        store.commit(Lsn(tx + 1))
        assert begun.wait(WAIT_S)  # the second waits behind the first
    store.close()
    assert refused.is_set()
    again = ShapeStore(tmp_path)
    assert list(again.recover()) == ["a"]
    assert again.position == Lsn(11)
    assert read(again.open("a", 0)) == texts(inserts(10))
    again.close()


@pytest.mark.usefixtures("_failpoints_start_anew")
def test_a_full_disk_under_a_snapshot_is_told_to_its_writer(
    store: ShapeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = store.open("a", 0)
    writer = storage.make_new_snapshot()
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "shapes.snapshot_write=enospc@2")
    writer.write(*rows(1))
    with pytest.raises(OSError, match="No space left"):
        writer.write(*rows(1, 1))
    writer.abort()
    assert content(storage.snapshot_chunk(0)) == b'{"row":000}'
    second = storage.make_new_snapshot()
    second.close(b"{}")
    assert content(storage.snapshot_chunk(0)) == b"{}"


def test_who_no_longer_leads_commits_nothing(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path)
    store.recover()
    ready_shape(store, "a", 0)
    store.start()
    store.place.hold(Lsn(1))
    place.claim(tmp_path, Lsn(2))
    store.commit(Lsn(10))
    wait_until(lambda: store.problem is not None, "the write loop to stop", 10)
    assert store.position is None
    with pytest.raises(SourceBusyError):
        store.commit(Lsn(11))
    store.close()


def texts_of(tx: int, word: str) -> list[Item]:
    return [Item(tx, 0, "i", f"k{tx}", {"c": word})]


@pytest.mark.parametrize(
    "stopped_at",
    [
        "shapes.commit_write",
        "shapes.commit_written",
        "shapes.committed",
        "shapes.file_write",
        "shapes.file_written",
        "shapes.boundary_moved",
    ],
)
def test_who_was_stopped_before_a_write_and_wakes_under_a_successor_changes_nothing_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    """Whatever it last made sure of: it was between that and the write."""
    has_files = "file" in stopped_at  # else what the successor has is in the commit log alone
    stopped = ShapeStore(tmp_path, chunk_bytes=300)
    stopped.recover()
    stopped.place.hold(Lsn(1))
    storages = [ready_shape(stopped, f"s{slot}", slot) for slot in range(2)]
    stopped.append(shape_items((slot, inserts(10)) for slot in range(2)))
    stopped.commit(Lsn(11))
    stopped.loop.turn(idle=True)
    stopped.append(shape_items((slot, texts_of(20, "stopped" * 50)) for slot in range(2)))
    stopped.commit(Lsn(21))
    successors: list[ShapeStore] = []
    had: list[list[bytes]] = []

    def reach(name: str) -> None:
        if name != stopped_at or successors:
            return
        place.claim(tmp_path, Lsn(2))
        place.take(tmp_path)
        successor = ShapeStore(tmp_path, chunk_bytes=300)
        successors.append(successor)
        successor.recover()
        successor.place.hold(Lsn(2))
        opened = [successor.open(f"s{slot}", slot) for slot in range(2)]
        for tx in (20, 30, 40):
            successor.append(shape_items((slot, texts_of(tx, "successor")) for slot in range(2)))
            successor.commit(Lsn(tx + 1))
            successor.loop.turn(idle=tx == 30 and has_files)
        had.extend(read(storage) for storage in opened)
        for storage in storages:  # the one that wakes drops them all
            storage.cleanup()

    monkeypatch.setattr(failpoints, "reach", reach)
    with contextlib.suppress(SourceBusyError):
        stopped.loop.turn(idle=True)
    with pytest.raises(SourceBusyError):
        stopped.loop.turn(idle=True)
    assert [len(each) for each in had] == [4, 4]
    last = reopened(successors[0], tmp_path)
    assert sorted(last.recover()) == ["s0", "s1"]
    assert last.position == Lsn(41)
    assert [read(last.open(f"s{slot}", slot)) for slot in range(2)] == had
    last.close()
    abandon(stopped)


def test_a_segment_of_the_commit_log_is_made_by_one_process_alone(store: ShapeStore) -> None:
    (store.files / "commits" / "000000000001.commits").write_bytes(b"another one's")
    with pytest.raises(FileExistsError):
        store.loop.log.begin_segment(0, 0)
    assert (store.files / "commits" / "000000000001.commits").read_bytes() == b"another one's"


def test_files_of_a_version_that_had_them_beside_the_lock_are_gone_on_with(
    store: ShapeStore, tmp_path: Path
) -> None:
    storage = ready_shape(store, "a", 0)
    storage.append_to_log(log_items(inserts(10)))
    store.commit(Lsn(11))
    store.loop.turn(idle=True)
    storage.append_to_log(log_items(inserts(20)))
    store.commit(Lsn(21))
    store.loop.turn()
    abandon(store)
    for name in ("commits", "shapes", "removed"):
        (store.files / name).rename(tmp_path / "store" / name)
    store.files.rmdir()
    for _ in range(2):
        again = ShapeStore(tmp_path / "store")
        assert list(again.recover()) == ["a"]
        assert again.position == Lsn(21)
        assert read(again.open("a", 0)) == texts([*inserts(10), *inserts(20)])
        abandon(again)
    assert not (tmp_path / "store" / "shapes").exists()


def test_a_shape_that_was_given_up_does_not_come_back_at_a_later_position(
    store: ShapeStore, tmp_path: Path
) -> None:
    """It gets nothing from then on, and the others do."""
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(2)]
    store.append(shape_items((slot, inserts(10)) for slot in range(2)))
    store.commit(Lsn(11))
    store.loop.turn()
    log = store.files / "shapes" / "s0" / "log"
    log.write_text("no directory")
    store.loop.turn(idle=True)
    assert storages[0].is_gone
    store.append(shape_items((slot, inserts(20)) for slot in range(2)))
    store.commit(Lsn(21))
    store.loop.turn()
    again = reopened(store, tmp_path / "store")
    assert list(again.recover()) == ["s1"]
    again.close()


def test_what_cannot_be_moved_away_holds_up_the_next_commit(
    store: ShapeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = ready_shape(store, "a", 0)
    store.commit(Lsn(11))
    store.start()
    assert store.wait_flushed(Lsn(11), 60)
    move = store.remove_directory

    def fail(handle: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, "remove_directory", fail)
    storage.cleanup()
    store.commit(Lsn(21))
    wait_until(lambda: store.problem is not None, "the write loop to say what is wrong")
    assert store.position == Lsn(11)
    monkeypatch.setattr(store, "remove_directory", move)
    assert store.wait_flushed(Lsn(21), 60)
    assert not (store.files / "shapes" / "a").exists()


def test_shapes_that_have_got_nothing_may_be_open_when_another_position_is_begun_at(
    store: ShapeStore,
) -> None:
    storage = store.open("a", 0)
    store.begin_at(Lsn(50))
    storage.make_new_snapshot().close(b"{}")
    storage.make_ready("{}")
    storage.append_to_log(log_items(inserts(60)))
    store.commit(Lsn(61))
    store.loop.turn()
    assert store.position == Lsn(61)
    assert len(read(storage)) == 1


# Bounds


def test_buffers_of_all_shapes_together_are_bounded(tmp_path: Path) -> None:
    """The engine waits for the disk instead of growing."""
    store = ShapeStore(tmp_path, buffer_bytes_max=1_000_000, segment_bytes_max=500_000)
    store.recover()
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(40)]
    store.start()
    most = 0
    for number in range(1, 101):
        store.append(shape_items((slot, inserts(10 * number, size=2000)) for slot in range(40)))
        store.commit(Lsn(10 * number + 1))
        most = max(most, store.loop.buffered_bytes)
    assert most <= 1_100_000
    assert store.wait_flushed(Lsn(1001), 60)
    assert len(read(storages[7])) == 100
    segments = list((store.files / "commits").iterdir())
    assert len(segments) <= 8
    store.close()


def test_an_idle_store_writes_all_shapes_files_and_needs_no_segment_but_the_last(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path, segment_bytes_max=1000)
    store.recover()
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(20)]
    store.start()
    for tx in (10, 20, 30):
        store.append(shape_items((slot, inserts(tx)) for slot in range(20)))
        store.commit(Lsn(tx + 1))
        assert store.wait_flushed(Lsn(tx + 1), 60)
    wait_until(lambda: len(list((store.files / "commits").iterdir())) == 1, "old segments to be removed", 30)
    assert store.loop.buffered_bytes == 0
    assert not any(storage.is_buffered(START) for storage in storages)
    store.close()
    again = ShapeStore(tmp_path)
    assert len(again.recover()) == 20
    assert again.position == Lsn(31)
    assert read(again.open("s5", 5)) == texts([*inserts(10), *inserts(20), *inserts(30)])
    again.close()


def test_a_transaction_larger_than_the_buffers_becomes_readable_at_its_end(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path, buffer_bytes_max=200_000, segment_bytes_max=100_000, chunk_bytes=50_000)
    store.recover()
    storage = ready_shape(store, "a", 0)
    store.commit(Lsn(9))
    store.start()
    for piece in range(50):
        storage.append_to_log(log_items(inserts(10, 20, size=1000, first=20 * piece), whole=False))
        store.commit(Lsn(9))
    assert store.loop.buffered_bytes <= 300_000
    assert storage.readable_offset == START
    storage.append_to_log(log_items(inserts(10, 1, first=1000)))
    store.commit(Lsn(11))
    assert store.wait_flushed(Lsn(11), 60)
    assert len(read(storage)) == 1001
    store.loop._stopping = True  # as if killed: nothing more is written
    store.close()
    again = ShapeStore(tmp_path, chunk_bytes=50_000)
    again.recover()
    recovered = again.open("a", 0)
    assert len(read(recovered)) == 1001
    assert len(read_in_chunks(recovered)) > 20
    again.close()


def test_what_is_cleaned_up_is_gone_at_once_and_others_go_on(store: ShapeStore) -> None:
    storages = [ready_shape(store, f"s{slot}", slot) for slot in range(2)]
    store.append(shape_items((slot, inserts(10)) for slot in range(2)))
    storages[0].cleanup()
    assert not (store.files / "shapes" / "s0").exists()
    store.append(shape_items((slot, inserts(20)) for slot in range(2)))
    storages[0].append_to_log(log_items(inserts(30)))
    store.commit(Lsn(21))
    store.loop.turn(idle=True)
    assert len(read(storages[1])) == 2
    assert store.loop.buffered_bytes == 0
    storages[1].cleanup()
    with pytest.raises(FileNotFoundError):
        read(storages[1])


def test_readers_miss_nothing_while_items_move_from_the_buffer_to_the_files(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path, chunk_bytes=2000)
    store.recover()
    storage: ShapeStorage = ready_shape(store, "a", 0)
    store.start()
    wrong: list[str] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            up_to = storage.readable_offset
            if read(storage, START, up_to) != texts([i for i in items if i.offset <= up_to]):
                wrong.append(str(up_to))

    items = [Item(tx, 0, "u", f"k{tx % 3}", {"c": str(tx)}, True) for tx in range(1, 1500)]
    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    for item in items:
        storage.append_to_log(log_items([item]))
        store.commit(Lsn(item.tx + 1))
        if item.tx % 50 == 0:
            store.wait_flushed(Lsn(item.tx + 1), 60)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert storage.files.chunks > 10
    store.close()


def test_a_shape_is_not_ready_before_the_commit_that_says_so(store: ShapeStore, tmp_path: Path) -> None:
    """Commits and files that are written in between know nothing of it."""
    storage = store.open("a", 0)
    storage.make_new_snapshot().close(b"{}")
    storage.append_to_log(log_items(inserts(10)))
    store.commit(Lsn(11))
    storage.make_ready("{}")
    store.loop.turn(idle=True)
    again = reopened(store, tmp_path / "store")
    assert again.recover() == {}
    again.close()


def test_whoever_waits_for_the_write_loop_is_told_that_it_has_ended(tmp_path: Path) -> None:
    store = ShapeStore(tmp_path)
    store.recover()
    store.start()
    store.close()
    with pytest.raises(OSError, match="closed"):
        store.loop.run_now(lambda: None)


def test_a_boundary_that_is_cut_short_leaves_the_one_before(store: ShapeStore, tmp_path: Path) -> None:
    storage = ready_shape(store, "a", 0)
    for tx in (10, 20, 30):
        storage.append_to_log(log_items(inserts(tx)))
        store.commit(Lsn(tx + 1))
        store.loop.turn(idle=True)
    path = store.files / "shapes" / "a" / "log" / "last_persisted_txn_offset.bin"
    boundary = bytearray(path.read_bytes())
    newest = boundary.index(struct.pack(">QQ", 30, 0))
    boundary[newest + 20 : newest + 40] = bytes(20)
    path.write_bytes(boundary)
    again = reopened(store, tmp_path / "store")
    again.recover()
    assert again.open("a", 0).files.boundary == LogOffset(20, 0)
    assert read(again._by_slot[0]) == texts([*inserts(10), *inserts(20), *inserts(30)])
    again.close()

"""What changes look like on the wire, against a plain renderer written from the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.stream import StreamId
from penstock.shapes.rendering.assembly import CLOSE, Assembled, assemble
from penstock.shapes.rendering.renderer import (
    DELETE,
    INSERT,
    UPDATE,
    Chosen,
    Rendered,
    View,
    distinct,
    render,
    render_keys,
)
from tests.shape_changes import Change, Row, changes_of

STREAM = StreamId("public", "t")
VIEW = View(STREAM, ("id", "a", "b"), ("id",))
FULL = View(STREAM, ("id", "a", "b"), ("id",), "full")


@dataclass(frozen=True)
class Item:
    tx: int
    op: int
    kind: str
    key: str
    message: dict[str, Any]

    def text(self, last: bool = False, extra: str = "") -> str:
        closed = self.message["headers"] | ({"last": True} if last else {})
        text = json.dumps(self.message | {"headers": closed}, ensure_ascii=False, separators=(",", ":"))
        end = ',"last":true}}' if last else "}}"
        return text.removesuffix(end) + extra + end


def told(view: View, changes: Sequence[Change]) -> Iterator[tuple[int, Item]]:
    """By the contract, item by item; with the index of the change it comes from."""
    for index, change in enumerate(changes):
        for item in _items(view, change):
            yield index, item


def _items(view: View, change: Change) -> Iterator[Item]:
    old, new = change.old or {}, change.new or {}
    if change.action == INSERT:
        yield _item(view, change, "insert", new, view.columns)
    elif change.action == DELETE:
        yield _item(view, change, "delete", old, _deleted(view))
    elif _key(view, old) != _key(view, new):
        yield _item(view, change, "delete", old, _deleted(view), {"key_change_to": _key(view, new)})
        inserted = {"key_change_from": _key(view, old)}
        yield _item(view, change, "insert", new, view.columns, inserted, op=change.op + 1)
    elif changed := [name for name in view.columns if old[name] != new[name]]:
        if view.replica == "full":
            before = {"old_value": {name: old[name] for name in changed}}
            yield _item(view, change, "update", new, view.columns, before=before)
        else:
            shown = [name for name in view.columns if name in view.key or name in changed]
            yield _item(view, change, "update", new, shown)


def _deleted(view: View) -> Sequence[str]:
    if view.replica == "full" or not view.has_primary_key:
        return view.columns
    return [name for name in view.columns if name in view.key]


def _item(
    view: View,
    change: Change,
    operation: str,
    row: Row,
    columns: Sequence[str],
    headers: dict[str, Any] | None = None,
    before: dict[str, Any] | None = None,
    op: int | None = None,
) -> Item:
    op = change.op if op is None else op
    message = {
        "key": _key(view, row),
        "value": {name: row[name] for name in columns},
        **(before or {}),
        "headers": {
            "operation": operation,
            "relation": [view.stream.namespace, view.stream.name],
            "txids": [change.xid % 2**32],
            "lsn": str(change.tx),
            "op_position": op,
            **(headers or {}),
        },
    }
    return Item(change.tx, op, operation[0], _key(view, row), message)


def _key(view: View, row: Row) -> str:
    names = [part.replace("/", "//").replace(".", "..") for part in (view.stream.namespace, view.stream.name)]
    values = [row[name] for name in view.key]
    parts = ["_" if value is None else '"' + value.replace("/", "//") + '"' for value in values]
    return "/".join([f'"{names[0]}"."{names[1]}"', *parts])


def rendered(view: View, columns: Sequence[str], changes: Sequence[Change]) -> Rendered:
    rows = np.arange(len(changes), dtype=np.int32)
    actions = np.array([change.action for change in changes], np.uint8)
    return render(changes_of(view.stream, columns, changes), view, rows, actions)


def pieces(ends: Sequence[int], data: Any) -> list[str]:
    return [bytes(data[start:end]).decode() for start, end in pairwise([0, *ends])]


def messages(view: View, *changes: Change) -> list[Any]:
    found = rendered(view, ("id", "a", "b"), changes)
    return [json.loads(text + CLOSE.decode()) for text in pieces(found.json_ends.tolist(), found.json)]


def headers(operation: str, **more: Any) -> dict[str, Any]:
    common = {"operation": operation, "relation": ["public", "t"], "txids": [123], "lsn": "26800664"}
    return common | {"op_position": 2} | more


OLD: Row = {"id": "1", "a": "x", "b": None}
NEW: Row = {"id": "1", "a": "y", "b": None}
MOVED: Row = {"id": "2", "a": "y", "b": None}


def test_an_update_tells_its_key_and_what_changed() -> None:
    expected = {"key": '"public"."t"/"1"', "value": {"id": "1", "a": "y"}, "headers": headers("update")}
    assert messages(VIEW, Change(UPDATE, OLD, NEW)) == [expected]


def test_replica_full_tells_the_row_and_what_changed_in_it() -> None:
    expected = {
        "key": '"public"."t"/"1"',
        "value": NEW,
        "old_value": {"a": "x"},
        "headers": headers("update"),
    }
    assert messages(FULL, Change(UPDATE, OLD, NEW)) == [expected]


def test_a_changed_key_is_a_delete_and_an_insert_that_name_each_other() -> None:
    one, two = '"public"."t"/"1"', '"public"."t"/"2"'
    assert messages(VIEW, Change(UPDATE, OLD, MOVED)) == [
        {"key": one, "value": {"id": "1"}, "headers": headers("delete", key_change_to=two)},
        {"key": two, "value": MOVED, "headers": headers("insert", op_position=3, key_change_from=one)},
    ]


def test_rows_that_move_in_or_out_of_a_shape_are_inserts_and_deletes() -> None:
    moved = messages(VIEW, Change(INSERT, OLD, NEW), Change(DELETE, OLD, MOVED, op=4))
    assert [message["headers"]["operation"] for message in moved] == ["insert", "delete"]
    assert [message["value"] for message in moved] == [NEW, {"id": "1"}]
    assert moved[1]["key"] == '"public"."t"/"1"'


def test_an_update_that_changes_nothing_selected_is_not_told() -> None:
    narrow = View(STREAM, ("id", "b"), ("id",))
    assert messages(narrow, Change(UPDATE, OLD, NEW)) == []
    kept = render(
        changes_of(STREAM, ("id", "a", "b"), [Change(UPDATE, OLD, NEW)]),
        narrow,
        np.zeros(1, np.int32),
        np.array([UPDATE], np.uint8),
        keep_unchanged=True,
    )
    assert json.loads(bytes(kept.json) + CLOSE)["value"] == {"id": "1"}


def test_without_a_primary_key_unselected_columns_are_in_the_key_and_their_changes_are_told() -> None:
    view = View(STREAM, ("id",), ("id", "a", "b"), has_primary_key=False)
    deleted, inserted = messages(view, Change(UPDATE, OLD, NEW))
    assert deleted["key"] == '"public"."t"/"1"/"x"/_'
    assert inserted["key"] == deleted["headers"]["key_change_to"] == '"public"."t"/"1"/"y"/_'
    assert deleted["value"] == inserted["value"] == {"id": "1"}


def test_transaction_ids_are_the_32_bits_that_clients_know() -> None:
    (message,) = messages(VIEW, Change(INSERT, None, NEW, xid=2**40 + 7))
    assert message["headers"]["txids"] == [7]


def test_names_in_keys_have_slashes_and_dots_doubled() -> None:
    keys = render_keys(StreamId("a.b", "c/d"), [pa.array(["x/y", None, ""]), pa.array(['"', "é", None])])
    assert [key.decode() for key in keys.to_pylist()] == [
        '"a..b"."c//d"/"x//y"/"""',
        '"a..b"."c//d"/_/"é"',
        '"a..b"."c//d"/""/_',
    ]


def test_a_value_larger_than_all_others_together_fits() -> None:
    large: Row = {"id": "\x01/" * 50_000, "a": '"' * 300_000, "b": "\x02" * 100_000}
    changes = [Change(INSERT, None, NEW), Change(UPDATE, large, {**large, "id": "3"}, op=4)]
    found = rendered(FULL, ("id", "a", "b"), changes)
    expected = [item.text() for _, item in told(FULL, changes)]
    assert [text + "}}" for text in pieces(found.json_ends.tolist(), found.json)] == expected


NAMES = ("id", "_b", 'c"\\', "é/.", "d")
VALUES = st.none() | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from('/"\\\n\x1f\x7f'),
    max_size=12,
)


@st.composite
def views(draw: st.DrawFn) -> View:
    stream = StreamId(draw(st.sampled_from(["public", 'a/"b.c'])), draw(st.sampled_from(["t", "ü."])))
    has_key = draw(st.booleans())
    key = draw(st.permutations(NAMES).map(tuple)) if has_key else NAMES
    key = key[: draw(st.integers(1, 2))] if has_key else key
    chosen = draw(st.sets(st.sampled_from(NAMES), min_size=1)) | (set(key) if has_key else set())
    columns = tuple(name for name in NAMES if name in chosen)
    return View(stream, columns, key, draw(st.sampled_from(["default", "full"])), has_key)


@st.composite
def histories(draw: st.DrawFn, max_size: int = 12) -> list[Change]:
    """Changes in the order of (tx, op)."""
    made: list[Change] = []
    tx, op = draw(st.integers(1, 2**62)), 0
    for _ in range(draw(st.integers(0, max_size))):
        if draw(st.booleans()):
            tx, op = tx + draw(st.integers(1, 1000)), -2
        op += 2 * draw(st.integers(1, 3))
        kind = draw(st.sampled_from("iud"))
        old = {name: draw(VALUES) for name in NAMES}
        new = {name: draw(VALUES) if draw(st.booleans()) else old[name] for name in NAMES}
        if kind == "u":
            action = draw(st.sampled_from([INSERT, UPDATE, UPDATE, DELETE]))
        else:
            action = INSERT if kind == "i" else DELETE
        xid = draw(st.integers(0, 2**63))
        made.append(Change(action, old if kind != "i" else None, new if kind != "d" else None, tx, op, xid))
    return made


@given(views(), histories())
def test_items_are_what_the_contract_says(view: View, changes: list[Change]) -> None:
    found = rendered(view, NAMES, changes)
    expected = list(told(view, changes))
    assert [text + "}}" for text in pieces(found.json_ends.tolist(), found.json)] == [
        item.text() for _, item in expected
    ]
    assert pieces(found.key_ends.tolist(), found.keys) == [item.key for _, item in expected]
    assert found.tx.tolist() == [item.tx for _, item in expected]
    assert found.op.tolist() == [item.op for _, item in expected]
    assert [chr(letter) for letter in found.kind] == [item.kind for _, item in expected]
    assert found.source.tolist() == [index for index, _ in expected]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3))))
def test_distinct_changes_are_rendered_once(pairs: list[tuple[int, int]]) -> None:
    given_rows = np.array([row for row, _ in pairs], np.int32)
    given_actions = np.array([action for _, action in pairs], np.uint8)
    rows, actions, positions = distinct(given_rows, given_actions)
    assert list(zip(rows.tolist(), actions.tolist(), strict=True)) == sorted(set(pairs))
    assert rows[positions].tolist() == given_rows.tolist()
    assert actions[positions].tolist() == given_actions.tolist()


@st.composite
def audiences(draw: st.DrawFn, changes: Sequence[Change]) -> dict[int, list[int]]:
    """By slot, the changes it gets."""
    chosen = st.sets(st.integers(0, len(changes) - 1)) if changes else st.just(set[int]())
    return {slot: sorted(draw(chosen)) for slot in draw(st.sets(st.integers(0, 100), max_size=4))}


def choose(view: View, changes: Sequence[Change], among: range, audience: dict[int, list[int]]) -> Chosen:
    """What one piece, some of the changes, gives to the slots."""
    pairs = [(slot, index) for slot in sorted(audience) for index in audience[slot] if index in among]
    piece = rendered(view, NAMES, [changes[index] for index in among])
    slots = np.array([slot for slot, _ in pairs], np.int32)
    return piece.choose(slots, np.array([among.index(index) for _, index in pairs], np.int32))


def written(assembled: Assembled) -> dict[int, list[tuple[int, int, str, str, str]]]:
    """By slot: tx, op, kind, key, JSON."""
    found = {}
    for slot, items in assembled.by_slot():
        texts = pieces(items.json_ends.tolist(), items.json)
        kinds = [chr(letter) for letter in items.kind]
        keys = pieces(items.key_ends.tolist(), items.keys)
        found[slot] = list(zip(items.tx.tolist(), items.op.tolist(), kinds, keys, texts, strict=True))
        last = found[slot][-1]
        if assembled.items.whole:
            assert items.boundary is not None
            assert (items.boundary.tx, items.boundary.op) == last[:2]
        else:
            assert items.boundary is None
    return found


def expected_of(
    view: View, changes: Sequence[Change], audience: dict[int, list[int]]
) -> dict[int, list[tuple[int, int, str, str, str]]]:
    found = {}
    for slot, chosen in audience.items():
        items = [item for _, item in told(view, [changes[index] for index in chosen])]
        ends = [item.tx != following.tx for item, following in pairwise(items)] + [True]
        if items:
            found[slot] = [
                (item.tx, item.op, item.kind, item.key, item.text(last=end))
                for item, end in zip(items, ends, strict=True)
            ]
    return found


@given(st.data(), views(), histories(), st.integers(1, 3))
def test_each_shape_gets_its_items_in_order_with_the_last_of_each_transaction_marked(
    data: st.DataObject, view: View, changes: list[Change], leaves: int
) -> None:
    audience = data.draw(audiences(changes))
    pieces_of_leaves = [
        choose(view, changes, range(leaf, len(changes), leaves), audience) for leaf in range(leaves)
    ]
    assembled = assemble(pieces_of_leaves)
    assert assembled.held is None
    assert written(assembled) == expected_of(view, changes, audience)


@given(st.data(), views(), histories(), st.integers(1, 4))
def test_a_transaction_in_fragments_gives_what_it_gives_whole(
    data: st.DataObject, view: View, changes: list[Change], size: int
) -> None:
    changes = [
        Change(change.action, change.old, change.new, 77, 2 * index, change.xid)
        for index, change in enumerate(changes)
    ]
    audience = data.draw(audiences(changes))
    found: dict[int, list[tuple[int, int, str, str, str]]] = {}
    held: list[Chosen] = []
    for start in range(0, len(changes) + 1, size):
        is_last = start + size > len(changes)
        fragment = choose(view, changes, range(start, min(start + size, len(changes))), audience)
        assembled = assemble([*held, fragment], open=not is_last)
        held = [assembled.held] if assembled.held else []
        for slot, items in written(assembled).items():
            found.setdefault(slot, []).extend(items)
        if is_last:
            assert set(found) == set(assembled.items.slots.tolist()), "each has its boundary now"
    assert not held
    assert found == expected_of(view, changes, audience)


@pytest.mark.parametrize("fragmented", [False, True])
def test_headers_of_a_shape_alone_stand_in_its_items(fragmented: bool) -> None:
    changes = [Change(UPDATE, OLD, MOVED)]
    found = rendered(VIEW, ("id", "a", "b"), changes)
    chosen = found.choose(np.array([5, 6], np.int32), np.zeros(2, np.int32))
    assert chosen.choices.tolist() == [0, 0, 1, 1]
    tagged = chosen.with_extra(
        pa.array([b"?", b',"tags":["a"]', b"", b"", b',"tags":["b"]'], pa.binary())[1:]
    )
    assembled = assemble([tagged], open=fragmented)
    texts = [text for items in written(assembled).values() for *_, text in items]
    if fragmented:
        assert assembled.held is not None
        last = written(assemble([assembled.held]))
        texts = [texts[0], last[5][0][-1], texts[1], last[6][0][-1]]
    deleted, inserted = (item for _, item in told(VIEW, changes))
    assert texts == [
        deleted.text(extra=',"tags":["a"]'),
        inserted.text(last=True),
        deleted.text(),
        inserted.text(last=True, extra=',"tags":["b"]'),
    ]


def test_nothing_chosen_gives_nothing() -> None:
    assert written(assemble([])) == {}
    assert (
        len(assemble([rendered(VIEW, ("id", "a", "b"), []).choose(*np.empty((2, 0), np.int32))]).items.tx)
        == 0
    )

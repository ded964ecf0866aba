"""A stream that holds some rows: whoever applies its events has exactly those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.core.selection import Selection
from penstock.core.where import Condition
from penstock.streams.selection import StreamSelection
from tests.logged_rows import changes_of, schema_of

SCHEMA = schema_of("public.t", {"id": "text", "v": "text", "big": "text"}, key=["id"])


def selection(where: str | None, *columns: str) -> StreamSelection:
    condition = None if where is None else Condition.compile(where, SCHEMA.columns)
    return StreamSelection(SCHEMA.stream, Selection(columns, condition), SCHEMA.key)


def letters(found: Any) -> str:
    return "".join(chr(each) if each else "-" for each in found)


def test_without_a_condition_operations_say_what_changes_are() -> None:
    changes = changes_of(SCHEMA, [{"_op": "i", "id": "1"}])
    assert selection(None).actions(changes) is None


def test_columns_are_in_the_order_of_the_table() -> None:
    changes = changes_of(SCHEMA, [{"_op": "i", "id": "1"}])
    assert selection(None, "v", "id").columns(changes) == ("id", "v")
    assert selection(None).columns(changes) == ("id", "v", "big")


def test_updates_that_cross_the_filter_become_creates_and_deletes() -> None:
    def update(old: str, new: str) -> dict[str, Any]:
        return {"_op": "u", "id": "1", "v": new, "_old": {"id": "1", "v": old}, "_old_kind": "f"}

    rows = [
        update("a", "a"), update("a", "b"), update("b", "a"), update("b", "b"),
        {"_op": "i", "id": "1", "v": "a"}, {"_op": "i", "id": "1", "v": None},
        {"_op": "d", "_old": {"id": "1", "v": "a"}, "_old_kind": "f"},
        {"_op": "d", "_old": {"id": "1", "v": "b"}, "_old_kind": "f"},
        {"_op": "d", "_old": {"id": "1"}, "_old_kind": "k"},
        {"_op": "u", "id": "1", "v": "a"}, {"_op": "u", "id": "1", "v": "b"},
        {"_op": "t"}, {"_op": "r", "id": "1", "v": "a"},
    ]  # fmt: skip
    assert letters(selection("v = 'a'").actions(changes_of(SCHEMA, rows))) == "udc-c-d-dudtr"


def test_a_filter_on_the_key_knows_every_old_row() -> None:
    moved = {"_op": "u", "id": "b", "_old": {"id": "a"}, "_old_kind": "k"}
    rows: list[dict[str, Any]] = [
        moved,
        {"_op": "u", "id": "a"},
        {"_op": "u", "id": "b"},
        {"_op": "d", "_old": {"id": "b"}, "_old_kind": "k"},
    ]
    assert letters(selection("id = 'a'").actions(changes_of(SCHEMA, rows))) == "du--"


def test_a_value_that_the_filter_reads_and_nobody_sent_is_an_error() -> None:
    rows = [{"_op": "u", "id": "1", "_unchanged": ["big"]}]
    assert letters(selection("v = 'a'").actions(changes_of(SCHEMA, rows))) == "d"
    with pytest.raises(SourceError, match="did not carry the value of big"):
        selection("big = 'a'").actions(changes_of(SCHEMA, rows))


def test_an_update_of_a_document_that_is_gone_is_told_where_the_document_before_was_inside() -> None:
    columns = tuple(replace(column, family="mongodb") for column in SCHEMA.columns)
    gone = {"_op": "u", "_unchanged": ["v", "big"]}

    def before(value: str) -> dict[str, Any]:
        return {"_old": {"id": "1", "v": value}, "_old_kind": "f"}

    rows: list[dict[str, Any]] = [
        {"_op": "i", "id": "1", "v": "a"},
        {"_op": "u", "id": "1", "v": "b", "_unchanged": [], **before("a")},
        {**gone, "id": "1", **before("a")},
        {**gone, "id": "1", **before("b")},
        {**gone, "id": "1"},
        {"_op": "d", "_old": {"id": "1"}, "_old_kind": "k"},
    ]
    found = selection("v = 'a'").actions(changes_of(replace(SCHEMA, columns=columns), rows))
    assert letters(found) == "cdu--d"


def test_an_update_without_what_the_filter_reads_is_found_where_sessions_leave_values_out() -> None:
    columns = tuple(replace(column, family="mysql") for column in SCHEMA.columns)
    rows: list[dict[str, Any]] = [
        {"_op": "u", "id": "1", "v": "a", "_unchanged": ["big"]},
        {"_op": "u", "id": "1", "big": "x", "_unchanged": ["v"]},
        {"_op": "u", "id": "1", "v": "a"},
        {"_op": "u", "id": "2", "_unchanged": ["big", "v"]},
    ]
    changes = changes_of(replace(SCHEMA, columns=columns), rows)
    assert selection("v = 'a'").undecided(changes) == (101, 103)
    assert selection("v = 'a'").undecided(changes.slice(2, 3)) == ()
    assert selection("id = '1'").undecided(changes) == selection(None).undecided(changes) == ()
    with pytest.raises(SourceError, match="leaves such values out"):
        selection("v = 'a'").actions(changes)


Row = tuple[str, str | None]


@given(
    full=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from("iud"), st.sampled_from("123"), st.sampled_from("123"), st.sampled_from("abc")
        ),
        max_size=30,
    ),
)
def test_events_lead_to_the_rows_that_are_inside(full: bool, steps: list[tuple[str, str, str, str]]) -> None:
    rows: dict[str, str] = {}
    logged: list[dict[str, Any]] = []
    for op, key, other, value in steps:
        if op == "i" and key not in rows:
            rows[key] = value
            logged.append({"_op": "i", "id": key, "v": value})
        elif op == "u" and key in rows and (other == key or other not in rows):
            old = {"id": key, "v": rows.pop(key)}
            rows[other] = value
            kind = "f" if full else "k" if other != key else "n"
            sent = old if full else {"id": key} if other != key else None
            logged.append({"_op": "u", "id": other, "v": value, "_old": sent, "_old_kind": kind})
        elif op == "d" and key in rows:
            old = {"id": key, "v": rows.pop(key)}
            sent, kind = (old, "f") if full else ({"id": key}, "k")
            logged.append({"_op": "d", "_old": sent, "_old_kind": kind})
    held: dict[str, str] = {}
    actions = selection("v <> 'c'").actions(changes_of(SCHEMA, logged))
    for change, action in zip(logged, letters(actions), strict=True):
        old_key: Any = (
            (change["_old"] or {}).get("id") or change.get("id") if "_old" in change else change["id"]
        )
        if action in "ud":
            held.pop(old_key, None)
        if action in "cu":
            assert action == "u" or not full or change["id"] not in held
            held[change["id"]] = change["v"]
    assert held == {key: value for key, value in rows.items() if value != "c"}

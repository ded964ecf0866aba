"""A filter on changes keeps a table that equals the filtered source, whatever rows do and whatever is sent.

The model is a table at the source: random writes to it, as the log shows them, and the table that follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.destinations.records import WriteMode
from penstock.lake.append import append_rows
from penstock.lake.changes import ConformedChanges, conform
from penstock.lake.evolve import ColumnSource
from penstock.lake.filtering import only_inside
from penstock.lake.fold import fold
from penstock.lake.soft_fold import complete_softly, fold_softly
from penstock.lake.target import Target
from tests.logged_rows import with_entries_beneath_a_null

NAMES = ("id", "v", "n")
SCHEMA = TableSchema(
    StreamId("public", "t"),
    tuple(SourceColumn(name, 25, -1, "text", "text", at + 1) for at, name in enumerate(NAMES)),
    ("id",),
)
DOCUMENTS = replace(
    SCHEMA,
    columns=tuple(
        SourceColumn(name, 2, -1, "text", "string", at + 1, family="mongodb") for at, name in enumerate(NAMES)
    ),
)
COLUMNS = [ColumnSource(name, name) for name in NAMES]
Row = tuple[str, str | None, str | None]


@dataclass
class Log:
    """What the source logs, with whole old rows or with keys alone."""

    full: bool
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, op: str, old: Row | None, new: Row | None) -> None:
        kind = "n"
        sent: dict[str, str | None] | None = None
        if old is not None and self.full:
            kind, sent = "f", dict(zip(NAMES, old, strict=True))
        elif old is not None and (new is None or new[0] != old[0]):
            kind, sent = "k", {"id": old[0], "v": None, "n": None}
        values = dict(zip(NAMES, new or (None,) * 3, strict=True))
        own = {"_op": op, "_old": sent, "_old_kind": kind, "_unchanged": None}
        self.rows.append({**values, **own, "_tx": len(self.rows), "_op_index": 0, "_commit_ts": 0})

    def gone(self, key: str, old: Row | None = None) -> None:
        """An update of a document that was not there any more when it was looked up."""
        self.add("u", None, (key, None, None))
        self.rows[-1]["_unchanged"] = ["v", "n"]
        if old is not None:
            self.rows[-1] |= {"_old_kind": "f", "_old": dict(zip(NAMES, old, strict=True))}

    def conformed(self) -> ConformedChanges:
        types = {
            "_tx": pa.int64(),
            "_op_index": pa.int64(),
            "_commit_ts": pa.timestamp("us", "UTC"),
            "_old": pa.struct([(name, pa.string()) for name in NAMES]),
            "_unchanged": pa.list_(pa.string()),
        }
        names = [*NAMES, "_op", "_old", "_old_kind", "_unchanged", "_tx", "_op_index", "_commit_ts"]
        schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
        # As they are read from a log: a slice of a larger file.
        before = dict.fromkeys(names) | {"id": "before", "_op": "i", "_old_kind": "n"}
        table = pa.Table.from_pylist([before, *self.rows], schema).slice(1)
        return conform(table, COLUMNS, SCHEMA)


def write(log: Log, steps: Iterable[tuple[int, int, str | None, str]]) -> dict[str, Row]:
    """Inserts, updates (also of the key) and deletes; the table as the source has it afterwards."""
    table: dict[str, Row] = {}
    for first, second, value, note in steps:
        key, other = str(first), str(second)
        if key not in table:
            table[key] = (key, value, note)
            log.add("i", None, table[key])
        elif note == "delete":
            log.add("d", table.pop(key), None)
        elif other == key or other not in table:
            old = table.pop(key)
            table[other] = (other, value, note)
            log.add("u", old, table[other])
    return table


STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from(["a", "b", None]),
        st.sampled_from(["x", "delete"]),
    ),
    max_size=40,
)


def inside(condition: str, rows: Iterable[Row]) -> set[Row]:
    return {row for row in rows if (row[1] == "a" if condition == "v = 'a'" else row[0] >= "2")}


def filtered(
    log: Log, condition: str, write: WriteMode = "upsert", schema: TableSchema = SCHEMA
) -> ConformedChanges:
    return only_inside(log.conformed(), Condition.compile(condition, schema.columns), schema, write)


def test_a_name_beneath_a_null_list_is_renamed_for_no_row() -> None:
    log = Log(full=False)
    for key in "123":
        log.add("u", None, (key, None, None))
    changes = log.conformed()
    place = changes.log.column_names.index("_unchanged")
    lists = with_entries_beneath_a_null(["v", "n", "n"])
    changes = replace(changes, log=changes.log.set_column(place, "_unchanged", pa.chunked_array([lists])))
    renamed = changes.changes(
        changes.text, changes.old.select(["id"]), Target(SCHEMA, "upsert", {"v": "w"}), None
    ).unchanged
    assert renamed is not None
    assert renamed.to_pylist() == [["w"], None, ["n"]]


@given(steps=STEPS, full=st.booleans(), condition=st.sampled_from(["v = 'a'", "id >= '2'"]))
def test_an_upsert_table_holds_the_rows_inside(steps: Any, full: bool, condition: str) -> None:
    log = Log(full)
    source = write(log, steps)
    if not log.rows:
        return
    changes = filtered(log, condition)
    target = Target(SCHEMA, "upsert")
    folded = fold(changes.changes(changes.text, changes.old.select(["id"]), target, None), ["id"], False)
    assert {tuple(row.values()) for row in folded.rows.to_pylist()} == inside(condition, source.values())


@given(steps=STEPS, full=st.booleans())
def test_an_append_table_tells_the_history_of_the_rows_inside(steps: Any, full: bool) -> None:
    """A key that was never inside is never told of; with the filter on the key, old rows are not needed."""
    condition = "v = 'a'" if full else "id >= '2'"
    log = Log(full)
    source = write(log, steps)
    if not log.rows:
        return
    changes = filtered(log, condition, "append")
    old = changes.old if full else changes.old.select(["id"])
    told = append_rows(changes.changes(changes.text, old, Target(SCHEMA, "append"), None), ["id"])
    held: dict[str, Row] = {}
    for row in told.to_pylist():
        if row["_op"] == "i":
            assert row["id"] not in held
            held[row["id"]] = (row["id"], row["v"], row["n"])
        elif row["_op"] == "u":
            assert row["id"] in held
            held[row["id"]] = (row["id"], row["v"], row["n"])
        else:
            gone = held.pop(row["id"])
            of_a_move = row["n"] is None  # which tells the old key alone
            assert of_a_move or gone == (row["id"], row["v"], row["n"])
    assert set(held.values()) == inside(condition, source.values())


def test_a_truncate_passes_and_a_value_that_was_not_sent_is_never_guessed() -> None:
    log = Log(full=False)
    log.add("t", None, None)
    log.add("u", None, ("1", None, "x"))
    assert filtered(log, "v = 'a'").op.tolist() == [ord("t"), ord("d")]
    log.rows[1]["_unchanged"] = ["v"]
    with pytest.raises(SourceError, match="did not carry the value of v"):
        filtered(log, "v = 'a'")
    assert filtered(log, "id = '1'").op.tolist() == [ord("t"), ord("u")]


def test_an_update_that_goes_out_names_the_old_key_and_lacks_nothing() -> None:
    log = Log(full=False)
    log.add("u", ("1", "a", "x"), ("2", "b", "x"))
    log.add("u", ("3", "a", "x"), ("3", "b", "x"))
    log.rows[0]["_unchanged"] = ["n"]
    changes = filtered(log, "v = 'a'")
    assert changes.old.column("id").to_pylist() == ["1", "3"]
    assert changes.log.column("_unchanged").to_pylist() == [None, None]
    assert np.array_equal(changes.op, [ord("d"), ord("d")])


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("iiuuud"), st.integers(1, 3), st.sampled_from("ab"), st.integers(0, 6)),
        max_size=30,
    ),
    cut=st.integers(1, 5),
    full=st.booleans(),
    condition=st.sampled_from(["v = 'a'", "id >= '2'"]),
)
def test_documents_that_are_looked_up_later_or_are_gone_by_then_end_right_and_never_show_what_was_not(
    steps: list[tuple[str, int, str, int]], cut: int, full: bool, condition: str
) -> None:
    """Each update shows its document as it was some steps later; a table follows a few changes at a time."""
    told: list[tuple[str, str, Row | None, int]] = []
    after: list[dict[str, Row]] = [{}]
    for number, (op, at, value, later) in enumerate(steps):
        table, key = dict(after[-1]), str(at)
        old = table.get(key)
        if (op == "i") == (old is not None):
            continue
        if op == "d":
            del table[key]
        else:
            table[key] = (key, value, str(number))
        after.append(table)
        told.append((op, key, old, later))
    had = {row for table in after for row in table.values()}
    held: dict[str, Row] = {}
    for begin in range(0, len(told), cut):
        log = Log(full)
        for number, (op, key, old, later) in list(enumerate(told, 1))[begin : begin + cut]:
            shown = after[number if op == "i" else min(number + later, len(after) - 1)].get(key)
            if op == "u" and shown is None:
                log.gone(key, old if full else None)
            else:
                log.add(op, old, None if op == "d" else shown)
        changes = filtered(log, condition, "upsert", DOCUMENTS)
        target = Target(DOCUMENTS, "upsert")
        folded = fold(changes.changes(changes.text, changes.old.select(["id"]), target, None), ["id"], False)
        assert folded.pending is None
        for row in folded.keys.to_pylist():
            held.pop(row["id"], None)
        held |= {row["id"]: (row["id"], row["v"], row["n"]) for row in folded.rows.to_pylist()}
        assert set(held.values()) <= inside(condition, had)
    assert set(held.values()) == inside(condition, after[-1].values())


@pytest.mark.parametrize("condition", ["v = 'a'", "id = '1'"])
def test_an_update_of_a_document_that_is_gone_is_told_where_the_document_before_was_inside(
    condition: str,
) -> None:
    log = Log(full=True)
    log.gone("1", ("1", "a", "x"))
    log.gone("2", ("2", "b", "x"))
    log.gone("3")
    log.add("d", ("1", "a", "y"), None)
    changes = filtered(log, condition, "append", DOCUMENTS)
    told = append_rows(
        changes.changes(changes.text, changes.old, Target(DOCUMENTS, "append"), None), ["id"]
    ).to_pylist()
    assert [(row["_op"], row["id"], row["v"], row["_unchanged"]) for row in told] == [
        ("u", "1", None, ["v", "n"]),
        ("d", "1", "a", None),
    ]


def test_a_deleted_row_keeps_the_last_state_that_was_known_of_it() -> None:
    log = Log(full=False)
    log.gone("1")
    log.gone("2")
    log.add("d", ("1", "b", "x"), None)
    log.add("d", ("2", "b", "x"), None)
    changes = filtered(log, "v = 'a'", "upsert", DOCUMENTS)
    target = Target(DOCUMENTS, "upsert", soft_deletes=True)
    folded = fold_softly(
        changes.changes(changes.text, changes.old.select(["id"]), target, None), ["id"], False
    )
    assert folded.pending is not None
    of_table = pa.table({"id": ["1"], "v": ["a"], "n": ["x"]})
    of_table = of_table.append_column("_deleted_at", pa.nulls(1, pa.timestamp("us", "UTC")))
    done = complete_softly(folded.pending, of_table)
    assert [(row["id"], row["v"], row["n"]) for row in done.rows.to_pylist()] == [("1", "a", "x")]
    assert all(row["_deleted_at"] is not None for row in done.rows.to_pylist())
    assert done.unresolved.num_rows == 0

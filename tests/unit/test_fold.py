"""Folding batches into a table gives the table the source has, whatever happened and however it is cut."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.lake.fold import Changes, Folded, Pending, append_rows, complete, fold
from penstock.lake.pending import missing_by_column
from tests.logged_rows import with_entries_beneath_a_null

NAMES = pa.list_(pa.string())
Key = tuple[Any, ...]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class KeyKind:
    """A kind of key: its fields, and the n-th key."""

    fields: tuple[pa.Field, ...]
    make: Callable[[int], Key]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.fields]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                *self.fields,
                pa.field("a", pa.int64()),
                pa.field("body", pa.string()),
                pa.field("note", pa.string()),
            ]
        )


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KINDS = {
    "bigint": KeyKind((pa.field("id", pa.int64()),), lambda n: (n * (2**61) - 2**62,)),
    "text": KeyKind((pa.field("id", pa.string()),), lambda n: ("k" * n,)),
    "uuid": KeyKind((pa.field("id", pa.string()),), lambda n: (f"{n:08x}-0000-4000-8000-000000000000",)),
    "decimal": KeyKind((pa.field("id", pa.decimal128(10, 2)),), lambda n: (Decimal(n - 2) / 4,)),
    "wide decimal": KeyKind((pa.field("id", pa.decimal128(38, 2)),), lambda n: (Decimal(10**30 * (n - 2)),)),
    "timestamp": KeyKind(
        (pa.field("id", pa.timestamp("us", "UTC")),), lambda n: (_EPOCH + dt.timedelta(hours=n),)
    ),
    "date": KeyKind((pa.field("id", pa.date32()),), lambda n: (dt.date(2024, 1, 1 + n),)),
    "float": KeyKind(
        (pa.field("id", pa.float64()),), lambda n: ([math.nan, 0.0, math.inf, 1.5, -math.inf][n],)
    ),
    "composite": KeyKind(
        (pa.field("x", pa.int32()), pa.field("y", pa.string())), lambda n: (n % 2, ["a", "b", "a\0"][n // 2])
    ),
}


@dataclass
class Change:
    op: str
    tx: int
    op_index: int
    key: Key | None = None
    values: tuple[Any, ...] | None = None  # a, body, note; None: not sent
    old_key: Key | None = None
    unchanged: tuple[str, ...] = ()
    bad: bool = False


@dataclass
class Source:
    """A table with a key that may be deferrable, and the changes its log would tell."""

    kind: KeyKind
    rows: dict[int, list[list[Any]]] = field(default_factory=dict)  # live rows by number of key, oldest first
    log: list[Change] = field(default_factory=list)
    tx: int = 0
    counter: int = 0

    def begin(self) -> None:
        self.tx += 1

    def _tell(self, op: str, **arguments: Any) -> None:
        self.log.append(Change(op, self.tx, 2 * len(self.log), **arguments))

    def _next(self) -> int:
        self.counter += 1
        return self.counter

    def insert(self, key: int) -> None:
        values = [self._next(), f"b{self.counter}", None]
        self.rows.setdefault(key, []).append(values)
        self._tell("i", key=self.kind.make(key), values=tuple(values))

    def update(self, key: int, new_key: int, sent: tuple[bool, bool]) -> None:
        values = self.rows[key].pop(0)
        values[0] = self._next()
        unchanged = []
        for position, name in ((1, "body"), (2, "note")):
            if sent[position - 1]:
                values[position] = f"{name}{self.counter}"
            else:
                unchanged.append(name)
        self.rows.setdefault(new_key, []).append(values)
        shown = tuple(
            None if name in unchanged else value
            for name, value in zip(("a", "body", "note"), values, strict=True)
        )
        old = self.kind.make(key) if key != new_key else None
        self._tell("u", key=self.kind.make(new_key), values=shown, old_key=old, unchanged=tuple(unchanged))

    def delete(self, key: int) -> None:
        self.rows[key].pop(0)
        self._tell("d", old_key=self.kind.make(key))

    def truncate(self) -> None:
        self.rows.clear()
        self._tell("t")

    def live(self, key: int) -> int:
        return len(self.rows.get(key, []))

    def table(self) -> dict[Key, Row]:
        return {comparable(self.kind.make(key)): tuple(rows[0]) for key, rows in self.rows.items() if rows}


def comparable(key: Key) -> Key:
    return tuple("NaN" if isinstance(part, float) and math.isnan(part) else part for part in key)


def changes_of(log: list[Change], kind: KeyKind, chunks: int = 1) -> Changes:
    empty: tuple[Any, ...] = (None,) * 3
    nothing: Key = (None,) * len(kind.fields)
    rows = [(each.key or nothing) + (each.values or empty) for each in log]
    old = [each.old_key or each.key or nothing for each in log]
    schema = kind.schema
    arrays = [pa.array([row[n] for row in rows], schema.field(n).type) for n in range(len(schema))]
    old_arrays = [pa.array([key[n] for key in old], kind.fields[n].type) for n in range(len(kind.fields))]
    bad = np.array([each.bad for each in log], np.bool_)
    whole = Changes(
        rows=pa.table(arrays, schema=schema),
        old_key=pa.table(old_arrays, schema=pa.schema(kind.fields)),
        op=np.array([ord(each.op) for each in log], np.uint8),
        tx=np.array([each.tx for each in log], np.int64),
        op_index=np.array([each.op_index for each in log], np.int64),
        unchanged=pa.array([list(each.unchanged) or None for each in log], NAMES)
        if any(e.unchanged for e in log)
        else None,
        bad=bad if bad.any() else None,
    )
    size = len(log)
    parts = [whole.filter(np.arange(size) * chunks // max(size, 1) == n) for n in range(chunks)]
    return Changes.concatenate(parts) or whole


@dataclass
class Target:
    """A table that is changed by folds alone."""

    kind: KeyKind
    rows: dict[Key, Row] = field(default_factory=dict)
    unresolved: list[dict[str, Any]] = field(default_factory=list)

    def arrow(self) -> pa.Table:
        schema = self.kind.schema
        width = len(self.kind.fields)
        tuples = [
            tuple(
                math.nan if part == "NaN" and pa.types.is_floating(self.kind.fields[n].type) else part
                for n, part in enumerate(key)
            )
            + row
            for key, row in self.rows.items()
        ]
        assert all(len(row) == width + 3 for row in tuples)
        return pa.table(
            [pa.array([row[n] for row in tuples], schema.field(n).type) for n in range(len(schema))],
            schema=schema,
        )

    def apply(self, folded: Folded, *, again: bool = False) -> None:
        before = self.arrow().slice(0, 0) if folded.truncated else self.arrow()
        if folded.truncated:
            self.rows.clear()
        keys = [comparable(key) for key in tuples_of(folded.keys)]
        assert len(keys) == len(set(keys)), "touched keys are distinct"
        for key in keys:
            self.rows.pop(key, None)
        self._add(folded.rows)
        if folded.pending is not None:
            pending = Pending.from_table(folded.pending.to_table())
            pending = pending.at_own_keys() if again else pending
            asked = {comparable(key) for key in tuples_of(pending.lookup_keys)}
            assert asked <= set(keys), "only rows that go are asked for"
            known = [comparable(key) in asked for key in tuples_of(before.select(self.kind.names))]
            done = complete(pending, before.filter(pa.array(known, pa.bool_())), again=again)
            self._add(done.rows)
            self.unresolved += done.unresolved.to_pylist()

    def _add(self, rows: pa.Table) -> None:
        width = len(self.kind.fields)
        assert rows.column_names == self.kind.schema.names
        for row in tuples_of(rows):
            key = comparable(row[:width])
            assert key not in self.rows, "a key has one row"
            self.rows[key] = row[width:]


def tuples_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


KEYS = st.integers(0, 4)
STEPS = st.tuples(st.sampled_from("iiuuuummmdt"), KEYS, KEYS, st.tuples(st.booleans(), st.booleans()))
TRANSACTIONS = st.lists(st.lists(STEPS, min_size=1, max_size=8), max_size=8)


def run_transactions(source: Source, transactions: list[list[Any]], deferrable: bool) -> list[int]:
    """The lengths of the log after each transaction."""
    ends = []
    for steps in transactions:
        source.begin()
        for op, key, other, sent in steps:
            if op == "t" and key == 0:
                source.truncate()
            elif op == "i" and (deferrable or not source.live(key)):
                source.insert(key)
            elif op == "u" and source.live(key):
                source.update(key, key, sent)
            elif op == "m" and source.live(key) and (deferrable or not source.live(other)):
                source.update(key, other, sent)
            elif op == "d" and source.live(key):
                source.delete(key)
        for key in list(source.rows):
            while source.live(key) > 1:
                source.delete(key)
        ends.append(len(source.log))
    return ends


CUTS = st.sets(st.integers(0, 8))


@pytest.mark.parametrize("deferrable", [False, True], ids=["immediate", "deferrable"])
@settings(max_examples=150, deadline=None)
@given(transactions=TRANSACTIONS, cuts=CUTS, chunks=st.integers(1, 3))
def test_folding_batch_by_batch_gives_the_source(
    deferrable: bool, transactions: list[list[Any]], cuts: set[int], chunks: int
) -> None:
    check_against_source("bigint", deferrable, transactions, cuts, chunks)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "bigint"])
@settings(max_examples=25, deadline=None)
@given(deferrable=st.booleans(), transactions=TRANSACTIONS, cuts=CUTS)
def test_so_it_is_for_keys_of_every_kind(
    name: str, deferrable: bool, transactions: list[list[Any]], cuts: set[int]
) -> None:
    check_against_source(name, deferrable, transactions, cuts, chunks=1)


def check_against_source(
    name: str, deferrable: bool, transactions: list[list[Any]], cuts: set[int], chunks: int
) -> None:
    source = Source(KINDS[name])
    ends = run_transactions(source, transactions, deferrable)
    target = Target(KINDS[name])
    start = 0
    for number, end in enumerate(ends):
        if number in cuts or number == len(ends) - 1:
            batch = changes_of(source.log[start:end], source.kind, chunks)
            target.apply(fold(batch, source.kind.names, deferrable))
            start = end
    assert target.unresolved == []
    assert target.rows == source.table()


@pytest.mark.parametrize("deferrable", [False, True], ids=["immediate", "deferrable"])
@settings(max_examples=150, deadline=None)
@given(transactions=TRANSACTIONS, cuts=CUTS, since=st.integers(0, 8))
def test_folding_again_what_the_table_holds_gives_the_source_and_mends_what_it_touches(
    deferrable: bool, transactions: list[list[Any]], cuts: set[int], since: int
) -> None:
    kind = KINDS["bigint"]
    source, target = Source(kind), Target(kind)
    ends = run_transactions(source, transactions, deferrable)
    start = 0
    for number, end in enumerate(ends):
        if number in cuts or number == len(ends) - 1:
            target.apply(fold(changes_of(source.log[start:end], kind), ["id"], deferrable))
            start = end
    assert target.rows == source.table()
    again = source.log[ends[since] if since < len(ends) else 0 :]
    touched = {comparable(key) for each in again for key in (each.key, each.old_key) if key is not None}
    for key in touched & target.rows.keys():  # `a` is in every change
        target.rows[key] = (-1, *target.rows[key][1:])
    target.apply(fold(changes_of(again, kind), ["id"], deferrable), again=True)
    assert target.unresolved == []
    assert target.rows == source.table()


def test_a_row_that_moved_takes_no_value_from_the_one_that_came_after_it_when_it_is_folded_again() -> None:
    kind = KINDS["bigint"]
    moved = Change("u", 1, 0, kind.make(2), (5, None, "n"), old_key=kind.make(1), unchanged=("body",))
    other = Change("i", 2, 0, kind.make(1), (6, "another", None))
    after = {kind.make(2): (5, "its own", "n"), kind.make(1): (6, "another", None)}
    target = Target(kind, dict(after))
    target.apply(fold(changes_of([moved, other], kind), ["id"], False), again=True)
    assert (target.rows, target.unresolved) == (after, [])


def shuffle(source: Source, keys: list[int], sent: tuple[bool, bool]) -> None:
    """UPDATE … SET id = id + 1 in the order of `keys`."""
    source.begin()
    for key in keys:
        source.update(key, key + 1, sent)


@pytest.mark.parametrize("sent", [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("keys", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_a_deferrable_key_shifted_by_one_keeps_every_row(keys: list[int], sent: tuple[bool, bool]) -> None:
    kind = KINDS["bigint"]
    source, target = Source(KeyKind(kind.fields, lambda n: (n,))), Target(kind)
    source.begin()
    for key in range(4):
        source.insert(key)
    target.apply(fold(changes_of(source.log, source.kind), ["id"], True))
    loaded = len(source.log)
    shuffle(source, keys, sent)
    target.apply(fold(changes_of(source.log[loaded:], source.kind), ["id"], True))
    assert target.rows == source.table()
    assert len(target.rows) == 4


def test_a_key_that_comes_and_goes_in_a_deferrable_transaction_stays_only_if_the_table_had_it() -> None:
    kind = KINDS["bigint"]
    log = [
        Change("i", 1, 0, kind.make(1), (7, "new", None)),
        Change("d", 1, 2, old_key=kind.make(1)),
    ]
    folded = fold(changes_of(log, kind), ["id"], True)
    assert folded.pending is not None
    assert folded.pending.only_if_exists.tolist() == [True]
    empty, full = Target(kind), Target(kind, {kind.make(1): (1, "old", "old")})
    empty.apply(folded)
    full.apply(folded)
    assert empty.rows == {}
    assert full.rows == {kind.make(1): (7, "new", None)}


def test_values_not_sent_follow_a_row_through_changes_of_its_key() -> None:
    kind = KINDS["text"]
    source = Source(kind)
    source.begin()
    source.insert(0)
    target = Target(kind)
    target.apply(fold(changes_of(source.log, kind), ["id"], False))
    source.begin()
    source.update(0, 1, (False, False))
    source.update(1, 2, (False, True))
    source.insert(0)
    source.update(2, 3, (False, False))
    source.update(0, 1, (False, False))
    folded = fold(changes_of(source.log[1:], kind), ["id"], False)
    assert folded.pending is not None
    assert folded.pending.lookup_keys.to_pylist() == [{"id": kind.make(0)[0]}], "the key the chain began with"
    assert folded.pending.missing.to_pylist() == [["body"]]
    target.apply(folded)
    assert target.rows == source.table()


def test_a_name_beneath_a_null_list_is_missing_in_no_row() -> None:
    lists = with_entries_beneath_a_null(["body", "note", "body"])
    found = missing_by_column(lists, ["body", "note"])
    assert {name: np.flatnonzero(mask).tolist() for name, mask in found.items()} == {"body": [0, 2]}
    assert np.flatnonzero(missing_by_column(lists.slice(1), ["body"])["body"]).tolist() == [1]


def test_a_value_that_is_nowhere_makes_the_row_unresolved_and_never_null() -> None:
    kind = KINDS["bigint"]
    log = [Change("u", 1, 0, kind.make(1), (5, None, "n"), unchanged=("body",))]
    target = Target(kind)
    target.apply(fold(changes_of(log, kind), ["id"], False))
    assert target.rows == {}
    assert [row["_missing"] for row in target.unresolved] == [["body"]]
    after_truncate = [Change("t", 1, 0), Change("u", 1, 2, kind.make(1), (5, None, "n"), unchanged=("body",))]
    target = Target(kind, {kind.make(1): (1, "of the row that was truncated", None)})
    target.apply(fold(changes_of(after_truncate, kind), ["id"], False))
    assert target.rows == {}
    assert len(target.unresolved) == 1


def test_the_insert_half_of_a_skipped_move_takes_no_value_from_a_row_it_never_was() -> None:
    kind = KINDS["bigint"]
    log = [Change("i", 1, 1, kind.make(1), (5, None, "n"), old_key=kind.make(0), unchanged=("body",))]
    target = Target(kind, {kind.make(1): (1, "another", None), kind.make(0): (2, "another", None)})
    target.apply(fold(changes_of(log, kind), ["id"], False))
    assert len(target.unresolved) == 1
    assert kind.make(0) in target.rows


def test_the_delete_half_of_a_skipped_move_removes_the_old_key_and_not_the_new() -> None:
    kind = KINDS["bigint"]
    log = [Change("d", 1, 0, kind.make(1), (5, "b", "n"), old_key=kind.make(0))]
    target = Target(kind, {kind.make(1): (1, "stays", None), kind.make(0): (2, "goes", None)})
    target.apply(fold(changes_of(log, kind), ["id"], False))
    assert target.rows == {kind.make(1): (1, "stays", None)}


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_bad_change_leaves_the_last_good_row_and_gives_no_value_on(deferrable: bool) -> None:
    kind = KINDS["bigint"]
    held = {kind.make(key): (key, "old", "old") for key in range(4)}
    log = [
        Change("u", 1, 0, kind.make(0), (10, "lost", "lost"), bad=True),
        Change("u", 1, 2, kind.make(1), (11, "good", "good")),
        Change("u", 1, 4, kind.make(1), (12, "lost", "lost"), bad=True),
        Change("u", 1, 6, kind.make(2), (13, "lost", "lost"), bad=True),
        Change("u", 1, 8, kind.make(2), (14, None, "n"), unchanged=("body",)),
        Change("u", 1, 10, kind.make(3), (15, "lost", "lost"), bad=True),
        Change("u", 1, 12, kind.make(3), (16, "whole", "again")),
    ]
    target = Target(kind, dict(held))
    target.apply(fold(changes_of(log, kind), ["id"], deferrable))
    assert target.rows == {
        kind.make(0): held[kind.make(0)],
        kind.make(1): (11, "good", "good"),
        kind.make(3): (16, "whole", "again"),
    }
    assert [row["a"] for row in target.unresolved] == [14]


def test_a_change_without_a_key_is_an_error_that_says_so() -> None:
    kind = KINDS["bigint"]
    log = [Change("i", 1, 0, kind.make(1), (1, "b", None)), Change("d", 1, 2)]
    with pytest.raises(SourceError, match="which row"):
        fold(changes_of(log, kind), ["id"], False)


def test_a_batch_of_inserts_passes_as_it_is() -> None:
    kind = KINDS["bigint"]
    changes = changes_of([Change("i", 1, 2 * n, kind.make(n), (n, "b", None)) for n in range(3)], kind)
    folded = fold(changes, ["id"], False)
    assert folded.rows is changes.rows
    assert folded.keys.equals(changes.rows.select(["id"]))
    assert folded.pending is None


def test_minus_zero_and_zero_are_one_key() -> None:
    kind = KINDS["float"]
    log = [
        Change("u", 1, 0, (-0.0,), (1, "b", "n"), old_key=(0.0,)),
        Change("d", 2, 0, old_key=(0.0,)),
        Change("i", 2, 2, (math.nan,), (2, "b", "n")),
        Change("u", 2, 4, (math.nan,), (3, "b", "n"), old_key=(math.nan,)),
    ]
    target = Target(kind, {(0.0,): (0, "b", "n")})
    target.apply(fold(changes_of(log, kind), ["id"], False))
    assert target.rows == {("NaN",): (3, "b", "n")}


def test_an_append_table_gets_every_change_once_and_a_key_change_as_two() -> None:
    kind = KINDS["composite"]
    source = Source(kind)
    source.begin()
    source.insert(0)
    source.update(0, 0, (True, False))
    source.update(0, 3, (False, True))
    source.delete(3)
    source.truncate()
    changes = changes_of(source.log, kind)
    rows = append_rows(changes, kind.names).to_pylist()
    assert [row["_op"] for row in rows] == ["i", "u", "d", "i", "d", "t"]
    assert [row["_op_index"] for row in rows] == [0, 2, 4, 5, 6, 8]
    assert [row["_tx"] for row in rows] == [1] * 6
    assert [row["_unchanged"] for row in rows] == [None, ["note"], None, ["body"], None, None]
    keys = [(row["x"], row["y"]) for row in rows]
    assert keys == [kind.make(0), kind.make(0), kind.make(0), kind.make(3), kind.make(3), (None, None)]
    assert [row["a"] for row in rows] == [1, 2, None, 3, None, None]


def test_a_delete_in_an_append_table_carries_the_old_row_where_the_source_sent_it() -> None:
    kind = KINDS["bigint"]
    log = [
        Change("d", 1, 0, old_key=kind.make(1)),
        Change("u", 1, 2, kind.make(2), (1, "b", None), kind.make(3)),
    ]
    changes = changes_of(log, kind)
    old = pa.table(
        [pa.array([kind.make(1)[0], kind.make(3)[0]]), pa.array([7, 8]), ["o", "p"], ["n", "m"]],
        schema=kind.schema,
    )
    stamps = pa.array([_EPOCH, _EPOCH], pa.timestamp("us", "UTC"))
    full = Changes(
        **{**{name: getattr(changes, name) for name in Changes.__slots__}, "old": old, "commit_ts": stamps}
    )
    rows = append_rows(full, ["id"]).to_pylist()
    assert [(row["_op"], row["id"], row["a"]) for row in rows] == [
        ("d", kind.make(1)[0], 7),
        ("d", kind.make(3)[0], None),
        ("i", kind.make(2)[0], 1),
    ]
    assert [row["_commit_ts"] for row in rows] == [_EPOCH] * 3


def test_an_append_table_needs_no_key() -> None:
    kind = KINDS["bigint"]
    log = [Change("i", 1, 0, kind.make(1), (1, "b", None)), Change("t", 1, 2)]
    assert [row["_op"] for row in append_rows(changes_of(log, kind), []).to_pylist()] == ["i", "t"]

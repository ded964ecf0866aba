"""A table that keeps deleted rows has for each key what the source last showed of it, and when that ended.

The judge is a model that ends rows one by one, as a trigger would; it knows nothing of batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.changes import in_log_order
from penstock.lake.fold import Changes, Folded, Pending
from penstock.lake.soft_fold import complete_softly, end_live_rows, fold_softly
from penstock.lake.target import DELETED_AT
from tests.unit.test_fold import CUTS, KEYS, KINDS, Change, Key, KeyKind, Row, Source, changes_of, tuples_of

BIGINT = KINDS["bigint"]


@dataclass
class Keeping(Source):
    """The source's table, and what was in it: the last version of each key that is gone, and when it ended.

    A version that the table cannot hold has no `a`.
    """

    gone: dict[int, tuple[Row, int]] = field(default_factory=dict)

    def is_spoilt(self, key: int) -> bool:
        return self.live(key) > 0 and self.rows[key][0][0] is None

    def update(self, key: int, new_key: int, sent: tuple[bool, bool]) -> None:
        before = tuple(self.rows[key][0])
        super().update(key, new_key, (True, True) if self.is_spoilt(key) else sent)
        if key != new_key:
            self._end(key, before)

    def spoil(self, key: int, new_key: int) -> None:
        """The key's row gets a version that cannot be held, and perhaps another key; or is inserted so."""
        before = self.rows[key].pop(0) if self.live(key) else None
        self.rows.setdefault(new_key, []).append([None, "bad", "bad"])
        old = self.kind.make(key) if before is not None and key != new_key else None
        self._tell(
            "i" if before is None else "u",
            key=self.kind.make(new_key),
            values=(0, "bad", "bad"),
            old_key=old,
            bad=True,
        )
        if before is not None and key != new_key:
            self._end(key, tuple(before))

    def delete(self, key: int) -> None:
        before = tuple(self.rows[key][0])
        super().delete(key)
        self._end(key, before)

    def truncate(self) -> None:
        for key, rows in self.rows.items():
            if rows:
                self._end(key, tuple(rows[-1]))
        super().truncate()

    def _end(self, key: int, version: Row) -> None:
        if version[0] is None:
            self.gone.pop(key, None)
        else:
            self.gone[key] = (version, self.tx)

    def kept(self) -> dict[Key, Row]:
        ended = {key: (*version, tx) for key, (version, tx) in self.gone.items()}
        live = {key: (*rows[0], None) for key, rows in self.rows.items() if rows}
        return {self.kind.make(key): row for key, row in (ended | live).items() if row[0] is not None}


def batch_of(log: list[Change], kind: KeyKind = BIGINT, chunks: int = 1) -> Changes:
    times = pa.array([change.tx for change in log], pa.int64()).view(DELETED_AT.type)
    return replace(changes_of(log, kind, chunks), commit_ts=times)


@dataclass
class Kept:
    """A table that is changed by folds alone; the last value of a row is when it ended."""

    kind: KeyKind = BIGINT
    rows: dict[Key, Row] = field(default_factory=dict)
    unresolved: list[dict[str, Any]] = field(default_factory=list)

    def arrow(self) -> pa.Table:
        schema = self.kind.schema.append(DELETED_AT)
        rows = [key + row for key, row in self.rows.items()]
        return pa.table(
            [_array([row[n] for row in rows], each.type) for n, each in enumerate(schema)], schema=schema
        )

    def apply(self, folded: Folded, *, again: bool = False) -> None:
        before = self.arrow()
        keys = tuples_of(folded.keys)
        assert not folded.truncated
        assert len(keys) == len(set(keys)), "touched keys are distinct"
        if folded.truncated_at_us is not None:
            self.rows.clear()
            self._add(end_live_rows(before, folded.truncated_at_us))
        for key in keys:
            self.rows.pop(key, None)
        self._add(folded.rows)
        if folded.pending is not None:
            pending = Pending.from_table(folded.pending.to_table())
            pending = pending.at_own_keys() if again else pending
            asked = set(tuples_of(pending.lookup_keys))
            assert asked <= set(keys), "only rows that go are asked for"
            known = [key in asked for key in tuples_of(before.select(self.kind.names))]
            done = complete_softly(pending, before.filter(pa.array(known, pa.bool_())), again=again)
            self._add(done.rows)
            self.unresolved += done.unresolved.to_pylist()

    def _add(self, rows: pa.Table) -> None:
        width = len(self.kind.fields)
        assert rows.column_names == [*self.kind.schema.names, DELETED_AT.name]
        ends = rows.column(DELETED_AT.name).cast(pa.int64())
        for row in tuples_of(rows.set_column(rows.num_columns - 1, DELETED_AT.name, ends)):
            assert row[:width] not in self.rows, "a key has one row"
            self.rows[row[:width]] = row[width:]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).view(kind) if kind == DELETED_AT.type else pa.array(values, kind)


def kept_after(log: list[Change], held: dict[int, Row], deferrable: bool = False) -> Kept:
    table = Kept(rows={BIGINT.make(key): row for key, row in held.items()})
    table.apply(fold_softly(batch_of(log), ["id"], deferrable))
    return table


STEPS = st.tuples(st.sampled_from("iiiuuummddtbx"), KEYS, KEYS, st.tuples(st.booleans(), st.booleans()))
TRANSACTIONS = st.lists(st.lists(STEPS, min_size=1, max_size=8), max_size=8)


def run(source: Keeping, transactions: list[list[Any]], deferrable: bool) -> list[int]:
    """The lengths of the log after each transaction."""
    ends = []
    for steps in transactions:
        source.begin()
        for op, key, other, sent in steps:
            live, free = source.live(key), not source.live(other)
            if op == "t" and key < 2:
                source.truncate()
            elif op == "i" and (deferrable or not live):
                source.insert(key)
            elif op == "u" and live:
                source.update(key, key, sent)
            elif op == "m" and live and (deferrable or free):
                source.update(key, other, sent)
            elif op == "d" and live:
                source.delete(key)
            elif op == "b" and not deferrable:
                source.spoil(key, key)
            elif op == "x" and live and free and not deferrable:
                source.spoil(key, other)
        for key in list(source.rows):
            while source.live(key) > 1:
                source.delete(key)
        ends.append(len(source.log))
    return ends


def check(name: str, deferrable: bool, transactions: list[list[Any]], cuts: set[int], chunks: int) -> None:
    source = Keeping(KINDS[name])
    ends = run(source, transactions, deferrable)
    table = Kept(KINDS[name])
    start = 0
    for number, end in enumerate(ends):
        if number in cuts or number == len(ends) - 1:
            batch = batch_of(source.log[start:end], source.kind, chunks)
            table.apply(fold_softly(batch, source.kind.names, deferrable))
            start = end
    assert table.unresolved == []
    assert table.rows == source.kept()


@pytest.mark.parametrize("deferrable", [False, True], ids=["immediate", "deferrable"])
@settings(max_examples=300)
@given(transactions=TRANSACTIONS, cuts=CUTS, chunks=st.integers(1, 3))
def test_a_table_keeps_what_the_source_last_showed_of_each_key(
    deferrable: bool, transactions: list[list[Any]], cuts: set[int], chunks: int
) -> None:
    check("bigint", deferrable, transactions, cuts, chunks)


@pytest.mark.parametrize("name", ["text", "composite", "decimal"])
@settings(max_examples=40)
@given(deferrable=st.booleans(), transactions=TRANSACTIONS, cuts=CUTS)
def test_so_it_does_for_keys_of_other_kinds(
    name: str, deferrable: bool, transactions: list[list[Any]], cuts: set[int]
) -> None:
    check(name, deferrable, transactions, cuts, chunks=1)


@pytest.mark.parametrize("deferrable", [False, True], ids=["immediate", "deferrable"])
@settings(max_examples=300)
@given(transactions=TRANSACTIONS, cuts=CUTS, since=st.integers(0, 8))
def test_folding_again_what_the_table_holds_keeps_the_same_and_every_time(
    deferrable: bool, transactions: list[list[Any]], cuts: set[int], since: int
) -> None:
    if deferrable:  # truncated, such a table is refused: `rewind_range`
        transactions = [[step for step in steps if step[0] != "t"] for steps in transactions]
    source, table = Keeping(BIGINT), Kept()
    ends = run(source, transactions, deferrable)
    start = 0
    for number, end in enumerate(ends):
        if number in cuts or number == len(ends) - 1:
            table.apply(fold_softly(batch_of(source.log[start:end]), ["id"], deferrable))
            start = end
    assert table.rows == source.kept()
    again = source.log[ends[since] if since < len(ends) else 0 :]
    table.apply(fold_softly(batch_of(again), ["id"], deferrable), again=True)
    assert table.unresolved == []
    assert table.rows == source.kept()


def test_a_row_that_has_ended_keeps_its_time_whatever_deletes_it_again() -> None:
    """Without old rows an update of a row that is out of the filter is a delete, each time."""
    held = {1: (1, "b", "n", 7), 2: (2, "b", "n", None)}
    log = [Change("d", 20 + n, n, old_key=BIGINT.make(key)) for n, key in enumerate((1, 2, 2, 3))]
    expected = {BIGINT.make(1): (1, "b", "n", 7), BIGINT.make(2): (2, "b", "n", 21)}
    assert kept_after(log, held).rows == expected
    truncated = [*log, Change("t", 30, 9)]
    assert kept_after(truncated, held).rows == expected
    assert kept_after([Change("t", 15, 0), *log], held).rows == expected | {BIGINT.make(2): (2, "b", "n", 15)}


@pytest.mark.parametrize("together", [True, False])
def test_a_row_that_lives_again_takes_no_value_from_the_one_that_ended(together: bool) -> None:
    """It may have changed while it was out of the stream's sight."""
    delete = Change("d", 1, 0, old_key=BIGINT.make(1))
    back = Change("u", 2, 0, BIGINT.make(1), (5, None, "n"), unchanged=("body",))
    table = Kept(rows={BIGINT.make(1): (1, "of before", "n", None)})
    for log in [[delete, back]] if together else [[delete], [back]]:
        table.apply(fold_softly(batch_of(log), ["id"], False))
    assert table.rows == {}
    assert [row["_missing"] for row in table.unresolved] == [["body"]]


def test_a_row_that_ended_lacking_a_value_is_neither_kept_nor_a_dead_letter() -> None:
    log = [
        Change("u", 1, 0, BIGINT.make(1), (5, None, "n"), unchanged=("body",)),
        Change("d", 1, 2, old_key=BIGINT.make(1)),
    ]
    table = kept_after(log, {})
    assert (table.rows, table.unresolved) == ({}, [])
    assert kept_after(log, {1: (1, "b", "m", None)}).rows == {BIGINT.make(1): (5, "b", "n", 1)}


def test_a_key_that_comes_and_goes_in_a_deferrable_transaction_is_live_only_if_it_was() -> None:
    log = [
        Change("i", 1, 0, BIGINT.make(1), (7, "new", None)),
        Change("d", 1, 2, old_key=BIGINT.make(1)),
    ]
    live, ended = (7, "new", None, None), (7, "new", None, 1)
    assert kept_after(log, {}, True).rows == {BIGINT.make(1): ended}
    assert kept_after(log, {1: (1, "old", "old", 0)}, True).rows == {BIGINT.make(1): ended}
    assert kept_after(log, {1: (1, "old", "old", None)}, True).rows == {BIGINT.make(1): live}


def test_a_truncate_in_the_midst_of_a_deferrable_transaction_leaves_open_what_there_was() -> None:
    log = [
        Change("i", 2, 0, BIGINT.make(1), (2, "second", None)),
        Change("u", 2, 2, BIGINT.make(1), (3, None, None), unchanged=("body",)),
        Change("t", 2, 4),
    ]
    assert kept_after(log, {}, True).rows == {BIGINT.make(1): (3, "second", None, 2)}
    held = {1: (1, "first", None, None)}
    assert kept_after(log, held, True).rows == {BIGINT.make(1): (3, "first", None, 2)}


def test_a_batch_of_inserts_passes_as_it_is_and_replaces_what_had_ended() -> None:
    log = [Change("i", 1, 2 * n, BIGINT.make(n), (n, "b", None)) for n in range(3)]
    folded = fold_softly(batch_of(log), ["id"], False)
    assert folded.pending is None
    table = kept_after(log, {2: (9, "old", "old", 0)})
    assert table.rows == {BIGINT.make(n): (n, "b", None, None) for n in range(3)}


def test_changes_of_several_partitions_are_put_in_order_with_their_times() -> None:
    batch = batch_of([Change("d", 1 + n // 2, n, old_key=BIGINT.make(n % 3)) for n in range(6)])
    odd = np.arange(len(batch)) % 2 == 1
    ordered = in_log_order([batch.filter(odd), batch.filter(~odd)])
    assert ordered is not None
    assert ordered.commit_ts is not None
    assert batch.commit_ts is not None
    assert ordered.commit_ts.to_pylist() == batch.commit_ts.to_pylist()


def test_as_many_truncates_as_there_are_changes_cost_no_more_than_those() -> None:
    """Going over all keys at each truncate would be 40,000,000,000 steps here."""
    count = 200_000
    ids = np.repeat(np.arange(count), 2)
    truncates = np.arange(2 * count) % 2 == 1
    changes = Changes(
        rows=pa.table({"id": pa.array(ids, mask=truncates)}),
        old_key=pa.table({"id": pa.nulls(2 * count, pa.int64())}),
        op=np.where(truncates, ord("t"), ord("u")).astype(np.uint8),
        tx=np.arange(2 * count),
        op_index=np.zeros(2 * count, np.int64),
        commit_ts=pa.array(np.arange(2 * count)).view(DELETED_AT.type),
    )
    folded = fold_softly(changes, ["id"], False)
    assert folded.truncated_at_us == 1
    ends = folded.rows.column(DELETED_AT.name).cast(pa.int64()).to_numpy()
    assert (ends == 2 * folded.rows.column("id").to_numpy() + 1).all()

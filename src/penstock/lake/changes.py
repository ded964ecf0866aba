"""Rows of the change log, brought into the columns of one schema.

A range of the log may hold files of several schema versions of a table. `conform` gives each the
columns of the version the table is going to have: kept under another name, filled with the default that
older rows read as, or null. Values are still text here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import TableSchema
from penstock.lake.change_set import Changes, Flags, Operations
from penstock.lake.evolve import ColumnSource
from penstock.lake.target import Target
from penstock.log.columns import stored_name


@dataclass(frozen=True, slots=True)
class ConformedChanges:
    """Changes as text: the new row, the old row as the source sent it, and what happened."""

    text: pa.Table
    old: pa.Table
    log: pa.Table
    names: Mapping[str, str]  # of the log's columns that are still there → of the table's
    #: columns that these rows lack, and by which name they have the values of those
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def op(self) -> Operations:
        return _codes(self.log.column("_op"))

    @property
    def old_kind(self) -> Operations:
        """What the source sent of the old row: n (nothing), k (the key), f (all of it)."""
        return _codes(self.log.column("_old_kind"))

    def filter(self, keep: Flags) -> ConformedChanges:
        if keep.all():
            return self
        mask = pa.array(keep)
        return replace(
            self, text=self.text.filter(mask), old=self.old.filter(mask), log=self.log.filter(mask)
        )

    def changes(self, rows: pa.Table, old: pa.Table, target: Target, bad: Flags | None) -> Changes:
        """With the new and the old rows typed and named as in the table; `old` has at least the key."""
        unchanged = _renamed(self.log.column("_unchanged").combine_chunks(), self.names, target)
        for name, held in self.moved.items():
            unchanged = _named_with(unchanged, target.name(held), target.name(name))
        return Changes(
            rows=rows,
            old_key=old.select(target.key),
            op=self.op,
            tx=self.log.column("_tx").to_numpy(),
            op_index=self.log.column("_op_index").to_numpy(),
            unchanged=None if unchanged.null_count == len(unchanged) else unchanged,
            old=old if len(old.column_names) == len(rows.column_names) else None,
            commit_ts=self.log.column("_commit_ts").combine_chunks(),
            bad=bad,
        )


def conform(log: pa.Table, columns: Sequence[ColumnSource], schema: TableSchema) -> ConformedChanges:
    """The table's columns, then those that only the stream's filter reads."""
    old = log.column("_old").combine_chunks()
    new_arrays, old_arrays = [], []
    for source in columns:
        if source.from_name is not None:
            name = stored_name(source.from_name)
            new_arrays.append(log.column(name))
            old_arrays.append(_old_field(old, name))
        else:
            new_arrays.append(_filled(log, source.fill))
            old_arrays.append(pa.nulls(log.num_rows, pa.string()))
    wanted = (*schema.columns, *schema.hidden)
    names = [column.name for column in wanted]
    renamed = {source.from_name: source.name for source in columns if source.from_name is not None}
    lacking = {source.name for source in columns if source.from_name is None}
    moved = {each.name: each.moved_from for each in wanted if each.moved_from and each.name in lacking}
    return ConformedChanges(
        pa.table(new_arrays, names=names), pa.table(old_arrays, names=names), log, renamed, moved
    )


def in_log_order(parts: Sequence[Changes]) -> Changes | None:
    """All parts as one, ordered by offset: those of different partitions may interleave."""
    whole = Changes.concatenate(parts)
    if whole is None or _is_ordered(whole):
        return whole
    order = np.lexsort((whole.op_index, whole.tx))
    positions = pa.array(order)
    return replace(
        whole,
        rows=whole.rows.take(positions),
        old_key=whole.old_key.take(positions),
        op=whole.op[order],
        tx=whole.tx[order],
        op_index=whole.op_index[order],
        unchanged=None if whole.unchanged is None else whole.unchanged.take(positions),
        commit_ts=None if whole.commit_ts is None else whole.commit_ts.take(positions),
        bad=None if whole.bad is None else whole.bad[order],
    )


def _is_ordered(changes: Changes) -> bool:
    step = np.diff(changes.tx)
    return bool(((step > 0) | ((step == 0) & (np.diff(changes.op_index) > 0))).all())


def _renamed(lists: pa.ListArray, names: Mapping[str, str], target: Target) -> pa.ListArray:
    """Lists of column names as the table calls them; columns that are gone are in none."""
    if lists.null_count == len(lists):
        return lists
    values = lists.flatten().dictionary_encode()
    known: list[str] = values.dictionary.to_pylist()
    if all(names.get(name) == name == target.name(name) for name in known):
        return lists
    present = [target.name(names[name]) if name in names else None for name in known]
    renamed = pa.array(present, pa.string()).take(values.indices)
    there = renamed.is_valid().to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(lists).to_numpy()[there]
    # `flatten` leaves out what lies under nulls, so lengths are counted anew.
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(lists)))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), renamed.filter(pa.array(there)), mask=lists.is_null())


def _named_with(lists: pa.ListArray, held: str, name: str) -> pa.ListArray:
    """With `name` in every list that has `held`: whoever was not sent the one was not sent the other."""
    if lists.null_count == len(lists):
        return lists
    parents = pc.list_parent_indices(lists)
    values = lists.flatten()  # without what may lie beneath nulls
    rows = parents.filter(lists.is_valid().take(parents)).to_numpy()
    with_held = rows[pc.equal(values, held).to_numpy(zero_copy_only=False)]
    if not len(with_held):
        return lists
    places = np.concatenate([rows, with_held])
    order = pa.array(np.argsort(places, kind="stable"))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(lists)))]).astype(np.int32)
    named = pa.concat_arrays([values, pa.repeat(pa.scalar(name), len(with_held))]).take(order)
    return pa.ListArray.from_arrays(pa.array(offsets), named, mask=lists.is_null())


def _old_field(old: pa.StructArray, name: str) -> pa.Array:
    if old.null_count == len(old):
        return pa.nulls(len(old), pa.string())
    return pc.struct_field(old, name)


def _filled(log: pa.Table, fill: str | None) -> pa.Array:
    """Rows of inserts and updates from before the column was there read as its default at the source."""
    if fill is None:
        return pa.nulls(log.num_rows, pa.string())
    has_row = pc.is_in(log.column("_op"), pa.array(["i", "u"]))
    return pc.if_else(has_row, pa.scalar(fill), pa.scalar(None, pa.string())).combine_chunks()


def _codes(operations: pa.ChunkedArray) -> Operations:
    """One-letter strings as their bytes, without a Python object per row."""
    flat = operations.combine_chunks()
    if isinstance(flat, pa.DictionaryArray):
        flat = flat.dictionary_decode()
    if len(flat) == 0:
        return np.empty(0, np.uint8)
    start = np.frombuffer(flat.buffers()[1], np.int32, len(flat) + 1 + flat.offset)[flat.offset]
    return np.frombuffer(flat.buffers()[2], np.uint8)[start : start + len(flat)]

"""Changes with their keys as numbers: what a replay of their history works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.compiling import read_only
from penstock.core.errors import SourceError
from penstock.lake.change_set import DELETE, Changes, Flags, Numbers
from penstock.lake.keys import KeySet, flat
from penstock.lake.pending import missing_by_column


@dataclass(frozen=True, slots=True)
class Coded:
    changes: Changes
    keys: pa.Table  # by number
    old: Numbers
    new: Numbers
    missing: Mapping[str, Flags]
    truncated: bool = False  # the table's own rows count for nothing

    @property
    def bad(self) -> Flags:
        bad = self.changes.bad
        return read_only(np.zeros(len(self.changes), np.bool_) if bad is None else bad)


def encode(changes: Changes, key: Sequence[str], truncated: bool = False) -> Coded:
    """`changes` are inserts, updates and deletes; a truncate has no key."""
    is_delete = pa.array(changes.op == DELETE)
    has_deletes = bool((changes.op == DELETE).any())
    columns = {}
    moved = changes.moved_positions(key)
    for name in key:
        before, now = flat(changes.old_key.column(name)), flat(changes.rows.column(name))
        if has_deletes:
            now = pc.if_else(is_delete, before, now)
        if now.null_count:
            # An update whose key is itself unchanged TOAST: its value was sent as the old key.
            now = pc.coalesce(now, before)
            changes = replace(changes, rows=with_column(changes.rows, name, now))
        columns[name] = pa.concat_arrays([now, before.take(pa.array(moved))]) if moved.size else now
    table = pa.table(columns)
    known = KeySet(table)
    if known.codes.size != table.num_rows:
        raise SourceError(
            "The source sent a change that does not say which row it concerns.",
            remedy="Give the table a primary key or a replica identity, then resync the stream.",
        )
    new = known.codes[: len(changes)]
    old = new
    if moved.size:
        old = new.copy()
        old[moved] = known.codes[len(changes) :]
    keys = table if known.count == len(table) else table.take(pa.array(known.first_positions))
    values = [name for name in changes.rows.column_names if name not in key]
    missing = missing_by_column(changes.unchanged, values)
    changes = replace(changes, op=read_only(changes.op), tx=read_only(changes.tx))
    return Coded(changes, keys, read_only(old), read_only(new), missing, truncated)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    position = table.column_names.index(name)
    return table.set_column(position, table.schema.field(position), values)

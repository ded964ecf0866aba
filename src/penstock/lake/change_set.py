"""`Changes`: a piece of a stream's changes in the types of its table, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lake.keys import flat

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Operations = NDArray[np.uint8]

INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "iudt")


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one stream, ordered by (tx, op_index).

    A delete's key is its `old_key`, whatever `rows` holds there. `bad` marks rows with a value that the
    table cannot hold: a fold does not apply them, and takes no value from them for a later change. In a table
    that keeps deleted rows their key is left without a row.
    """

    rows: pa.Table  # the source's columns; null for deletes and truncates
    old_key: pa.Table  # the key columns before the change; null where none was sent
    op: Operations  # ord of i u d t
    tx: Numbers
    op_index: Numbers
    unchanged: pa.Array | None = None  # list<string>: columns whose value was not sent
    old: pa.Table | None = None  # the old row as sent, for append tables
    commit_ts: pa.Array | None = None
    bad: Flags | None = None

    def __len__(self) -> int:
        return len(self.op)

    def filter(self, keep: Flags) -> Changes:
        if keep.all():
            return self
        mask = pa.array(keep)
        return Changes(
            rows=self.rows.filter(mask),
            old_key=self.old_key.filter(mask),
            op=self.op[keep],
            tx=self.tx[keep],
            op_index=self.op_index[keep],
            unchanged=None if self.unchanged is None else self.unchanged.filter(mask),
            old=None if self.old is None else self.old.filter(mask),
            commit_ts=None if self.commit_ts is None else self.commit_ts.filter(mask),
            bad=None if self.bad is None else self.bad[keep],
        )

    def after(self, position: int) -> Changes:
        return Changes(
            rows=self.rows.slice(position),
            old_key=self.old_key.slice(position),
            op=self.op[position:],
            tx=self.tx[position:],
            op_index=self.op_index[position:],
            unchanged=None if self.unchanged is None else self.unchanged.slice(position),
            old=None if self.old is None else self.old.slice(position),
            commit_ts=None if self.commit_ts is None else self.commit_ts.slice(position),
            bad=None if self.bad is None else self.bad[position:],
        )

    def with_operations(self, op: Operations, op_index: Numbers) -> Changes:
        return replace(self, op=op, op_index=op_index)

    @staticmethod
    def concatenate(parts: Sequence[Changes]) -> Changes | None:
        """The parts one after the other; None if there are none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        first = parts[0]
        return Changes(
            rows=pa.concat_tables([part.rows for part in parts]).combine_chunks(),
            old_key=pa.concat_tables([part.old_key for part in parts]).combine_chunks(),
            op=np.concatenate([part.op for part in parts]),
            tx=np.concatenate([part.tx for part in parts]),
            op_index=np.concatenate([part.op_index for part in parts]),
            unchanged=_concatenate_unchanged(parts),
            old=(
                None
                if first.old is None
                else pa.concat_tables([part.old for part in parts if part.old is not None])
            ),
            commit_ts=(
                None
                if first.commit_ts is None
                else pa.concat_arrays([part.commit_ts for part in parts if part.commit_ts is not None])
            ),
            bad=(
                np.concatenate([_no_flags(part) if part.bad is None else part.bad for part in parts])
                if any(part.bad is not None for part in parts)
                else None
            ),
        )

    def moved_positions(self, key: Sequence[str]) -> Numbers:
        """The updates that change the key."""
        differs = _no_flags(self)
        for name in key:
            before, now = flat(self.old_key.column(name)), flat(self.rows.column(name))
            differ = pc.not_equal(before, now)
            if pa.types.is_floating(now.type):
                differ = pc.and_not(differ, pc.and_(pc.is_nan(before), pc.is_nan(now)))
            differs |= differ.fill_null(False).to_numpy(zero_copy_only=False)
        return np.flatnonzero(differs & (self.op == UPDATE))


def _no_flags(changes: Changes) -> Flags:
    return np.zeros(len(changes), np.bool_)


def _concatenate_unchanged(parts: Sequence[Changes]) -> pa.Array | None:
    if all(part.unchanged is None for part in parts):
        return None
    kind = pa.list_(pa.string())
    return pa.concat_arrays(
        [pa.nulls(len(part), kind) if part.unchanged is None else part.unchanged.cast(kind) for part in parts]
    )

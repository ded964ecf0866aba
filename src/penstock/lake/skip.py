"""Which streamed changes a load already holds, when its chunks were read under several snapshots.

A load that was resumed has chunks of different age. With key ranges each key has one owner chunk, and
a change is in the load exactly if it committed before that chunk's consistent point (correctness 13).
An update that moves a row from one range to another is split: its delete belongs to the old key's
owner, its insert to the new key's. A truncate between two of those points has no owner: the lane starts
the load again instead of coming here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.schema import SourceColumn
from penstock.lake.change_set import DELETE, INSERT, TRUNCATE, UPDATE, Changes, Flags, Numbers
from penstock.lake.target import Target
from penstock.ledger.load_record import LoadRecord
from penstock.sources.types import cast_text


@dataclass(frozen=True, slots=True)
class SkipRule:
    """`bounds` are the lower bounds of all ranges but the first, ascending; `points` one per range."""

    column: SourceColumn
    name: str  # of that column in the table
    bounds: tuple[str, ...]
    points: tuple[int, ...]

    def apply(self, changes: Changes) -> tuple[Changes, Flags]:
        """Changes as they look without what the load holds, and which of them are left."""
        name = self.name
        old_key = _sent_or_own(changes.old_key.column(name), changes.rows.column(name))
        new_key = _sent_or_own(changes.rows.column(name), changes.old_key.column(name))
        new_held, old_held = self.holds(new_key, changes.tx), self.holds(old_key, changes.tx)
        op, op_index = changes.op.copy(), changes.op_index.copy()
        updates = op == UPDATE
        only_insert = updates & old_held & ~new_held
        op[only_insert] = INSERT
        op_index[only_insert] += 1
        op[updates & ~old_held & new_held] = DELETE
        held = np.where(op == INSERT, new_held, np.where(op == DELETE, old_held, new_held & old_held))
        held &= op != TRUNCATE
        return changes.with_operations(op, op_index), ~held

    def holds_row(self, changes: Changes) -> Flags:
        """Which rows, as the changes leave them, are in the load; of a key that does not fit nobody knows."""
        key = changes.rows.column(self.name).combine_chunks()
        held: Flags = self.holds(key, changes.tx) & key.is_valid().to_numpy(zero_copy_only=False)
        return held

    def holds(self, keys: pa.Array, tx: Numbers) -> Flags:
        """Whether the load was read after the change of that key."""
        held: Flags = tx < self._owner_points(keys)
        return held

    def _owner_points(self, keys: pa.Array) -> Numbers:
        bounds = cast_text(pa.array(self.bounds, pa.string()), self.column).values
        owners = np.searchsorted(_comparable(bounds), _comparable(keys), "right") if len(bounds) else 0
        return (
            np.asarray(self.points, np.int64)[owners] if len(bounds) else np.full(len(keys), self.points[0])
        )


def _sent_or_own(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.Array:
    return pc.coalesce(first, second).combine_chunks()


def _comparable(keys: pa.Array) -> NDArray[Any]:
    """Keys in a form whose order is the source's; a null (a truncate's) becomes any value."""
    kind = keys.type
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        filler = "" if pa.types.is_string(kind) else Decimal(0)
        return np.array([filler if key is None else key for key in keys.to_pylist()], object)
    if pa.types.is_date32(kind):
        keys = keys.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        keys = keys.view(pa.int64())
    words: Numbers = keys.cast(pa.int64()).fill_null(0).to_numpy()
    return words


def skip_rule(record: LoadRecord, target: Target) -> SkipRule:
    """Who owns which key in a load by key ranges."""
    assert record.key_column is not None
    return SkipRule(
        column=record.schema.column(record.key_column),
        name=target.name(record.key_column),
        bounds=tuple(str(chunk.min) for chunk in record.chunks if chunk.min is not None),
        points=tuple(record.point_of(chunk).consistent_point for chunk in record.chunks),
    )

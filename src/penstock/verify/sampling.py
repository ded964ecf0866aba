"""A sample that spares reading: some ranges of the key, the same on both sides.

Where a table is one leaf and its key's first column is in the same order at the source and in the table, the
source is cut into ranges of it, and a sample is some of those, drawn anew in every run: the source reads
those ranges by its index, the table passes over row groups whose bounds lie outside. Elsewhere a sample is by
the hash of the key, which reads everything and compares a part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.schema import SourceColumn
from penstock.sources.base import ReadingSession, TableReading
from penstock.sources.chunk import PlannedChunk
from penstock.sources.tables import SourceTable
from penstock.sources.types import cast_text, types_of
from penstock.verify.sip_kernels import Flags

RANGES = 200  # that a table is cut into
ROWS_PER_RANGE_MIN = 1_000


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Half-open ranges of a column, as the source prints their bounds; None: without a bound."""

    column: SourceColumn
    bounds: tuple[tuple[str | None, str | None], ...]

    def holds(self, values: pa.Array) -> Flags:
        inside = np.zeros(len(values), np.bool_)
        for low, high in self._typed():
            inside |= _flags(values, low, high)
        return inside

    def row_groups(self, file: pq.ParquetFile, name: str) -> list[int]:
        """Those that may hold rows of a range, by their statistics."""
        return [group for group in range(file.num_row_groups) if self._may_hold(file, group, name)]

    def _may_hold(self, file: pq.ParquetFile, group: int, name: str) -> bool:
        place = file.schema_arrow.names.index(name)
        statistics = file.metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        try:
            least, greatest = (
                pa.scalar(bound, file.schema_arrow.field(name).type)
                for bound in (statistics.min, statistics.max)
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return True  # a year that Python cannot hold
        return any(
            (low is None or bool(pc.greater_equal(greatest, low).as_py()))
            and (high is None or bool(pc.less(least, high).as_py()))
            for low, high in self._typed()
        )

    def _typed(self) -> list[tuple[pa.Scalar | None, pa.Scalar | None]]:
        return [(self._value(low), self._value(high)) for low, high in self.bounds]

    def _value(self, text: str | None) -> pa.Scalar | None:
        return None if text is None else cast_text(pa.array([text], pa.string()), self.column).values[0]


def _flags(values: pa.Array, low: pa.Scalar | None, high: pa.Scalar | None) -> Flags:
    inside = np.ones(len(values), np.bool_)
    if low is not None:
        inside &= pc.greater_equal(values, low).fill_null(False).to_numpy(zero_copy_only=False)
    if high is not None:
        inside &= pc.less(values, high).fill_null(False).to_numpy(zero_copy_only=False)
    return inside


def draw(
    session: ReadingSession, reading: TableReading, info: SourceTable, part: float, draws: random.Random
) -> tuple[list[PlannedChunk], KeyRanges] | None:
    """Some ranges of the table, about `part` of it; None: it cannot be cut so."""
    if len(info.leaves) != 1 or reading.method_for(info, "key") != "key":
        return None
    column = info.schema.column(info.schema.key[0])
    if not types_of(column).orders_as_held(column):
        return None
    rows = max(ROWS_PER_RANGE_MIN, info.estimated_rows // RANGES)
    chunks = session.plan_chunks(info, "key", rows_per_chunk=rows)
    texts = {bound: reading.bound_text(bound) for chunk in chunks if (bound := chunk.min) is not None}
    if None in texts.values() or cast_text(pa.array(texts.values(), pa.string()), column).bad is not None:
        return None  # an infinite bound has no place in the order of what the table holds
    if len(chunks) < 2 / part:
        return None  # too few to draw from
    chosen = sorted(draws.sample(range(len(chunks)), round(part * len(chunks))))
    drawn = [chunks[index] for index in chosen]
    return drawn, KeyRanges(column, _joined([(_of(each.min, texts), _of(each.max, texts)) for each in drawn]))


def _of(bound: str | None, texts: Mapping[str, str | None]) -> str | None:
    return None if bound is None else texts[bound]


def _joined(
    bounds: Sequence[tuple[str | None, str | None]],
) -> tuple[tuple[str | None, str | None], ...]:
    """Ranges in order, neighbours as one."""
    joined: list[tuple[str | None, str | None]] = []
    for low, high in bounds:
        if joined and low is not None and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return tuple(joined)

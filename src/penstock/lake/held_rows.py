"""Which of many rows a table holds already, value by value.

A round of an incremental stream reads a window again that earlier rounds have read. Rows that the table holds
exactly so are left out of it: an append table would get them twice, and an upsert table would be written anew
for nothing. Rows are compared whole: one that changed without a change of its cursor is another row.

Only files whose statistics say that they may hold values of the window are read, and of those the rows inside
it, without those that were deleted from it. However many rows share one value, what is in memory is a part of
one chunk, past which the table's rows go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.schema import SourceColumn
from penstock.destinations.records import HeldDeletes
from penstock.lake.change_set import Flags
from penstock.lake.columns_by_id import ColumnsById
from penstock.lake.delete_task import deleted_positions
from penstock.lake.evolve import ColumnSource
from penstock.lake.keys import NOT_FOUND, KeySet, flat
from penstock.lake.rewrite_task import evolved
from penstock.lake.target import Target
from penstock.sources.types import arrow_type, cast_text, types_of

_LOOKUP_BYTES = 32 * 1024 * 1024  # of the table's rows that are looked up at a time
_MARGIN = 1e-9  # of a double against the decimal it stands for, and more


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """A data file of the table, and what is deleted from it."""

    path: Path
    location: str = ""  # as the table's metadata has it
    deletes: tuple[HeldDeletes, ...] = ()
    delete_paths: tuple[Path, ...] = ()

    def shown(self, first: int, count: int) -> pa.Array | None:
        """Which of `count` rows from `first` on readers see; None: all."""
        if not self.deletes:
            return None
        shown = np.ones(count, np.bool_)
        for positions in deleted_positions(self.deletes, self.delete_paths, self.location):
            here = positions[(positions >= first) & (positions < first + count)]
            shown[here - first] = False
        return None if shown.all() else pa.array(shown)


@dataclass(frozen=True, slots=True)
class HeldRange:
    """Files of a table, and between which values of a cursor's column (None: any) its rows count."""

    files: tuple[ComparedFile, ...]
    columns: tuple[ColumnSource, ...] | None  # where the files' own columns are those of an older schema
    cursor: SourceColumn
    low: str | None
    high: str | None


class HeldRows:
    """Empty if no file may hold a row of the range."""

    def __init__(self, held: HeldRange, target: Target) -> None:
        self._held = held
        self._target = target
        self._bounds = _Bounds(held)
        self._places = list(self._may_be_in())

    def __bool__(self) -> bool:
        return bool(self._places)

    def contain(self, arrays: Sequence[pa.Array]) -> Flags | None:
        """For each row of the source's columns, whether it is held; None: none is."""
        if not self._places:
            return None
        sought = KeySet(_comparable(pa.table(list(arrays), names=self._target.names)))
        found = np.zeros(sought.count, np.bool_)
        for rows in _gathered(self._rows()):
            places = sought.index(_comparable(rows))
            found[sought.codes[places[places != NOT_FOUND]]] = True
            if found.all():
                break
        held: Flags = found[sought.codes]
        return held

    def _may_be_in(self) -> Iterator[tuple[ComparedFile, str, list[int]]]:
        """Files, what each calls the cursor's column, and which of its row groups."""
        for compared in self._held.files:
            with pq.ParquetFile(compared.path) as file:
                name = _name_in_file(self._held, self._target, file.schema_arrow)
                if name is None:
                    continue
                groups = range(file.num_row_groups)
                if may_be := [group for group in groups if self._bounds.may_be_in(file, group, name)]:
                    yield compared, name, may_be

    def _rows(self) -> Iterator[pa.Table]:
        for compared, name, groups in self._places:
            with pq.ParquetFile(compared.path) as file:
                for group in groups:
                    rows = file.read_row_group(group)
                    first = sum(file.metadata.row_group(before).num_rows for before in range(group))
                    shown = compared.shown(first, rows.num_rows)
                    rows = rows if shown is None else rows.filter(shown)
                    inside = self._bounds.hold(rows.column(name))
                    rows = rows if inside is None else rows.filter(inside)
                    if rows.num_rows:
                        yield _of_today(rows, self._held, self._target).select(self._target.names)


def _gathered(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small ones together: a lookup has a cost of its own, by the rows that are looked for."""
    waiting: list[pa.Table] = []
    size = 0
    for rows in pieces:
        waiting.append(rows)
        size += rows.nbytes
        if size >= _LOOKUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _name_in_file(held: HeldRange, target: Target, file: pa.Schema) -> str | None:
    """What a file calls the cursor's column; None if it was written without it."""
    if target.field_ids:
        return ColumnsById(target, ()).name_in(file, target.name(held.cursor.name))
    before = {source.name: source.from_name for source in held.columns or ()}
    name = target.name(before.get(held.cursor.name) or held.cursor.name)
    return name if name in file.names else None


def _of_today(rows: pa.Table, held: HeldRange, target: Target) -> pa.Table:
    if target.field_ids:
        return ColumnsById(target, held.columns or ()).of_today(rows)
    return evolved(rows, target, held.columns)


class _Bounds:
    """The values of a range in the column's own type; a value that it cannot hold is no bound.

    To be too wide costs time alone: rows are compared whole, whatever their place.
    """

    def __init__(self, held: HeldRange) -> None:
        # A number of any scale is text in the table, and text has another order.
        is_number = types_of(held.cursor).cursor_kind(held.cursor) == "number"
        self._as_doubles = is_number and pa.types.is_string(arrow_type(held.cursor))
        self._low, self._high = (self._typed(held.cursor, text) for text in (held.low, held.high))

    def _typed(self, column: SourceColumn, text: str | None) -> pa.Scalar | None:
        if text is None:
            return None
        if self._as_doubles:
            return pa.scalar(float(text), pa.float64()) if math.isfinite(float(text)) else None
        value = cast_text(pa.array([text], pa.string()), column).values[0]
        return value if value.is_valid else None

    def may_be_in(self, file: pq.ParquetFile, group: int, name: str) -> bool:
        """By the row group's statistics; if they do not tell, it may."""
        if self._as_doubles:
            return True
        place = file.schema_arrow.get_field_index(name)
        statistics = file.metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        try:
            below = self._high is not None and bool(statistics.min > self._high.as_py())
            above = self._low is not None and bool(statistics.max < self._low.as_py())
        except (TypeError, ValueError, OverflowError):  # a year that Python cannot hold
            return True
        return not (below or above)

    def hold(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        """Rows inside; a null is not, and a NaN is, which no comparison holds for. None: all rows."""
        low, high = self._low, self._high
        if self._as_doubles:
            column = column.cast(pa.float64())
            low = None if low is None else pa.scalar(low.as_py() - _MARGIN * (1 + abs(low.as_py())))
            high = None if high is None else pa.scalar(high.as_py() + _MARGIN * (1 + abs(high.as_py())))
        masks = []
        if low is not None:
            masks.append(pc.greater_equal(column, low))
        if high is not None:
            masks.append(pc.less_equal(column, high))
        if not masks:
            return None
        inside = masks[0] if len(masks) == 1 else pc.and_(*masks)
        if self._as_doubles:
            inside = pc.or_(inside, pc.is_nan(column))
        return pc.fill_null(inside, False)


def _comparable(rows: pa.Table) -> pa.Table:
    """Columns without nulls, each beside where it had some: in a `KeySet` a null never matches."""
    columns: list[pa.Array] = []
    for column in rows.columns:
        array = flat(column)
        if pa.types.is_list(array.type):
            array = pa.array([None if value is None else repr(value) for value in array.to_pylist()])
            array = array.cast(pa.string())
        whole = array.fill_null(_any_value(array.type)) if array.null_count else array
        columns += [array.is_null(), _bits(whole) if pa.types.is_floating(array.type) else whole]
    return pa.table(columns, names=[str(number) for number in range(len(columns))])


def _bits(floats: pa.Array) -> pa.Array:
    """Of each its 64 bits, and of every NaN the same: in a `KeySet` -0 is 0, which would hide a change."""
    doubles = floats.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pa.array(np.where(np.isnan(doubles), np.nan, doubles).view(np.int64))


def _any_value(kind: pa.DataType) -> pa.Scalar:
    zero: Any = 0
    if pa.types.is_string(kind):
        zero = ""
    elif pa.types.is_binary(kind):
        zero = b""
    elif pa.types.is_boolean(kind):
        zero = False
    elif pa.types.is_decimal(kind):
        zero = Decimal(0)
    elif pa.types.is_floating(kind):
        zero = 0.0
    elif not pa.types.is_integer(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.scalar(0, width).cast(kind)
    return pa.scalar(zero, kind)

"""Rows of one table to Arrow columns of text: the new image, the old one, and what the server left out.

With `binlog_row_image` other than FULL the server leaves columns out: they are marked as absent, as unchanged
TOAST of Postgres is. In an update an absent column has not changed; in an insert it has its default, which
only the catalog knows. One exception: MariaDB leaves generated columns out of every update, changed or not,
so there an absent one that the catalog calls generated is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.errors import SourceError
from penstock.sources.absent_kernels import list_absent
from penstock.sources.mysql.binlog import columns, row_kernels
from penstock.sources.mysql.binlog import table_map as types
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.charsets import BINARY, charset_of, conversion, to_utf8
from penstock.sources.mysql.binlog.columns import NO_BYTES, NO_NUMBERS, Rendering
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, Places
from penstock.sources.mysql.binlog.packets import MEMORY, EventBatch
from penstock.sources.mysql.binlog.table_map import Column, TableMap

_NO_LENGTHS: Final = np.zeros(0, np.int32)
_KINDS: Final = {
    types.NEWDECIMAL: values.DECIMAL, types.DATE: values.DATE, types.NEWDATE: values.DATE,
    types.DATETIME2: values.DATETIME2, types.TIMESTAMP2: values.TIMESTAMP2, types.TIME2: values.TIME2,
    types.YEAR: values.YEAR, types.BIT: values.BITS, types.GEOMETRY: values.GEOMETRY,
    types.TIMESTAMP: values.OLD_TIMESTAMP, types.DATETIME: values.OLD_DATETIME, types.TIME: values.OLD_TIME,
    types.FLOAT: columns.FLOAT, types.DOUBLE: columns.DOUBLE, types.JSON: columns.JSON,
    types.VECTOR: columns.VECTOR,
    types.NULL: values.SIGNED,
}  # fmt: skip
_INTEGERS: Final = (types.TINY, types.SHORT, types.INT24, types.LONG, types.LONGLONG)

Absent = tuple[Lengths, Lengths, Bytes]  # a list of column numbers per row: offsets, numbers, validity


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A table map made ready to decode rows with."""

    table: TableMap
    widths: Ints
    columns: tuple[Rendering, ...]

    @classmethod
    def of(cls, table: TableMap, collations: Mapping[int, str]) -> RowLayout:
        widths = np.array([column.width for column in table.columns], np.int64)
        return cls(table, widths, tuple(_rendering(column, collations, table) for column in table.columns))


@dataclass(frozen=True, slots=True)
class RowImages:
    """Rows of one table: a text column each, the old row where there was one, what is missing.

    `old` is empty when no row has one. `old_kind` holds the letters n, k (some columns), f (all). `absent`
    and `absent_old` list column numbers per row that the server left out; None if none.
    """

    columns: list[pa.StringArray]
    old: list[pa.StringArray]
    old_kind: Bytes
    absent: Absent | None
    absent_old: Absent | None


def decode_rows(
    batch: EventBatch, kind: Bytes, row_at: Ints, present_at: Ints, layout: RowLayout
) -> RowImages:
    """The rows that `events.scan` found at `row_at`, all of one table."""
    rows = len(kind)
    has_old = bool((kind != ord("i")).any())
    new, old = (_Located.empty(layout, count, len(batch.buffer)) for count in (rows, rows if has_old else 0))
    old_kind = np.empty(rows, np.uint8)
    absent, absent_old = row_kernels.locate_values(
        batch.buffer, kind, row_at, present_at, layout.widths,
        new.places, new.lengths, old.places, old.lengths, old_kind,
    )  # fmt: skip
    return RowImages(
        _render_all(batch.buffer, new, layout),
        _render_all(batch.buffer, old, layout) if has_old else [],
        old_kind,
        list_absent(new.places, absent) if absent else None,
        list_absent(old.places, absent_old) if absent_old else None,
    )


class _Located(NamedTuple):
    """Where values are, a row per column; how long, a row per column whose values have their own length."""

    places: Places
    lengths: Lengths

    @classmethod
    def empty(cls, layout: RowLayout, rows: int, bytes_: int) -> _Located:
        count, variable = len(layout.widths), int(np.count_nonzero(layout.widths < 0))
        places: Places = _matrix(count, rows)
        if bytes_ >= 2**31:
            places = np.empty((count, rows), np.int64)
        return cls(places, _matrix(variable, rows))


def _matrix(count: int, rows: int) -> Lengths:
    memory = MEMORY.take(4 * count * rows)
    return memory[: 4 * count * rows].view(np.int32).reshape(count, rows)


def _rendering(column: Column, collations: Mapping[int, str], table: TableMap) -> Rendering:
    texts, ends, codes = NO_BYTES, NO_NUMBERS, NO_NUMBERS
    length = column.length
    if column.type in _INTEGERS:
        if column.unsigned is None:
            raise SourceError(
                "The binary log does not say whether numbers are unsigned.",
                stream=table.stream,
                remedy="Set binlog_row_metadata=MINIMAL or FULL on the server (MySQL 8.0, MariaDB 10.5).",
            )
        kind = values.UNSIGNED if column.unsigned else values.SIGNED
    elif column.type in (types.ENUM, types.SET):
        kind, texts, ends = _members(column, collations, table)
    elif column.type in _KINDS:
        kind = _KINDS[column.type]
    elif column.type in (types.BLOB_COMPRESSED, types.VARCHAR_COMPRESSED):
        raise SourceError(
            "A column is compressed by MariaDB (COMPRESSED), which Penstock cannot read.",
            stream=table.stream,
            remedy="Change the column to one that is not compressed, or leave the table out.",
        )
    else:
        charset = charset_of(column.collation, collations, table.stream)
        if charset == BINARY:
            kind, length = values.HEX, (column.length if column.type == types.STRING else 0)
        else:
            kind, codes = conversion(charset, table.stream)
    return Rendering(kind, column.width, length, column.scale, texts, ends, codes)


def _members(column: Column, collations: Mapping[int, str], table: TableMap) -> tuple[int, Bytes, Ints]:
    """Members of an enumeration in UTF-8; without them the number stays, which is exact as well."""
    if column.values is None:
        return values.UNSIGNED, NO_BYTES, NO_NUMBERS
    charset = charset_of(column.collation, collations, table.stream)
    if charset != BINARY:
        conversion(charset, table.stream)  # refused by name, as that of a text is
    members = [to_utf8(value, charset) for value in column.values]
    ends = np.cumsum(np.fromiter(map(len, members), np.int64, len(members)))
    kind = values.ENUM if column.type == types.ENUM else values.SET
    return kind, np.array(bytearray(b"".join(members)), np.uint8), ends


def _render_all(buffer: Bytes, located: _Located, layout: RowLayout) -> list[pa.StringArray]:
    lengths = iter(located.lengths)
    return columns.render_all(
        buffer,
        [
            (places, next(lengths) if column.width < 0 else _NO_LENGTHS, column)
            for places, column in zip(located.places, layout.columns, strict=True)
        ],
        layout.table.stream,
    )

"""Rows of one table to Arrow columns of text: the new image, the old one, and what the server left out.

With `binlog_row_image` other than FULL the server leaves columns out: they are marked as absent, as unchanged
TOAST of Postgres is. In an update an absent column has not changed; in an insert it has its default, which
only the catalog knows. One exception: MariaDB leaves generated columns out of every update, changed or not,
so there an absent one that the catalog calls generated is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import SourceError
from penstock.sources.absent_kernels import list_absent
from penstock.sources.mysql.binlog import json_kernels, row_kernels
from penstock.sources.mysql.binlog import table_map as types
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.charsets import BINARY, charset_of, conversion, to_utf8
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.row_kernels import Lengths
from penstock.sources.mysql.binlog.table_map import Column, TableMap

_OFFSET_MAX = 2**31 - 1
FLOATING, JSON, VECTOR = 100, 101, 102  # kinds beside those of `value_kernels`
_NO_TEXTS: Final = np.zeros(0, np.uint8)
_NO_NUMBERS: Final = np.zeros(0, np.int64)
_KINDS: Final = {
    types.NEWDECIMAL: values.DECIMAL, types.DATE: values.DATE, types.NEWDATE: values.DATE,
    types.DATETIME2: values.DATETIME2, types.TIMESTAMP2: values.TIMESTAMP2, types.TIME2: values.TIME2,
    types.YEAR: values.YEAR, types.BIT: values.BITS, types.GEOMETRY: values.GEOMETRY,
    types.TIMESTAMP: values.OLD_TIMESTAMP, types.DATETIME: values.OLD_DATETIME, types.TIME: values.OLD_TIME,
    types.FLOAT: FLOATING, types.DOUBLE: FLOATING, types.JSON: JSON, types.VECTOR: VECTOR,
    types.NULL: values.SIGNED,
}  # fmt: skip
_INTEGERS: Final = (types.TINY, types.SHORT, types.INT24, types.LONG, types.LONGLONG)

Absent = tuple[Lengths, Lengths, Bytes]  # a list of column numbers per row: offsets, numbers, validity


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a column's values become text: `kind` is of `value_kernels`, or one of the three beside them."""

    kind: int
    length: int = 0
    scale: int = 0
    texts: Bytes = field(default_factory=lambda: _NO_TEXTS)
    ends: Ints = field(default_factory=lambda: _NO_NUMBERS)
    codes: Ints = field(default_factory=lambda: _NO_NUMBERS)
    codec: str | None = None


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
    rows, columns = len(kind), len(layout.widths)
    has_old = bool((kind != ord("i")).any())
    old_rows = rows if has_old else 0
    new_offsets, old_offsets = (np.empty((columns, count), np.int64) for count in (rows, old_rows))
    new_lengths, old_lengths = (np.empty((columns, count), np.int32) for count in (rows, old_rows))
    old_kind = np.empty(rows, np.uint8)
    absent, absent_old = row_kernels.locate_values(
        batch.buffer, kind, row_at, present_at, layout.widths,
        new_offsets, new_lengths, old_offsets, old_lengths, old_kind,
    )  # fmt: skip
    return RowImages(
        _render_all(batch.buffer, new_offsets, new_lengths, layout),
        _render_all(batch.buffer, old_offsets, old_lengths, layout) if has_old else [],
        old_kind,
        list_absent(new_lengths, absent) if absent else None,
        list_absent(old_lengths, absent_old) if absent_old else None,
    )


def _rendering(column: Column, collations: Mapping[int, str], table: TableMap) -> Rendering:
    texts, ends, codes = _NO_TEXTS, _NO_NUMBERS, _NO_NUMBERS
    codec = None
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
            kind, codes, codec = conversion(charset, table.stream)
    return Rendering(kind, length, column.scale, texts, ends, codes, codec)


def _members(column: Column, collations: Mapping[int, str], table: TableMap) -> tuple[int, Bytes, Ints]:
    """Members of an enumeration in UTF-8; without them the number stays, which is exact as well."""
    if column.values is None:
        return values.UNSIGNED, _NO_TEXTS, _NO_NUMBERS
    charset = charset_of(column.collation, collations, table.stream)
    members = [to_utf8(value, charset) for value in column.values]
    ends = np.cumsum(np.fromiter(map(len, members), np.int64, len(members)))
    kind = values.ENUM if column.type == types.ENUM else values.SET
    return kind, np.array(bytearray(b"".join(members)), np.uint8), ends


def _render_all(buffer: Bytes, offsets: Ints, lengths: Lengths, layout: RowLayout) -> list[pa.StringArray]:
    return [
        render(buffer, offsets[number], lengths[number], column, layout.table.stream)
        for number, column in enumerate(layout.columns)
    ]


def render(buffer: Bytes, offsets: Ints, lengths: Lengths, column: Rendering, stream: str) -> pa.StringArray:
    """Values of one column, which are so many bytes at these places; a length below zero is null."""
    if column.kind == FLOATING:
        return _floats(buffer, offsets, lengths, column.length)
    if column.kind == JSON:
        return _json(buffer, offsets, lengths, stream)
    if column.kind == VECTOR:
        return _vectors(buffer, offsets, lengths, stream)
    if column.codec is not None:
        return _decoded(buffer, offsets, lengths, column.codec)
    texts = row_kernels.render(
        column.kind, buffer, offsets, lengths, column.length, column.scale,
        column.texts, column.ends, column.codes,
    )  # fmt: skip
    return _string_array(*texts, stream)


def _string_array(offsets: Ints, data: Bytes, validity: Bytes, nulls: int, stream: str) -> pa.StringArray:
    """Arrow text over buffers of ours, without a copy of the values."""
    if int(offsets[-1]) > _OFFSET_MAX:
        raise SourceError(
            "Values of one column that came together are larger than 2 GiB as text.",
            stream=stream,
            remedy="Leave the column out of the stream.",
        )
    bits: Any = pa.py_buffer(validity) if nulls else None
    narrow = pa.py_buffer(offsets.astype(np.int32))
    return pa.StringArray.from_buffers(len(offsets) - 1, narrow, pa.py_buffer(data), bits, nulls)


def _floats(buffer: Bytes, offsets: Ints, lengths: Lengths, width: int) -> pa.StringArray:
    numbers = np.empty(len(lengths), np.float32 if width == 4 else np.float64)
    validity, nulls = row_kernels.gather_floats(buffer, offsets, lengths, numbers.view(np.uint8), width)
    bits: Any = pa.py_buffer(validity) if nulls else None
    arrow = pa.Array.from_buffers(
        pa.float32() if width == 4 else pa.float64(), len(lengths), [bits, pa.py_buffer(numbers)], int(nulls)
    )
    return pc.cast(arrow, pa.string())


def _json(buffer: Bytes, offsets: Ints, lengths: Lengths, stream: str) -> pa.StringArray:
    found = json_kernels.render_json(buffer, offsets, lengths, _NO_TEXTS, _NO_NUMBERS, False)
    if found[5] and len(doubles := found[4]):
        _, ends, data = pc.cast(pa.array(doubles), pa.string()).buffers()
        shown_at = np.frombuffer(ends, np.int32)[: len(doubles) + 1].astype(np.int64)
        ends, data = json_kernels.lay_out_doubles(shown_at, _bytes(data))
        found = json_kernels.render_json(buffer, offsets, lengths, data, ends, True)
    text_offsets, texts, validity, nulls, _, sound = found
    if not sound:
        raise SourceError(
            "The binary log has a JSON value that cannot be read.",
            stream=stream,
            remedy="Report it with the server's version; leave the column out of the stream meanwhile.",
        )
    return _string_array(text_offsets, texts, validity, nulls, stream)


def _vectors(buffer: Bytes, offsets: Ints, lengths: Lengths, stream: str) -> pa.StringArray:
    """`[1,0.5]`: each number the shortest text that reads back as the same one."""
    floats, ends, validity, nulls = row_kernels.gather_vectors(buffer, offsets, lengths)
    shown = pc.cast(pa.array(floats.view(np.float32)), pa.string())
    _, text_ends, data = shown.buffers()
    texts = row_kernels.join_vectors(
        ends, validity, np.frombuffer(text_ends, np.int32)[: len(shown) + 1].copy(), _bytes(data)
    )
    return _string_array(*texts, validity, int(nulls), stream)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    """A copy, which may be written to: compiled code is the same for all arrays then."""
    return _NO_TEXTS if buffer is None else np.frombuffer(buffer, np.uint8).copy()


def _decoded(buffer: Bytes, offsets: Ints, lengths: Lengths, codec: str) -> pa.StringArray:
    data = buffer.data
    return pa.array(
        [
            str(data[at : at + length], codec, "replace") if length >= 0 else None
            for at, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ],
        pa.string(),
    )

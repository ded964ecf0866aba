"""Avro through a schema registry: the fields of our own JSON, in the types that the lake has.

The value is a record `Envelope`: op, before and after (`Value` or null), unchanged, source, ts_ms. The key is
a record `Key` of the primary key's columns. Both are in the namespace `prefix.schema.table`. Each column is a
union of null and its type, with null as default: so a column that is added or dropped is a version that both
older and newer readers can read.

    bool, int2, int4, int8       boolean, int, int, long
    float4, float8               float, double
    numeric(p,s) to 38 digits    bytes, decimal(p,s); with `decimals: string` or `double`, that
    other numeric                string
    date                         int, date
    timestamp, timestamptz       long, local-timestamp-micros and timestamp-micros
    bytea, uuid                  bytes; string, uuid
    uint8, year                  bytes, decimal(20,0), as a numeric; int
    anything else                string, as the source prints it

What these cannot hold is refused: NaN in a numeric(p,s), infinite dates and timestamps, days that are none. A
name with letters that Avro does not allow has underscores in their place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.capture.transactions import TableVersion
from penstock.core.schema import SourceColumn
from penstock.sources.types import arrow_type
from penstock.streams.encoding import byte_kernels, row_kernels
from penstock.streams.encoding import event_kernels as kernels
from penstock.streams.encoding.cells import cells_of, is_valid, packed
from penstock.streams.encoding.layout import (
    NOT_THERE,
    ColumnLayout,
    Converted,
    Converter,
    Field,
    LayoutParts,
    as_printed,
    common,
    from_common,
)
from penstock.streams.encoding.modes import DecimalMode
from penstock.streams.encoding.names import distinct_names, valid_name
from penstock.streams.encoding.registry import Registry
from penstock.streams.encoding.view import StreamView
from penstock.values import text_casts

_NULL, _THERE = b"\0", b"\2"  # the branches of a union of null and something
_EMPTY_ARRAY = b"\0"


@dataclass(frozen=True, slots=True)
class _AvroType:
    schema: Any
    form: int
    convert: Converter | None = None


class AvroFormat:
    def __init__(self, registry: Registry, decimals: DecimalMode) -> None:
        self._registry = registry
        self._decimals = decimals

    def parts(self, version: TableVersion, view: StreamView) -> LayoutParts:
        masks = dict(view.masks)
        types = {
            name: _STRING if name in masks else _avro_type(version.columns[name], self._decimals)
            for name in (*view.columns, *view.key)
            if name in version.columns
        }
        value = self._registry.header(f"{view.route}-value", _text(_envelope(view, types)), "AVRO")
        key = b""
        if view.key:
            key = self._registry.header(f"{view.route}-key", _text(_key(view, types)), "AVRO")
        return LayoutParts(
            _fields(view, value),
            [_column(types.get(name)) for name in view.columns],
            [_column(types.get(name)) for name in view.key],
            [_sized(name) for name in view.columns],
            key_head=key,
        )


def _avro_type(column: SourceColumn, decimals: DecimalMode) -> _AvroType:
    arrow, kind = arrow_type(replace(column, held_as="")), common(column)
    if pa.types.is_decimal(arrow):
        found = _decimal(arrow, decimals)
    elif kind.name == "uuid":
        found = replace(_STRING, schema={"type": "string", "logicalType": "uuid"})
    else:
        found = _TYPES.get(arrow, _STRING)
    if found.schema == "string":
        return replace(found, convert=as_printed(kind))
    return replace(found, convert=from_common(kind, found.convert))


def _decimal(arrow: pa.DataType, decimals: DecimalMode) -> _AvroType:
    if decimals == "string":
        return _STRING
    if decimals == "double":
        return _TYPES[pa.float64()]
    scale = arrow.scale

    def convert(column: pa.StringArray) -> Converted:
        ends, data, _, bad = byte_kernels.decimal_column(cells_of([column]), len(column), scale)
        return Converted(packed(ends, data, is_valid(column)), bad if bad.any() else None)

    schema = {"type": "bytes", "logicalType": "decimal", "precision": arrow.precision, "scale": scale}
    return _AvroType(schema, row_kernels.SIZED, convert)


def fixed_floats(arrow: pa.DataType) -> Converter:
    """Each as its four or eight bytes."""

    def convert(column: pa.StringArray) -> Converted:
        numbers = text_casts.floats(column, arrow).values.to_numpy(zero_copy_only=False)
        width = arrow.bit_width // 8
        valid = is_valid(column)
        ends = np.concatenate([[0], np.cumsum(np.where(valid, width, 0))]).astype(np.int32)
        data = np.ascontiguousarray(numbers[valid], arrow.to_pandas_dtype()).view(np.uint8)
        return Converted(packed(ends, data, valid))

    return convert


def byte_strings(column: pa.StringArray) -> Converted:
    return Converted(text_casts.byte_strings(column, pa.binary()).values)


def _numbers(cast: text_casts.Cast, arrow: pa.DataType, integers: pa.DataType) -> Converter:
    """Days or microseconds since 1970, as the text of a number."""

    def convert(column: pa.StringArray) -> Converted:
        result = cast(column, arrow)
        bad = None if result.bad is None else result.bad.to_numpy(zero_copy_only=False)
        return Converted(result.values.cast(integers).cast(pa.string()), bad)

    return convert


_STRING = _AvroType("string", row_kernels.SIZED)
_TYPES: dict[pa.DataType, _AvroType] = {
    pa.bool_(): _AvroType("boolean", row_kernels.BYTE),
    pa.int16(): _AvroType("int", row_kernels.LONG),
    pa.int32(): _AvroType("int", row_kernels.LONG),
    pa.int64(): _AvroType("long", row_kernels.LONG),
    pa.float32(): _AvroType("float", row_kernels.RAW, fixed_floats(pa.float32())),
    pa.float64(): _AvroType("double", row_kernels.RAW, fixed_floats(pa.float64())),
    pa.binary(): _AvroType("bytes", row_kernels.SIZED, byte_strings),
    pa.date32(): _AvroType(
        {"type": "int", "logicalType": "date"},
        row_kernels.LONG,
        _numbers(text_casts.dates, pa.date32(), pa.int32()),
    ),
    pa.timestamp("us"): _AvroType(
        {"type": "long", "logicalType": "local-timestamp-micros"},
        row_kernels.LONG,
        _numbers(text_casts.timestamps, pa.timestamp("us"), pa.int64()),
    ),
    pa.timestamp("us", "UTC"): _AvroType(
        {"type": "long", "logicalType": "timestamp-micros"},
        row_kernels.LONG,
        _numbers(text_casts.timestamps, pa.timestamp("us", "UTC"), pa.int64()),
    ),
}


def _column(kind: _AvroType | None) -> ColumnLayout:
    if kind is None:
        return NOT_THERE
    return ColumnLayout(kind.form, _THERE, _NULL, _NULL, _NULL, kind.convert)


def _sized(text: str) -> bytes:
    """A string as Avro has it."""
    data = text.encode()
    return _zigzag(len(data)) + data


def _zigzag(number: int) -> bytes:
    rest, found = number << 1, bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _fields(view: StreamView, header: bytes) -> list[Field]:
    table = _sized(view.stream.namespace) + _sized(view.stream.name)
    return [
        Field(kernels.KIND, lead=header + _zigzag(1)),
        Field(kernels.BEFORE, present=_THERE, absent=_NULL),
        Field(kernels.AFTER, present=_THERE, absent=_NULL),
        Field(kernels.MISSING, row_kernels.SIZED, absent=_EMPTY_ARRAY),
        Field(kernels.TX, row_kernels.LONG, lead=table),
        Field(kernels.XID, row_kernels.LONG),
        Field(kernels.COMMIT_US, row_kernels.LONG),
        Field(kernels.TX, row_kernels.LONG),
        Field(kernels.OP, row_kernels.LONG),
        Field(kernels.SNAPSHOT, row_kernels.BYTE),
        Field(kernels.NOW_MS, row_kernels.LONG),
    ]


def _envelope(view: StreamView, types: dict[str, _AvroType]) -> dict[str, Any]:
    row = _record("Value", _columns(view.columns, types))
    source = _record(
        "Source",
        [
            {"name": "schema", "type": "string"},
            {"name": "table", "type": "string"},
            {"name": "lsn", "type": "long"},
            {"name": "txid", "type": "long"},
            {"name": "commit_ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tx", "type": "long"},
            {"name": "op_index", "type": "long"},
            {"name": "snapshot", "type": "boolean"},
        ],
    )
    fields: list[dict[str, Any]] = [
        {"name": "op", "type": "string"},
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "unchanged", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "source", "type": source},
        {"name": "ts_ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    return _record("Envelope", fields) | {"namespace": _namespace(view)}


def _key(view: StreamView, types: dict[str, _AvroType]) -> dict[str, Any]:
    return _record("Key", _columns(view.key, types)) | {"namespace": _namespace(view)}


def _record(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def _columns(names: Sequence[str], types: dict[str, _AvroType]) -> list[dict[str, Any]]:
    allowed = distinct_names(names)
    return [
        {"name": allowed[name], "type": ["null", types[name].schema], "default": None}
        | ({} if allowed[name] == name else {"doc": name})
        for name in names
        if name in types
    ]


def _namespace(view: StreamView) -> str:
    parts = (view.prefix, view.stream.namespace, view.stream.name)
    return ".".join(valid_name(part) for part in parts if part)


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)

"""Protobuf through a schema registry: the fields of our own JSON.

The value is a message `Envelope`, the first of its file: op, before and after (`Value`), unchanged, source,
ts_ms. The key is a message `Key` of the primary key's columns. A column that is null is not there.

    bool, int2, int4, int8, float4, float8, bytea    bool, int32, int32, int64, float, double, bytes
    uint8, year                                      uint64, int32
    anything else                                    string, as the source prints it

So every value can be said, and nothing is refused.

A field keeps its number for ever: the schema is the one the registry has, with new columns behind its fields.
Fields of columns that are gone stay, and are in no new record. Without that, a column in the middle that goes
would give its number to another, and old records would be read wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.capture.transactions import TableVersion
from penstock.core.schema import SourceColumn
from penstock.streams.encoding import event_kernels as kernels
from penstock.streams.encoding import row_kernels
from penstock.streams.encoding.avro import byte_strings, fixed_floats
from penstock.streams.encoding.layout import (
    NOT_THERE,
    ColumnLayout,
    Converter,
    Field,
    LayoutParts,
    as_printed,
    common,
    from_common,
)
from penstock.streams.encoding.names import valid_name
from penstock.streams.encoding.registry import Registry
from penstock.streams.encoding.view import StreamView

_FIRST_MESSAGE = b"\0"
_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5
_FIELD = re.compile(r"^\s*optional (\w+) (\w+) = (\d+);", re.MULTILINE)
_UNUSABLE = range(19_000, 20_000)  # Protobuf's own


@dataclass(frozen=True, slots=True)
class _ProtobufType:
    name: str
    wire: int
    form: int
    convert: Converter | None = None


_STRING = _ProtobufType("string", _SIZED, row_kernels.PREFIXED)
_TYPES = {
    "bool": _ProtobufType("bool", _VARINT, row_kernels.BYTE),
    "int2": _ProtobufType("int32", _VARINT, row_kernels.VARINT),
    "int4": _ProtobufType("int32", _VARINT, row_kernels.VARINT),
    "int8": _ProtobufType("int64", _VARINT, row_kernels.VARINT),
    "uint8": _ProtobufType("uint64", _VARINT, row_kernels.VARINT),
    "year": _ProtobufType("int32", _VARINT, row_kernels.VARINT),
    "float4": _ProtobufType("float", _FOUR_BYTES, row_kernels.RAW, fixed_floats(pa.float32())),
    "float8": _ProtobufType("double", _EIGHT_BYTES, row_kernels.RAW, fixed_floats(pa.float64())),
    "bytea": _ProtobufType("bytes", _SIZED, row_kernels.PREFIXED, byte_strings),
}


def _protobuf_type(column: SourceColumn) -> _ProtobufType:
    kind = common(column)
    found = _TYPES.get(kind.name)
    if found is None:
        return replace(_STRING, convert=as_printed(kind))
    return replace(found, convert=from_common(kind, found.convert))


@dataclass(frozen=True, slots=True)
class Message:
    """`fields` are types and numbers by their names; `columns` says which field a column has."""

    name: str
    fields: dict[str, tuple[str, int]]
    columns: dict[str, str]

    @property
    def text(self) -> str:
        fields = [f"  optional {kind} {name} = {number};" for name, (kind, number) in self.fields.items()]
        return "\n".join([f"message {self.name} {{", *fields, "}"])

    def layout(self, column: str, types: dict[str, _ProtobufType]) -> ColumnLayout:
        if column not in self.columns:
            return NOT_THERE
        kind, (_, number) = types[column], self.fields[self.columns[column]]
        return ColumnLayout(kind.form, _tag(number, kind.wire), b"", b"", b"", kind.convert)


class ProtobufFormat:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def parts(self, version: TableVersion, view: StreamView) -> LayoutParts:
        masks = dict(view.masks)
        types = {
            name: _STRING if name in masks else _protobuf_type(version.columns[name])
            for name in (*view.columns, *view.key)
            if name in version.columns
        }
        row, header = self._registered(view, "Value", view.columns, types, f"{view.route}-value")
        key, key_header = Message("Key", {}, {}), b""
        if view.key:
            key, key_header = self._registered(view, "Key", view.key, types, f"{view.route}-key")
        return LayoutParts(
            _fields(view, header),
            [row.layout(name, types) for name in view.columns],
            [key.layout(name, types) for name in view.key],
            [_tag(4, _SIZED) + _sized(name) for name in view.columns],
            key_head=key_header,
        )

    def _registered(
        self,
        view: StreamView,
        name: str,
        columns: Sequence[str],
        types: dict[str, _ProtobufType],
        subject: str,
    ) -> tuple[Message, bytes]:
        there = {column: types[column].name for column in columns if column in types}
        message = next_version(name, there, self._registry.latest(subject))
        others = _ENVELOPE if name == "Value" else ""
        schema = f'syntax = "proto3";\npackage {_package(view)};\n\n{others}{message.text}\n'
        return message, self._registry.header(subject, schema, "PROTOBUF") + _FIRST_MESSAGE


def next_version(name: str, columns: Mapping[str, str], before: str) -> Message:
    """The message `name` of the schema `before` (empty: none), with fields for these columns' types."""
    start = before.find(f"message {name} {{")
    part = before[start : before.find("}", start)] if start >= 0 else ""
    fields = {field: (kind, int(number)) for kind, field, number in _FIELD.findall(part)}
    next_number = max((number for _, number in fields.values()), default=0) + 1
    chosen: dict[str, str] = {}
    for column, kind in columns.items():
        field = _field_name(column, fields, chosen.values())
        if field in fields:
            number = fields[field][1]
        else:
            number = _UNUSABLE.stop if next_number in _UNUSABLE else next_number
            next_number = number + 1
        fields[field], chosen[column] = (kind, number), field
    return Message(name, fields, chosen)


def _field_name(column: str, known: Collection[str], taken: Collection[str]) -> str:
    """The field that the column has, or a name that none has, not even as JSON spells it (`camelCase`)."""
    spelled = {_spelling(field) for field in known}
    plain = field = valid_name(column)
    number = 2
    while field in taken or (field not in known and _spelling(field) in spelled):
        field, number = f"{plain}_{number}", number + 1
    return field


def _spelling(field: str) -> str:
    return field.replace("_", "").lower()


def _package(view: StreamView) -> str:
    parts = (view.prefix, view.stream.namespace, view.stream.name)
    return ".".join(valid_name(part) for part in parts if part)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _sized(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


_ENVELOPE = """message Envelope {
  string op = 1;
  Value before = 2;
  Value after = 3;
  repeated string unchanged = 4;
  Source source = 5;
  int64 ts_ms = 6;
}

message Source {
  string schema = 1;
  string table = 2;
  int64 lsn = 3;
  int64 txid = 4;
  int64 commit_us = 5;
  int64 tx = 6;
  int64 op_index = 7;
  bool snapshot = 8;
}

"""


def _fields(view: StreamView, header: bytes) -> list[Field]:
    table = _tag(1, _SIZED) + _sized(view.stream.namespace) + _tag(2, _SIZED) + _sized(view.stream.name)
    return [
        Field(kernels.KIND, lead=header + _tag(1, _SIZED) + _varint(1)),
        Field(kernels.BEFORE, row_kernels.PREFIXED, present=_tag(2, _SIZED)),
        Field(kernels.AFTER, row_kernels.PREFIXED, present=_tag(3, _SIZED)),
        Field(kernels.MISSING),
        Field(kernels.MESSAGE_OPEN, lead=_tag(5, _SIZED)),
        Field(kernels.TX, row_kernels.VARINT, lead=table + _tag(3, _VARINT)),
        Field(kernels.XID, row_kernels.VARINT, lead=_tag(4, _VARINT)),
        Field(kernels.COMMIT_US, row_kernels.VARINT, lead=_tag(5, _VARINT)),
        Field(kernels.TX, row_kernels.VARINT, lead=_tag(6, _VARINT)),
        Field(kernels.OP, row_kernels.VARINT, lead=_tag(7, _VARINT)),
        Field(kernels.SNAPSHOT, row_kernels.BYTE, lead=_tag(8, _VARINT)),
        Field(kernels.MESSAGE_CLOSE),
        Field(kernels.NOW_MS, row_kernels.VARINT, lead=_tag(6, _VARINT)),
    ]

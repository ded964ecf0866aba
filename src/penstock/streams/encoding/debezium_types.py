"""What Debezium's connectors make of each type, by its own names for the modes.

A `ConnectType` is a type of Kafka Connect: the literal type, the semantic name, parameters; with it, how its
values are written as JSON and what common texts (`values.common_types`) are made into before.

    `decimals`            precise               string          double
    numeric(p,s), money   Decimal               string          float64
    numeric               VariableScaleDecimal  string          float64

    `times`               adaptive         adaptive_time_microseconds  connect         isostring
    date                  Date             Date                        Date            IsoDate
    time(0..3)            Time (ms)        MicroTime                   Time (ms)       IsoTime
    time                  MicroTime        MicroTime                   Time (ms)       IsoTime
    timestamp(0..3)       Timestamp (ms)   Timestamp (ms)              Timestamp (ms)  IsoTimestamp
    timestamp             MicroTimestamp   MicroTimestamp              Timestamp (ms)  IsoTimestamp

timestamptz is a ZonedTimestamp and timetz a ZonedTime, both in UTC; interval is MicroDuration or, with
`intervals: string`, Interval; bytea is bytes, or text by `binary`. Infinite timestamps are the numbers that
Debezium has for them, infinite dates the least and the greatest. What cannot be said, and is refused: NaN and
the infinities of a numeric with `precise`, an infinite interval, timestamps after the year 294246, arrays of
several dimensions.

Of MySQL: `year` is a Year, a time of any length (`duration`) a MicroTime, or by `connect` and `isostring` a
time of day, where it is one; enum and set are Enum and EnumSet with their members, a geometry is a struct of
WKB and reference system, an unsigned 64-bit integer an int64. Refused: one beyond that, days that are none.

Types that Debezium leaves out by default, such as composites, are the text that the source prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import SourceColumn
from penstock.streams.encoding import byte_kernels, byte_values, row_kernels, time_values
from penstock.streams.encoding.cells import cells_of, is_valid, packed
from penstock.streams.encoding.layout import Converted, Converter, common, from_common
from penstock.streams.encoding.modes import Modes
from penstock.streams.events import Bytes
from penstock.values import parse_array, text_casts

PLACEHOLDER = "__debezium_unavailable_value"
_MONEY_DIGITS = 2
_FIELDS = (("scale", "int32", False), ("value", "bytes", False))
_GEOMETRY_FIELDS = (("wkb", "bytes", False), ("srid", "int32", True))
_MEMBER = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class ConnectType:
    """`placeholder` is the JSON that stands for a value the source did not send."""

    literal: str
    name: str = ""
    form: int = row_kernels.RAW
    convert: Converter | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    items: ConnectType | None = None
    fields: tuple[tuple[str, str, bool], ...] = ()
    placeholder: str = f'"{PLACEHOLDER}"'


_STRING = ConnectType("string", form=row_kernels.TEXT)
_PLAIN: dict[str, ConnectType] = {
    "bool": ConnectType("boolean", form=row_kernels.BOOLEAN),
    "int2": ConnectType("int16"),
    "int4": ConnectType("int32"),
    "int8": ConnectType("int64"),
    "oid": ConnectType("int64"),
    "float4": ConnectType("float", form=row_kernels.FLOAT),
    "float8": ConnectType("double", form=row_kernels.FLOAT),
    "json": replace(_STRING, name="io.debezium.data.Json"),
    "jsonb": replace(_STRING, name="io.debezium.data.Json"),
    "xml": replace(_STRING, name="io.debezium.data.Xml"),
    "uuid": replace(_STRING, name="io.debezium.data.Uuid"),
    "tsvector": replace(_STRING, name="io.debezium.data.TsVector"),
    "year": ConnectType("int32", "io.debezium.time.Year"),
    "geometry": ConnectType(
        "struct",
        "io.debezium.data.geometry.Geometry",
        convert=byte_values.geometries,
        fields=_GEOMETRY_FIELDS,
    ),
}
_EXTENSIONS: dict[str, ConnectType] = {"ltree": replace(_STRING, name="io.debezium.data.Ltree")}


def connect_type(column: SourceColumn | None, modes: Modes) -> ConnectType:
    """None: a column that the row's version does not have."""
    if column is None:
        return _STRING
    kind = common(column)
    if column.element:
        return _array(_element_type(column, modes))
    found = _connect_type(kind.name, replace(column, type_modifier=kind.modifier), modes)
    return replace(found, convert=from_common(kind, found.convert))


def _connect_type(name: str, column: SourceColumn, modes: Modes) -> ConnectType:
    """`name` and the column's modifier are those of its common type."""
    if not name:
        if column.type_name == "hstore":
            return replace(_STRING, name="io.debezium.data.Json", convert=byte_values.hstore_json)
        return _EXTENSIONS.get(column.type_name, _STRING)
    if name in _PLAIN:
        return _PLAIN[name]
    making = _MAKERS.get(name)
    return _STRING if making is None else making(column, modes)


def _element_type(column: SourceColumn, modes: Modes) -> ConnectType:
    if "." in column.element:  # a type of somebody's own
        return _STRING
    return connect_type(replace(column, type_oid=0, type_name=column.element, element=""), modes)


def _numeric(column: SourceColumn, modes: Modes) -> ConnectType:
    precision, scale = _precision_and_scale(column)
    if modes.decimals == "double":
        return ConnectType("double", form=row_kernels.FLOAT)
    if modes.decimals == "string":
        return replace(_STRING, convert=byte_values.named_specials)
    if scale is None:
        return ConnectType(
            "struct",
            "io.debezium.data.VariableScaleDecimal",
            convert=byte_values.variable_decimals,
            fields=_FIELDS,
        )
    # A scale below 0 says how many zeros stand before the point: they are digits like others.
    return _decimal(precision - min(scale, 0), max(scale, 0))


def _decimal(precision: int | None, scale: int) -> ConnectType:
    digits = () if precision is None else (("connect.decimal.precision", str(precision)),)
    return ConnectType(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        row_kernels.TEXT,
        lambda column: byte_values.base64_decimals(column, scale),
        (("scale", str(scale)), *digits),
        placeholder=byte_values.base64_text(PLACEHOLDER.encode()),
    )


def _precision_and_scale(column: SourceColumn) -> tuple[int, int | None]:
    if column.type_modifier < 4:
        return 0, None
    modifier = column.type_modifier - 4
    return modifier >> 16 & 0xFFFF, (modifier & 0x7FF ^ 0x400) - 0x400  # eleven bits, signed


def _money(column: SourceColumn, modes: Modes) -> ConnectType:
    plain = replace(_STRING, convert=lambda texts: Converted(byte_values.plain_money(texts)))
    if modes.decimals == "double":
        return replace(plain, literal="double", form=row_kernels.FLOAT)
    if modes.decimals == "string":
        return plain
    decimal = _decimal(None, _MONEY_DIGITS)
    return replace(
        decimal,
        convert=lambda texts: byte_values.base64_decimals(byte_values.plain_money(texts), _MONEY_DIGITS),
    )


def _bytea(column: SourceColumn, modes: Modes) -> ConnectType:
    if modes.binary == "hex":
        return replace(
            _STRING,
            convert=lambda texts: Converted(pc.utf8_slice_codeunits(texts, 2)),
            placeholder=f'"{PLACEHOLDER.encode().hex()}"',
        )
    letters = byte_kernels.URL_SAFE if modes.binary == "base64-url-safe" else byte_kernels.STANDARD
    return ConnectType(
        "bytes" if modes.binary == "bytes" else "string",
        form=row_kernels.TEXT,
        convert=lambda texts: Converted(
            byte_values.base64_texts(text_casts.byte_strings(texts, pa.binary()).values, letters)
        ),
        placeholder=byte_values.base64_text(PLACEHOLDER.encode()),
    )


def _bits(column: SourceColumn, modes: Modes) -> ConnectType:
    length = column.type_modifier if column.type_modifier > 0 else 2**31 - 1
    if length == 1:
        return ConnectType(
            "boolean",
            form=row_kernels.BOOLEAN,
            convert=lambda texts: Converted(pc.replace_substring(texts, "1", "t")),
        )
    return ConnectType(
        "bytes",
        "io.debezium.data.Bits",
        row_kernels.TEXT,
        byte_values.base64_bits,
        (("length", str(length)),),
    )


def _date(column: SourceColumn, modes: Modes) -> ConnectType:
    if modes.times == "isostring":
        return ConnectType("string", "io.debezium.time.IsoDate", convert=time_values.iso_dates)
    name = "org.apache.kafka.connect.data.Date" if modes.times == "connect" else "io.debezium.time.Date"
    return ConnectType("int32", name, convert=time_values.day_numbers)


def _time(column: SourceColumn, modes: Modes) -> ConnectType:
    if modes.times == "isostring":
        return ConnectType("string", "io.debezium.time.IsoTime", convert=time_values.iso_times)
    if modes.times == "connect":
        return ConnectType(
            "int32",
            "org.apache.kafka.connect.data.Time",
            convert=lambda t: time_values.clock_numbers(t, 1000),
        )
    if modes.times == "adaptive" and _time_digits(column) <= 3:
        return ConnectType(
            "int32", "io.debezium.time.Time", convert=lambda texts: time_values.clock_numbers(texts, 1000)
        )
    return ConnectType(
        "int64", "io.debezium.time.MicroTime", convert=lambda texts: time_values.clock_numbers(texts, 1)
    )


def _timestamp(column: SourceColumn, modes: Modes) -> ConnectType:
    digits = _time_digits(column)
    if modes.times == "isostring":
        return ConnectType(
            "string",
            "io.debezium.time.IsoTimestamp",
            convert=lambda texts: time_values.zoned_timestamps(texts, -1),
        )
    if modes.times == "connect":
        name, unit = "org.apache.kafka.connect.data.Timestamp", 1000
    elif digits <= 3:
        name, unit = "io.debezium.time.Timestamp", 1000
    else:
        name, unit = "io.debezium.time.MicroTimestamp", 1
    return ConnectType("int64", name, convert=lambda texts: time_values.instant_numbers(texts, unit))


def _timestamptz(column: SourceColumn, modes: Modes) -> ConnectType:
    digits = _time_digits(column) or -1
    return ConnectType(
        "string",
        "io.debezium.time.ZonedTimestamp",
        convert=lambda texts: time_values.zoned_timestamps(texts, digits),
    )


def _timetz(column: SourceColumn, modes: Modes) -> ConnectType:
    return ConnectType("string", "io.debezium.time.ZonedTime", convert=time_values.zoned_times)


def _interval(column: SourceColumn, modes: Modes) -> ConnectType:
    as_text = modes.intervals == "string"
    literal, name = ("string", "Interval") if as_text else ("int64", "MicroDuration")
    return ConnectType(
        literal, f"io.debezium.time.{name}", convert=lambda texts: time_values.intervals(texts, as_text)
    )


def _time_digits(column: SourceColumn) -> int:
    return column.type_modifier if 0 <= column.type_modifier <= 6 else 6


def _unsigned(column: SourceColumn, modes: Modes) -> ConnectType:
    return ConnectType("int64", convert=byte_values.signed_integers)


def _members(column: SourceColumn, modes: Modes) -> ConnectType:
    """`enum('a','b')`: its members as Debezium lists them."""
    kind, _, listed = column.type_text.partition("(")
    allowed = ",".join(member.replace("''", "'") for member in _MEMBER.findall(listed))
    name = "io.debezium.data.Enum" if kind == "enum" else "io.debezium.data.EnumSet"
    return replace(_STRING, name=name, parameters=(("allowed", allowed),))


def _duration(column: SourceColumn, modes: Modes) -> ConnectType:
    if modes.times in ("connect", "isostring"):
        return _time(column, modes)
    return ConnectType("int64", "io.debezium.time.MicroTime", convert=time_values.duration_numbers)


def _array(element: ConnectType) -> ConnectType:
    placeholder = f"[{element.placeholder}]"
    if element.literal in ("int16", "int32", "int64") and not element.name:
        placeholder = f"[{','.join(str(byte) for byte in PLACEHOLDER.encode())}]"
    return ConnectType(
        "array", convert=lambda texts: _lists(texts, element), items=element, placeholder=placeholder
    )


def _lists(column: pa.StringArray, element: ConnectType) -> Converted:
    starts, offsets, data, is_null, bad = parse_array.parse_arrays(*text_casts.string_buffers(column))
    texts = packed(offsets, data, ~is_null, pa.string())
    if element.convert is not None and len(texts):
        converted = element.convert(texts)
        texts = converted.values
        if converted.bad is not None:
            unfit = np.concatenate([[0], np.cumsum(converted.bad)])
            bad |= unfit[starts[1:]] > unfit[starts[:-1]]
    if element.form != row_kernels.RAW:
        ends, data = row_kernels.write_column(cells_of([texts]), len(texts), element.form)
        texts = packed(ends, data, is_valid(texts))
    ends, data = row_kernels.join_lists(
        cells_of([texts]), starts, ~is_valid(column) | bad, _text("["), _text("null"), _text("]")
    )
    return Converted(packed(ends, data, is_valid(column) & ~bad), bad if bad.any() else None)


def _text(letters: str) -> Bytes:
    return np.frombuffer(letters.encode(), np.uint8).copy()


_MAKERS: dict[str, Callable[[SourceColumn, Modes], ConnectType]] = {
    "uint8": _unsigned,
    "enum": _members,
    "set": _members,
    "duration": _duration,
    "numeric": _numeric,
    "money": _money,
    "bytea": _bytea,
    "bit": _bits,
    "varbit": _bits,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "timetz": _timetz,
    "interval": _interval,
}

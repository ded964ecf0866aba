"""What a value of MySQL or MariaDB becomes in Arrow, by one table of rules.

Values come as the text that the binary log's decoder writes, loads and changes alike (`results`), so there is
one cast to be exact.

`SourceColumn.type_name` is the name of the type as the catalog has it, with ` unsigned` behind integers that
are; `type_modifier` is what its brackets say: digits and scale of a decimal (`decimal_modifier`), digits of a
second, bits, characters or bytes.

What a column's Arrow type cannot hold is *bad* (`values.rules`): dates that are zero, have zero parts or are
not in the calendar (a server that is not strict takes all of them). Null would be wrong in silence; hold the
column as text to keep them. A decimal of more than 38 digits is text; so is a time, which may be negative or
have hundreds of hours (`types: {column: time}` where it is a time of day), a bit field of several bits, an
enumeration, a set, JSON, a vector, and a geometry (its reference system and its WKB, `SRID=4326;0101…`).
Unsigned 64-bit integers are decimals of 20 digits. Binary values are bytes. BIT(1) is a boolean.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.held_as import DECIMAL_DIGITS_MAX
from penstock.core.schema import SourceColumn
from penstock.sources.mysql.common_types import common_type
from penstock.sources.types import CursorKind
from penstock.values import parse_time, text_casts
from penstock.values.common_types import CommonType
from penstock.values.rules import TEXT, Rule, TypeRules, always
from penstock.values.text_casts import CastResult, array_over, string_buffers

FAMILY = "mysql"
TIMESTAMP = pa.timestamp("us")
TIMESTAMP_IN_UTC = pa.timestamp("us", "UTC")
_UNSIGNED_64_BITS = pa.decimal128(20, 0)

TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geomcollection", "geometrycollection",
)  # fmt: skip


def decimal_modifier(precision: int, scale: int) -> int:
    return precision << 16 | scale


def name_of(column: SourceColumn) -> str:
    return column.type_name


def _decimal_or_text(column: SourceColumn) -> pa.DataType:
    precision, scale = column.type_modifier >> 16, column.type_modifier & 0xFFFF
    return pa.decimal128(precision, scale) if 1 <= precision <= DECIMAL_DIGITS_MAX else pa.string()


def _boolean_or_text(column: SourceColumn) -> pa.DataType:
    return pa.bool_() if column.type_modifier == 1 else pa.string()


def _bits(array: pa.Array, arrow: pa.DataType) -> CastResult:
    if not pa.types.is_boolean(arrow):
        return CastResult(array)
    numbers = text_casts.integers(array, pa.int16())
    return CastResult(pc.not_equal(numbers.values, pa.scalar(0, pa.int16())), numbers.bad)


def _dates(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int32), np.zeros(len(array), np.bool_)
    arguments = string_buffers(array)
    failures = parse_time.parse_dates(*arguments, out, bad)
    failures += parse_time.mark_impossible_days(*arguments, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def _timestamps(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    arguments = string_buffers(array)
    failures = parse_time.parse_timestamps(*arguments, out, bad)
    failures += parse_time.mark_impossible_days(*arguments, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def _integer(arrow: pa.DataType) -> Rule:
    return Rule(always(arrow), text_casts.integers)


#: What is not here is text.
RULES: dict[str, Rule] = {
    "tinyint": _integer(pa.int16()),
    "tinyint unsigned": _integer(pa.int16()),
    "smallint": _integer(pa.int16()),
    "smallint unsigned": _integer(pa.int32()),
    "mediumint": _integer(pa.int32()),
    "mediumint unsigned": _integer(pa.int32()),
    "int": _integer(pa.int32()),
    "int unsigned": _integer(pa.int64()),
    "bigint": _integer(pa.int64()),
    "bigint unsigned": Rule(always(_UNSIGNED_64_BITS), text_casts.decimals),
    "decimal": Rule(_decimal_or_text, text_casts.decimals),
    "float": Rule(always(pa.float32()), text_casts.floats),
    "double": Rule(always(pa.float64()), text_casts.floats),
    "year": _integer(pa.int16()),
    "bit": Rule(_boolean_or_text, _bits),
    "date": Rule(always(pa.date32()), _dates),
    "datetime": Rule(always(TIMESTAMP), _timestamps),
    "timestamp": Rule(always(TIMESTAMP_IN_UTC), _timestamps),
    **dict.fromkeys(BYTES, Rule(always(pa.binary()), text_casts.bare_hex)),
    **dict.fromkeys(TEXTS, TEXT),
    "time": TEXT,
    "enum": TEXT,
    "set": TEXT,
    "json": TEXT,
    "vector": TEXT,
    **dict.fromkeys(GEOMETRIES, TEXT),
}
_INTEGER: CursorKind = "integer"
CURSOR_KINDS: dict[str, CursorKind] = {
    **{
        f"{size}int{sign}": _INTEGER
        for size in ("tiny", "small", "medium", "", "big")
        for sign in ("", " unsigned")
    },
    "bigint unsigned": "number",
    "decimal": "number",
    "datetime": "time",
    "timestamp": "time",
    "date": "date",
    "char": "text",
    "varchar": "text",
}
_INTEGER_RANGES = {
    f"{name}{sign}": (0 if sign else -(2 ** (bits - 1)), 2 ** (bits if sign else bits - 1) - 1)
    for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
    for sign in ("", " unsigned")
}
#: Of each row, later types hold all values of earlier ones, with the same text.
_WIDENING = (("varchar", *TEXTS[2:]), ("varbinary", *BYTES[2:]))
_LIMITED = frozenset({"varchar", "varbinary", "char"})
_MEMBERS = re.compile(r"^(enum|set)\((.*)\)$", re.DOTALL)


class MysqlTypes(TypeRules):
    def common(self, column: SourceColumn) -> CommonType:
        name = column.type_name
        return common_type(
            replace(column, held_as=""),
            self.cast_text,
            is_binary=name in BYTES,
            is_text=name in TEXTS,
            is_geometry=name in GEOMETRIES,
        )

    def keeps_values(self, before: SourceColumn, now: SourceColumn) -> bool:
        if self.arrow_type(replace(before, held_as="")) != self.arrow_type(replace(now, held_as="")):
            return False
        old, new = before.type_name, now.type_name
        if old in _INTEGER_RANGES and new in _INTEGER_RANGES:
            (least, most), (low, high) = _INTEGER_RANGES[old], _INTEGER_RANGES[new]
            return low <= least and most <= high
        if old != new:
            return any(
                old in row and new in row and row.index(old) < row.index(new) and new not in _LIMITED
                for row in _WIDENING
            ) and _reaches(before, now)
        if old in ("enum", "set"):
            return _keeps_members(before.type_text, now.type_text)
        if old in (*TEXTS, *BYTES) and now.type_modifier == -1:
            return True  # of a table map, which does not say how long values may be
        if old in _LIMITED:
            return before.type_modifier <= now.type_modifier
        if old == "decimal":  # of more digits than Arrow has, or else the Arrow types differ
            return before.type_modifier <= now.type_modifier and not (
                (before.type_modifier ^ now.type_modifier) & 0xFFFF
            )
        return before.type_modifier == now.type_modifier

    def orders_as_held(self, column: SourceColumn) -> bool:
        """Texts are ordered by their collation, bit fields and others by their numbers."""
        return not pa.types.is_string(self.arrow_type(column))

    def cursor_kind(self, column: SourceColumn) -> CursorKind | None:
        return CURSOR_KINDS.get(column.type_name)

    def cursor_types(self) -> tuple[str, ...]:
        return tuple(CURSOR_KINDS)


#: bytes that a type without a limit of its own holds
_BYTES_MAX = {
    f"{size}{kind}": limit
    for size, limit in (("tiny", 255), ("", 65_535), ("medium", 2**24 - 1), ("long", 2**32 - 1))
    for kind in ("text", "blob")
}


def _reaches(before: SourceColumn, now: SourceColumn) -> bool:
    """Whether the longest value fits into the new type."""
    if before.type_name not in _LIMITED:
        return True
    size = 1 if before.type_name == "varbinary" else 4  # bytes of a character
    return size * before.type_modifier <= _BYTES_MAX[now.type_name]


def _keeps_members(before: str, now: str) -> bool:
    """Members may be added at the end: the others keep their numbers."""
    old, new = _MEMBERS.match(before), _MEMBERS.match(now)
    return old is not None and new is not None and (old[2] == new[2] or new[2].startswith(f"{old[2]},"))


TYPES = MysqlTypes(RULES, name_of, {"decimal": ("decimal(precision,scale)",), "time": ("time",)})

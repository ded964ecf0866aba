"""Columns of MySQL and MariaDB in common words (`values.common_types`).

A timestamp, which the log has in UTC, says so; binary digits, which the log has alone, stand behind `\\x`; a
bit field of one bit is a boolean. Days that are zero, have zero parts or are not in the calendar are no days.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import SourceColumn
from penstock.values.common_types import CommonTexts, CommonType
from penstock.values.text_casts import CastResult

_NAMES = {
    "tinyint": "int2",
    "tinyint unsigned": "int2",
    "smallint": "int2",
    "smallint unsigned": "int4",
    "mediumint": "int4",
    "mediumint unsigned": "int4",
    "int": "int4",
    "int unsigned": "int8",
    "bigint": "int8",
    "bigint unsigned": "uint8",
    "float": "float4",
    "double": "float8",
    "json": "json",
    "enum": "enum",
    "set": "set",
}
_HEADER = 4  # what a modifier of a common numeric has added

Cast = Callable[[pa.Array, SourceColumn], CastResult]


def common_type(
    column: SourceColumn, cast: Cast, *, is_binary: bool, is_text: bool, is_geometry: bool
) -> CommonType:
    """`cast` is the column's own, which knows what is no value."""
    name, modifier = column.type_name, column.type_modifier
    if is_binary:
        return CommonType("bytea", text=_marked_hex)
    if is_text:
        return CommonType("text")
    if is_geometry:
        return CommonType("geometry")
    if name == "decimal":
        return CommonType("numeric", modifier + _HEADER)
    if name == "bit":
        return CommonType("bool", text=_boolean_letters) if modifier == 1 else CommonType("bit", modifier)
    if name == "year":
        return CommonType("year", text=_without_zeros)
    if name == "time":
        return CommonType("duration", modifier)
    if name == "date":
        return CommonType("date", text=_checked(column, cast))
    if name == "datetime":
        return CommonType("timestamp", modifier, _checked(column, cast))
    if name == "timestamp":
        return CommonType("timestamptz", modifier, _checked(column, cast, "+00"))
    return CommonType(_NAMES.get(name, ""))


def _marked_hex(texts: pa.StringArray) -> CommonTexts:
    return CommonTexts(_joined("\\x", texts))


def _boolean_letters(texts: pa.StringArray) -> CommonTexts:
    return CommonTexts(pc.if_else(pc.equal(texts, "1"), "t", "f"))


def _without_zeros(texts: pa.StringArray) -> CommonTexts:
    return CommonTexts(texts.cast(pa.int16()).cast(pa.string()))


def _checked(column: SourceColumn, cast: Cast, zone: str = "") -> Callable[[pa.StringArray], CommonTexts]:
    def checked(texts: pa.StringArray) -> CommonTexts:
        bad = cast(texts, column).bad
        flags = None if bad is None else bad.to_numpy(zero_copy_only=False)
        return CommonTexts(_joined(texts, zone) if zone else texts, flags)

    return checked


def _joined(*parts: pa.StringArray | str) -> pa.StringArray:
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, "")

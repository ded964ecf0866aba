"""What a Postgres value becomes in Arrow, by one table of rules, the same on both ways in.

A value comes as text (from the change log, or selected as text) or in Postgres' binary form (loads); a rule
gives the same Arrow value for both, bit by bit. A type is loaded in binary only where tests against a real
server show that both give the same; every other type, known or not, stays the text that Postgres' own
output function prints under our session settings, which is exact by definition. So does a type that
somebody made and gave the name of a built-in one.

What a column's Arrow type cannot hold is *bad*: null in `values` and marked in `bad`, for the caller to
make a dead letter of. That is: NaN in a numeric(p,s); infinite dates and timestamps; timestamps after
294247-01-10, beyond 64-bit microseconds since 1970. BC and the years after 9999 are held exactly. NaN in a
float is held, with one bit pattern for all NaNs.

A pipeline may have a column held otherwise (`SourceColumn.held_as`): as text, which holds everything; as a
decimal, a time or a list, where what does not fit is bad, and nothing is rounded. Such a column is always
loaded as text: there is one cast to be exact, not two. `type_table` lists every type with its rule.

Cost: the 11 columns of the benchmark (3 integers, decimal, 3 texts, date, timestamptz, float, bool) take
about 0.2 CPU-seconds per million rows from text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from penstock.core.errors import ConfigError
from penstock.core.held_as import DECIMAL_DIGITS_MAX, HeldAs
from penstock.core.schema import SourceColumn
from penstock.sources.postgres import binary_values
from penstock.sources.postgres.copy_binary import BinaryFields
from penstock.sources.postgres.text_casts import (
    Cast,
    CastResult,
    as_text,
    booleans,
    byte_strings,
    dates,
    decimals,
    floats,
    integers,
    lists,
    times,
    timestamps,
)

TIMESTAMP = pa.timestamp("us")
TIMESTAMPTZ = pa.timestamp("us", "UTC")
FIRST_USER_OID = 16384  # what initdb did not make


@dataclass(frozen=True, slots=True)
class Rule:
    """`from_binary` None: loads select the type as text."""

    arrow: Callable[[SourceColumn], pa.DataType]
    from_text: Cast
    from_binary: binary_values.Decoder | None


def arrow_type(column: SourceColumn) -> pa.DataType:
    return _rule(column).arrow(column)


def load_expression(column: SourceColumn) -> Literal["binary", "text"]:
    """How a load selects the column: as it is, or by `text_expression`."""
    return "text" if _binary_rule(column) is None else "binary"


def text_expression(quoted_name: str, column: SourceColumn) -> str:
    """SQL for the text that Postgres' output function prints: what logical replication sends.

    A cast to text is not that: it strips the blanks of char(n), adds `/32` to inet, says `true` for `t`,
    and may be redefined by a user's own cast. IS NULL is true for a row value of nulls; counting is not.
    A numeric, which is common, goes by its own output function: a quarter of the cost at the server.
    """
    if column.type_name == "numeric":
        return f"pg_catalog.textin(pg_catalog.numeric_out({quoted_name}))"
    printed = f"pg_catalog.format('%s', {quoted_name})"
    return f"CASE WHEN pg_catalog.num_nonnulls({quoted_name}) = 0 THEN NULL ELSE {printed} END"


def cast_text(array: pa.Array, column: SourceColumn) -> CastResult:
    """Text as Postgres prints it → the column's Arrow type."""
    rule = _rule(column)
    arrow = rule.arrow(column)
    if not len(array):
        return CastResult(pa.array([], arrow))
    return rule.from_text(_as_strings(array), arrow)


def from_binary(fields: BinaryFields, column: SourceColumn) -> CastResult:
    """A column that was selected by its `load_expression` → what `cast_text` gives for its text."""
    decode = _binary_rule(column)
    if decode is None:
        return cast_text(binary_values.text(fields), column)
    return decode(fields, arrow_type(column))


def _binary_rule(column: SourceColumn) -> binary_values.Decoder | None:
    rule = _rule(column)
    if column.type_name == "numeric" and not pa.types.is_decimal(rule.arrow(column)):
        return None  # the server prints it, exactly as the log has it
    return rule.from_binary


def _decimal_or_text(column: SourceColumn) -> pa.DataType:
    """numeric(p,s) as a decimal where Arrow has one; without a declared scale no decimal type is exact."""
    if column.type_modifier < 4:
        return pa.string()
    modifier = column.type_modifier - 4
    precision = modifier >> 16 & 0xFFFF
    scale = (modifier & 0x7FF ^ 0x400) - 0x400  # eleven bits, signed since Postgres 15
    if precision > DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)


def _as_strings(array: pa.Array) -> pa.StringArray:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def _always(arrow: pa.DataType) -> Callable[[SourceColumn], pa.DataType]:
    return lambda column: arrow


_TEXT = Rule(_always(pa.string()), as_text, binary_values.byte_strings)
#: By the name of the base type in pg_type; of a domain, its base type's. What is not here is text.
RULES: dict[str, Rule] = {
    "bool": Rule(_always(pa.bool_()), booleans, binary_values.booleans),
    "int2": Rule(_always(pa.int16()), integers, binary_values.integers),
    "int4": Rule(_always(pa.int32()), integers, binary_values.integers),
    "int8": Rule(_always(pa.int64()), integers, binary_values.integers),
    "float4": Rule(_always(pa.float32()), floats, binary_values.floats),
    "float8": Rule(_always(pa.float64()), floats, binary_values.floats),
    "numeric": Rule(_decimal_or_text, decimals, binary_values.decimals),
    "date": Rule(_always(pa.date32()), dates, binary_values.dates),
    "timestamp": Rule(_always(TIMESTAMP), timestamps, binary_values.timestamps),
    "timestamptz": Rule(_always(TIMESTAMPTZ), timestamps, binary_values.timestamps),
    "bytea": Rule(_always(pa.binary()), byte_strings, binary_values.byte_strings),
    "uuid": Rule(_always(pa.string()), as_text, binary_values.uuids),
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "name": _TEXT,
    "json": _TEXT,
    "jsonb": Rule(_always(pa.string()), as_text, binary_values.jsonb),
}
#: Exact only as text: arrays, enums, ranges, inet, money, time, interval, xml, "char", geometry, unknown.
_PRINTED = Rule(_always(pa.string()), as_text, None)


def _rule(column: SourceColumn) -> Rule:
    if column.held_as:
        return _chosen(column, HeldAs.parse(column.held_as))
    return RULES.get(_built_in_name(column), _PRINTED)


def _built_in_name(column: SourceColumn) -> str:
    """Empty for a type that is not Postgres' own, whatever it is called."""
    return column.type_name if column.type_oid < FIRST_USER_OID else ""


def possible_types(column: SourceColumn) -> tuple[str, ...]:
    """What the pipeline file may have a column held as, beside the type it has by itself."""
    special = {"numeric": ("decimal(precision,scale)",), "time": ("time",)}
    return ("text", *special.get(_built_in_name(column), ()), *(("list",) if column.element else ()))


def can_be_held_as(column: SourceColumn, choice: HeldAs) -> bool:
    return choice.kind in {possible.partition("(")[0] for possible in possible_types(column)}


def _chosen(column: SourceColumn, choice: HeldAs) -> Rule:
    if not can_be_held_as(column, choice):
        raise ConfigError(
            f"The column {column.name} of type {column.type_text} cannot be held as {choice}.",
            remedy=f"Possible in `types` for this column: {', '.join(possible_types(column))}.",
        )
    if choice.kind == "decimal":
        return Rule(_always(pa.decimal128(choice.precision, choice.scale)), decimals, None)
    if choice.kind == "time":
        return Rule(_always(pa.time64("us")), times, None)
    if choice.kind == "list":
        element = replace(column, type_oid=0, type_name=column.element, element="", held_as="")
        rule = _rule(element)
        return Rule(_always(pa.list_(rule.arrow(element))), lists(rule.from_text), None)
    return _PRINTED

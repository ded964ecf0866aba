"""What a Postgres value becomes in Arrow, by one table of rules, the same on both ways in.

A value comes as text (from the change log, or selected as text) or in Postgres' binary form (loads); a rule
gives the same Arrow value for both, bit by bit. A type is loaded in binary only where tests against a real
server show that both give the same; every other type, known or not, stays the text that Postgres' own
output function prints under our session settings, which is exact by definition. So does a type that
somebody made and gave the name of a built-in one.

What a column's Arrow type cannot hold is *bad* (`values.rules`). That is: NaN in a numeric(p,s); infinite
dates and timestamps; timestamps after 294247-01-10, beyond 64-bit microseconds since 1970. BC and the years
after 9999 are held exactly. NaN in a float is held, with one bit pattern for all NaNs.

A column that a pipeline has held otherwise is always loaded as text: there is one cast to be exact, not two.
`type_table` lists every type with its rule.

Cost: the 11 columns of the benchmark (3 integers, decimal, 3 texts, date, timestamptz, float, bool) take
about 0.2 CPU-seconds per million rows from text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pyarrow as pa

from penstock.core.held_as import DECIMAL_DIGITS_MAX
from penstock.core.schema import SourceColumn
from penstock.sources.postgres import binary_values
from penstock.sources.postgres.copy_binary import BinaryFields
from penstock.sources.types import CursorKind
from penstock.values import text_casts
from penstock.values.rules import TEXT, Rule, TypeRules, always
from penstock.values.text_casts import CastResult

TIMESTAMP = pa.timestamp("us")
TIMESTAMPTZ = pa.timestamp("us", "UTC")
FIRST_USER_OID = 16384  # what initdb did not make


def built_in_name(column: SourceColumn) -> str:
    """Empty for a type that is not Postgres' own, whatever it is called."""
    return column.type_name if column.type_oid < FIRST_USER_OID else ""


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


#: By the name of the base type in pg_type; of a domain, its base type's. What is not here is text.
RULES: dict[str, Rule] = {
    "bool": Rule(always(pa.bool_()), text_casts.booleans),
    "int2": Rule(always(pa.int16()), text_casts.integers),
    "int4": Rule(always(pa.int32()), text_casts.integers),
    "int8": Rule(always(pa.int64()), text_casts.integers),
    "float4": Rule(always(pa.float32()), text_casts.floats),
    "float8": Rule(always(pa.float64()), text_casts.floats),
    "numeric": Rule(_decimal_or_text, text_casts.decimals),
    "date": Rule(always(pa.date32()), text_casts.dates),
    "timestamp": Rule(always(TIMESTAMP), text_casts.timestamps),
    "timestamptz": Rule(always(TIMESTAMPTZ), text_casts.timestamps),
    "bytea": Rule(always(pa.binary()), text_casts.byte_strings),
    "uuid": TEXT,
    "text": TEXT,
    "varchar": TEXT,
    "bpchar": TEXT,
    "name": TEXT,
    "json": TEXT,
    "jsonb": TEXT,
}
#: How loads read the same types. Exact only as text, and so not here: arrays, enums, ranges, inet, money,
#: time, interval, xml, "char", geometry, unknown.
_BINARY: dict[str, binary_values.Decoder] = {
    "bool": binary_values.booleans,
    "int2": binary_values.integers,
    "int4": binary_values.integers,
    "int8": binary_values.integers,
    "float4": binary_values.floats,
    "float8": binary_values.floats,
    "numeric": binary_values.decimals,
    "date": binary_values.dates,
    "timestamp": binary_values.timestamps,
    "timestamptz": binary_values.timestamps,
    "bytea": binary_values.byte_strings,
    "uuid": binary_values.uuids,
    "text": binary_values.byte_strings,
    "varchar": binary_values.byte_strings,
    "bpchar": binary_values.byte_strings,
    "name": binary_values.byte_strings,
    "json": binary_values.byte_strings,
    "jsonb": binary_values.jsonb,
}
CURSOR_KINDS: dict[str, CursorKind] = {
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "numeric": "number",
    "timestamp": "time",
    "timestamptz": "time",
    "date": "date",
    "text": "text",
    "varchar": "text",
    "uuid": "uuid",
}
#: Types that a longer limit (or none) leaves as they are: no value changes, Postgres rewrites no row.
_WIDENS_BY_LIMIT = frozenset({"varchar", "varbit", "timestamp", "timestamptz", "time", "timetz"})
_PLAIN_STRINGS = frozenset({"text", "varchar"})
_NO_LIMIT = -1


class PostgresTypes(TypeRules):
    def keeps_values(self, before: SourceColumn, now: SourceColumn) -> bool:
        # By their own types: what a pipeline has a column held as stays the same when its source changes.
        if self.arrow_type(replace(before, held_as="")) != self.arrow_type(replace(now, held_as="")):
            return False
        if before.type_name != now.type_name:
            # varchar(n) → varchar or text, text → varchar: the same bytes under another name.
            return {before.type_name, now.type_name} <= _PLAIN_STRINGS and now.type_modifier == _NO_LIMIT
        if before.type_oid != now.type_oid and now.type_name not in RULES:
            return False  # another type of the same name; of built-in types, only a domain over it
        return before.type_modifier == now.type_modifier or _widens(before, now)

    def orders_as_held(self, column: SourceColumn) -> bool:
        return not pa.types.is_string(self.arrow_type(column)) or column.type_name == "uuid"

    def cursor_kind(self, column: SourceColumn) -> CursorKind | None:
        """None also for a type that somebody gave the name of a built-in one."""
        return CURSOR_KINDS.get(built_in_name(column))

    def cursor_types(self) -> tuple[str, ...]:
        return tuple(CURSOR_KINDS)


def _widens(before: SourceColumn, now: SourceColumn) -> bool:
    old_limit, new_limit = before.type_modifier, now.type_modifier
    if now.type_name in _WIDENS_BY_LIMIT:
        return new_limit == _NO_LIMIT or _NO_LIMIT != old_limit < new_limit
    if now.type_name in ("numeric", "interval") and new_limit == _NO_LIMIT:
        return True
    if now.type_name == "numeric" and old_limit != _NO_LIMIT:
        # Precision stands above 16 bits, scale below: with equal scale the greater number is the wider.
        return (old_limit - 4) & 0xFFFF == (new_limit - 4) & 0xFFFF and old_limit < new_limit
    return False


TYPES = PostgresTypes(RULES, built_in_name, {"numeric": ("decimal(precision,scale)",), "time": ("time",)})

arrow_type = TYPES.arrow_type
cast_text = TYPES.cast_text
possible_types = TYPES.possible_types
can_be_held_as = TYPES.can_be_held_as


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


def from_binary(fields: BinaryFields, column: SourceColumn) -> CastResult:
    """A column that was selected by its `load_expression` → what `cast_text` gives for its text."""
    decode = _binary_rule(column)
    if decode is None:
        return cast_text(binary_values.text(fields), column)
    return decode(fields, arrow_type(column))


def _binary_rule(column: SourceColumn) -> binary_values.Decoder | None:
    if column.held_as:
        return None
    name = built_in_name(column)
    if name == "numeric" and not pa.types.is_decimal(arrow_type(column)):
        return None  # the server prints it, exactly as the log has it
    return _BINARY.get(name)

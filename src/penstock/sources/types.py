"""What the types of any source are: asked by column, answered by the source that the column comes from.

A column says of itself which kind of source its type is of (`SourceColumn.family`), so a file of the log, a
table and a Spark task need nothing else to read its values. A source is imported when its first column is
met.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Literal, Protocol

import pyarrow as pa

from penstock.core.errors import StateError
from penstock.core.held_as import HeldAs
from penstock.core.iceberg_names import iceberg_name
from penstock.core.schema import SourceColumn
from penstock.values.common_types import CommonType
from penstock.values.text_casts import CastResult

#: By `SourceColumn.family`: the module whose `TYPES` knows its types.
_MODULES = {
    "": "penstock.sources.postgres.types",
    "mongodb": "penstock.sources.mongodb.types",
    "mysql": "penstock.sources.mysql.types",
}

CursorKind = Literal["integer", "number", "time", "date", "text", "uuid"]


class SourceTypes(Protocol):
    """What a source knows of its types. `TypeRules` has the first six, for any table of rules."""

    @property
    def built_in_name(self) -> Callable[[SourceColumn], str]:
        """The name of a type of the source's own; empty for others, whatever they are called."""

    def arrow_type(self, column: SourceColumn) -> pa.DataType: ...

    def cast_text(self, array: pa.Array, column: SourceColumn) -> CastResult: ...

    def possible_types(self, column: SourceColumn) -> tuple[str, ...]: ...

    def can_be_held_as(self, column: SourceColumn, choice: HeldAs) -> bool: ...

    def common(self, column: SourceColumn) -> CommonType:
        """In words that all sources share, for whoever writes its values down for others."""

    def keeps_values(self, before: SourceColumn, now: SourceColumn) -> bool:
        """Whether a change of type leaves every value, its text and its Arrow type as they are."""

    def orders_as_held(self, column: SourceColumn) -> bool:
        """Whether the source orders the values as we order what we hold of them."""

    def cursor_kind(self, column: SourceColumn) -> CursorKind | None:
        """As what a table is read on by this column; None: it cannot be."""

    def cursor_types(self) -> tuple[str, ...]:
        """The names of types that can be cursors, for people."""


def types_of(column: SourceColumn) -> SourceTypes:
    return _types(column.family)


@cache
def _types(family: str) -> SourceTypes:
    if family not in _MODULES:
        raise StateError(
            f"There are columns of a source of type {family}, which this version of Penstock does not know.",
            remedy="Use the version that wrote them, or a newer one.",
        )
    found: SourceTypes = import_module(_MODULES[family]).TYPES
    return found


def arrow_type(column: SourceColumn) -> pa.DataType:
    return types_of(column).arrow_type(column)


def cast_text(array: pa.Array, column: SourceColumn) -> CastResult:
    """Text as the log has it → the column's Arrow type."""
    return types_of(column).cast_text(array, column)


def common_type(column: SourceColumn) -> CommonType:
    """By the column's own type, whatever the pipeline file has it held as in tables."""
    return types_of(column).common(column)


def why_unfit(column: SourceColumn) -> str:
    """What is wrong with a value that a column could not hold, in words and without the value."""
    arrow = arrow_type(column)
    if isinstance(arrow, pa.Decimal128Type):
        return f"is NaN, infinite, or has more digits than {iceberg_name(arrow)} holds"
    if column.family == "mysql" and (pa.types.is_timestamp(arrow) or pa.types.is_date(arrow)):
        return "is a date that is zero, has zero parts, or is not in the calendar"
    if column.family == "mysql" and pa.types.is_time64(arrow):
        return "is negative or 24 hours or more, which is no time of a day"
    if isinstance(arrow, pa.TimestampType):
        return "is infinite, or later than 64-bit microseconds reach (294247-01-10)"
    if pa.types.is_date32(arrow):
        return "is infinite"
    if pa.types.is_time64(arrow):
        return "is 24:00:00, which is no time of a day"
    if isinstance(arrow, pa.ListType):
        return "has several dimensions or bounds of its own, or an element that does not fit"
    return f"cannot be read as {column.type_text}"

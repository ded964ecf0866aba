"""Cursors: columns that rise with every change of a row, which a table can be read on by.

A choice names one column, or two: the second serves rows in which the first is null. How far behind its last
value a round begins again is its lookback: a time for times and dates, a number for numbers, and none for
text and uuids, which have an order and no distance.

Order is the column's own, for text that of its bytes (`COLLATE "C"`), so that it is the same in every session
and on every machine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from psycopg import sql

from penstock.core.cursor import CursorValue, number_value, time_value
from penstock.core.schema import SourceColumn, TableSchema
from penstock.sources.postgres.types import FIRST_USER_OID, text_expression

Kind = Literal["integer", "number", "time", "date", "text", "uuid"]
Lookback = timedelta | Decimal

KINDS: dict[str, Kind] = {
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
TIME_LOOKBACK = timedelta(minutes=10)
NUMBER_LOOKBACK = Decimal(1000)
NO_LOOKBACK = Decimal(0)

_ENDLESS = frozenset({"number", "time", "date"})


def kind_of(column: SourceColumn) -> Kind | None:
    """None for a type that cannot be a cursor, and for one that somebody gave the name of a built-in type."""
    return KINDS.get(column.type_name) if column.type_oid < FIRST_USER_OID else None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A column and how far behind its last value a round begins."""

    column: SourceColumn
    lookback: Lookback

    @property
    def kind(self) -> Kind:
        kind = kind_of(self.column)
        assert kind is not None, "asked before the stream was taken"
        return kind

    @property
    def may_be_infinite(self) -> bool:
        return self.kind in _ENDLESS

    def value(self, text: str) -> CursorValue:
        """What Postgres prints, as the state keeps it."""
        if self.kind in ("integer", "number"):
            return number_value(text)
        return time_value(text) if self.kind == "time" else text

    def ordered(self) -> sql.Composed:
        collation = sql.SQL(' COLLATE "C"' if self.kind == "text" else "")
        return sql.Identifier(self.column.name) + collation

    def literal(self, text: str) -> sql.Composed:
        name = "text" if self.kind == "text" else self.column.type_name
        return sql.SQL("{}::pg_catalog.{}").format(sql.Literal(text), sql.Identifier(name))

    def printed(self) -> sql.SQL:
        quoted = sql.Identifier(self.column.name).as_string(None)
        return sql.SQL(text_expression(quoted, self.column))


@dataclass(frozen=True, slots=True)
class CursorChoice:
    """`cursor` and `lookback` of a stream, as the pipeline file has them."""

    names: tuple[str, ...]
    lookbacks: tuple[Lookback | None, ...] = ()  # None, or not there: what is usual for the column's type

    def problem(self, schema: TableSchema) -> tuple[str, str] | None:
        """What is wrong with the choice for this table, and what to do."""
        for name, lookback in self._pairs():
            column = next((each for each in schema.columns if each.name == name), None)
            if column is None:
                return (
                    f"`cursor` names the column {name}, which the table does not have.",
                    f"Correct it; the columns are: {', '.join(schema.names)}.",
                )
            kind = kind_of(column)
            if kind is None or column.held_as:
                held = f" held as {column.held_as}" if column.held_as else ""
                return (
                    f"The column {name} of type {column.type_text}{held} cannot be a cursor.",
                    f"Choose a column that rises with every change, of one of these types and held as that: "
                    f"{', '.join(KINDS)}.",
                )
            if lookback and not _fits(kind, lookback):
                return (
                    f"The lookback of the column {name} does not fit its type {column.type_text}.",
                    "Write a duration (15m) for a time or date, a number for a number, and 0 for any other.",
                )
        return None

    def cursors(self, schema: TableSchema) -> tuple[Cursor, ...]:
        """The cursors; `problem` has found none."""
        found = []
        for name, lookback in self._pairs():
            column = schema.column(name)
            found.append(Cursor(column, _usual(column) if lookback is None else lookback))
        return tuple(found)

    def _pairs(self) -> list[tuple[str, Lookback | None]]:
        return list(itertools.zip_longest(self.names, self.lookbacks[: len(self.names)]))


def _fits(kind: Kind, lookback: Lookback) -> bool:
    if isinstance(lookback, timedelta):
        return kind in ("time", "date")
    return kind in ("integer", "number")


def _usual(column: SourceColumn) -> Lookback:
    kind = kind_of(column)
    if kind in ("time", "date"):
        return TIME_LOOKBACK
    return NUMBER_LOOKBACK if kind in ("integer", "number") else NO_LOOKBACK

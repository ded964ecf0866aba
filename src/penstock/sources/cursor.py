"""Cursors: columns that rise with every change of a row, which a table can be read on by.

A choice names one column, or two: the second serves rows in which the first is null. How far behind its last
value a round begins again is its lookback: a time for times and dates, a number for numbers, and none for
text and uuids, which have an order and no distance.

Order is the column's own, for text that of its bytes, so that it is the same in every session and on every
machine.

A *window* is what a round reads of one cursor: from the last value less the lookback up to the greatest one
of the snapshot that is read, both included. The windows of a pair do not overlap: the second cursor serves
the rows whose first is null. A row in which every cursor is null is in no window; `check` says so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from penstock.core.cursor import Cursors, CursorValue, number_value, time_value
from penstock.core.schema import SourceColumn, TableSchema
from penstock.sources.tables import SourceLeaf
from penstock.sources.types import CursorKind, types_of

Lookback = timedelta | Decimal

TIME_LOOKBACK = timedelta(minutes=10)
NUMBER_LOOKBACK = Decimal(1000)
NO_LOOKBACK = Decimal(0)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A column and how far behind its last value a round begins."""

    column: SourceColumn
    lookback: Lookback

    @property
    def kind(self) -> CursorKind:
        kind = types_of(self.column).cursor_kind(self.column)
        assert kind is not None, "asked before the stream was taken"
        return kind

    def value(self, text: str) -> CursorValue:
        """What the source prints, as the state keeps it."""
        if self.kind in ("integer", "number"):
            return number_value(text)
        return time_value(text) if self.kind == "time" else text


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
            kind = types_of(column).cursor_kind(column)
            if kind is None or column.held_as:
                held = f" held as {column.held_as}" if column.held_as else ""
                return (
                    f"The column {name} of type {column.type_text}{held} cannot be a cursor.",
                    f"Choose a column that rises with every change, of one of these types and held as that: "
                    f"{', '.join(types_of(column).cursor_types())}.",
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


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of one cursor from `low` (None: the beginning) to `high` (None: there is no value yet)."""

    cursor: Cursor
    null_column: str | None  # of the cursor that this one stands in for
    low: str | None
    high: str | None


@dataclass(frozen=True, slots=True)
class Noted:
    """The windows as of one snapshot, and the cursors that have risen since `start`, with their values."""

    windows: tuple[Window, ...]
    advanced: Cursors

    @property
    def names(self) -> list[str]:
        return [window.cursor.column.name for window in self.windows]


@dataclass(frozen=True, slots=True)
class CursorChunk:
    """Rows of one leaf; `low` and `high` enclose their values of the cursor (None: no bound is known).

    `condition` is in the source's own language.
    """

    leaf: SourceLeaf
    cursor: Cursor
    condition: str
    low: str | None
    high: str | None


def _fits(kind: CursorKind, lookback: Lookback) -> bool:
    if isinstance(lookback, timedelta):
        return kind in ("time", "date")
    return kind in ("integer", "number")


def _usual(column: SourceColumn) -> Lookback:
    kind = types_of(column).cursor_kind(column)
    if kind in ("time", "date"):
        return TIME_LOOKBACK
    return NUMBER_LOOKBACK if kind in ("integer", "number") else NO_LOOKBACK

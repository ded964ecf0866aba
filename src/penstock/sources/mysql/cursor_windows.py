"""The windows of a round that reads a table on, as SQL (`sources.cursor`).

`note` asks for the greatest value of each cursor, which ends its window. Readers share no snapshot here, so
each window is one chunk, and one query shows one moment. A row that changes between the two has risen beyond
the window, as a cursor does: it is read by the next round.

Text is ordered by its bytes in UTF-8, whatever its collation, for which no index is used. A date of zeros is
before all others and ends no window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

from penstock.core.cursor import Cursors, CursorValue
from penstock.core.errors import StateError
from penstock.core.schema import SourceColumn
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.mysql.connection import Connection, query_errors, quoted, rows
from penstock.sources.tables import SourceLeaf, SourceTable

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?", re.ASCII)
_ZERO_YEAR = "0000-"
_DAY = timedelta(days=1)


def within(window: Window) -> str:
    """For a row being in the window."""
    if window.high is None:
        return "FALSE"
    cursor = window.cursor
    bounds = ((">=", window.low), ("<=", window.high))
    compared = [
        f"{_ordered(cursor.column)} {operator} {_literal(cursor, bound)}"
        for operator, bound in bounds
        if bound is not None
    ]
    if window.null_column is not None:
        compared.insert(0, f"{quoted(window.null_column)} IS NULL")
    return f"({' AND '.join(compared)})"


def within_any(noted: Noted) -> str:
    return f"({' OR '.join(within(window) for window in noted.windows)})"


def note(connection: Connection, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
    windows: list[Window] = []
    advanced: dict[str, CursorValue] = {}
    null_column = None
    for cursor in cursors:
        name = cursor.column.name
        last = _text(cursor, start[name]) if name in start else None
        greatest = _greatest(connection, table, cursor, null_column, last)
        low = None if last is None else _low(cursor, last)
        windows.append(Window(cursor, null_column, low, last if greatest is None else greatest))
        # The state has no form for an empty text: such a cursor stays where it is, and is read again.
        if greatest:
            advanced[name] = cursor.value(greatest)
        null_column = name
    return Noted(tuple(windows), advanced)


def cut(connection: Connection, leaf: SourceLeaf, window: Window) -> list[CursorChunk]:
    """The window as one chunk; none if it has no rows."""
    condition = within(window)
    query = f"SELECT 1 FROM {_name(leaf)} WHERE {condition} LIMIT 1"
    with query_errors("cutting the cursor's range", stream=str(leaf.stream)):
        found = rows(connection, query, doing="cutting the cursor's range")
    return [CursorChunk(leaf, window.cursor, condition, window.low, None)] if found else []


def _greatest(
    connection: Connection, table: SourceTable, cursor: Cursor, null_column: str | None, last: str | None
) -> str | None:
    """If it is greater than the last; equal values do not count as risen."""
    column, ordered = quoted(cursor.column.name), _ordered(cursor.column)
    conditions = [f"{column} IS NOT NULL"]
    if null_column is not None:
        conditions.append(f"{quoted(null_column)} IS NULL")
    if last is not None:
        conditions.append(f"{ordered} > {_literal(cursor, last)}")
    query = (
        f"SELECT CAST({column} AS CHAR CHARACTER SET utf8mb4) FROM {_name(table)} "
        f"WHERE {' AND '.join(conditions)} ORDER BY {ordered} DESC LIMIT 1"
    )
    found = rows(connection, query, doing="noting the cursor's greatest value")
    text = None if not found else str(found[0][0])
    return None if text is not None and _is_zero(cursor, text) else text


def _is_zero(cursor: Cursor, text: str) -> bool:
    return cursor.kind in ("time", "date") and text.startswith(_ZERO_YEAR)


def _low(cursor: Cursor, last: str) -> str | None:
    """Where a round begins that goes on from `last`; None: before every value the type has."""
    lookback = cursor.lookback
    if not lookback or cursor.kind == "text":
        return last
    if isinstance(lookback, Decimal):
        less = math.ceil(lookback) if cursor.kind == "integer" else lookback
        return format(Decimal(last) - less, "f")
    try:
        if cursor.kind == "date":
            return str(date.fromisoformat(last) - -(-lookback // _DAY) * _DAY)
        before = datetime.fromisoformat(last) - lookback
    except (OverflowError, ValueError):
        return None
    return f"{before:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")


def _ordered(column: SourceColumn) -> str:
    name = quoted(column.name)
    return (
        f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)" if column.type_name in ("char", "varchar") else name
    )


def _literal(cursor: Cursor, text: str) -> str:
    if cursor.kind == "text":
        return f"x'{text.encode().hex()}'"
    if cursor.kind in ("time", "date") and _TIME.fullmatch(text):
        return f"CAST('{text}' AS {'DATE' if cursor.kind == 'date' else 'DATETIME(6)'})"
    if cursor.kind in ("integer", "number") and _NUMBER.fullmatch(text):
        return text
    raise StateError(
        f"The value of the cursor {cursor.column.name} in the state cannot be read.",
        remedy="Run `penstock resync` for the stream.",
    )


def _text(cursor: Cursor, value: CursorValue) -> str:
    """A value of the state, as the server prints it."""
    if isinstance(value, Decimal):
        return format(value, "f")
    text = str(value)
    return text.replace("T", " ").removesuffix("Z") if cursor.kind == "time" else text


def _name(table: SourceTable | SourceLeaf) -> str:
    return f"{quoted(table.stream.namespace)}.{quoted(table.stream.name)}"

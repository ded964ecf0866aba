"""The windows of a round that reads a table on, and their chunks.

`note` asks, under the snapshot that will be read, for the greatest value of each cursor, which ends its
window (`sources.cursor`).

`cut` divides a window into chunks of at most so many rows: by cursor, and by place in the table where many
rows share one value. Places (ctid) hold for one snapshot and one file node, as chunks of loads do.

Infinite values are greater than any that could be noted: they take no part in the greatest value, or nothing
would ever come after them, and are in every window instead. Text is ordered by `COLLATE "C"`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import psycopg
from psycopg import sql

from penstock.core.cursor import Cursors, CursorValue
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.postgres.types import text_expression
from penstock.sources.tables import SourceLeaf, SourceTable

_LEAST = {"int2": -(2**15), "int4": -(2**31), "int8": -(2**63)}
_DAY = timedelta(days=1)
_ENDLESS = frozenset({"number", "time", "date"})


def within(window: Window) -> sql.Composed:
    """SQL for a row being in the window."""
    cursor = window.cursor
    column = ordered(cursor)
    inside_of: list[sql.Composable] = []
    if window.high is not None:
        bounds = [(">=", window.low), ("<=", window.high)]
        compared = [
            sql.SQL("{} {} {}").format(column, sql.SQL(operator), literal(cursor, bound))
            for operator, bound in bounds
            if bound is not None
        ]
        inside_of.append(sql.SQL("({})").format(sql.SQL(" AND ").join(compared)))
    if _may_be_infinite(cursor):
        inside_of.append(sql.SQL("{} >= {}").format(column, literal(cursor, "infinity")))
    inside = sql.SQL("({})").format(sql.SQL(" OR ").join(inside_of or [sql.SQL("false")]))
    if window.null_column is None:
        return inside
    return sql.SQL("({} IS NULL AND {})").format(sql.Identifier(window.null_column), inside)


def within_any(noted: Noted) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(within(window) for window in noted.windows))


def ordered(cursor: Cursor) -> sql.Composed:
    collation = sql.SQL(' COLLATE "C"' if cursor.kind == "text" else "")
    return sql.Identifier(cursor.column.name) + collation


def literal(cursor: Cursor, text: str) -> sql.Composed:
    name = "text" if cursor.kind == "text" else cursor.column.type_name
    return sql.SQL("{}::pg_catalog.{}").format(sql.Literal(text), sql.Identifier(name))


def _printed(cursor: Cursor) -> sql.SQL:
    quoted = sql.Identifier(cursor.column.name).as_string(None)
    return sql.SQL(text_expression(quoted, cursor.column))


def _may_be_infinite(cursor: Cursor) -> bool:
    return cursor.kind in _ENDLESS


def note(connection: Connection, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
    """Inside the transaction of the snapshot. The source is asked for one row by each cursor."""
    windows: list[Window] = []
    advanced: dict[str, CursorValue] = {}
    null_column = None
    for cursor in cursors:
        name = cursor.column.name
        last = _text(start[name]) if name in start else None
        greatest = _greatest(connection, table, cursor, null_column, last)
        low = None if last is None else _low(connection, cursor, last)
        windows.append(Window(cursor, null_column, low, last if greatest is None else greatest))
        # The state has no form for an empty text: such a cursor stays where it is, and is read again.
        if greatest:
            advanced[name] = cursor.value(greatest)
        null_column = name
    return Noted(tuple(windows), advanced)


def cut(connection: Connection, leaf: SourceLeaf, window: Window, rows_max: int) -> list[CursorChunk]:
    """The window's chunks in one leaf, in order; none if it has no rows there. Same transaction as `note`."""
    cursor = window.cursor
    query = sql.SQL(
        "SELECT printed, place FROM (SELECT {printed} AS printed, ctid::text AS place, "
        "row_number() OVER (ORDER BY {column}, ctid) AS number FROM ONLY {leaf} WHERE {window}) AS numbered "
        "WHERE (number - 1) % {rows} = 0 ORDER BY number"
    ).format(
        printed=_printed(cursor),
        column=ordered(cursor),
        leaf=sql.Identifier(leaf.stream.namespace, leaf.stream.name),
        window=within(window),
        rows=sql.Literal(rows_max),
    )
    with query_errors("cutting the cursor's range", stream=str(leaf.stream)):
        starts = connection.execute(query).fetchall()
    chunks = []
    for start, end in itertools.pairwise([*starts, None]):
        assert start is not None
        condition = within(window) + _from(cursor, ">=", *start)
        if end is not None:
            condition += _from(cursor, "<", *end)
        high = None if end is None else end[0]
        chunks.append(CursorChunk(leaf, cursor, condition.as_string(None), start[0], high))
    return chunks


def _from(cursor: Cursor, operator: str, value: str, place: str) -> sql.Composed:
    """Rows beginning, or ending, with one row. The first comparison alone can use an index on the cursor."""
    plain = "<=" if operator == "<" else operator
    return sql.SQL(" AND {column} {plain} {value} AND ({column}, ctid) {operator} ({value}, {place})").format(
        column=ordered(cursor),
        plain=sql.SQL(plain),
        operator=sql.SQL(operator),
        value=literal(cursor, value),
        place=sql.SQL("{}::pg_catalog.tid").format(sql.Literal(place)),
    )


def _greatest(
    connection: Connection, table: SourceTable, cursor: Cursor, null_column: str | None, last: str | None
) -> str | None:
    """The greatest finite value, if it is greater than the last; equal values do not count as risen."""
    column = ordered(cursor)
    conditions: list[sql.Composable] = [sql.SQL("{} IS NOT NULL").format(sql.Identifier(cursor.column.name))]
    if null_column is not None:
        conditions.append(sql.SQL("{} IS NULL").format(sql.Identifier(null_column)))
    if last is not None:
        conditions.append(sql.SQL("{} > {}").format(column, literal(cursor, last)))
    if _may_be_infinite(cursor):
        conditions.append(sql.SQL("{} < {}").format(column, literal(cursor, "infinity")))
    query = sql.SQL("SELECT {} FROM {}{} WHERE {} ORDER BY {} DESC LIMIT 1").format(
        _printed(cursor),
        sql.SQL("" if table.kind == "partitioned" else "ONLY "),
        sql.Identifier(table.stream.namespace, table.stream.name),
        sql.SQL(" AND ").join(conditions),
        column,
    )
    with query_errors("noting the cursor's greatest value", stream=str(table.stream)):
        row = connection.execute(query).fetchone()
    return None if row is None else str(row[0])


def _low(connection: Connection, cursor: Cursor, last: str) -> str | None:
    """Where a round begins that goes on from `last`; None: before every value the type has."""
    lookback = cursor.lookback
    if not lookback or cursor.kind in ("text", "uuid"):
        return last
    if cursor.kind == "integer":
        assert isinstance(lookback, Decimal)
        return str(max(int(last) - math.ceil(lookback), _LEAST[cursor.column.type_name]))
    query = sql.SQL("SELECT ({} - {})::pg_catalog.text").format(literal(cursor, last), _step(cursor))
    try:
        with connection.transaction():  # an error inside undoes no more than itself
            row = connection.execute(query).fetchone()
    except psycopg.DataError:
        return None
    return None if row is None else str(row[0])


def _step(cursor: Cursor) -> sql.Composable:
    lookback = cursor.lookback
    if isinstance(lookback, Decimal):
        return sql.SQL("{}::pg_catalog.numeric").format(sql.Literal(format(lookback, "f")))
    if cursor.kind == "date":
        return sql.Literal(-(-lookback // _DAY))
    microseconds = lookback // timedelta(microseconds=1)
    return sql.SQL("{}::pg_catalog.interval").format(sql.Literal(f"{microseconds} microseconds"))


def _text(value: CursorValue) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)

"""Cutting a table into chunks that are read side by side, and the query that reads one.

A chunk is a half-open range `[min, max)` of the leading columns of the key; the first has no `min`, the
last no `max`, so together they cover every row exactly once, also rows that came after planning, whatever
the bounds are. That needs one order only, in planning and in reading: it is the server's own comparison of
the columns in their own collation, to which each bound is bound (`_latin1 x'61' COLLATE
latin1_swedish_ci`).

- One integer whose values lie close: even ranges between the least and the greatest, without reading the
  table.
- Any other key: a walk over the index, from one bound to that so many rows further.
- No key, or one without an order that a literal can say (floats, enumerations, parts of values): one
  chunk.

A bound is a JSON list of SQL literals, one per column. Its literals are checked before they come into a
query.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import SourceError, StateError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.mysql.catalog import KeyPart, MysqlTable
from penstock.sources.mysql.connection import Connection, quoted, rows
from penstock.sources.mysql.results import selected

ROWS_PER_CHUNK = 500_000
BYTES_PER_CHUNK_MAX = 256 * 2**20
CHUNKS_MAX = 10_000
_SPARSE = 4  # so many times more integers than rows: even ranges would be too uneven
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_LITERAL = re.compile(
    r"-?[0-9]+(\.[0-9]+)?|'[0-9 :.-]+'|CAST\('[0-9a-f-]+' AS UUID\)|"
    r"(_[a-z0-9]+ )?x'[0-9A-F]*'( COLLATE [a-zA-Z0-9_]+)?",
    re.ASCII,
)


def plan_chunks(
    connection: Connection,
    table: MysqlTable,
    method: ChunkMethod = "key",
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    bytes_per_chunk_max: int = BYTES_PER_CHUNK_MAX,
) -> list[PlannedChunk]:
    """In order. An empty table still has one chunk, since rows may come later."""
    if rows_per_chunk < 1 or bytes_per_chunk_max < 1:
        raise ValueError("a chunk holds at least one row and one byte")
    bounds: list[str] = []
    if method == "key" and table.range_key:
        per_chunk = rows_of_chunk(table.estimated_rows, table.bytes, rows_per_chunk, bytes_per_chunk_max)
        bounds = _bounds(connection, table, per_chunk)
    estimate = math.ceil(table.estimated_rows / (len(bounds) + 1))
    return [
        PlannedChunk(str(table.stream), low, high, 0, estimate)
        for low, high in itertools.pairwise([None, *bounds, None])
    ]


def rows_of_chunk(estimated_rows: int, size: int, rows_max: int, bytes_max: int) -> int:
    """Rows that make a chunk no larger than either limit, by the table's average; not too many chunks."""
    by_bytes = rows_max if size <= 0 else max(1, bytes_max * max(1, estimated_rows) // size)
    return max(1, min(rows_max, by_bytes), math.ceil(estimated_rows / CHUNKS_MAX))


def integer_bounds(low: int, high: int, estimated_rows: int, rows_per_chunk: int) -> list[int] | None:
    """The inner bounds of even ranges; None: values lie too far from each other for that."""
    span = high - low + 1
    if span <= rows_per_chunk:
        return []
    if estimated_rows * _SPARSE < span:
        return None
    count = max(1, min(CHUNKS_MAX, math.ceil(min(estimated_rows, span) / rows_per_chunk)))
    return [low + span * number // count for number in range(1, count)]


def chunk_query(
    schema: TableSchema, chunk: PlannedChunk, columns: Sequence[SourceColumn], condition: str = ""
) -> str:
    """SELECT of one chunk. `condition` is SQL of our own making."""
    stream = StreamId.parse(chunk.leaf)
    conditions = [
        beyond([quoted(name) for name in schema.key], literals_of(bound), operator)
        for operator, bound in ((">=", chunk.min), ("<", chunk.max))
        if bound is not None
    ]
    if condition:
        conditions.append(f"({condition})")
    fields = ", ".join(selected(column) for column in columns) or "NULL"
    query = f"SELECT {fields} FROM {quoted(stream.namespace)}.{quoted(stream.name)}"
    return f"{query} WHERE {' AND '.join(conditions)}" if conditions else query


def beyond(columns: Sequence[str], literals: Sequence[str], operator: str) -> str:
    """Rows on one side of a bound, in the order of the columns. The server does not use an index for a
    comparison of several columns at once, so it is written out, with what bounds the first column before it.
    """
    strict = operator[0]
    condition = ""
    for column, literal in reversed(list(zip(columns, literals, strict=False))):
        if not condition:
            condition = f"{column} {operator} {literal}"
        else:
            condition = f"({column} {strict} {literal} OR ({column} = {literal} AND {condition}))"
    if len(literals) > 1:
        return f"{columns[0]} {strict}= {literals[0]} AND {condition}"
    return condition


def literal(part: KeyPart, value: str) -> str:
    """A value of the key, as `_shown` gives it, as SQL of the same type and order."""
    if part.kind == "text":
        return f"_{part.charset} x'{value}' COLLATE {part.collation}"
    if part.kind == "bytes":
        return f"x'{value}'"
    if part.kind == "uuid":
        return f"CAST('{value}' AS UUID)"
    return value if part.kind in ("integer", "number") else f"'{value}'"


def literals_of(bound: str) -> list[str]:
    try:
        found = json.loads(bound)
    except ValueError:
        found = None
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(each, str) and _LITERAL.fullmatch(each) for each in found)
    ):
        raise StateError(
            "A chunk's bound in the state cannot be read.",
            remedy="Run `penstock resync` for the stream.",
        )
    return found


def number_of(bound: str) -> str | None:
    """A bound that is one plain number; None: it is something else."""
    first, *others = literals_of(bound)
    return first if not others and _NUMBER.fullmatch(first) else None


def bounds_after(connection: Connection, bounds: Sequence[str], low: str) -> list[str]:
    """Those of the bounds that are greater than `low`, in the server's order."""
    if not bounds:
        return []
    names = [f"c{number}" for number in range(len(literals_of(low)))]
    given = " UNION ALL ".join(
        f"SELECT {number} AS n, "
        + ", ".join(f"{value} AS {name}" for name, value in zip(names, literals_of(bound), strict=True))
        for number, bound in enumerate(bounds)
    )
    query = (
        f"SELECT n FROM ({given}) AS given WHERE {beyond(names, literals_of(low), '>')} "
        f"ORDER BY {', '.join(names)}"
    )
    return [bounds[number] for (number,) in rows(connection, query, doing="planning a load")]


def _bounds(connection: Connection, table: MysqlTable, rows_per_chunk: int) -> list[str]:
    parts = table.range_key
    if len(table.schema.key) == 1 and parts[0].kind == "integer":
        name, source = quoted(parts[0].name), _from(table)
        [(low, high)] = _asked(connection, table, f"SELECT MIN({name}), MAX({name}) FROM {source}")
        if low is None:
            return []
        even = integer_bounds(int(low), int(high), table.estimated_rows, rows_per_chunk)
        if even is not None:
            return [json.dumps([str(bound)]) for bound in even]
    return _walk(connection, table, rows_per_chunk)


def _walk(connection: Connection, table: MysqlTable, rows_per_chunk: int) -> list[str]:
    """The index from its beginning. Each bound is greater than the one before, by the server's comparison,
    even where many rows are equal in the columns that bounds are made of."""
    parts = table.range_key
    names = [quoted(part.name) for part in parts]
    query = f"SELECT {', '.join(_shown(part) for part in parts)} FROM {_from(table)}"
    order = f"ORDER BY {', '.join(names)}"
    bounds: list[str] = []
    condition, skipped = "", rows_per_chunk
    while len(bounds) < CHUNKS_MAX - 1:
        found = _asked(connection, table, f"{query} {condition} {order} LIMIT {skipped}, 1")
        if not found:
            break
        literals = [literal(part, _word(value)) for part, value in zip(parts, found[0], strict=True)]
        bounds.append(json.dumps(literals))
        condition = f"WHERE {beyond(names, literals, '>')}"
        skipped = rows_per_chunk - 1
    return bounds


def _shown(part: KeyPart) -> str:
    name = quoted(part.name)
    return f"HEX({name})" if part.kind in ("text", "bytes") else f"CAST({name} AS CHAR)"


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _from(table: MysqlTable) -> str:
    return f"{quoted(table.stream.namespace)}.{quoted(table.stream.name)}"


def _asked(connection: Connection, table: MysqlTable, query: str) -> list[tuple[Any, ...]]:
    try:
        return rows(connection, query, doing="planning a load")
    except SourceError as error:
        error.stream = error.stream or str(table.stream)
        raise

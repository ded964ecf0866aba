"""Cutting a table into chunks that are read side by side, and the query that reads one.

A chunk is a leaf and a half-open range `[min, max)`; the first has no `min`, the last no `max`, so that
together they cover every row, also rows that came after planning (correctness 11, 13).

- `ctid`: ranges of pages, from the file's size at planning time, not from statistics. Needs no index and
  reads each page once. Page numbers mean nothing after the table is rewritten, hence the filenode.
- `key`: ranges of the first column of the key, cut at quantiles of a sample, so that gaps and skew in the
  key do not make chunks uneven. Bounds are text, cast back to the column's type. Key columns are NOT NULL
  wherever the key is a primary key or a replica identity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.tables import SourceLeaf, SourceTable

ROWS_PER_CHUNK = 500_000
BYTES_PER_CHUNK_MAX = 256 * 2**20
CHUNKS_PER_LEAF_MAX = 10_000
_SAMPLE_ROWS = 20_000
_BLOCK_BYTES = 8192

#: Types whose text can be cast back without loss and whose order is the same in every session.
KEY_TYPES = frozenset({"int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz", "uuid", "oid"})


def plan_chunks(
    connection: Connection,
    table: SourceTable,
    method: ChunkMethod = "ctid",
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    bytes_per_chunk_max: int = BYTES_PER_CHUNK_MAX,
) -> list[PlannedChunk]:
    """Chunks of all leaves, in order. An empty leaf still has one, since rows may come later."""
    if rows_per_chunk < 1 or bytes_per_chunk_max < _BLOCK_BYTES:
        raise ValueError("a chunk holds at least one row and one page")
    key = _key_column(table) if method == "key" else None
    planned: list[PlannedChunk] = []
    for leaf in table.leaves:
        pages, filenode = _measure(connection, leaf)
        count = _chunk_count(leaf, pages, rows_per_chunk, bytes_per_chunk_max)
        if key is None:
            bounds = page_bounds(pages, count)
        else:
            bounds = _key_bounds(connection, leaf, key, pages, count)
        planned += _chunks(leaf, bounds, filenode)
    return planned


def page_bounds(pages: int, count: int) -> list[str]:
    """The inner bounds of `count` even ranges over `pages` pages, in ctid notation."""
    count = max(1, min(count, pages))
    return [f"({pages * n // count},0)" for n in range(1, count)]


def chunk_query(
    schema: TableSchema,
    chunk: PlannedChunk,
    method: ChunkMethod,
    select_list: sql.Composable,
    condition: str = "",
) -> sql.Composed:
    """SELECT of one chunk. ONLY: rows of tables that inherit from this one belong to those.

    `condition` is SQL of our own making, for a chunk of which only some rows are wanted.
    """
    leaf = StreamId.parse(chunk.leaf)
    if method == "ctid":
        column: sql.Composable = sql.SQL("ctid")
        type_name = "tid"
    else:
        if not schema.key:
            raise SourceError("The table has no key to be read by.", stream=str(schema.stream))
        column, type_name = sql.Identifier(schema.key[0]), schema.column(schema.key[0]).type_name
    conditions: list[sql.Composable] = [
        sql.SQL("{} {} {}::pg_catalog.{}").format(
            column, sql.SQL(operator), sql.Literal(bound), sql.Identifier(type_name)
        )
        for operator, bound in ((">=", chunk.min), ("<", chunk.max))
        if bound is not None
    ]
    if condition:
        conditions.append(sql.SQL("({})").format(sql.SQL(condition)))
    query = sql.SQL("SELECT {} FROM ONLY {}").format(select_list, sql.Identifier(leaf.namespace, leaf.name))
    return query + sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else query


def _chunks(leaf: SourceLeaf, bounds: Sequence[str], filenode: int) -> list[PlannedChunk]:
    edges = [None, *bounds, None]
    rows = math.ceil(leaf.estimated_rows / (len(edges) - 1))
    return [
        PlannedChunk(str(leaf.stream), low, high, filenode, rows) for low, high in itertools.pairwise(edges)
    ]


def _measure(connection: Connection, leaf: SourceLeaf) -> tuple[int, int]:
    with query_errors("measuring the table", stream=str(leaf.stream)):
        row = connection.execute(
            "SELECT pg_relation_size(%(oid)s::bigint::oid) / current_setting('block_size')::bigint, "
            "pg_relation_filenode(%(oid)s::bigint::oid)::bigint",
            {"oid": leaf.oid},
        ).fetchone()
    if row is None or row[0] is None:
        raise SourceError(
            "The table was dropped while its load was planned.",
            stream=str(leaf.stream),
            remedy="Run the same command again.",
        )
    return row[0], row[1] or 0


def _chunk_count(leaf: SourceLeaf, pages: int, rows_per_chunk: int, bytes_per_chunk_max: int) -> int:
    by_rows = math.ceil(leaf.estimated_rows / rows_per_chunk)
    # Values moved out of line count too: they are read with the row.
    by_bytes = math.ceil(max(leaf.bytes, pages * _BLOCK_BYTES) / bytes_per_chunk_max)
    return max(1, min(max(by_rows, by_bytes), CHUNKS_PER_LEAF_MAX))


def _key_column(table: SourceTable) -> SourceColumn:
    if not table.schema.key:
        raise SourceError(
            "The table has no key, so it cannot be read by key ranges.",
            stream=str(table.stream),
            remedy="Set `load.method: ctid` (the default).",
        )
    column = table.schema.column(table.schema.key[0])
    if column.type_name not in KEY_TYPES:
        raise SourceError(
            f"The table cannot be read by ranges of a {column.type_text} key.",
            stream=str(table.stream),
            remedy=f"Set `load.method: ctid` (the default); key ranges take {', '.join(sorted(KEY_TYPES))}.",
        )
    return column


def _key_bounds(
    connection: Connection, leaf: SourceLeaf, key: SourceColumn, pages: int, count: int
) -> list[str]:
    """Quantiles of a sample of pages, as text in the session's fixed format."""
    if count < 2 or pages == 0:
        return []
    rows_per_page = max(1.0, leaf.estimated_rows / pages)
    percent = min(100.0, 100.0 * max(_SAMPLE_ROWS, 20 * count) / (rows_per_page * pages))
    fractions = [n / count for n in range(1, count)]
    # An ordered-set aggregate over the type itself: the order is the column's own.
    query = sql.SQL(
        "SELECT percentile_disc({fractions}::double precision[]) WITHIN GROUP (ORDER BY {key})::text[] "
        "FROM ONLY {leaf} TABLESAMPLE SYSTEM ({percent})"
    ).format(
        fractions=sql.Literal(fractions),
        key=sql.Identifier(key.name),
        leaf=sql.Identifier(leaf.stream.namespace, leaf.stream.name),
        percent=sql.Literal(percent),
    )
    with query_errors("sampling the key", stream=str(leaf.stream)):
        row = connection.execute(query).fetchone()
    bounds = row[0] if row is not None and row[0] is not None else []
    return list(dict.fromkeys(bounds))  # a key that fills several chunks gives the same bound again

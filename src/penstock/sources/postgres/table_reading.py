"""Reading whole tables of Postgres: planning under a snapshot, chunks for tasks, and how far they are.

Live figures come from the source: every chunk is read by a COPY, and Postgres shows each running COPY in
`pg_stat_progress_copy`. So they cost one small query, on one machine as on a cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.core.cursor import Cursors
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.base import RunningRead
from penstock.sources.chunk import ChunkMethod, PlannedChunk, TableRewrittenError
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.postgres import cursor_windows
from penstock.sources.postgres.binary_values import text
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.chunk_reading import PostgresChunk
from penstock.sources.postgres.chunks import BYTES_PER_CHUNK_MAX, KEY_TYPES, chunk_query, plan_chunks
from penstock.sources.postgres.connection import Connection, connect, load_connection_settings, query_errors
from penstock.sources.postgres.copy_binary import CopyFormatError, read_copy
from penstock.sources.postgres.snapshot_reading import file_node, printed, take_over_snapshot
from penstock.sources.tables import SourceLeaf, SourceTable

_CANCEL_WITHIN_S = 5.0
_RUNNING = """
    SELECT activity.application_name, format('%s %s', pid, activity.query_start),
        progress.tuples_processed, progress.bytes_processed
    FROM pg_stat_progress_copy AS progress JOIN pg_stat_activity AS activity USING (pid)
    WHERE activity.application_name LIKE 'penstock load %'
"""


@dataclass(frozen=True, slots=True, repr=False)
class PostgresReading:
    """`version` None: each connection asks for it."""

    url: str
    version: int | None = None

    def shows_one_moment(self, table: SourceTable) -> bool:
        return True

    @property
    def knows_bytes(self) -> bool:
        return True

    @property
    def finds_place(self) -> bool:
        return False

    def tables(self, streams: Sequence[StreamId]) -> Sequence[TableInfo]:
        with connect(self.url) as connection:
            return discover(connection, streams)

    @contextmanager
    def session(self, snapshot: str | None = None) -> Iterator[PostgresSession]:
        with self._connect("penstock plan") as connection:
            if snapshot is not None:
                take_over_snapshot(connection, snapshot)
            yield PostgresSession(connection)

    def held(self, table: SourceTable, readers: int) -> NoReturn:
        raise AssertionError("a snapshot has a name, and can be read under by all")

    def text_session(self) -> PostgresTextSession:
        return PostgresTextSession(self._connect("penstock load"))

    def chunk(
        self,
        chunk: PlannedChunk,
        leaf: SourceLeaf,
        method: ChunkMethod,
        snapshot: str,
        *,
        reader: str,
        condition: str = "",
    ) -> PostgresChunk:
        assert self.version is not None, "tasks are told what to set, and do not ask"
        settings = load_connection_settings(self.version)
        return PostgresChunk(self.url, reader, settings, snapshot, chunk, leaf.oid, method, condition)

    def within(self, noted: Noted) -> str:
        return cursor_windows.within_any(noted).as_string(None)

    def method_for(self, table: SourceTable, wanted: ChunkMethod) -> ChunkMethod:
        key = table.schema.key
        return wanted if key and table.schema.column(key[0]).type_name in KEY_TYPES else "ctid"

    def bound_text(self, bound: str) -> str:
        return bound

    @contextmanager
    def watching(self) -> Iterator[Callable[[], Sequence[RunningRead]]]:
        with connect(self.url, application_name="penstock progress") as connection:
            yield lambda: [RunningRead(*row) for row in connection.execute(_RUNNING).fetchall()]

    def _connect(self, name: str) -> Connection:
        """A connection that reads whole tables (correctness 12)."""
        if self.version is not None:
            settings = load_connection_settings(self.version)
            return connect(self.url, application_name=name, settings=settings)
        connection = connect(self.url, application_name=name)
        for setting, value in load_connection_settings(connection.info.server_version).items():
            connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(setting), sql.Literal(value)))
        return connection


class PostgresSession:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan_chunks(
        self,
        table: SourceTable,
        method: ChunkMethod,
        *,
        rows_per_chunk: int,
        bytes_per_chunk_max: int | None = None,
    ) -> list[PlannedChunk]:
        return plan_chunks(
            self._connection,
            table,
            method,
            rows_per_chunk=rows_per_chunk,
            bytes_per_chunk_max=bytes_per_chunk_max or BYTES_PER_CHUNK_MAX,
        )

    def bounds_after(
        self, table: SourceTable, method: ChunkMethod, bounds: Sequence[str], low: str
    ) -> list[str]:
        type_name = "tid" if method == "ctid" else table.schema.column(table.schema.key[0]).type_name
        query = sql.SQL(
            "SELECT coalesce(array_agg(bound::text ORDER BY bound), '{{}}') "
            "FROM unnest({bounds}::text[]) AS given, "
            "LATERAL (SELECT given::pg_catalog.{type} AS bound) AS typed "
            "WHERE bound > {low}::pg_catalog.{type}"
        ).format(bounds=sql.Literal(list(bounds)), type=sql.Identifier(type_name), low=sql.Literal(low))
        with query_errors("planning a load", stream=str(table.stream)):
            row = self._connection.execute(query).fetchone()
        assert row is not None
        return list(row[0])

    def note(self, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
        return cursor_windows.note(self._connection, table, cursors, start)

    def cut(self, leaf: SourceLeaf, window: Window, rows_max: int) -> list[CursorChunk]:
        return cursor_windows.cut(self._connection, leaf, window, rows_max)


class PostgresTextSession:
    """Cost: text from the server's own output functions, copied once; no value is an object of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def columns(
        self,
        chunk: PlannedChunk,
        table: SourceTable,
        columns: Sequence[SourceColumn],
        method: ChunkMethod,
        where: Condition | None,
        snapshot: str,
        *,
        block_bytes: int,
    ) -> Iterator[tuple[int, list[pa.Array]]]:
        leaf = next(leaf for leaf in table.leaves if str(leaf.stream) == chunk.leaf)
        fields = [printed(column) for column in columns] or [sql.SQL("NULL::text")]
        condition = "" if where is None else where.sql()
        query = chunk_query(table.schema, chunk, method, sql.SQL(", ").join(fields), condition)
        with query_errors("reading a chunk of the table", stream=str(table.stream)):
            take_over_snapshot(self._connection, snapshot)
            try:
                for block in read_copy(self._connection, query, len(fields), block_bytes=block_bytes):
                    yield block.rows, [text(block.column(index)) for index in range(len(columns))]
            except (CopyFormatError, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
                raise TableRewrittenError(str(table.stream)) from error
            if file_node(self._connection, leaf.oid) != chunk.filenode:
                raise TableRewrittenError(str(table.stream))
            self._connection.execute("COMMIT")

    def hold(self, table: SourceTable) -> None:
        """A snapshot has a name, and can be read under by all."""

    def cancel(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_WITHIN_S)

    def close(self) -> None:
        self._connection.close()

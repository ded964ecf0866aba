"""Rows of tables under one exported snapshot, in columns of the log, chunk by chunk and in order.

A chunk is read by one connection into a queue of its own; several are read ahead, so that chunks come as fast
as all connections together read them. What waits is bounded in bytes: only the chunk whose turn it is may
always go on. The file node of a chunk's leaf is compared after reading, before its last part is given: a
table that was rewritten meanwhile is told by `TableRewrittenError` (correctness 11).

Cost: text from the server's own output functions, copied once; no value is an object of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.core.schema import TableSchema
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.sources.pace import Pace, share
from penstock.sources.postgres.binary_values import text
from penstock.sources.postgres.catalog import TableInfo
from penstock.sources.postgres.chunks import (
    KEY_TYPES,
    ChunkMethod,
    PlannedChunk,
    chunk_query,
    plan_chunks,
)
from penstock.sources.postgres.connection import Connection, connect, load_connection_settings, query_errors
from penstock.sources.postgres.copy_binary import CopyBlock, CopyFormatError, read_copy
from penstock.sources.postgres.snapshot_reading import file_node, printed, take_over_snapshot
from penstock.streams.load_state import Place

_APPLICATION = "penstock load"
_CANCEL_WITHIN_S = 5.0
_US = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class LoadSettings:
    """How tables are read. `url` is where, `catalog_url` the source itself, if that is another server.

    `method` holds for tables whose key can be cut into ranges; others are read by pages. By key, a load that
    goes on after a crash tells no row twice; by page, it tells those again that have moved.
    """

    url: str
    catalog_url: str | None = None
    method: ChunkMethod = "key"
    connections: int = 2
    rows_per_second: int | None = None
    rows_per_chunk: int = 50_000
    chunk_bytes: int = 16 << 20
    batch_bytes: int = 1 << 20
    ahead_bytes: int = 64 << 20


class TableRewrittenError(Exception):
    """The source moved a table's rows to another file: it must be read anew, under a new snapshot."""


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk and how it is read; `part` is the schema of what the stream holds."""

    table: TableInfo
    part: TableSchema
    chunk: PlannedChunk
    method: ChunkMethod
    condition: str
    after: Place | None  # where reading goes on behind it; None: it is the table's last

    @property
    def stream(self) -> StreamId:
        return self.table.stream

    @property
    def leaf(self) -> StreamId:
        return StreamId.parse(self.chunk.leaf)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Rows of a chunk, with `_op` "r" and their `_op_index` still 0."""

    read: ChunkRead
    rows: pa.RecordBatch | None
    is_last: bool


def method_for(table: TableInfo, wanted: ChunkMethod) -> ChunkMethod:
    """Key ranges where they are wanted and the key can be cut into them."""
    key = table.schema.key
    return wanted if key and table.schema.column(key[0]).type_name in KEY_TYPES else "ctid"


def plan_reads(
    connection: Connection, table: TableInfo, selection: Selection, place: Place, settings: LoadSettings
) -> list[ChunkRead]:
    """The chunks of a table from `place` on, in order."""
    method = method_for(table, settings.method)
    leaves = tuple(sorted((leaf for leaf in table.leaves), key=lambda leaf: str(leaf.stream)))
    left = tuple(leaf for leaf in leaves if str(leaf.stream) >= place.leaf)
    nodes = {str(leaf.stream): leaf.filenode for leaf in leaves}
    planned = plan_chunks(
        connection,
        replace(table, leaves=left),
        method,
        rows_per_chunk=settings.rows_per_chunk,
        bytes_per_chunk_max=settings.chunk_bytes,
    )
    if place.low is not None:
        planned = _from_place(connection, table, method, planned, place)
    # As the catalog had the files before the snapshot was taken: what changed in between must show.
    chunks = [replace(chunk, filenode=nodes[chunk.leaf]) for chunk in planned]
    part = selection.of(table.schema)
    condition = selection.condition_on(part)
    following: list[Place | None] = [Place(chunk.leaf, chunk.min) for chunk in chunks[1:]]
    return [
        ChunkRead(table, part, chunk, method, "" if condition is None else condition.sql(), after)
        for chunk, after in zip(chunks, [*following, None], strict=True)
    ]


def _from_place(
    connection: Connection,
    table: TableInfo,
    method: ChunkMethod,
    planned: Sequence[PlannedChunk],
    place: Place,
) -> list[PlannedChunk]:
    """Without what lies before the place: its leaf is cut there, whatever its chunks are now."""
    own = [chunk for chunk in planned if chunk.leaf == place.leaf]
    if not own:
        return list(planned)
    bounds = [chunk.min for chunk in own if chunk.min is not None]
    type_name = "tid" if method == "ctid" else table.schema.column(table.schema.key[0]).type_name
    query = sql.SQL(
        "SELECT coalesce(array_agg(bound::text ORDER BY bound), '{{}}') "
        "FROM unnest({bounds}::text[]) AS given, LATERAL (SELECT given::pg_catalog.{type} AS bound) AS typed "
        "WHERE bound > {low}::pg_catalog.{type}"
    ).format(bounds=sql.Literal(bounds), type=sql.Identifier(type_name), low=sql.Literal(place.low))
    with query_errors("planning a load", stream=str(table.stream)):
        row = connection.execute(query).fetchone()
    assert row is not None
    edges: list[str | None] = [place.low, *row[0], None]
    cut = [replace(own[0], min=low, max=high) for low, high in itertools.pairwise(edges)]
    return [*cut, *(chunk for chunk in planned if chunk.leaf != place.leaf)]


class ChunkReaders:
    """Reads chunks ahead. `take` is for one thread; an error of a reader comes out of it in its turn."""

    def __init__(self, reads: Sequence[ChunkRead], snapshot: str, settings: LoadSettings) -> None:
        self._reads = reads
        self._snapshot = snapshot
        self._settings = settings
        self._queues: list[deque[ChunkPart | BaseException]] = [deque() for _ in reads]
        self._waiting_bytes = 0
        self._turn = 0  # whose parts are taken
        self._begun = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._connections: set[Connection] = set()
        count = max(1, min(settings.connections, len(reads)))
        rate = share(settings.rows_per_second, count)
        self._threads = [
            threading.Thread(target=self._read, args=(rate,), name=f"stream-load-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, within_s: float) -> ChunkPart | None:
        """The next part, in the order of the chunks; None if none comes in time."""
        with self._changed:
            queue = self._queues[self._turn]
            self._changed.wait_for(lambda: queue, within_s)
            if not queue:
                return None
            found = queue.popleft()
            if isinstance(found, BaseException):
                raise found
            self._waiting_bytes -= _size(found)
            self._turn += found.is_last
            self._changed.notify_all()
            return found

    def close(self) -> None:
        self._stopped.set()
        with self._changed:
            connections = list(self._connections)
            self._changed.notify_all()
        for connection in connections:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_WITHIN_S)
        for thread in self._threads:
            thread.join()

    def _read(self, rate: float | None) -> None:
        pace = Pace(rate, sleep=self._rest)
        number = None
        connection: Connection | None = None
        try:
            while (number := self._next_number()) is not None:
                if connection is None:
                    connection = self._connect()
                for part in read_parts(connection, self._reads[number], self._snapshot, self._settings, pace):
                    if not self._put(number, part):
                        return
        except BaseException as error:
            with self._changed:
                assert number is not None
                self._queues[number].append(error)
                self._changed.notify_all()
        finally:
            if connection is not None:
                with self._changed:
                    self._connections.discard(connection)
                connection.close()

    def _rest(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _next_number(self) -> int | None:
        with self._changed:
            number = self._begun
            self._begun += 1
            return number if number < len(self._reads) and not self._stopped.is_set() else None

    def _connect(self) -> Connection:
        connection = connect_to_read(self._settings.url)
        with self._changed:
            self._connections.add(connection)
        return connection

    def _put(self, number: int, part: ChunkPart) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(number) or self._stopped.is_set())
            if self._stopped.is_set():
                return False
            self._queues[number].append(part)
            self._waiting_bytes += _size(part)
            self._changed.notify_all()
            return True

    def _has_room(self, number: int) -> bool:
        is_its_turn = number == self._turn and not self._queues[number]
        return is_its_turn or self._waiting_bytes < self._settings.ahead_bytes


def connect_to_read(url: str) -> Connection:
    """A connection that reads whole tables (correctness 12)."""
    connection = connect(url, application_name=_APPLICATION)
    for name, value in load_connection_settings(connection.info.server_version).items():
        connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    return connection


def read_parts(
    connection: Connection, read: ChunkRead, snapshot: str, settings: LoadSettings, pace: Pace
) -> Iterator[ChunkPart]:
    """The rows of a chunk; the last part, perhaps without rows, comes when all is known to be right."""
    leaf = next(leaf for leaf in read.table.leaves if leaf.stream == read.leaf)
    schema = log_schema(read.part, read.chunk.leaf)
    columns = read.part.columns
    fields = [printed(column) for column in columns] or [sql.SQL("NULL::text")]
    query = chunk_query(
        read.table.schema, read.chunk, read.method, sql.SQL(", ").join(fields), read.condition
    )
    at_us = int(time.time() * _US)
    waiting: pa.RecordBatch | None = None
    with query_errors("reading a chunk of the table", stream=str(read.stream)):
        take_over_snapshot(connection, snapshot)
        try:
            for block in read_copy(connection, query, len(fields), block_bytes=settings.batch_bytes):
                pace.read(block.rows)
                if waiting is not None:
                    yield ChunkPart(read, waiting, is_last=False)
                waiting = _rows(block, len(columns), schema, at_us)
        except (CopyFormatError, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
            raise TableRewrittenError(str(read.stream)) from error
        if file_node(connection, leaf.oid) != read.chunk.filenode:
            raise TableRewrittenError(str(read.stream))
        connection.execute("COMMIT")
    yield ChunkPart(read, waiting, is_last=True)


def _rows(block: CopyBlock, columns: int, schema: pa.Schema, at_us: int) -> pa.RecordBatch:
    rows = block.rows
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows)
    arrays = [text(block.column(index)) for index in range(columns)]
    types = [schema.field(index).type for index in range(columns, len(schema.names))]
    arrays += [
        zeros,
        zeros,
        pa.repeat(pa.scalar("r"), rows),
        zeros.cast(pa.uint64()),
        pa.repeat(pa.scalar(at_us, pa.int64()), rows).cast(types[4]),
        pa.nulls(rows, types[5]),
        pa.repeat(pa.scalar("n"), rows),
        pa.nulls(rows, types[7]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _size(part: ChunkPart) -> int:
    return 0 if part.rows is None else int(part.rows.get_total_buffer_size())

"""Rows of tables under one snapshot, in columns of the log, chunk by chunk and in order.

A chunk is read by one connection into a queue of its own; several are read ahead, so that chunks come as fast
as all connections together read them. What waits is bounded in bytes: only the chunk whose turn it is may
always go on. A chunk's last part is given when all of it is known to be right: a table that was rewritten
meanwhile is told by `TableRewrittenError` (correctness 11).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.log.columns import log_schema
from penstock.sources.base import ReadingSession, Source, TableReading, TextSession
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.pace import Pace, share
from penstock.sources.tables import SourceTable
from penstock.streams.load_state import Place

_US = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class LoadSettings:
    """How tables are read. `reading` is where, `source` is asked what they are.

    `method` holds for tables whose key can be cut into ranges; others are read by pages. By key, a load that
    goes on after a crash tells no row twice; by page, it tells those again that have moved.
    """

    source: Source
    reading: TableReading
    method: ChunkMethod = "key"
    connections: int = 2
    rows_per_second: int | None = None
    rows_per_chunk: int = 50_000
    chunk_bytes: int = 16 << 20
    batch_bytes: int = 1 << 20
    ahead_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk and how it is read; `part` is the schema of what the stream holds."""

    table: SourceTable
    part: TableSchema
    chunk: PlannedChunk
    method: ChunkMethod
    condition: Condition | None
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


def plan_reads(
    session: ReadingSession, table: SourceTable, selection: Selection, place: Place, settings: LoadSettings
) -> list[ChunkRead]:
    """The chunks of a table from `place` on, in order."""
    method = settings.reading.method_for(table, settings.method)
    leaves = tuple(sorted((leaf for leaf in table.leaves), key=lambda leaf: str(leaf.stream)))
    left = tuple(leaf for leaf in leaves if str(leaf.stream) >= place.leaf)
    nodes = {str(leaf.stream): leaf.filenode for leaf in leaves}
    planned = session.plan_chunks(
        replace(table, leaves=left),
        method,
        rows_per_chunk=settings.rows_per_chunk,
        bytes_per_chunk_max=settings.chunk_bytes,
    )
    if place.low is not None:
        planned = _from_place(session, table, method, planned, place)
    # As the catalog had the files before the snapshot was taken: what changed in between must show.
    chunks = [replace(chunk, filenode=nodes[chunk.leaf]) for chunk in planned]
    part = selection.of(table.schema)
    condition = selection.condition_on(part)
    following: list[Place | None] = [Place(chunk.leaf, chunk.min) for chunk in chunks[1:]]
    return [
        ChunkRead(table, part, chunk, method, condition, after)
        for chunk, after in zip(chunks, [*following, None], strict=True)
    ]


def _from_place(
    session: ReadingSession,
    table: SourceTable,
    method: ChunkMethod,
    planned: Sequence[PlannedChunk],
    place: Place,
) -> list[PlannedChunk]:
    """Without what lies before the place: its leaf is cut there, whatever its chunks are now."""
    own = [chunk for chunk in planned if chunk.leaf == place.leaf]
    if not own:
        return list(planned)
    assert place.low is not None
    bounds = [chunk.min for chunk in own if chunk.min is not None]
    edges = [place.low, *session.bounds_after(table, method, bounds, place.low), None]
    cut = [replace(own[0], min=low, max=high) for low, high in itertools.pairwise(edges)]
    return [*cut, *(chunk for chunk in planned if chunk.leaf != place.leaf)]


class ChunkReaders:
    """Reads chunks ahead. `take` is for one thread; an error of a reader comes out of it in its turn.

    `alone`: the one connection that reads, and is closed by whoever gave it.
    """

    def __init__(
        self,
        reads: Sequence[ChunkRead],
        snapshot: str,
        settings: LoadSettings,
        alone: TextSession | None = None,
    ) -> None:
        self._reads = reads
        self._snapshot = snapshot
        self._settings = settings
        self._queues: list[deque[ChunkPart | BaseException]] = [deque() for _ in reads]
        self._waiting_bytes = 0
        self._turn = 0  # whose parts are taken
        self._begun = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._alone = alone
        self._sessions: set[TextSession] = set()
        count = 1 if alone is not None else max(1, min(settings.connections, len(reads)))
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
            sessions = list(self._sessions)
            self._changed.notify_all()
        for session in sessions:
            session.cancel()
        for thread in self._threads:
            thread.join()

    def _read(self, rate: float | None) -> None:
        pace = Pace(rate, sleep=self._rest)
        number = None
        session: TextSession | None = None
        try:
            while (number := self._next_number()) is not None:
                if session is None:
                    session = self._open()
                for part in read_parts(session, self._reads[number], self._snapshot, self._settings, pace):
                    if not self._put(number, part):
                        return
        except BaseException as error:
            with self._changed:
                assert number is not None
                self._queues[number].append(error)
                self._changed.notify_all()
        finally:
            if session is not None:
                with self._changed:
                    self._sessions.discard(session)
                if session is not self._alone:
                    session.close()

    def _rest(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _next_number(self) -> int | None:
        with self._changed:
            number = self._begun
            self._begun += 1
            return number if number < len(self._reads) and not self._stopped.is_set() else None

    def _open(self) -> TextSession:
        session = self._alone or self._settings.reading.text_session()
        with self._changed:
            self._sessions.add(session)
        return session

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


def read_parts(
    session: TextSession, read: ChunkRead, snapshot: str, settings: LoadSettings, pace: Pace
) -> Iterator[ChunkPart]:
    """The rows of a chunk; the last part, perhaps without rows, comes when all is known to be right."""
    schema = log_schema(read.part, read.chunk.leaf)
    columns = session.columns(
        read.chunk,
        read.table,
        read.part.columns,
        read.method,
        read.condition,
        snapshot,
        block_bytes=settings.batch_bytes,
    )
    at_us = int(time.time() * _US)
    waiting: pa.RecordBatch | None = None
    for rows, arrays in columns:
        pace.read(rows)
        if waiting is not None:
            yield ChunkPart(read, waiting, is_last=False)
        waiting = _rows(rows, arrays, schema, at_us)
    yield ChunkPart(read, waiting, is_last=True)


def _rows(rows: int, columns: Sequence[pa.Array], schema: pa.Schema, at_us: int) -> pa.RecordBatch:
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows)
    types = [schema.field(index).type for index in range(len(columns), len(schema.names))]
    own = [
        zeros,
        zeros,
        pa.repeat(pa.scalar("r"), rows),
        zeros.cast(pa.uint64()),
        pa.repeat(pa.scalar(at_us, pa.int64()), rows).cast(types[4]),
        pa.nulls(rows, types[5]),
        pa.repeat(pa.scalar("n"), rows),
        pa.nulls(rows, types[7]),
    ]
    return pa.RecordBatch.from_arrays([*columns, *own], schema=schema)


def _size(part: ChunkPart) -> int:
    return 0 if part.rows is None else int(part.rows.get_total_buffer_size())

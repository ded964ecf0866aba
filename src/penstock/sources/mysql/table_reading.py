"""Reading whole tables of MySQL and MariaDB: planning, and chunks for tasks.

These servers share no snapshot between connections. A chunk shows the moment of its own query
(`chunk_reading`), whatever snapshot it is asked for under, so a table is read

- in one chunk (`ctid`, which here is the table from its beginning to its end): exact by itself, and with its
  place in the log if it is asked to take a snapshot of its own (`snapshots`);
- by ranges of its key: exact together with the log, whose changes between the positions noted before and
  after each chunk come over its rows (correctness 54).

Which of them is exact for a stream, whoever loads it decides. How many rows a running query has sent, no
server tells: chunks are counted when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.cursor import Cursors
from penstock.core.errors import TableChangedError
from penstock.core.place import Place
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.base import RunningRead
from penstock.sources.chunk import OWN_SNAPSHOT, ChunkMethod, PlannedChunk, TableRewrittenError
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.mysql import chunks, cursor_windows
from penstock.sources.mysql.catalog import MysqlTable, discover
from penstock.sources.mysql.chunk_reading import NOTHING, MysqlChunk, kept
from penstock.sources.mysql.connection import Connection, cancel, connect
from penstock.sources.mysql.held_snapshot import MysqlHeldTable, held_table
from penstock.sources.mysql.results import read_texts
from penstock.sources.mysql.snapshots import begin_snapshot
from penstock.sources.tables import SourceLeaf, SourceTable


@dataclass(frozen=True, slots=True, repr=False)
class MysqlReading:
    url: str

    def shows_one_moment(self, table: SourceTable) -> bool:
        return False

    @property
    def knows_bytes(self) -> bool:
        return False

    @property
    def finds_place(self) -> bool:
        return True

    def tables(self, streams: Sequence[StreamId]) -> Sequence[MysqlTable]:
        with closing(connect(self.url)) as connection:
            return discover(connection, streams)

    @contextmanager
    def session(self, snapshot: str | None = None) -> Iterator[MysqlSession]:
        with closing(connect(self.url, program_name="penstock plan")) as connection:
            yield MysqlSession(connection)

    def held(self, table: SourceTable, readers: int) -> AbstractContextManager[MysqlHeldTable]:
        return held_table(self.url, _of_mysql(table), readers)

    def text_session(self) -> MysqlTextSession:
        return MysqlTextSession(self.url, connect(self.url, program_name="penstock load"))

    def chunk(
        self,
        chunk: PlannedChunk,
        leaf: SourceLeaf,
        method: ChunkMethod,
        snapshot: str,
        *,
        reader: str,
        condition: str = "",
    ) -> MysqlChunk:
        return MysqlChunk(self.url, reader, chunk, condition, own_snapshot=snapshot == OWN_SNAPSHOT)

    def within(self, noted: Noted) -> str:
        return cursor_windows.within_any(noted)

    def method_for(self, table: SourceTable, wanted: ChunkMethod) -> ChunkMethod:
        return wanted if _of_mysql(table).range_key else "ctid"

    def bound_text(self, bound: str) -> str | None:
        return chunks.number_of(bound)

    @contextmanager
    def watching(self) -> Iterator[Callable[[], Sequence[RunningRead]]]:
        yield lambda: ()


class MysqlSession:
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
        return chunks.plan_chunks(
            self._connection,
            _of_mysql(table),
            method,
            rows_per_chunk=rows_per_chunk,
            bytes_per_chunk_max=bytes_per_chunk_max or chunks.BYTES_PER_CHUNK_MAX,
        )

    def bounds_after(
        self, table: SourceTable, method: ChunkMethod, bounds: Sequence[str], low: str
    ) -> list[str]:
        return chunks.bounds_after(self._connection, bounds, low)

    def note(self, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
        return cursor_windows.note(self._connection, table, cursors, start)

    def cut(self, leaf: SourceLeaf, window: Window, rows_max: int) -> list[CursorChunk]:
        return cursor_windows.cut(self._connection, leaf, window)


class MysqlTextSession:
    """Chunks show the moment of their queries, or after `hold` all of them its own.

    Cost: as a chunk's, without the casts.
    """

    def __init__(self, url: str, connection: Connection) -> None:
        self._url = url
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
        read = {each.name: each for each in columns}
        if where is not None:
            read |= {name: table.schema.column(name) for name in sorted(where.columns)}
        asked = tuple(read.values())
        query = chunks.chunk_query(table.schema, chunk, asked)
        stream = str(table.stream)
        try:
            for block in read_texts(
                self._connection, query, asked or (NOTHING,), stream=stream, block_bytes=block_bytes
            ):
                left = kept(block, asked, where, None)
                yield left.rows, list(left.columns[: len(columns)])
        except TableChangedError as error:
            raise TableRewrittenError(stream) from error

    def hold(self, table: SourceTable) -> Place:
        return begin_snapshot(self._connection, self._url, table.stream)

    def cancel(self) -> None:
        cancel(self._connection, self._url)

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def _of_mysql(table: SourceTable) -> MysqlTable:
    assert isinstance(table, MysqlTable), "tables come from the source that reads them"
    return table

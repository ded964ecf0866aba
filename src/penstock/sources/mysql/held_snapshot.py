"""One moment of one table, read again and again: connections of this process that stay in their snapshots.

No server of these shares a snapshot with another session, so whoever must read the same moment twice keeps
the sessions that have it. Promise: every chunk shows the table as it was at `place`, however often it is
read. It holds because all reading is done in transactions that were begun there (`snapshots`).

Writers do not wait. Nor does an ALTER for longer than for the chunk that is being read: a savepoint from
before any reading is gone back to after each chunk, which lets go of the table. The next chunk is told then
that its table is another one (`TableRewrittenError`). MariaDB keeps a table for as long as the transaction
lasts; there, snapshots are given up within a second for who waits for it (`lock_watch`).

At the server: so many sessions, and the old versions of rows for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from penstock.core.errors import NoSnapshotError, SnapshotLostError, SourceError
from penstock.core.place import Place
from penstock.core.schema import TableSchema
from penstock.core.where import Condition
from penstock.sources.chunk import Block, PlannedChunk, TableRewrittenError
from penstock.sources.mysql.catalog import MysqlTable
from penstock.sources.mysql.chunk_reading import ChunkQuery
from penstock.sources.mysql.connection import Connection, connect, has_ended, is_mariadb, rows
from penstock.sources.mysql.lock_watch import given_up_for_others
from penstock.sources.mysql.snapshots import begin_snapshots

_MARK = "penstock"
_READING = "reading the table"


class MysqlHeldTable:
    """A `HeldTable`. A reader takes one of the sessions, or waits for one."""

    def __init__(self, place: Place, connections: list[Connection]) -> None:
        self.place = place
        self.readers = len(connections)
        self._is_given_up = self._has_ended = False
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for connection in connections:
            self._free.put(connection)

    def chunk(self, chunk: PlannedChunk) -> MysqlHeldChunk:
        return MysqlHeldChunk(self, chunk)

    def give_up(self) -> None:
        """Somebody waits for the table: whoever reads has to begin again."""
        self._is_given_up = True

    def ended(self) -> SourceError:
        """For who finds a session closed. If the network or somebody at the server ended one, a new snapshot
        may be taken; if a reader failed by itself, that is what is to be heard of."""
        kind = SnapshotLostError if self._has_ended else SourceError
        return kind(
            "A session that kept the table's snapshot has ended.", remedy="Run the same command again."
        )

    @contextmanager
    def session(self) -> Iterator[Connection]:
        connection = self._free.get()
        try:
            yield connection
            rows(connection, f"ROLLBACK TO SAVEPOINT {_MARK}", doing=_READING)
        except TableRewrittenError:
            raise  # which every other reader is to be told as well
        except GeneratorExit:
            _close(connection)  # it may be in the midst of its rows
            raise
        except BaseException as error:
            _close(connection)
            if self._is_given_up:
                raise SnapshotLostError(
                    "Somebody waited to alter or lock the table while it was read, and was let through.",
                    remedy="Compare it again when that is done.",
                ) from error
            if has_ended(error):
                self._has_ended = True
                raise self.ended() from error
            raise
        finally:
            self._free.put(connection)


@dataclass(frozen=True, slots=True)
class MysqlHeldChunk:
    """A `ChunkReading` that stays in this process."""

    held: MysqlHeldTable
    chunk: PlannedChunk

    def __repr__(self) -> str:
        return repr(self.chunk)

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        with self.held.session() as connection:
            if not connection.open:
                raise self.held.ended()
            yield from ChunkQuery(self.chunk).blocks(connection, schema, where, outside, as_text=as_text)


@contextmanager
def held_table(url: str, table: MysqlTable, readers: int) -> Iterator[MysqlHeldTable]:
    if not table.is_transactional:
        raise NoSnapshotError(
            f"The engine {table.engine} has no snapshots: which changes a reading shows, nobody could tell.",
            stream=str(table.stream),
            remedy="Give the table a transactional engine (InnoDB).",
        )
    with ExitStack() as opened:
        connections = []
        for _ in range(readers):
            connections.append(connect(url, program_name="penstock verify"))
            opened.callback(_close, connections[-1])
        place, same = begin_snapshots(connections, url, table.stream)
        for connection in same:
            rows(connection, f"SAVEPOINT {_MARK}", doing=_READING)
        for connection in connections:
            if connection not in same:
                _close(connection)
        held = MysqlHeldTable(place, same)
        if is_mariadb(same[0]):
            opened.enter_context(given_up_for_others(url, table.stream, same, held.give_up))
        yield held


def _close(connection: Connection) -> None:
    if connection.open:
        connection.close()

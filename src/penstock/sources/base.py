"""What is asked of a source: the whole of what lanes, syncs and commands know of the database behind them.

A `Source` is what a pipeline file names; `sources.open` makes one. It holds no connection: each call opens
its own. A `TableReading` reads whole tables, at a replica if there is one: a `ReadingSession` plans, and a
`ChunkReading` is a description of one chunk that travels to a Spark task and reads there. Stream lanes read
through a `TextSession`, every column as the text that the log has.

Promises of every reading: it shows exactly the rows of the snapshot it was given, or fails; a table whose
rows were moved meanwhile is told by `TableRewrittenError`; rows that the source would hide from our role are
an error and not fewer rows (correctness 11, 12).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.core.cursor import Cursors
from penstock.core.errors import SourceError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.chunk import Block, ChunkMethod, PlannedChunk
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.tables import SourceLeaf, SourceTable


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server answers; `position`: how far its log was then, or its clock: a number that only grows.

    Also over a promotion: Postgres has its timeline before it.
    """

    system_id: str
    timeline: int
    version: int
    position: Lsn


@dataclass(frozen=True, slots=True)
class LogHold:
    """What has the source keep its log for this pipeline (at Postgres, a slot), and from where on."""

    name: str
    position: Lsn | None
    retained_bytes: int | None
    lost: bool = False  # the source has removed log that it needs


@dataclass(frozen=True, slots=True)
class TableEnd:
    """Where another tool's copy of a table ends, in that tool's words; `position` is their number, which of a
    place inside of a transaction is that transaction's."""

    table: SourceTable
    position: Lsn
    place: Place


class RunningRead(NamedTuple):
    """A chunk that is being read now, as the source counts it."""

    reader: str  # as `TableReading.chunk` was told to call it
    read: str  # its own among those of the same name
    rows: int
    bytes: int


class Catalog(Protocol):
    """The tables as they were at one time."""

    @property
    def tables(self) -> Sequence[SourceTable]: ...

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        """Whether these tables are as the streams need them; without asking the source again."""


class ChunkReading(Protocol):
    """One chunk, to be read anywhere. It can be pickled; it holds secrets, and never prints them."""

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        """The rows that `where` is true for and `outside`, if given, is not.

        `as_text`: every column is asked for as the source prints it, so that blocks have `printed`.
        """


class HeldTable(Protocol):
    """One moment of one table, which sessions of this process keep: its chunks are read nowhere else, as
    often as they are asked for, by so many readers at a time as `readers` says."""

    @property
    def place(self) -> Place:
        """Where in the source's log that moment is, for this table."""

    @property
    def readers(self) -> int: ...

    def chunk(self, chunk: PlannedChunk) -> ChunkReading: ...


class ReadingSession(Protocol):
    """One connection that plans, inside of a snapshot if it was opened under one."""

    def plan_chunks(
        self,
        table: SourceTable,
        method: ChunkMethod,
        *,
        rows_per_chunk: int,
        bytes_per_chunk_max: int | None = None,
    ) -> list[PlannedChunk]:
        """Chunks of all leaves, in order. An empty leaf still has one, since rows may come later."""

    def bounds_after(
        self, table: SourceTable, method: ChunkMethod, bounds: Sequence[str], low: str
    ) -> list[str]:
        """Those of the bounds that are greater than `low`, in the source's order."""

    def note(self, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
        """The windows of a round that goes on from `start`."""

    def cut(self, leaf: SourceLeaf, window: Window, rows_max: int) -> list[CursorChunk]:
        """The window's chunks in one leaf, in order; none if it has no rows there."""


class TextSession(Protocol):
    """One connection that reads chunks one after the other."""

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
        """So many rows and their columns, block by block; the end comes when all is known to be right."""

    def hold(self, table: SourceTable) -> Place | None:
        """Have all that is read from now on show one moment of the table, which is where in the source's log;
        None: what is read shows the snapshot that it is asked for, or no one moment at all."""

    def cancel(self) -> None:
        """For another thread: have what it reads end with an error."""

    def close(self) -> None: ...


class TableReading(Protocol):
    """Reading whole tables. It may be given to several threads."""

    def shows_one_moment(self, table: SourceTable) -> bool:
        """Whether all that is read of this table under a snapshot shows one moment. If not, each chunk shows
        its own, which is later than the snapshot's position (correctness 54)."""

    @property
    def finds_place(self) -> bool:
        """Whether a chunk can take a snapshot of its own (`OWN_SNAPSHOT`), which a load must ask for where
        each change counts once: this source's snapshots cannot be shared."""

    @property
    def knows_bytes(self) -> bool:
        """Whether the size of a table is what it has now, and no estimate of some time ago."""

    def tables(self, streams: Sequence[StreamId]) -> Sequence[SourceTable]:
        """As they are where they are read."""

    def session(self, snapshot: str | None = None) -> AbstractContextManager[ReadingSession]: ...

    def held(self, table: SourceTable, readers: int) -> AbstractContextManager[HeldTable]:
        """One moment of a table for this process, at a source that `finds_place`; by no more sessions than
        `readers`. `NoSnapshotError`: this table has none, or not for us."""

    def text_session(self) -> TextSession: ...

    def chunk(
        self,
        chunk: PlannedChunk,
        leaf: SourceLeaf,
        method: ChunkMethod,
        snapshot: str,
        *,
        reader: str,
        condition: str = "",
    ) -> ChunkReading:
        """`condition` is of the source's own making: of `within`, or of a `CursorChunk`."""

    def within(self, noted: Noted) -> str:
        """The condition for a row being in any of these windows."""

    def method_for(self, table: SourceTable, wanted: ChunkMethod) -> ChunkMethod:
        """The wanted one if the table can be cut so."""

    def bound_text(self, bound: str) -> str | None:
        """A bound of chunks by `key`, as the log prints the value of the key's first column; None: it is of
        several columns, or has no such text."""

    def watching(self) -> AbstractContextManager[Callable[[], Sequence[RunningRead]]]:
        """What is being read, whenever it is asked."""


class Source(Protocol):
    @property
    def name(self) -> str:
        """Tells this pipeline's reading of the server from others': at Postgres, the slot's name."""

    @property
    def database(self) -> str: ...

    @property
    def snapshot_age_max_s(self) -> float | None:
        """How old a snapshot may get before loads leave it; None: as old as it likes."""

    @property
    def log_may_be_ahead(self) -> bool:
        """Whether the log may have of a change a later state of its row than that which the change made."""

    def catalog(self, patterns: Sequence[StreamId] | None = None, *, at_replica: bool = False) -> Catalog:
        """Tables that match a pattern (None: all there are). A name that is not there brings in all, so
        that the nearest can be said. `at_replica`: as they are where tables are read."""

    def tables(self, patterns: Sequence[StreamId] | None = None) -> Sequence[SourceTable]:
        """Those that match, and no others."""

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        """Every prerequisite, met or not. Nothing is changed; a source that does not answer is a finding."""

    def check_kept(self, position: Lsn) -> Finding | None:
        """What is wrong with going on from `position`, if the log is not kept for this pipeline any more."""

    def is_captured(self, table: SourceTable) -> bool:
        """Whether capture is sent the table's changes already."""

    def lacking(self, tables: Sequence[SourceTable]) -> Sequence[SourceError]:
        """Those of these tables whose changes come without some of their columns: why, and the way out."""

    def identity(self) -> Identity: ...

    def switch_point(self, before: int, now: int) -> Lsn | None:
        """Where timeline `before` was left on the way to `now`; None if it is not an ancestor."""

    def hold(self) -> LogHold | None: ...

    def drop_hold(self) -> bool:
        """Let the source forget its log; False if it kept none."""

    def teardown(self) -> list[str]:
        """Drop all that was made at the source; what was there and is gone."""

    def positions_behind(self, ends: Sequence[TableEnd]) -> list[Lsn]:
        """From where on a table's changes are exactly those that each end lacks. The log has all of them from
        there on, or it is an error; so is an end that leaves off inside of a transaction."""

    def attached_leaves(self, leaves: Sequence[SourceLeaf]) -> list[SourceLeaf]:
        """Those that may have brought rows along which are in no log (correctness 31)."""

    def reading(self, version: int | None = None) -> TableReading:
        """`version`: of the server, if it is known already."""

    def cancel_queries(self) -> None:
        """Cancel what other threads of this process have the source do; they get an error."""

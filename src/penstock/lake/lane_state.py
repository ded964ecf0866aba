"""What the rooms of the lake lane share: the streams, where they are kept, and what this run decided.

The lane works in three rooms: `backfill` loads tables, `following` applies the log to them, and `lane`
opens with recovery and decides who goes where. All that one of them must know of another is here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.core.errors import ConfigError, SourceError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.schema import TableSchema
from penstock.core.selection import WHOLE_TABLE, Selection
from penstock.core.stream import StreamId
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.core.where import WhereError
from penstock.destinations.base import Destination, DestinationTable
from penstock.destinations.records import TableRecord, WriteMode
from penstock.lake.apply import Outcome
from penstock.lake.comparing import Comparer
from penstock.lake.target import Target
from penstock.ledger import pausing
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import StateDocument, SyncMode
from penstock.log.reader import ChangeLog, LogFile
from penstock.sources.base import Source, TableReading
from penstock.sources.chunk import ChunkMethod
from penstock.sources.cursor import Cursor, CursorChoice
from penstock.sources.tables import SourceTable

SchemaChangePolicy = Literal["evolve", "pause", "fail"]


@dataclass(frozen=True, slots=True)
class LaneStream:
    """A configured stream and its table as the catalog has it now."""

    info: SourceTable
    mode: SyncMode
    write: WriteMode
    rename: Mapping[str, str]
    full_identity: bool = False
    types: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = WHOLE_TABLE  # `info` has the schema of that part
    cursor: CursorChoice | None = None  # of an incremental stream
    on_schema_change: SchemaChangePolicy = "evolve"
    soft_deletes: bool = False
    options: TableOptions = NO_OPTIONS
    per_chunk: bool = False  # a full refresh that was cut short goes on under another snapshot

    @property
    def reads_log(self) -> bool:
        return self.mode in ("cdc", "strict_cdc")

    @property
    def keeps_older_rows(self) -> bool:
        """Whether rows stay as the log told them when a column is added whose values it does not tell: those
        of an append table are what happened then, and those of a `strict_cdc` table are nowhere else."""
        return self.mode == "strict_cdc" or (self.mode == "cdc" and self.write == "append")

    def target(self, schema: TableSchema | None = None) -> Target:
        """`schema`: of the part of the table that the stream holds, in another version."""
        held = (schema or self.info.schema).held_as(self.types)
        condition = self.selection.condition if schema is None else self.selection.condition_on(schema)
        return Target(
            held,
            self.write,
            self.rename,
            condition,
            soft_deletes=self.soft_deletes,
            options=self.options,
        )

    def cursors(self) -> tuple[Cursor, ...]:
        return self.cursor.cursors(self.info.schema) if self.cursor is not None else ()


@dataclass(slots=True)
class StreamTotals:
    """What this run did to a stream."""

    rows_loaded: int = 0
    rows_repaired: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0

    def add(self, outcome: Outcome) -> None:
        for operation, count in outcome.operations.items():
            self.operations[operation] = self.operations.get(operation, 0) + count
        self.dead_letters += outcome.dead_letter_count


class RoundListener(Protocol):
    """Told of rounds, in the thread that carries them out."""

    def committed(self, stream: StreamId, files: Sequence[LogFile], record: TableRecord) -> None:
        """The changes in these files of the log are in the table, which is at `record` now."""

    def round_done(self, seconds: float) -> None: ...


class Unheard:
    """Rounds that nobody listens to."""

    def committed(self, stream: StreamId, files: Sequence[LogFile], record: TableRecord) -> None: ...

    def round_done(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """`reading`: where tables are read; changes, and what the source is now, are asked of `source`."""

    source: Source
    reading: TableReading
    epoch: Lsn
    method: ChunkMethod
    rows_per_chunk: int
    chunks_at_once: int | None
    origin: str  # the source and the slot, for the generations of loads
    timeline: int  # the source's, whose positions these are
    rows_per_second: int | None = None
    snapshot_age_max_s: float | None = None
    #: A position after everything that is committed then; None: nobody reads the log.
    position_now: Callable[[], Lsn] | None = None
    comparer: Comparer | None = None  # None: what could be compared is loaded


@dataclass(slots=True)
class LaneState:
    settings: LaneSettings
    streams: dict[StreamId, LaneStream]
    ledger: Ledger
    records: LoadRecords
    log: ChangeLog
    destination: Destination
    spark: Callable[[], SparkSession]
    listener: ProgressListener
    leaves_off: Callable[[], bool] = lambda: False  # whether no further round is to be begun
    rounds_heard: RoundListener = field(default_factory=Unheard)
    totals: dict[StreamId, StreamTotals] = field(default_factory=dict)
    to_reload: set[StreamId] = field(default_factory=set)
    to_replace: set[StreamId] = field(default_factory=set)
    by_difference: set[StreamId] = field(default_factory=set)  # of those to reload: compare first
    read_on: set[StreamId] = field(default_factory=set)  # read up to a snapshot of this run
    #: Loads run beside rounds: a stream is in the hands of one or the other, never of both.
    being_loaded: set[StreamId] = field(default_factory=set)
    #: Of those, tables that rounds go on with until their load takes their place (correctness 18).
    kept_up: set[StreamId] = field(default_factory=set)
    #: Held by a round, and by the swap of a load: a table is not replaced in the midst of its round.
    rounds: threading.RLock = field(default_factory=threading.RLock)
    beside_rounds: bool = False
    held_from: Lsn | None = None  # the log is needed from here on by loads that the state may not name yet

    def use_tables(self, streams: Sequence[LaneStream]) -> None:
        """The same streams, with their tables as the catalog has them now."""
        self.streams |= {
            stream.info.stream: stream for stream in streams if stream.info.stream in self.streams
        }

    def add(self, streams: Sequence[LaneStream]) -> None:
        """Further streams, which are new to this run."""
        for stream in streams:
            self.streams.setdefault(stream.info.stream, stream)
            self.totals.setdefault(stream.info.stream, StreamTotals())

    def reload(
        self,
        stream: StreamId,
        reason: str,
        *,
        replace: bool = False,
        asked: bool = False,
        by_difference: bool = False,
    ) -> None:
        """Have a stream loaded again in this run; `by_difference`: written only where it differs.

        An append table keeps its history and gets the loaded rows besides, unless it is to be replaced.
        The decision is durable: what led to it may never be seen again. A paused stream waits with it.
        """
        if self.streams[stream].mode == "strict_cdc" and not asked:
            # Its rows are nowhere but in its table: beginning anew would lose them.
            self.pause(stream, f"it cannot go on ({reason}); `penstock resync` begins it anew, empty")
            return
        if replace:
            self.to_replace.add(stream)
        self.ledger.write(
            pausing.to_be_loaded(
                self.ledger.document, stream, reason, replace=replace, by_difference=by_difference
            )
        )
        if by_difference:
            self.by_difference.add(stream)
        elif replace:
            self.by_difference.discard(stream)
        if stream not in self.to_reload:
            self.to_reload.add(stream)
            if stream in self.by_difference:
                self.listener.note(
                    f"{stream} is compared with its source: {reason}. Only rows that differ are written."
                )
                return
            when = "will be loaded again when it is resumed" if self.is_paused(stream) else "is loaded again"
            loses = " Rows that were deleted at the source are not kept." * self.streams[stream].soft_deletes
            self.listener.note(f"{stream} {when}: {reason}.{loses}")

    def follow_source(self, stream: StreamId, change: str) -> None:
        """The source's table is another now: load it again, unless the stream is not to follow that."""
        if self.may_follow(stream, change):
            self.reload(stream, change)

    def resync(self, stream: StreamId, *, by_difference: bool = False) -> None:
        """Have a stream loaded anew because somebody asked for it; one that was paused goes on with that."""
        self.ledger.write(pausing.resumed(self.ledger.document, stream))
        self.reload(
            stream, "it was asked for", replace=not by_difference, asked=True, by_difference=by_difference
        )

    def may_follow(self, stream: StreamId, change: str) -> bool:
        """Whether a stream may follow a change of its source's table; if not, it is paused or an error.

        One that is loaded again in any case takes the table as it is; so does one that was resumed, if the
        table is still what it was when the stream was paused.
        """
        policy = self.streams[stream].on_schema_change
        if policy == "evolve" or stream in self.to_reload:
            return True
        if policy == "fail":
            raise SourceError(
                f"The table changed at the source: {change}.",
                stream=str(stream),
                remedy="Set `on_schema_change: evolve` for this stream to let its table follow, or run "
                f"`penstock resync {stream}` to load it as it is now.",
            )
        columns = self._columns_at_source(stream)
        state = self.ledger.document.stream(stream)
        if state is not None and columns == state.accepted_columns:
            return True
        self.pause(stream, f"{change}, and `on_schema_change` is `pause`", columns)
        return False

    def _columns_at_source(self, stream: StreamId) -> str:
        """A fingerprint of the table as it is now: what the catalog said before may be what has changed."""
        found = self.settings.source.tables([stream])
        return found[0].schema.shape if found else ""

    def pause(self, stream: StreamId, reason: str, columns: str = "") -> None:
        """Let a stream stand still from here on, until somebody resumes it; the others go on."""
        if self.is_paused(stream):
            return
        self.ledger.write(self._paused(stream, reason, columns))
        self._tell_of_pause(stream, reason)

    def pause_to_reload(self, stream: StreamId, reason: str, load_reason: str) -> None:
        """Let a stream stand still that is to be loaded again when it is resumed: both or neither is durable,
        or resuming it would come to what it was paused for."""
        if not self.is_paused(stream):
            self.ledger.write(pausing.to_be_loaded(self._paused(stream, reason), stream, load_reason))
            self._tell_of_pause(stream, reason)
        self.reload(stream, load_reason)

    def _paused(self, stream: StreamId, reason: str, columns: str = "") -> StateDocument:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        mode = self.streams[stream].mode
        return pausing.paused(
            self.ledger.document, stream, since=since, reason=reason, sync_mode=mode, columns=columns
        )

    def _tell_of_pause(self, stream: StreamId, reason: str) -> None:
        self.listener.note(f"{stream} is paused: {reason}. `penstock resume {stream}` lets it go on.")

    def hold_up(self, lacking: Sequence[SourceError]) -> bool:
        """Let streams stand still whose changes come without some of their columns; whether there are any."""
        streams = [(StreamId.parse(str(error.stream)), error) for error in lacking]
        for stream, error in streams:
            if stream in self.streams:
                why = error.message[0].lower() + error.message[1:]
                self.pause(stream, f"{why} {error.remedy.removesuffix('.')}")
        return bool(streams)

    def is_paused(self, stream: StreamId) -> bool:
        state = self.ledger.document.stream(stream)
        return state is not None and state.paused is not None

    def can_be_kept_up(self, stream: StreamId) -> bool:
        """Whether rounds may go on with a table while it is loaded anew.

        It must be as the stream's settings ask for it, and not be one that is compared. An append table whose
        history stays is not kept up: the load adds what the source has at the load's point, and the log goes
        on from there.
        """
        configured, state = self.streams[stream], self.ledger.document.stream(stream)
        if configured.mode != "cdc" or state is None or state.committed_to is None:
            return False
        if stream in self.by_difference:
            return False
        is_replaced = configured.write == "upsert" or stream in self.to_replace or state.load_replaces
        follows = stream in self.ledger.document.global_streams or state.cdc_from is not None
        if not is_replaced or not follows:
            return False
        record = self.table(stream).record()
        marker = record.marker if record is not None and record.readable_from is None else None
        if marker is None or (marker.generation, marker.to) != (state.generation, state.committed_to):
            return False
        return self.is_layout_of(stream, record)

    def table(self, stream: StreamId) -> DestinationTable:
        return self.destination.table(stream)

    def is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        return self.table(stream).is_thread_committed(thread_id)

    def has_layout(self, stream: StreamId, schema: TableSchema | None = None) -> bool:
        """Whether the table's columns are those that the stream's settings ask for."""
        return self.is_layout_of(stream, self.table(stream).record(), schema)

    def is_layout_of(
        self, stream: StreamId, record: TableRecord | None, schema: TableSchema | None = None
    ) -> bool:
        if record is None or (record.columns is None and not record.files):
            return False
        if not self.streams[stream].selection.is_of(schema or record.schema):
            return False
        held = record.columns
        try:
            written = held if held is not None else pq.read_schema(self.table(stream).path(record.files[0]))
        except (OSError, pa.ArrowException):
            return True  # a damaged file is no reason to load anew unasked, nor to keep other tables waiting
        try:
            configured = self.streams[stream].target(schema or record.schema).arrow_schema()
        except (ConfigError, WhereError):
            return False  # the settings fit the table as it is at the source now, and not as it was written
        return bool(written.names == configured.names and written.types == configured.types)

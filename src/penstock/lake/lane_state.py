"""What the rooms of the lake lane share: the streams, where they are kept, and what this run decided.

The lane works in three rooms: `backfill` loads tables, `following` applies the log to them, and `lane`
opens with recovery and decides who goes where. All that one of them must know of another is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination, DestinationTable, WriteMode
from penstock.lake.apply import Outcome
from penstock.lake.target import Target
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import SyncMode
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.catalog import TableInfo
from penstock.sources.postgres.chunks import ChunkMethod


@dataclass(frozen=True, slots=True)
class LaneStream:
    """A configured stream and its table as the catalog has it now."""

    info: TableInfo
    mode: SyncMode
    write: WriteMode
    rename: Mapping[str, str]
    full_identity: bool = False

    def target(self, schema: TableSchema | None = None) -> Target:
        return Target(schema or self.info.schema, self.write, self.rename)


@dataclass(slots=True)
class StreamTotals:
    """What this run did to a stream."""

    rows_loaded: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0

    def add(self, outcome: Outcome) -> None:
        for operation, count in outcome.operations.items():
            self.operations[operation] = self.operations.get(operation, 0) + count
        self.dead_letters += outcome.dead_letter_count


@dataclass(frozen=True, slots=True)
class LaneSettings:
    url: str
    server_version: int
    epoch: Lsn
    method: ChunkMethod
    rows_per_chunk: int
    chunks_at_once: int | None


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
    totals: dict[StreamId, StreamTotals] = field(default_factory=dict)
    to_reload: set[StreamId] = field(default_factory=set)
    to_replace: set[StreamId] = field(default_factory=set)

    def use_tables(self, streams: Sequence[LaneStream]) -> None:
        """The same streams, with their tables as the catalog has them now."""
        self.streams |= {
            stream.info.stream: stream for stream in streams if stream.info.stream in self.streams
        }

    def reload(self, stream: StreamId, reason: str, *, replace: bool = False) -> None:
        """Have a stream loaded again in this run.

        An append table keeps its history and gets the loaded rows besides, unless it is to be replaced.
        """
        if replace:
            self.to_replace.add(stream)
        if stream not in self.to_reload:
            self.to_reload.add(stream)
            self.listener.note(f"{stream} is loaded again: {reason}.")

    def table(self, stream: StreamId) -> DestinationTable:
        return self.destination.table(stream)

    def is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        return self.table(stream).is_thread_committed(thread_id)

    def has_layout(self, stream: StreamId, schema: TableSchema | None = None) -> bool:
        """Whether the table's columns are those that the stream's settings ask for."""
        table = self.table(stream)
        record = table.record()
        if record is None or not record.files:
            return False
        written: list[str] = pq.read_schema(table.path(record.files[0])).names
        configured = self.streams[stream].target(schema or record.schema)
        return written == list(configured.arrow_schema().names)

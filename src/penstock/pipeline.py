"""The public Python interface: a pipeline file, and what can be done with it.

    pipeline = Pipeline.from_yaml("penstock.yaml")
    pipeline.sync()                                        # one bounded round
    pipeline.table("public.orders").to_arrow()             # committed rows
    pipeline.log("public.orders").to_arrow(after=offset)   # every change

Works from a script and from a notebook; nothing here prints.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.config import Config, StreamConfig
from penstock.core.errors import ConfigError, DestinationError, PenstockError
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.report import PipelineStatus, PlannedStream, ProgressListener, SyncReport
from penstock.core.stream import StreamId
from penstock.destinations.parquet import ParquetDestination
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog, read_rows
from penstock.planning import plan, status
from penstock.resolution import stream_need
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.check import check
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.finding import Finding
from penstock.sources.postgres.publication import PublicationManager
from penstock.sources.postgres.slots import drop_slot, read_slot
from penstock.sync import Sync, only_one

_LAST_POSITION = Lsn(2**63 - 1)


class Silence:
    """A listener that does not listen."""

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None: ...

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None: ...

    def stream_finished(self, stream: str, phase: str, rows: int) -> None: ...

    def note(self, message: str) -> None: ...


class Pipeline:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._url = config.source.url.get_secret_value()

    @classmethod
    def from_yaml(cls, path: str | Path) -> Pipeline:
        return cls(Config.load(path))

    def check(self) -> list[Finding]:
        """Every prerequisite at the source, met or not."""
        source = self.config.source
        findings = check(
            self._url,
            source.slot,
            source.publication,
            [stream_need(stream) for stream in self._wanted()],
            publication_mode=source.publication_mode,
        )
        return [*findings, *self._check_state()]

    def _wanted(self) -> list[StreamConfig]:
        """The streams by name, where they can be told; else as the file has them, for `check` to say why."""
        try:
            with connect(self._url) as connection:
                tables = discover(connection, [stream.id for stream in self.config.streams])
            return self.config.resolve_streams([table.stream for table in tables])
        except PenstockError:
            return list(self.config.streams)

    def _check_state(self) -> list[Finding]:
        """Whether the source still has what the state goes on from."""
        try:
            document = StateStore(self.config.state).load()
            if document is None or document.lsn is None:
                return []
            with connect(self._url) as connection:
                if read_slot(connection, self.config.source.slot) is not None:
                    return []
        except PenstockError as error:
            return [Finding.of_error("state", error)]
        return [
            Finding(
                "state",
                "error",
                f"The state goes on from {document.lsn}, but the slot {self.config.source.slot} is gone.",
                "Run `penstock resync --yes` to load the tables again under a new slot.",
            )
        ]

    def discover(self) -> list[TableInfo]:
        with connect(self._url) as connection:
            return discover(connection)

    def plan(self) -> list[PlannedStream]:
        """What the next sync would do; changes nothing."""
        return plan(self.config)

    def sync(self, listener: ProgressListener | None = None) -> SyncReport:
        """Load and follow up to a position noted now; returns when it is committed and acknowledged."""
        return Sync(self.config, listener or Silence()).run()

    def resync(self, streams: Sequence[str] = (), listener: ProgressListener | None = None) -> SyncReport:
        """Load these streams again, then as `sync`; without any, all of them, under a new slot and log.

        Readers see the old tables until each new one is complete.
        """
        if not streams:
            self._start_over()
        return Sync(self.config, listener or Silence(), [_stream_id(stream) for stream in streams]).run()

    def _start_over(self) -> None:
        with only_one(self.config.state), connect(self._url) as connection:
            drop_slot(connection, self.config.source.slot)
            StateStore(self.config.state).reset()
            for leftover in ("log", "load"):
                shutil.rmtree(self.config.state / leftover, ignore_errors=True)

    def status(self) -> PipelineStatus:
        return status(self.config)

    def table(self, stream: str) -> Table:
        return Table(_stream_id(stream), ParquetDestination(self.config.destination.path))

    def log(self, stream: str) -> LogView:
        return LogView(_stream_id(stream), ChangeLog(self.config.state / "log"))

    def teardown(self) -> list[str]:
        """Drop slot and publication at the source; what was there and is gone."""
        dropped = []
        with only_one(self.config.state), connect(self._url) as connection:
            if drop_slot(connection, self.config.source.slot):
                dropped.append(f"slot {self.config.source.slot}")
            if PublicationManager(connection, self.config.source.publication).drop():
                dropped.append(f"publication {self.config.source.publication}")
        return dropped


@dataclass(frozen=True, slots=True)
class Table:
    """A stream's table at the destination: its newest committed version."""

    stream: StreamId
    _destination: ParquetDestination

    @property
    def path(self) -> Path:
        """The directory of the newest version. Its files never change; it stays for `readers.grace`."""
        path = self._destination.table(self.stream).version_path()
        if path is None:
            raise DestinationError(
                "There is no table yet.", stream=str(self.stream), remedy="Run `penstock sync` first."
            )
        return path

    def to_arrow(self) -> pa.Table:
        return pa.concat_tables([pq.read_table(file) for file in sorted(self.path.glob("*.parquet"))])

    def spark(self, session: SparkSession) -> DataFrame:
        return session.read.parquet(str(self.path))


@dataclass(frozen=True, slots=True)
class LogView:
    """Every change of a stream that the log still holds, as the source sent it."""

    stream: StreamId
    _log: ChangeLog

    def to_arrow(self, after: LogOffset | None = None) -> pa.Table:
        after = after or LogOffset.BEFORE_ALL
        start = Lsn(max(after.tx, 0))
        files = self._log.files(self.stream, start, _LAST_POSITION).files
        tables = [_later_than(table, after) for table in read_rows(files, start, _LAST_POSITION)]
        if not tables:
            return pa.table({})
        return pa.concat_tables(tables, promote_options="default").sort_by(
            [("_tx", "ascending"), ("_op_index", "ascending")]
        )


def _later_than(table: pa.Table, after: LogOffset) -> pa.Table:
    tx, op = table.column("_tx"), table.column("_op_index")
    same_tx = pc.and_(pc.equal(tx, after.tx), pc.greater(op, after.op))
    return table.filter(pc.or_(pc.greater(tx, after.tx), same_tx))


def _stream_id(text: str) -> StreamId:
    try:
        return StreamId.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a stream id.", remedy="Write schema.table, for instance public.orders."
        ) from error

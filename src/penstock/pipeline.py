"""The public Python interface: a pipeline file, and what can be done with it.

    pipeline = Pipeline.from_yaml("penstock.yaml")
    pipeline.sync()                                        # one bounded round
    pipeline.table("public.orders").to_arrow()             # committed rows
    pipeline.log("public.orders").to_arrow(after=offset)   # every change

Works from a script and from a notebook; nothing here prints.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock import failpoints
from penstock.capture.from_config import require_postgres
from penstock.config import Config, StreamConfig
from penstock.config.source import FIELDS_FILE
from penstock.core.errors import ConfigError, DestinationError, LogGoneError, PenstockError
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.report import CompactReport, PipelineStatus, PlannedStream, ProgressListener, SyncReport
from penstock.core.stream import StreamId
from penstock.core.verify_report import VerifyReport
from penstock.destinations.base import Destination
from penstock.destinations.iceberg import IcebergTable
from penstock.lake.dead_letters import open_letters, read_dead_letters
from penstock.lake.destination import destination_of, session_of
from penstock.lake.iceberg_reading import read_iceberg
from penstock.lake.lane_state import LaneStream
from penstock.lake.upkeep import compact
from penstock.ledger import pausing
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.state import StateDocument, SyncMode
from penstock.ledger.store import StateStore
from penstock.ledger.takeover import MigratedStream
from penstock.locking import only_one
from penstock.log.manifest import newest_manifest
from penstock.log.reader import ChangeLog, read_rows
from penstock.migration import migrate
from penstock.operations import lanes
from penstock.operations import streams as operations
from penstock.operations.shapes import compare as compare_shapes
from penstock.operations.streams import Told
from penstock.planning import plan, status
from penstock.resolution import resolve_from_source, stream_needs
from penstock.sources.finding import Finding
from penstock.sources.open import open_source
from penstock.sources.tables import SourceTable
from penstock.streams.comparison.ranges import Wanted
from penstock.streams.libraries import require_library
from penstock.supervisor.asking import running_status
from penstock.sync import Sync
from penstock.turns import spark_starter
from penstock.verify import reports
from penstock.verify.mending import run_and_repair
from penstock.verify.opened import opened
from penstock.verify.run import VerifyOptions

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
        self._source = open_source(config.source)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Pipeline:
        return cls(Config.load(path))

    def check(self) -> list[Finding]:
        """Every prerequisite at the source, met or not."""
        # Here, not above: encoders of events are compiled code, a sixth of what a small sync takes.
        from penstock.streams.checking import check_lanes

        wanted, not_found = self._wanted()
        findings = self._source.check(stream_needs(self.config, wanted))
        return [*findings, *not_found, *self._check_state(), *check_lanes(self.config)]

    def _wanted(self) -> tuple[list[StreamConfig], list[Finding]]:
        """The streams that are there, by name, and what to say about those that are not.

        As the file has them if the source cannot be asked: `check` says why.
        """
        patterns = [stream.id for stream in self.config.streams]
        try:
            available = [table.stream for table in self._source.tables(patterns)]
            if self.config.missing_streams(available):
                available += [table.stream for table in self._source.tables()]  # to name the nearest
        except PenstockError:
            return list(self.config.streams), []
        findings = [Finding.of_error("table", error) for error in self.config.missing_streams(available)]
        findings += [
            Finding(
                "table",
                "warning",
                "No table matches this pattern.",
                "Correct it in the pipeline file; `penstock discover` lists the tables.",
                str(pattern),
            )
            for pattern in self.config.unmatched_patterns(available)
        ]
        there = [
            stream for stream in self.config.streams if stream.id.is_pattern or stream.id in set(available)
        ]
        try:
            chosen = self.config.model_copy(update={"streams": there}).resolve_streams(available)
        except ConfigError as error:
            return [], findings or [Finding.of_error("table", error)]
        return chosen, findings

    def _check_state(self) -> list[Finding]:
        """Whether the source still has what the state goes on from."""
        try:
            document = StateStore(self.config.state).load()
            if document is None or document.level is None:
                return []
            finding = self._source.check_kept(document.level)
        except PenstockError as error:
            return [Finding.of_error("state", error)]
        return [] if finding is None else [finding]

    def discover(self) -> Sequence[SourceTable]:
        return self._source.tables()

    def plan(self) -> list[PlannedStream]:
        """What the next sync would do; changes nothing."""
        return plan(self.config)

    def sync(self, listener: ProgressListener | None = None) -> SyncReport:
        """Load and follow up to a position noted now; returns when it is committed and acknowledged."""
        return Sync(self.config, Silence() if listener is None else listener).run()

    def resync(
        self,
        streams: Sequence[str] = (),
        listener: ProgressListener | None = None,
        *,
        diff: bool = False,
    ) -> SyncReport:
        """Load these streams again, then as `sync`; without any, all of them, under a new slot and log.

        Readers see the old tables until each new one is complete.

        `diff`: compare their tables with the source, and write only the rows that differ. If the slot is
        lost, all streams begin anew under another, and those that are not named are loaded again.
        """
        names = [operations.stream_id(stream) for stream in streams]
        compared = self._to_compare(names) if diff else {}
        begins_anew = not names or (diff and self.has_lost_slot())
        if begins_anew:
            self._start_over(compared)
        heard = Silence() if listener is None else listener
        return Sync(self.config, heard, () if begins_anew else names, by_difference=diff).run()

    def has_lost_slot(self) -> bool:
        """Whether the source no longer has the changes that the next sync would go on with."""
        hold, newest = self._source.hold(), newest_manifest(self.config.state / "log")
        if hold is None or hold.lost:
            return True
        return newest is not None and hold.position is not None and hold.position > newest.end

    def _to_compare(self, names: Sequence[StreamId]) -> dict[StreamId, SyncMode]:
        """The streams whose tables can be compared with the source row by row, if all that are wanted are."""
        require_postgres(self.config, "`penstock resync --diff`")
        streams = {each.info.stream: each for each in resolve_from_source(self.config)}
        for name in names:
            if name not in streams:
                raise ConfigError(
                    "This stream is not part of the pipeline.",
                    stream=str(name),
                    remedy="Run `penstock status` to see the streams there are.",
                )
        wanted = [streams[name] for name in names] or [each for each in streams.values() if each.reads_log]
        able = {each.info.stream: each.mode for each in wanted if _holds_rows(each)}
        if unable := [each for each in wanted if not _holds_rows(each)]:
            raise _not_by_difference(unable, list(able), named=bool(names))
        return able

    def _start_over(self, compared: Mapping[StreamId, SyncMode]) -> None:
        """`compared`: streams whose tables are worth comparing; all others are loaded anew."""
        with only_one(self.config.state):
            self._source.drop_hold()
            StateStore(self.config.state).reset(
                lambda emptied: pausing.to_be_compared(emptied, compared, "it goes on under a new slot")
            )
            LaneRegistry(self.config.state / LANES_FILE).forget_positions()
            failpoints.reach("resync.ordered")
            for leftover in ("log", "load"):
                shutil.rmtree(self.config.state / leftover, ignore_errors=True)
            # Collections are sampled again, but not before the log is gone, which has the former columns.
            (self.config.state / FIELDS_FILE).unlink(missing_ok=True)

    def compact(
        self, streams: Sequence[str] = (), listener: ProgressListener | None = None, *, dry_run: bool = False
    ) -> CompactReport:
        """Do what is due to these tables, or to all: merge files, let old snapshots and orphans go.

        It waits for no sync or run, and none waits for it: what others write meanwhile comes first. Except in
        a Hadoop catalog, which cannot tell two processes apart that commit at once: there it is refused while
        another works. `dry_run`: say what is due.
        """
        document = StateStore(self.config.state).load() or StateDocument.new()
        there = {*document.streams, *(each.id for each in self.config.streams if not each.id.is_pattern)}
        named = operations.known_streams(self.config, streams, document) or sorted(there)
        is_for_one_writer = self.config.destination.catalog.type == "hadoop"
        with only_one(self.config.state) if is_for_one_writer and not dry_run else nullcontext():
            return compact(
                self.config,
                lambda: session_of(self.config),
                named,
                Silence() if listener is None else listener,
                dry_run=dry_run,
            )

    def verify(
        self,
        streams: Sequence[str] = (),
        listener: ProgressListener | None = None,
        *,
        sample: float = 1.0,
        limit: int = 20,
        show_values: bool = False,
        repair: bool = False,
        at: str | None = None,
    ) -> VerifyReport:
        """Compare tables with their source at one position, whoever writes meanwhile; changes neither.

        `repair`: then give the rows that differ what the source has for them, and compare again.

        `at`: a position of the log; compared is the version that each table had there, taken on by the log.

        `sample`: the part of the keys that is compared. `limit`: how many differences of a stream are told
        one by one; `show_values`: with what both sides hold.
        """
        if repair and at is not None:
            raise ConfigError(
                "Only the newest version of a table can be repaired.", remedy="Leave out --at, or --repair."
            )
        if repair and sample < 1.0:
            raise ConfigError(
                "A repair is of all rows, and a sample is not: what differs elsewhere would stay.",
                remedy="Leave out --sample, or --repair.",
            )
        heard = Silence() if listener is None else listener
        options = VerifyOptions(
            tuple(map(operations.stream_id, streams)), sample, limit, show_values, _position(at)
        )
        with spark_starter(self.config) as spark:
            if self.config.destination.type == "iceberg":
                spark.begin_java()
            with opened(self.config, heard, spark) as pipeline:
                report = run_and_repair(self.config, pipeline, spark, heard, options, repair=repair)
        reports.save(self.config.state, report)
        return report

    def verify_lane(
        self,
        lane: str,
        streams: Sequence[str] = (),
        listener: ProgressListener | None = None,
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int = 20,
    ) -> VerifyReport:
        """Compare what a Kafka lane has sent with the change log, whoever writes meanwhile; changes neither.

        Every change is there once, says what the log says, and those of a key are in their order. `start` and
        `end`: positions, or offsets as records have them; by default all that the log and the topics have.
        """
        lanes.require_stream_lane(self.config, lane)
        require_library(lane)
        from penstock.streams.comparison.run import LaneOptions, compare_lane
        from penstock.streams.settings import StreamSettings

        wanted = Wanted(_transaction(start) or Lsn(0), _transaction(end))
        options = LaneOptions(tuple(map(operations.stream_id, streams)), wanted, limit)
        settings = StreamSettings.of_pipeline(self.config, lane)
        report = compare_lane(settings, Silence() if listener is None else listener, options)
        reports.save(self.config.state, report)
        return report

    def verify_shapes(
        self,
        shapes: Sequence[str] = (),
        listener: ProgressListener | None = None,
        *,
        limit: int = 20,
        show_values: bool = False,
    ) -> VerifyReport:
        """Compare shapes with what their SELECTs give at one position, whoever writes meanwhile; changes
        neither. `shapes`: handles, or tables; those of the instance that leads.
        """
        report = compare_shapes(
            self.config, shapes, Silence() if listener is None else listener, limit, show_values=show_values
        )
        reports.save(self.config.state, report)
        return report

    def pause(self, streams: Sequence[str], reason: str = "") -> Told:
        """Let these streams stand still where they are; the others go on, and nothing of theirs is lost.

        While a run is at work on the state, it is that run which does it, between two turns.
        """
        return operations.pause(self.config, streams, reason)

    def resume(self, streams: Sequence[str]) -> Told:
        """Let paused streams go on; the next turn or sync brings them up to the others."""
        return operations.resume(self.config, streams)

    def migrate(self, state: str | Path, streams: str | Path | None = None) -> list[MigratedStream]:
        """Take over from OLake: its state.json, its streams.json if given. What becomes of each stream."""
        with only_one(self.config.state):
            return migrate(self.config, Path(state), None if streams is None else Path(streams))

    def status(self) -> PipelineStatus:
        return replace(status(self.config), running=self.running())

    def running(self) -> dict[str, Any] | None:
        """What the instance of `penstock run` that leads says of itself; None if there is none."""
        return running_status(self.config.state)

    def table(self, stream: str) -> Table:
        return Table(operations.stream_id(stream), destination_of(self.config))

    def dead_letters(self, stream: str) -> DeadLetterTable:
        return DeadLetterTable(operations.stream_id(stream), destination_of(self.config))

    def log(self, stream: str) -> LogView:
        return LogView(operations.stream_id(stream), ChangeLog(self.config.state / "log"))

    def teardown(self, *, force: bool = False) -> list[str]:
        """Drop slot and publication at the source; what was there and is gone.

        A slot that this state directory never read from is somebody's: it needs `force`.
        """
        with only_one(self.config.state):
            hold = None if force else self._source.hold()
            if hold is not None:
                self._require_own_slot(hold.name)
            return self._source.teardown()

    def _require_own_slot(self, slot: str) -> None:
        document = StateStore(self.config.state).load()
        # States of earlier versions did not name the slot.
        if document is not None and (document.slot or slot) == slot:
            return
        raise ConfigError(
            f"The slot {slot} was never read into {self.config.state}: another pipeline may depend on it.",
            remedy="Check `source.slot` and `state` in the pipeline file; --force drops it all the same.",
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A stream's table at the destination: its newest committed version."""

    stream: StreamId
    _destination: Destination

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
        table = self._destination.table(self.stream)
        if isinstance(table, IcebergTable):
            return read_iceberg(table)
        return pa.concat_tables([pq.read_table(file) for file in sorted(self.path.glob("*.parquet"))])

    def spark(self, session: SparkSession) -> DataFrame:
        table = self._destination.table(self.stream)
        if isinstance(table, IcebergTable):
            return session.read.format("iceberg").load(table.metadata_location())
        return session.read.parquet(str(self.path))


@dataclass(frozen=True, slots=True)
class DeadLetterTable:
    """A stream's rows that its table could not hold, with what was wrong with each."""

    stream: StreamId
    _destination: Destination

    @property
    def path(self) -> Path:
        """A directory of Parquet files, as of now; like a table's, it never changes under a reader."""
        path = self._destination.table(self.stream).dead_letters_path()
        if path is None:
            raise DestinationError(
                "There are no dead letters of this stream.", stream=str(self.stream), remedy="None needed."
            )
        return path

    def to_arrow(self) -> pa.Table:
        return read_dead_letters(self._destination.table(self.stream).dead_letter_paths())

    def open_keys(self) -> pa.Table:
        """Keys whose newest version is a dead letter, with the offset of that; none of an append table."""
        table = self._destination.table(self.stream)
        record = table.record()
        if record is None or record.write != "upsert":
            return open_letters((), 0)
        return open_letters(table.dead_letter_paths(), len(record.schema.key))


@dataclass(frozen=True, slots=True)
class LogView:
    """Every change of a stream that the log still holds, as the source sent it."""

    stream: StreamId
    _log: ChangeLog

    def to_arrow(self, after: LogOffset | None = None) -> pa.Table:
        """Those after an offset, or all: what the log holds of them, also while retention takes some."""
        after = after or LogOffset.BEFORE_ALL
        while True:
            begins = self._log.start()
            try:
                return self._read(after, begins or Lsn(0))
            except (LogGoneError, FileNotFoundError):
                if self._log.start() == begins:  # it is not retention that took it
                    raise

    def _read(self, after: LogOffset, begins: Lsn) -> pa.Table:
        start = max(Lsn(max(after.tx, 0)), begins)
        files = self._log.files(self.stream, start, _LAST_POSITION).files
        tables = [_later_than(table, after) for table in read_rows(files, start, _LAST_POSITION)]
        if not tables:
            return pa.table({})
        return pa.concat_tables(tables, promote_options="default").sort_by(
            [("_tx", "ascending"), ("_op_index", "ascending")]
        )


def _holds_rows(stream: LaneStream) -> bool:
    """Whether the table is to hold the source's rows at a position of the log, and nothing else."""
    return stream.mode == "cdc" and stream.write == "upsert"


def _not_by_difference(unable: Sequence[LaneStream], able: Sequence[StreamId], *, named: bool) -> ConfigError:
    kinds = ", ".join(
        f"{each.info.stream} ({'write: append' if each.mode == 'cdc' else each.mode})" for each in unable
    )
    if named or not able:
        names = " ".join(str(each.info.stream) for each in unable)
        remedy = f"Run `penstock resync {names}` for what is not, without --diff."
    else:
        names = " ".join(map(str, able))
        remedy = (
            f"Name the others: `penstock resync {names} --diff --yes`. If the slot is lost, those that are "
            "not named are loaded again, as `penstock resync --yes` does."
        )
    return ConfigError(
        f"Only tables that are to hold the source's rows can be compared with them, and not {kinds}.",
        remedy=remedy,
    )


def _later_than(table: pa.Table, after: LogOffset) -> pa.Table:
    tx, op = table.column("_tx"), table.column("_op_index")
    same_tx = pc.and_(pc.equal(tx, after.tx), pc.greater(op, after.op))
    return table.filter(pc.or_(pc.greater(tx, after.tx), same_tx))


def _transaction(text: str | None) -> Lsn | None:
    """A position, or the transaction of an offset such as `26800664_4`."""
    try:
        return Lsn(LogOffset.parse(text).tx) if text is not None and "_" in text else _position(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no offset.",
            remedy="Write it as records have it: 26800664_4, or a position: 0/19C9B158.",
        ) from error


def _position(text: str | None) -> Lsn | None:
    try:
        return None if text is None else Lsn.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no position of the log.", remedy="Write one as `penstock status` does: 0/19C9B158."
        ) from error

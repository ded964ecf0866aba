"""One bounded sync: load what is not loaded, read the log to a position noted at the start, apply it.

The order that makes it exact:

1. capture sets up publication and slot;
2. tables to load get a snapshot exported by slot creation, with consistent point P. The catalog is read
   before and after: equal columns and file nodes on both sides of the snapshot mean that no ALTER or
   VACUUM FULL fell in between, which the snapshot would show as missing rows or values. With a replica
   the snapshot is the replica's, at a later position (`capture.snapshots`), and so is the catalog that is
   read after it: what the primary showed before is at the replica by then, and loads read what it has;
3. the target is noted after P, so that the log read in this run covers every snapshot of this run;
4. loads run while capture reads, and so do rounds of what is sealed. Streams that are loaded already are
   followed beside the loads as the source goes on, and each stream joins them when its own load is done; a
   stream enters and leaves the global position between rounds only (`LakeLane.beside_rounds`). A table that
   is loaded anew is kept up by rounds, for its readers, until the load takes its place. Then the log is
   applied to its end;
5. only when the state is durable is the lane's position reported, and capture acknowledges it.

A stream that must be loaded again (its columns changed beyond repair, it was rewritten while it was
read) takes another turn in the same sync, a few times at the most.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from penstock import failpoints
from penstock.capture.client import CaptureProcess
from penstock.capture.spec import CaptureProgress, CaptureSpec, ExportedSnapshot, Started
from penstock.config import Config
from penstock.core.errors import (
    ConfigError,
    SnapshotLostError,
    SourceBusyError,
    SourceError,
    StateError,
)
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener, StreamReport, SyncReport
from penstock.core.stream import StreamId
from penstock.lake.cluster import checked_session
from penstock.lake.destination import open_destination, spark_conf
from penstock.lake.lane import LakeLane
from penstock.lake.lane_state import LaneSettings, LaneStream
from penstock.lake.partitions import reconcile_partitions
from penstock.lake.spark_starter import SparkStarter
from penstock.lake.upkeep import after_sync
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadPoint, LoadRecords
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog
from penstock.log.retention import apply_retention
from penstock.resolution import resolve_from_source
from penstock.sources.postgres.connection import cancel_queries, connect
from penstock.sources.postgres.slots import read_slot

SnapshotSource = Callable[[], ExportedSnapshot]

LANE = "lake"
TURNS_MAX = 4
ROUND_EVERY_S = 5.0  # while others are loaded: a round costs Spark jobs that the load could use
GIVE_UP_EVERY_S = 0.5
SNAPSHOT_TRIES_MAX = 5
_LOOK_EVERY_S = 0.2


class Sync:
    """One run of `penstock sync` over a pipeline's configuration."""

    def __init__(self, config: Config, listener: ProgressListener, reload: Sequence[StreamId] = ()) -> None:
        self._config = config
        self._listener = listener
        self._url = config.source.url.get_secret_value()
        replica = config.source.replica_url
        self._replica_url = replica.get_secret_value() if replica is not None else None
        self._lost: SnapshotLostError | None = None
        self._log_directory = config.state / "log"
        self._rows_captured = 0
        self._reload = reload
        self._seen_before_start: dict[StreamId, object] | None = None
        self._spark = SparkStarter(
            lambda: checked_session(
                config.spark.master,
                spark_conf(config),
                config.state / "spark.log",
                (self._log_directory, config.destination.directory),
            )
        )

    def run(self) -> SyncReport:
        begun = time.monotonic()
        with only_one(self._config.state), ExitStack() as stack:
            streams = self._resolve()
            stack.enter_context(self._spark)
            with CaptureProcess(self._capture_spec(streams), self._captured) as capture:
                lane = self._run(capture, streams)
                position = self._finish(lane)
            after_sync(self._config, self._spark, list(lane.streams), self._listener)
        seconds = time.monotonic() - begun
        return SyncReport(_reports(lane, seconds), position, round(seconds, 3))

    def _run(self, capture: CaptureProcess, streams: Sequence[LaneStream]) -> LakeLane:
        ledger = Ledger(StateStore(self._config.state))
        follows = any(stream.reads_log for stream in streams)
        # Setting up may create the slot, and with it the first snapshot.
        self._seen_before_start = fingerprints(streams)
        if follows:
            self._mark_if_slot_is_new(ledger)
        started = capture.start() if follows else None
        # Setting up may have given tables another replica identity. A table that a wildcard finds only now
        # is not published yet: it waits for the next sync.
        names = {stream.info.stream for stream in streams}
        streams = [stream for stream in self._resolve() if stream.info.stream in names]
        epoch, version = self._identify(ledger, started, capture)
        loading = self._config.loading
        lane = LakeLane(
            LaneSettings(
                self._url,
                version,
                epoch,
                loading.method,
                loading.rows_per_chunk,
                loading.parallel,
                origin=f"{ledger.document.system_id}.{self._config.source.slot}",
                rows_per_second=loading.rows_per_second,
                snapshot_age_max_s=age.total_seconds() if (age := loading.snapshot_age_max) else None,
                replica_url=self._replica_url,
            ),
            streams,
            ledger,
            LoadRecords(self._config.state / "load"),
            ChangeLog(self._log_directory),
            open_destination(self._config.destination, self._spark),
            self._spark,
            self._listener,
        )
        if started is not None and not started.slot_created and started.log_end is None:
            lane.rebuild(started.slot_position)
        self._reload_asked(lane)  # before anything asks whether a stream may follow its source's table
        lane.recover()
        lane.settle_options()
        for stream in started.published if started is not None else ():
            if lane.has_begun(stream):
                lane.reload(stream, "it was not in the publication, so changes may be missing in the log")
        with connect(self._url) as connection:
            reconcile_partitions(connection, ledger, lane)
        turns = 0
        while turns < TURNS_MAX:
            self._turn(capture, lane, follows=follows)
            if not lane.streams_to_load() and not lane.streams_to_advance():
                return lane
            # A load that let its snapshot go has come further; the others were disturbed.
            turns += not lane.was_postponed()
            lane.use_tables(self._resolve())
        if self._lost is not None:
            raise self._lost
        waiting = ", ".join(map(str, [*lane.streams_to_load(), *lane.streams_to_advance()]))
        raise SourceError(
            f"The source kept changing these tables while they were read: {waiting}.",
            remedy="Run sync again when no VACUUM FULL or ALTER TABLE is running on them.",
        )

    def _mark_if_slot_is_new(self, ledger: Ledger) -> None:
        """Before a slot is made: a state that is older than its slot takes up no table (see `rebuild`)."""
        if ledger.document.state_version is None:
            with connect(self._url) as connection:
                slot = read_slot(connection, self._config.source.slot)
            if slot is None:
                ledger.write(ledger.document.emptied())

    def _reload_asked(self, lane: LakeLane) -> None:
        for stream in self._reload:
            if stream not in lane.streams:
                raise ConfigError(
                    "This stream is not part of the pipeline.",
                    stream=str(stream),
                    remedy="Run `penstock status` to see the streams there are.",
                )
            lane.resync(stream)

    def _turn(self, capture: CaptureProcess, lane: LakeLane, *, follows: bool) -> None:
        waiting = lane.streams_to_load()
        if waiting:
            self._spark.begin()
        followed = [stream for stream in waiting if lane.streams[stream].reads_log]
        refreshed = [stream for stream in waiting if not lane.streams[stream].reads_log]
        snapshot = self._settled_snapshot(capture.snapshot, capture, lane, followed) if followed else None
        if follows:
            self._listener.stream_started("change log", "capture", None)
            capture.read_to(capture.note_target())
        point = LoadPoint(snapshot.consistent_point, snapshot.name) if snapshot is not None else None
        load = partial(self._load, capture, lane, followed, refreshed, point)
        lost = self._lost
        if follows and waiting and lane.some_follow(waiting):
            held_from = point.consistent_point if point is not None else None
            with lane.beside_rounds(waiting, held_from), beside(load, self._give_up) as loading:
                self._follow_beside(loading, capture, lane)
        else:
            load()
        if follows:
            end = self._reached(capture, lane)
            self._listener.stream_finished("change log", "capture", self._rows_captured)
            if self._lost is lost:  # else tables that are not to be followed any more may not say so yet
                lane.follow(end)
                self._acknowledge(capture, lane)

    def _load(
        self,
        capture: CaptureProcess,
        lane: LakeLane,
        followed: Sequence[StreamId],
        refreshed: Sequence[StreamId],
        point: LoadPoint | None,
    ) -> None:
        """All that is read from the tables themselves in this turn."""
        if point is not None:
            self._load_under(point, capture, lane, followed)
        if refreshed:
            snapshot = self._settled_snapshot(capture.plain_snapshot, capture, lane, refreshed)
            point = LoadPoint(snapshot.consistent_point, snapshot.name)
            self._load_under(point, capture, lane, refreshed)
        if advanced := lane.streams_to_advance():
            snapshot = self._settled_snapshot(capture.plain_snapshot, capture, lane, advanced)
            lane.advance(advanced, LoadPoint(snapshot.consistent_point, snapshot.name))
            capture.release_snapshot()

    def _load_under(
        self, point: LoadPoint, capture: CaptureProcess, lane: LakeLane, streams: Sequence[StreamId]
    ) -> None:
        """Load these streams. If the snapshot is lost, another turn goes on or begins again under another."""
        try:
            lane.load(streams, point)
        except SnapshotLostError as error:
            self._lost = error
            self._listener.note("The snapshot of the load was lost; reading on under a new one.")
        capture.release_snapshot()

    def _follow_beside(self, loading: Future[None], capture: CaptureProcess, lane: LakeLane) -> None:
        """Rounds of the streams that are loaded, as the source goes on, for as long as the others take."""
        while True:
            lane.follow(self._reached(capture, lane))
            self._acknowledge(capture, lane)
            if wait([loading], ROUND_EVERY_S).done:
                return
            capture.read_to(capture.note_target())

    def _reached(self, capture: CaptureProcess, lane: LakeLane) -> Lsn:
        while (end := capture.reached(within_s=_LOOK_EVERY_S)) is None:
            lane.follow_ahead()
        return end

    def _acknowledge(self, capture: CaptureProcess, lane: LakeLane) -> None:
        flushed = lane.flushed()
        if flushed is not None:
            capture.acknowledge(LANE, flushed)
            failpoints.reach("cdc.acknowledged")

    def _give_up(self) -> None:
        """Have the load thread fail, whatever it waits for."""
        self._spark().sparkContext.cancelAllJobs()
        cancel_queries()

    def _settled_snapshot(
        self, take: SnapshotSource, capture: CaptureProcess, lane: LakeLane, streams: Sequence[StreamId]
    ) -> ExportedSnapshot:
        """A snapshot around which the catalog stood still for these streams."""
        # The first snapshot may be the slot's own, which is as old as the slot.
        before, self._seen_before_start = self._seen_before_start, None
        for _ in range(SNAPSHOT_TRIES_MAX):
            if before is None:
                before = fingerprints(self._resolve())
            snapshot = take()
            lane.use_tables(resolve_from_source(self._config, at_replica=True))
            after = fingerprints(lane.streams.values())
            if all(after[stream] == before.get(stream) for stream in streams):
                return snapshot
            capture.release_snapshot()
            before = None
        raise SourceError(
            "The tables to load are being altered all the time: no snapshot with settled columns.",
            remedy="Run sync again when the migration at the source is done.",
        )

    def _finish(self, lane: LakeLane) -> str:
        flushed = lane.flushed()
        if flushed is not None:
            self._apply_retention(flushed)
        lane.carried_out()
        lane.sweep(self._config.readers.grace.total_seconds())
        return str(lane.position() or "")

    def _apply_retention(self, flushed: Lsn) -> None:
        """Steps go when every lane holds them and they are older than `log.retention`."""
        oldest_kept = time.time() - self._config.log.retention.total_seconds()
        keep_after = flushed
        for manifest in ChangeLog(self._log_directory).manifests():
            if datetime.fromisoformat(manifest.sealed_at).timestamp() > oldest_kept:
                keep_after = min(keep_after, manifest.start)
                break
        apply_retention(self._log_directory, keep_after)

    def _resolve(self) -> list[LaneStream]:
        return resolve_from_source(self._config)

    def _identify(self, ledger: Ledger, started: Started | None, capture: CaptureProcess) -> tuple[Lsn, int]:
        """Bind the state to this source; refuse one that belongs to another."""
        with connect(self._url) as connection:
            version = connection.info.server_version
            if started is None:
                row = connection.execute(
                    "SELECT system_identifier::text, timeline_id, CASE WHEN pg_is_in_recovery()"
                    " THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text"
                    " FROM pg_control_system(), pg_control_checkpoint()"
                ).fetchone()
                assert row is not None
                system_id, timeline, epoch = row[0], int(row[1]), Lsn.parse(row[2])
            else:
                system_id, timeline, epoch = started.system_id, started.timeline, started.epoch
        document: StateDocument = ledger.document
        if document.system_id is not None and document.system_id != system_id:
            raise StateError(
                "The state belongs to another Postgres cluster than the source's url reaches.",
                remedy="Correct the url, or give this pipeline a state directory of its own.",
            )
        if document.timeline is not None and document.timeline != timeline and document.lsn is not None:
            raise StateError(
                f"The source was promoted since the last sync (timeline {document.timeline} to {timeline}): "
                "positions may repeat.",
                remedy="Load the tables again with a new state directory and slot.",
            )
        slot = self._config.source.slot if started is not None else None
        ledger.write(document.identified(system_id=system_id, timeline=timeline, epoch=epoch, slot=slot))
        return epoch, version

    def _capture_spec(self, streams: Sequence[LaneStream]) -> CaptureSpec:
        source = self._config.source
        followed = [stream for stream in streams if stream.reads_log]
        return CaptureSpec(
            url=self._url,
            slot=source.slot,
            publication=source.publication,
            log_directory=self._log_directory,
            checkpoint_path=self._config.state / "checkpoint.json",
            streams=tuple(stream.info.stream for stream in followed),
            full_identity=frozenset(stream.info.stream for stream in followed if stream.full_identity),
            step_bytes_max=int(self._config.log.step_bytes_max),
            publication_mode=source.publication_mode,
            lanes={LANE: None},
            replica_url=self._replica_url,
            replica_wait_s=self._config.loading.replica_wait.total_seconds(),
        )

    def _captured(self, progress: CaptureProgress) -> None:
        self._rows_captured = progress.rows
        if progress.rows:
            self._spark.begin()
        self._listener.progressed("change log", "capture", progress.rows, progress.bytes)


@contextmanager
def beside(work: Callable[[], None], give_up: Callable[[], None]) -> Iterator[Future[None]]:
    """Run `work` in a thread while the block runs; it is over when both are.

    If the block fails, `give_up` is called until the work ends. The error of the first to fail is raised.
    """
    with ThreadPoolExecutor(1, "penstock-loads") as thread:
        running = thread.submit(work)
        try:
            yield running
        except BaseException as error:
            if running.done() and (reason := running.exception()) is not None:
                raise reason from error
            while not wait([running], GIVE_UP_EVERY_S).done:
                give_up()
            raise
        running.result()


def fingerprints(streams: Iterable[LaneStream]) -> dict[StreamId, object]:
    """What must not change around a snapshot: a table's columns, and the files that hold its rows."""
    return {each.info.stream: (each.info.schema.columns, each.info.schema.storage) for each in streams}


def _reports(lane: LakeLane, seconds: float) -> list[StreamReport]:
    return [
        StreamReport(
            stream=str(stream),
            rows_loaded=totals.rows_loaded,
            inserts=totals.operations.get("i", 0),
            updates=totals.operations.get("u", 0),
            deletes=totals.operations.get("d", 0),
            truncates=totals.operations.get("t", 0),
            dead_letters=totals.dead_letters,
            seconds=round(seconds, 3),
        )
        for stream, totals in lane.totals.items()
    ]


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """One sync at a time per state directory on this machine; the kernel frees the lock if we are killed."""
    state.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SourceBusyError(
                "Another sync of this pipeline is running.", remedy="Wait until it is done, or stop it."
            ) from None
        yield
    finally:
        os.close(descriptor)

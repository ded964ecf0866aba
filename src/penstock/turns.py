"""What a bounded sync and the lake lane of `penstock run` share: opening the lane, and a turn of it.

The order that makes a turn exact:

1. capture sets up publication and slot;
2. tables to load get a snapshot exported by slot creation, with consistent point P. The catalog is read
   before and after: equal columns and file nodes on both sides of the snapshot mean that no ALTER or
   VACUUM FULL fell in between, which the snapshot would show as missing rows or values. With a replica
   the snapshot is the replica's, at a later position (`capture.postgres.snapshots`), and so is the catalog
   that is read after it: what the primary showed before is at the replica by then, and loads read what it
   has. A source that exports none gives a position alone: chunks are read after it, and the log is read on to
   one that is noted when they are done (`lake.load`);
3. the target is noted after P, so that the log read in this turn covers every snapshot of this turn;
4. loads run while capture reads, and so do rounds of what is sealed. Streams that are loaded already are
   followed beside the loads as the source goes on, and each stream joins them when its own load is done; a
   stream enters and leaves the global position between rounds only (`LakeLane.beside_rounds`). A table that
   is loaded anew is kept up by rounds, for its readers, until the load takes its place. Then the log is
   applied to its end;
5. only when the state is durable is the lane's position reported, and capture acknowledges it.

A stream that must be loaded again (its columns changed beyond repair, it was rewritten while it was
read) takes another turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import partial

from penstock import failpoints
from penstock.capture.base import Capture
from penstock.capture.spec import LAKE_LANE, ExportedSnapshot, Started
from penstock.config import Config
from penstock.core.errors import ConfigError, SnapshotLostError, SourceError, StateError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination
from penstock.lake.ahead import looked_at
from penstock.lake.cluster import checked_session
from penstock.lake.comparing import Comparer
from penstock.lake.destination import destination_of, java_of, spark_conf
from penstock.lake.lane import LakeLane
from penstock.lake.lane_state import LaneSettings, LaneStream
from penstock.lake.partitions import reconcile_partitions
from penstock.lake.places import BinlogPlaces, cluster_mark
from penstock.lake.spark_starter import SparkStarter
from penstock.ledger import orders, pausing, two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadPoint, LoadRecords
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source

SnapshotSource = Callable[[], ExportedSnapshot]

GIVE_UP_EVERY_S = 0.5
SNAPSHOT_TRIES_MAX = 5
_LOOK_EVERY_S = 0.2
_ANOTHER_SERVER = "another server is read from now on, which does not know how far its load was"


class LeftOffError(Exception):
    """The end was asked for in the midst of a turn: a load is left where it is, to be gone on with."""


class Turns:
    """`round_every_s`: how often the others have a round while some streams are loaded.

    `target`: how far the log is to be applied; by default, to all that is committed when it is asked for.
    `stop`: set when the end is asked for; without one a turn is taken to its end. `comparer`: finds the rows
    of tables that are to be written only where they differ; without one they are loaded.
    """

    def __init__(
        self,
        config: Config,
        listener: ProgressListener,
        spark: SparkStarter,
        capture: Capture,
        *,
        round_every_s: float,
        target: Callable[[], Lsn] | None = None,
        stop: threading.Event | None = None,
        rows_captured: Callable[[], int] = lambda: 0,
        comparer: Comparer | None = None,
    ) -> None:
        self._config = config
        self._comparer = comparer
        self._listener = listener
        self._spark = spark
        self._capture = capture
        self._target = target or capture.note_target
        self._stop = stop
        self._round_every_s = round_every_s
        self._source = open_source(config.source)
        self._seen_before_start: dict[StreamId, object] | None = None
        self._rows_captured = rows_captured
        self.lost: SnapshotLostError | None = None  # the last snapshot that was lost under a load

    def open(
        self,
        streams: Sequence[LaneStream],
        start: Callable[[], Started],
        *,
        reload: Sequence[StreamId] = (),
        by_difference: bool = False,
        fence: bool = False,
    ) -> LakeLane:
        """The lane, with all that an earlier one left open settled. `start`: have capture set up the source.

        `reload`: to be loaded anew; `by_difference`: written only where they differ from the source.
        `fence`: have the tables refuse every older leader before anything is read of them.
        """
        ledger = self._ledger()
        follows = any(stream.reads_log for stream in streams)
        # Setting up may create the slot, and with it the first snapshot.
        self._seen_before_start = fingerprints(streams)
        if follows:
            self._mark_if_slot_is_new(ledger)
        names = {stream.info.stream for stream in streams}
        destination = destination_of(self._config)
        with looked_at(destination, names) if self._spark.has_java() else nullcontext():
            started = start() if follows else None
            # Setting up may have given tables another replica identity. A table that a wildcard finds only
            # now is not published yet: it waits for the next look.
            streams = [stream for stream in self.resolve() if stream.info.stream in names]
            epoch, version = self._identify(ledger, started)
        lane = self._lane(ledger, streams, destination, epoch, version)
        if fence:
            lane.fence()
        if started is not None and not started.slot_created:
            # Where the log begins, the slot stood.
            begins = ChangeLog(self._config.state / "log").start() or started.slot_position
            lane.rebuild(begins, slot_knows_tables=self._slot_knows_tables())
        # Not before: a state that only knows of orders would not be made anew from the tables.
        orders.settle(ledger, self._config.state)
        # Before anything asks whether a stream may follow its source's table.
        self._reload_asked(lane, reload, by_difference=by_difference)
        lane.hold_up(self._lacking(streams))
        lane.recover()
        lane.settle_options()
        if started is not None:
            reload_published(lane, started)
        self.reconcile_partitions(lane)
        return lane

    def look_again(self, lane: LakeLane, streams: Sequence[LaneStream]) -> None:
        """The tables as the catalog has them now, and streams that are new to this run."""
        lacking = self._lacking(streams)
        lane.hold_up(lacking)  # before it is asked what became of them
        lane.look_again(streams)
        lane.hold_up(lacking)

    def _lacking(self, streams: Sequence[LaneStream]) -> Sequence[SourceError]:
        return self._source.lacking([stream.info for stream in streams if stream.reads_log])

    def _ledger(self) -> Ledger:
        source, state = self._config.source.type, self._config.state
        if source == "postgres":
            return Ledger(StateStore(state))
        if source == "mongodb":
            return Ledger(StateStore(state), source, cluster_mark)
        places = BinlogPlaces(ChangeLog(state / "log"), LoadRecords(state / "load"))
        return Ledger(StateStore(state), source, places)

    def reconcile_partitions(self, lane: LakeLane) -> None:
        """Have tables whose partitions changed behind the log's back loaded again."""
        reconcile_partitions(self._source, lane.ledger, lane)

    def _lane(
        self,
        ledger: Ledger,
        streams: Sequence[LaneStream],
        destination: Destination,
        epoch: Lsn,
        version: int,
    ) -> LakeLane:
        loading = self._config.loading
        settings = LaneSettings(
            self._source,
            self._source.reading(version),
            epoch,
            loading.method,
            loading.rows_per_chunk,
            loading.parallel,
            origin=f"{ledger.document.system_id}.{self._source.name}",
            timeline=ledger.document.timeline or 1,
            rows_per_second=loading.rows_per_second,
            snapshot_age_max_s=self._snapshot_age_max_s(),
            position_now=self._capture.note_target,
            comparer=self._comparer,
        )
        return LakeLane(
            settings,
            streams,
            ledger,
            LoadRecords(self._config.state / "load"),
            ChangeLog(self._config.state / "log"),
            destination,
            self._spark,
            self._listener,
            leaves_off=self._leaves_off,
        )

    def _snapshot_age_max_s(self) -> float | None:
        age = self._config.loading.snapshot_age_max
        return self._source.snapshot_age_max_s if age is None else age.total_seconds()

    def _slot_knows_tables(self) -> bool:
        """Whether the source was acknowledged only as far as the tables were, and never by the log alone."""
        wal = self._config.wal
        return wal.acknowledge == "lanes" and wal.on_wal_pressure == "hold"

    def _mark_if_slot_is_new(self, ledger: Ledger) -> None:
        """Before a slot is made: a state that is older than its slot takes up no table (see `rebuild`)."""
        if ledger.document.state_version is None and self._source.hold() is None:
            ledger.write(ledger.document.emptied())

    def _reload_asked(self, lane: LakeLane, streams: Sequence[StreamId], *, by_difference: bool) -> None:
        for stream in streams:
            if stream not in lane.streams:
                raise ConfigError(
                    "This stream is not part of the pipeline.",
                    stream=str(stream),
                    remedy="Run `penstock status` to see the streams there are.",
                )
            lane.resync(stream, by_difference=by_difference)

    def take(self, lane: LakeLane, *, follows: bool) -> None:
        """One turn: load what is to be loaded, apply the log as far as it is now."""
        waiting = lane.streams_to_load()
        if waiting:
            self._spark.begin()
        followed = [stream for stream in waiting if lane.streams[stream].reads_log]
        refreshed = [stream for stream in waiting if not lane.streams[stream].reads_log]
        # A snapshot comes when the oldest transaction ends, nobody knows when; a sync can only wait for it.
        point = self._point(self._capture.snapshot, lane, followed) if followed and not self._stays else None
        if follows:
            self._listener.stream_started("change log", "capture", None)
            self._capture.read_to(self._target())
        load = partial(self._load, lane, followed, refreshed, point)
        lost = self.lost
        reads_tables = waiting or (self._stays and lane.streams_to_advance())
        if follows and reads_tables and lane.some_follow(waiting):
            # A snapshot that is yet to be taken is later than all that is flushed now.
            held_from = point.consistent_point if point is not None else lane.flushed() if followed else None
            with lane.beside_rounds(waiting, held_from), beside(load, self._give_up) as loading:
                self._follow_beside(loading, lane)
        elif self._stays and reads_tables:
            with beside(load, self._give_up) as loading:
                while not self._is_done(loading, self._round_every_s):
                    pass
        else:
            load()
        if follows:
            is_one_moment = lane.shows_one_moment(followed)
            if not is_one_moment and not self._stays:
                self._reached(lane)
            if followed and (self._stays or not is_one_moment):
                self._capture.read_to(self._capture.note_target())  # past what was read: they become level
            end = self._reached(lane)
            self._listener.stream_finished("change log", "capture", self._rows_captured())
            if self.lost is lost:  # else tables that are not to be followed any more may not say so yet
                lane.follow(end)
                self.acknowledge(lane)

    def _load(
        self,
        lane: LakeLane,
        followed: Sequence[StreamId],
        refreshed: Sequence[StreamId],
        point: LoadPoint | None,
    ) -> None:
        """All that is read from the tables themselves in this turn."""
        if followed:
            self._load_under(point or self._point(self._capture.snapshot, lane, followed), lane, followed)
        if refreshed:
            self._load_under(self._point(self._capture.plain_snapshot, lane, refreshed), lane, refreshed)
        if advanced := lane.streams_to_advance():
            lane.advance(advanced, self._point(self._capture.plain_snapshot, lane, advanced))
            self._capture.release_snapshot()

    def _load_under(self, point: LoadPoint, lane: LakeLane, streams: Sequence[StreamId]) -> None:
        """Load these streams. If the snapshot is lost, another turn goes on or begins again under another."""
        try:
            lane.load(streams, point)
        except SnapshotLostError as error:
            self.lost = error
            self._listener.note("The snapshot of the load was lost; reading on under a new one.")
        self._capture.release_snapshot()

    def _follow_beside(self, loading: Future[None], lane: LakeLane) -> None:
        """Rounds of the streams that are loaded, as the source goes on, for as long as the others take."""
        while True:
            lane.follow(self._reached(lane))
            self.acknowledge(lane)
            if self._is_done(loading, self._round_every_s):
                return
            self._capture.read_to(self._target())

    def _is_done(self, loading: Future[None], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            if wait([loading], left if self._stop is None else min(left, _LOOK_EVERY_S)).done:
                return True
            self._leave_off_if_asked()
        return False

    def _reached(self, lane: LakeLane) -> Lsn:
        while (end := self._capture.reached(within_s=_LOOK_EVERY_S)) is None:
            self._leave_off_if_asked()
            lane.follow_ahead()
        return end

    @property
    def _stays(self) -> bool:
        """Whether this turn is one of many: others must not wait for what takes its time."""
        return self._stop is not None

    def _leaves_off(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _leave_off_if_asked(self) -> None:
        if self._leaves_off():
            raise LeftOffError

    def acknowledge(self, lane: LakeLane) -> None:
        """Report how far the lane needs nothing any more."""
        flushed = lane.flushed()
        if flushed is not None:
            self._capture.acknowledge(LAKE_LANE, flushed)
            failpoints.reach("cdc.acknowledged")

    def _give_up(self) -> None:
        """Have the load thread fail, whatever it waits for."""
        self._spark().sparkContext.cancelAllJobs()
        self._source.cancel_queries()

    def _point(self, take: SnapshotSource, lane: LakeLane, streams: Sequence[StreamId]) -> LoadPoint:
        snapshot = self._settled_snapshot(take, lane, streams)
        return LoadPoint(snapshot.consistent_point, snapshot.name, snapshot.place)

    def _settled_snapshot(
        self, take: SnapshotSource, lane: LakeLane, streams: Sequence[StreamId]
    ) -> ExportedSnapshot:
        """A snapshot around which the catalog stood still for these streams."""
        # The first snapshot may be the slot's own, which is as old as the slot.
        before, self._seen_before_start = self._seen_before_start, None
        for _ in range(SNAPSHOT_TRIES_MAX):
            if before is None:
                before = fingerprints(self.resolve())
            snapshot = take()
            lane.use_tables(resolve_from_source(self._config, at_replica=True))
            after = fingerprints(lane.streams.values())
            if all(after[stream] == before.get(stream) for stream in streams):
                return snapshot
            self._capture.release_snapshot()
            before = None
        raise SourceError(
            "The tables to load are being altered all the time: no snapshot with settled columns.",
            remedy="Run sync again when the migration at the source is done.",
        )

    def resolve(self) -> list[LaneStream]:
        return resolve_from_source(self._config)

    def _identify(self, ledger: Ledger, started: Started | None) -> tuple[Lsn, int]:
        """Bind the state to this source; refuse one that belongs to another."""
        document = ledger.document
        if started is None:
            found = self._source.identity()
            system_id, timeline = found.system_id, found.timeline
            # A clock may be set back, and a replica be behind: the state's lock says that nobody else leads.
            epoch = max(found.position, document.epoch or found.position)
            version = found.version
            if document.source == "mysql" and document.system_id is not None:
                # Servers of MySQL have an identity each. What is read without the log is read from whichever
                # has the tables now; whose log it is that may be gone on with stays as it was.
                system_id, timeline = document.system_id, document.timeline or timeline
        else:
            system_id, timeline, epoch = started.system_id, started.timeline, started.epoch
            version = started.server_version
        _require_same_source(document, system_id, timeline, started)
        slot = self._source.name if started is not None else None
        identified = document.identified(system_id=system_id, timeline=timeline, epoch=epoch, slot=slot)
        ledger.write(identified if started is None else self._bound(identified, document, started))
        return epoch, version

    def _bound(self, document: StateDocument, before: StateDocument, started: Started) -> StateDocument:
        """Of MySQL, with what its contract has the state say of the server. In the same write, so that no
        crash comes in between: what the last server's numbers were for and the log does not have is loaded
        again."""
        source = self._config.source
        if source.type != "mysql":
            return document
        server = self._source.identity().system_id  # of the one that answers now, after a failover
        is_another = before.server_uuid not in (None, server)
        log_end = started.log_end
        if before.timeline is not None and before.timeline != started.timeline:
            is_another = True
            # Capture may have gone on at the other server for a while before this lane came.
            log_end = ChangeLog(self._config.state / "log").left(before.timeline) or log_end
        if is_another and log_end is not None:
            records = LoadRecords(self._config.state / "load")
            loads = filter(None, map(records.load, document.streams))
            points = {record.stream: record.newest_point for record in loads}
            document = pausing.to_be_loaded_beyond(document, log_end, points, _ANOTHER_SERVER)
        return two_phase.bound_to_server(document, server_id=source.replica_id, server_uuid=server)


def _require_same_source(
    document: StateDocument, system_id: str, timeline: int, started: Started | None
) -> None:
    # A state that never followed a log is bound to no server of MySQL, which may have been another one then.
    is_bound = document.source != "mysql" or document.slot is not None
    if is_bound and document.system_id not in (None, system_id):
        raise StateError(
            "The state belongs to another server, or cluster of servers, than the source's url reaches.",
            remedy="Correct the url, or give this pipeline a state directory of its own.",
        )
    # Capture goes on over a promotion if all of the log lies before it, and no table is beyond the log.
    log_was_compared = started is not None and started.log_end is not None
    is_same = document.timeline is None or document.timeline == timeline or document.lsn is None
    if not is_same and not log_was_compared:
        raise StateError(
            f"The source was promoted since the last sync (timeline {document.timeline} to {timeline}): "
            "positions may repeat.",
            remedy="Load the tables again with a new state directory and slot.",
        )


def reload_published(lane: LakeLane, started: Started) -> None:
    """Have streams that were in the pipeline, and not in the publication, loaded again."""
    for stream in started.published:
        if stream in lane.streams and lane.has_begun(stream):
            lane.reload(stream, "it was not in the publication, so changes may be missing in the log")


def spark_starter(config: Config) -> SparkStarter:
    """The session of a pipeline, not started yet."""
    return SparkStarter(
        lambda: checked_session(
            config.spark.master,
            spark_conf(config),
            config.state / "spark.log",
            (config.state / "log", config.destination.directory),
        ),
        lambda: java_of(config),
    )


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
    return {
        each.info.stream: (each.info.schema.lasting.columns, each.info.schema.storage) for each in streams
    }

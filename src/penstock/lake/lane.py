"""The lake lane: keeps tables true to the log, in rounds of the two-phase commit.

The lane owns the state document. Its caller gives it a snapshot when there is something to load and the
end of the log when there is something to follow, and asks it how far everything is flushed. All it
believes about a table it has asked the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from penstock.core.errors import HistoryUnknownError, SourceError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination
from penstock.destinations.records import TableRecord
from penstock.lake.backfill import Backfill
from penstock.lake.following import Following, Waiting
from penstock.lake.increments import Increments
from penstock.lake.lane_state import LaneSettings, LaneState, LaneStream, RoundListener, StreamTotals
from penstock.lake.rebuild import rebuild_state
from penstock.lake.recovery import Recovery
from penstock.lake.repair import Repairs
from penstock.lake.repair_round import RepairRounds
from penstock.ledger import pausing, rewinding, two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadPoint, LoadRecords
from penstock.log.reader import ChangeLog


class LakeLane:
    def __init__(
        self,
        settings: LaneSettings,
        streams: Sequence[LaneStream],
        ledger: Ledger,
        records: LoadRecords,
        log: ChangeLog,
        destination: Destination,
        spark: Callable[[], SparkSession],
        listener: ProgressListener,
        leaves_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """`leaves_off`: whether no further round is to be begun, since the end was asked for."""
        self._lane = LaneState(settings, {}, ledger, records, log, destination, spark, listener, leaves_off)
        self._lane.add(streams)
        self._backfill = Backfill(self._lane)
        self._following = Following(self._lane, self._backfill)
        self._repairs = RepairRounds(self._lane, self._following)
        self._increments = Increments(self._lane)
        self._recovery = Recovery(self._lane, self._following)

    @property
    def streams(self) -> Mapping[StreamId, LaneStream]:
        return self._lane.streams

    def shows_one_moment(self, streams: Iterable[StreamId]) -> bool:
        """Whether each of their loads shows one moment; if not, it does once the log has passed its end."""
        reading = self._lane.settings.reading
        return all(reading.shows_one_moment(self._lane.streams[stream].info) for stream in streams)

    @property
    def ledger(self) -> Ledger:
        return self._lane.ledger

    @property
    def totals(self) -> Mapping[StreamId, StreamTotals]:
        return self._lane.totals

    def tell_of_rounds(self, listener: RoundListener) -> None:
        self._lane.rounds_heard = listener

    def record(self, stream: StreamId) -> TableRecord | None:
        """The table's newest commit."""
        return self._lane.table(stream).record()

    def positions(self) -> dict[StreamId, Lsn]:
        """Up to where the log is in each table that follows it."""
        document = self._lane.ledger.document
        own = {each.stream: each.cdc_from for each in document.stream_states if each.cdc_from is not None}
        shared = {} if document.lsn is None else dict.fromkeys(document.global_streams, document.lsn)
        return own | shared

    def use_tables(self, streams: Sequence[LaneStream]) -> None:
        """The same streams, with their tables as the catalog has them now."""
        self._lane.use_tables(streams)

    def look_again(self, streams: Sequence[LaneStream]) -> None:
        """The tables as the catalog has them now, and streams that are new to this run.

        Tables whose rows may have been replaced without a single event are loaded again.
        """
        self._lane.use_tables(streams)
        self._lane.add(streams)
        self._recovery.reload_replaced()

    def refresh(self) -> None:
        """Have streams that do not read the log read anew: full refreshes, and incremental ones read on."""
        self._backfill.refresh()
        self._lane.read_on.clear()

    def reload(self, stream: StreamId, reason: str) -> None:
        """Have a stream loaded again in this run; an append table keeps its history besides."""
        self._lane.reload(stream, reason)

    def follow_source(self, stream: StreamId, change: str) -> None:
        """The source's table is another now: load it again, unless the stream is not to follow that."""
        self._lane.follow_source(stream, change)

    def carried_out(self) -> None:
        """What somebody accepted by resuming a stream has been followed."""
        self._lane.ledger.write(pausing.carried_out(self._lane.ledger.document))

    def resync(self, stream: StreamId, *, by_difference: bool = False) -> None:
        """Have a stream loaded anew because somebody asked for it; nothing of its table is kept.

        `by_difference`: all of it that is what the source has.
        """
        self._lane.resync(stream, by_difference=by_difference)

    def pause(self, stream: StreamId, reason: str) -> None:
        """Let a stream stand still between rounds, because somebody asked for it."""
        self._lane.pause(stream, reason or "somebody asked for it")

    def hold_up(self, lacking: Sequence[SourceError]) -> None:
        """Let streams stand still whose changes come without some of their columns; the others go on."""
        self._lane.hold_up(lacking)

    def resume(self, stream: StreamId) -> None:
        """Let a stream that stands still go on from where it is, because somebody asked for it."""
        self._lane.ledger.write(pausing.resumed(self._lane.ledger.document, stream))

    def rewind(self, stream: StreamId, to: Lsn) -> None:
        """Have the log after `to` applied to a table once more, because somebody asked for it."""
        self._lane.ledger.write(rewinding.asked(self._lane.ledger.document, stream, to))

    def has_begun(self, stream: StreamId) -> bool:
        """Whether the log was followed for this stream before, or is to be from a load's point on."""
        state = self._lane.ledger.document.stream(stream)
        return state is not None and state.chunks is not None

    def streams_to_load(self) -> list[StreamId]:
        return self._backfill.streams_to_load()

    def reasons_to_load(self) -> dict[StreamId, str]:
        """Why streams are to be loaded again, as far as it is known."""
        states = map(self._lane.ledger.document.stream, self.streams_to_load())
        return {state.stream: state.reload.reason for state in states if state and state.reload}

    def load(self, streams: Iterable[StreamId], point: LoadPoint) -> None:
        """Load these streams under one snapshot. Those that must be tried again stay in `streams_to_load`."""
        self._backfill.load(streams, point)

    def was_postponed(self) -> bool:
        """Whether a load has chunks left only because its snapshot was let go, since this was last asked."""
        return self._backfill.was_postponed()

    def some_follow(self, loading: Sequence[StreamId]) -> bool:
        """Whether there are tables to keep up with the log while these streams are loaded."""
        return any(
            self._lane.streams[state.stream].reads_log
            and state.has_completed_backfill
            and state.paused is None
            and state.stream not in loading
            for state in self._lane.ledger.document.stream_states
            if state.stream in self._lane.streams
        ) or any(map(self._lane.can_be_kept_up, loading))

    @contextmanager
    def beside_rounds(self, loading: Sequence[StreamId], point: Lsn | None) -> Iterator[None]:
        """While these streams are loaded by another thread, rounds leave them alone.

        Except the tables that a load will replace: readers see those until then, and rounds go on with them.
        The others leave the global position here, between rounds, and come back to it by a round of their
        own: so no round is prepared with a stream that comes or goes meanwhile.
        """
        self._lane.kept_up |= set(filter(self._lane.can_be_kept_up, loading))
        for stream in loading:
            is_global = stream in self._lane.ledger.document.global_streams
            if is_global and stream not in self._lane.kept_up:
                self._lane.ledger.write(two_phase.leave_global(self._lane.ledger.document, stream))
        self._lane.being_loaded |= set(loading)
        # Loads that an earlier run read to the end have an older point, and lose their records as they end.
        points = [*self._lane.records.open_points(set(loading)), *([] if point is None else [point])]
        self._lane.beside_rounds, self._lane.held_from = True, min(points, default=None)
        try:
            yield
        finally:
            self._lane.being_loaded.clear()
            self._lane.kept_up.clear()
            self._lane.beside_rounds, self._lane.held_from = False, None

    def streams_to_advance(self) -> list[StreamId]:
        """Incremental streams that are loaded and were not read on in this run."""
        return self._increments.streams_to_advance()

    def advance(self, streams: Sequence[StreamId], point: LoadPoint) -> None:
        """Read these streams on to one snapshot. Those that must be tried again stay to be advanced."""
        self._increments.advance(streams, point)

    def follow(self, to: Lsn) -> None:
        """Apply the log up to `to` to every stream that is loaded; those that cannot go on are set aside."""
        self._following.follow(to)

    def repair(self, position: Lsn, repairs: Repairs) -> dict[StreamId, str]:
        """Put rows right that were found wrong at `position`; of streams that are left as they are, why."""
        return self._repairs.carry_out(position, repairs)

    def follow_ahead(self) -> None:
        """Apply what is sealed already if that is worth a round of its own; more of the log is to come."""
        self._following.follow_ahead()

    def position(self) -> Lsn | None:
        """Up to where every stream of the log is committed."""
        return self._lane.ledger.document.level

    def is_light_to_change(self) -> bool:
        """Whether a few changes need no Spark, whichever rows of the tables they are of."""
        return self._following.is_light_to_change()

    def flushed(self) -> Lsn | None:
        """Up to where neither log nor source is needed by this lane."""
        document = self._lane.ledger.document
        loading = {state.stream for state in document.stream_states if state.is_loading}
        held = [self._lane.held_from] if self._lane.held_from is not None else []
        return two_phase.flushed_position(document, [*held, *self._lane.records.open_points(loading)])

    def waiting(self) -> Waiting:
        """What the log holds that is still to be applied."""
        return self._following.waiting()

    def fence(self) -> None:
        """Have every table refuse older leaders from now on, before anything is written to it."""
        for stream in self._lane.streams:
            with suppress(HistoryUnknownError):  # recovery takes such a table over, or says what to do
                self._lane.table(stream).fence(self._lane.settings.epoch)

    def settle_options(self) -> None:
        """Let tables have the options that the file gives them; what is in them stays as it is."""
        for stream, configured in self._lane.streams.items():
            self._lane.table(stream).settle_options(self._lane.settings.epoch, configured.options)

    def sweep(self, grace_s: float) -> None:
        """Remove versions that no reader can still be reading, and files that belong to none."""
        for stream in self._lane.streams:
            self._lane.table(stream).sweep(grace_s)

    def rebuild(self, slot_position: Lsn, *, slot_knows_tables: bool) -> None:
        """Make the state anew from the tables' markers if there is none; the log begins at the slot."""
        rebuild_state(
            self._lane, self._lane.settings.origin, slot_position, slot_knows_tables=slot_knows_tables
        )

    def recover(self) -> None:
        """Settle what an earlier run left open: roll forward what the destination has, repeat the rest."""
        self._recovery.recover()

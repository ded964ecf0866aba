"""The lake lane: keeps tables true to the log, in rounds of the two-phase commit.

The lane owns the state document. Its caller gives it a snapshot when there is something to load and the
end of the log when there is something to follow, and asks it how far everything is flushed. All it
believes about a table it has asked the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination
from penstock.lake.backfill import Backfill
from penstock.lake.evolve import plan_evolution
from penstock.lake.following import Following
from penstock.lake.increment_recovery import IncrementRecovery
from penstock.lake.increments import Increments
from penstock.lake.lane_state import LaneSettings, LaneState, LaneStream, StreamTotals
from penstock.lake.rebuild import rebuild_state
from penstock.ledger import pausing, two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadPoint, LoadRecords
from penstock.ledger.recovery import recover_round, recover_stream_round
from penstock.ledger.threads import cdc_thread_id
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
    ) -> None:
        by_name = {stream.info.stream: stream for stream in streams}
        totals = {stream: StreamTotals() for stream in by_name}
        self._lane = LaneState(settings, by_name, ledger, records, log, destination, spark, listener, totals)
        self._backfill = Backfill(self._lane)
        self._following = Following(self._lane, self._backfill)
        self._increments = Increments(self._lane)
        self._increment_recovery = IncrementRecovery(self._lane)

    @property
    def streams(self) -> Mapping[StreamId, LaneStream]:
        return self._lane.streams

    @property
    def totals(self) -> Mapping[StreamId, StreamTotals]:
        return self._lane.totals

    def use_tables(self, streams: Sequence[LaneStream]) -> None:
        """The same streams, with their tables as the catalog has them now."""
        self._lane.use_tables(streams)

    def reload(self, stream: StreamId, reason: str) -> None:
        """Have a stream loaded again in this run; an append table keeps its history besides."""
        self._lane.reload(stream, reason)

    def follow_source(self, stream: StreamId, change: str) -> None:
        """The source's table is another now: load it again, unless the stream is not to follow that."""
        if self._lane.may_follow(stream, change):
            self._lane.reload(stream, change)

    def carried_out(self) -> None:
        """What somebody accepted by resuming a stream has been followed."""
        self._lane.ledger.write(pausing.carried_out(self._lane.ledger.document))

    def resync(self, stream: StreamId) -> None:
        """Have a stream loaded anew because somebody asked for it; nothing of its table is kept."""
        self._lane.resync(stream)

    def has_begun(self, stream: StreamId) -> bool:
        """Whether the log was followed for this stream before, or is to be from a load's point on."""
        state = self._lane.ledger.document.stream(stream)
        return state is not None and state.chunks is not None

    def streams_to_load(self) -> list[StreamId]:
        return self._backfill.streams_to_load()

    def load(self, streams: Iterable[StreamId], point: LoadPoint) -> None:
        """Load these streams under one snapshot. Those that must be tried again stay in `streams_to_load`."""
        self._backfill.load(streams, point)

    def was_postponed(self) -> bool:
        """Whether a load has chunks left only because its snapshot was let go, since this was last asked."""
        return self._backfill.was_postponed()

    def others_follow(self, loading: Sequence[StreamId]) -> bool:
        """Whether there are streams that follow the log and are not among these."""
        return any(
            self._lane.streams[state.stream].reads_log
            and state.has_completed_backfill
            and state.paused is None
            and state.stream not in loading
            for state in self._lane.ledger.document.stream_states
            if state.stream in self._lane.streams
        )

    @contextmanager
    def beside_rounds(self, loading: Sequence[StreamId], point: Lsn | None) -> Iterator[None]:
        """While these streams are loaded by another thread, rounds leave them alone.

        They leave the global position here, between rounds, and come back to it by a round of their own: so
        no round is prepared with a stream that comes or goes meanwhile.
        """
        for stream in loading:
            if stream in self._lane.ledger.document.global_streams:
                self._lane.ledger.write(two_phase.leave_global(self._lane.ledger.document, stream))
        self._lane.being_loaded |= set(loading)
        # Loads that an earlier run read to the end have an older point, and lose their records as they end.
        points = [*self._lane.records.open_points(set(loading)), *([] if point is None else [point])]
        self._lane.beside_rounds, self._lane.held_from = True, min(points, default=None)
        try:
            yield
        finally:
            self._lane.being_loaded.clear()
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

    def follow_ahead(self) -> None:
        """Apply what is sealed already if that is worth a round of its own; more of the log is to come."""
        self._following.follow_ahead()

    def position(self) -> Lsn | None:
        """Up to where every stream of the log is committed."""
        return self._lane.ledger.document.lsn

    def flushed(self) -> Lsn | None:
        """Up to where neither log nor source is needed by this lane."""
        document = self._lane.ledger.document
        loading = {state.stream for state in document.stream_states if state.is_loading}
        held = [self._lane.held_from] if self._lane.held_from is not None else []
        return two_phase.flushed_position(document, [*held, *self._lane.records.open_points(loading)])

    def sweep(self, grace_s: float) -> None:
        """Remove versions that no reader can still be reading, and files that belong to none."""
        for stream in self._lane.streams:
            self._lane.table(stream).sweep(grace_s)

    def rebuild(self, slot_position: Lsn) -> None:
        """Make the state anew from the tables' markers if there is none; the log begins at the slot."""
        rebuild_state(self._lane, self._lane.settings.origin, slot_position)

    def recover(self) -> None:
        """Settle what an earlier run left open: roll forward what the destination has, repeat the rest."""
        self._reload_changed_layouts()
        self._set_aside_what_is_replaced()
        self._set_aside_what_was_moved()
        recovery = recover_round(
            self._lane.ledger.document, set(self._lane.streams), self._lane.is_thread_committed
        )
        for stream in recovery.dropped:
            self._lane.listener.note(
                f"{stream} is no longer configured; its part of the open round is given up."
            )
        self._lane.ledger.write(recovery.document)
        if recovery.kind == "bounded":
            assert recovery.start is not None
            assert recovery.to is not None
            self._lane.listener.note(
                f"Finishing the round that an earlier run left open, up to {recovery.to}."
            )
            self._following.finish_global_round(recovery.streams, recovery.start, recovery.to)
        for stream in list(self._lane.streams):
            own = recover_stream_round(self._lane.ledger.document, stream, self._lane.is_thread_committed)
            self._lane.ledger.write(own.document)
            if own.kind == "bounded":
                assert own.start is not None
                assert own.to is not None
                self._following.finish_stream_round(stream, own.start, own.to)
        self._forget_removed_streams()
        self._lane.ledger.write(pausing.stand_aside(self._lane.ledger.document))
        self._increment_recovery.recover()
        for stream, configured in self._lane.streams.items():
            self._recall_decisions(stream)
            self._adopt_position(stream)
            self._reload_if_replaced(stream, configured)

    def _set_aside_what_is_replaced(self) -> None:
        """A table that is loaded anew, history and all, needs no part of an open round; it may be stuck."""
        for state in self._lane.ledger.document.stream_states:
            if state.reload is not None and state.reload.replace and state.stream in self._lane.streams:
                self._set_aside(state.stream)

    def _set_aside_what_was_moved(self) -> None:
        """A table that stands neither before nor behind the open round cannot be given its part of it.

        Somebody rolled it back, or put the state back; it goes on from where it is (`_adopt_position`).
        """
        document = self._lane.ledger.document
        for state in document.stream_states:
            is_open = state.stream in document.processing or state.next_cdc_pos is not None
            if not is_open or state.generation is None or state.stream not in self._lane.streams:
                continue
            record = self._lane.table(state.stream).record()
            marker = record.marker if record is not None else None
            start = document.lsn if state.stream in document.processing else state.cdc_from
            if marker is None or start is None or marker.generation != state.generation:
                continue
            done = cdc_thread_id(state.stream, state.generation, start) in marker.thread_ids
            if not done and marker.to != state.committed_to:
                self._set_aside(state.stream)

    def _recall_decisions(self, stream: StreamId) -> None:
        """What an earlier run decided about a stream and could not carry out."""
        state = self._lane.ledger.document.stream(stream)
        if state is not None and state.reload is not None:
            self._lane.reload(stream, state.reload.reason, replace=state.reload.replace, asked=True)
        if state is not None and state.paused is not None:
            self._lane.listener.note(f"{stream} is paused since {state.paused.since}; its changes are kept.")

    def _adopt_position(self, stream: StreamId) -> None:
        """The table knows best where it is, when no round is open.

        Ahead of the state: the state was put back. Behind it: somebody rolled the table back, and what was
        taken from it is written again, from the log if that still has it.
        """
        state = self._lane.ledger.document.stream(stream)
        record = self._lane.table(stream).record()
        marker = record.marker if record is not None else None
        if state is None or state.committed_to is None or marker is None or marker.to is None:
            return
        if marker.generation != state.generation or marker.to == state.committed_to:
            return
        begins = self._lane.log.start()
        if marker.to < state.committed_to and (begins is None or begins > marker.to):
            self._lane.reload(stream, "the table was rolled back to before the change log begins")
            return
        side = "ahead of the state" if marker.to > state.committed_to else "rolled back"
        self._lane.listener.note(f"{stream}: the table is {side}; going on from {marker.to}.")
        self._lane.ledger.write(two_phase.adopt(self._lane.ledger.document, stream, marker.to))

    def _reload_if_replaced(self, stream: StreamId, configured: LaneStream) -> None:
        """Rows may have been replaced without a single event: the catalog tells, the log may not for long."""
        state = self._lane.ledger.document.stream(stream)
        record = self._lane.table(stream).record()
        follows = state is not None and state.has_completed_backfill and configured.mode != "full_refresh"
        if not follows or record is None or stream in self._lane.to_reload or self._lane.is_paused(stream):
            return
        evolution = plan_evolution(record.schema, configured.info.schema)
        if evolution.kind in ("resync", "unsure"):
            self.follow_source(stream, evolution.reason)

    def _reload_changed_layouts(self) -> None:
        """A table that is configured otherwise than it was written cannot go on as it is."""
        for stream, configured in self._lane.streams.items():
            state = self._lane.ledger.document.stream(stream)
            if state is None or not state.has_completed_backfill or configured.mode == "full_refresh":
                continue
            if state.sync_mode == "full_refresh":
                self._lane.reload(stream, "its changes are to be followed from now on", replace=True)
            elif state.sync_mode == "strict_cdc" and configured.mode == "cdc":
                self._lane.reload(stream, "it is to hold all rows from now on")
            elif state.sync_mode != configured.mode and "incremental" in (state.sync_mode, configured.mode):
                self._set_aside(stream)
                self._lane.reload(stream, "it is to be read in another way from now on", replace=True)
            elif not self._lane.has_layout(stream):
                self._set_aside(stream)
                self._lane.reload(
                    stream, "its settings are not what the table was written with", replace=True
                )

    def _set_aside(self, stream: StreamId) -> None:
        document = self._lane.ledger.document
        state = document.stream(stream)
        if stream in document.global_streams or (state is not None and state.cdc_from is not None):
            self._lane.ledger.write(two_phase.set_aside(document, stream))

    def _forget_removed_streams(self) -> None:
        document = self._lane.ledger.document
        for stream in set(document.streams) - set(self._lane.streams):
            document = two_phase.remove_stream(document, stream)
            self._lane.records.delete(stream)
        self._lane.ledger.write(document)

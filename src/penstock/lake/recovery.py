"""What an earlier run left open, settled before anything new is begun.

In this order: what was applied again is written down (`ledger/rewinding.py`); tables that cannot go on as
they are leave their part of an open round; rounds are rolled forward where the destination has them, and
finished with the same bounds where it has not (`ledger/recovery.py`); then each table's own word about where
it is counts more than the state's.
"""

from __future__ import annotations

from penstock.core.errors import HistoryUnknownError
from penstock.core.stream import StreamId
from penstock.destinations.records import TableRecord
from penstock.lake.evolve import plan_evolution
from penstock.lake.following import Following
from penstock.lake.increment_recovery import OTHER_LOAD, IncrementRecovery
from penstock.lake.lane_state import LaneState, LaneStream
from penstock.ledger import pausing, rewinding, two_phase
from penstock.ledger.recovery import recover_chunks, recover_round, recover_stream_round
from penstock.ledger.threads import cdc_thread_id


class Recovery:
    def __init__(self, lane: LaneState, following: Following) -> None:
        self._lane = lane
        self._following = following
        self._records: dict[StreamId, TableRecord | None] = {}
        self._of_increments = IncrementRecovery(lane, self._record)

    def recover(self) -> None:
        """Once, before anything else is done with the streams."""
        self._finish_rewinds()
        self._reload_changed_layouts()
        self._set_aside_what_is_replaced()
        self._set_aside_what_was_moved()
        recovery = recover_round(
            self._lane.ledger.document, set(self._lane.streams), self._is_thread_committed
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
            self._records.clear()
        for stream in list(self._lane.streams):
            own = recover_stream_round(self._lane.ledger.document, stream, self._is_thread_committed)
            self._lane.ledger.write(own.document)
            if own.kind == "bounded":
                assert own.start is not None
                assert own.to is not None
                self._following.finish_stream_round(stream, own.start, own.to)
                self._records.pop(stream, None)
        self._forget_removed_streams()
        self._lane.ledger.write(pausing.stand_aside(self._lane.ledger.document))
        self._of_increments.recover()
        for stream, configured in self._lane.streams.items():
            self._recall_decisions(stream)
            self._tell_what_a_load_loses(stream, configured)
            self._adopt_position(stream)
            self._reload_if_replaced(stream, configured)

    def reload_replaced(self) -> None:
        """Look again for tables whose rows may have been replaced without a single event."""
        self._records.clear()
        for stream, configured in self._lane.streams.items():
            self._reload_if_replaced(stream, configured)

    def _record(self, stream: StreamId) -> TableRecord | None:
        """Asked once of each table, as long as nothing is committed: the catalog may be far away."""
        if stream not in self._records:
            try:
                self._records[stream] = self._lane.table(stream).record()
            except HistoryUnknownError:
                if not self._is_replaced(stream):
                    raise
                self._records[stream] = self._lane.table(stream).disown(self._lane.settings.epoch)
        return self._records[stream]

    def _is_replaced(self, stream: StreamId) -> bool:
        """Whether the table is loaded anew in any case: it was asked for, or there is no state of it."""
        state = self._lane.ledger.document.stream(stream)
        return state is None or (state.reload is not None and state.reload.replace)

    def _is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        record = self._record(stream)
        return record is not None and record.has_thread(thread_id)

    def _finish_rewinds(self) -> None:
        """A table of the generation that a rewind was begun under has it."""
        for state in self._lane.ledger.document.stream_states:
            begun = state.rewind is not None and state.rewind.generation is not None
            if not begun or state.stream not in self._lane.streams or self._is_replaced(state.stream):
                continue
            record = self._record(state.stream)
            marker = record.marker if record is not None else None
            if marker is not None:
                self._lane.ledger.write(
                    rewinding.recovered(
                        self._lane.ledger.document, state.stream, marker.generation, marker.start
                    )
                )

    def _set_aside_what_is_replaced(self) -> None:
        """A table that is loaded anew, history and all, needs no part of an open round; it may be stuck."""
        for state in self._lane.ledger.document.stream_states:
            if state.reload is not None and state.reload.replace and state.stream in self._lane.streams:
                self._set_aside(state.stream)

    def _set_aside_what_was_moved(self) -> None:
        """A table that stands neither before nor behind the open round cannot be given its part of it.

        Somebody rolled it back, or put the state back; it goes on from where it is (`_adopt_position`). Or it
        is of another load already; it goes on from that load's point when the load is done.
        """
        document = self._lane.ledger.document
        for state in document.stream_states:
            is_open = state.stream in document.processing or state.next_cdc_pos is not None
            if not is_open or state.generation is None or state.stream not in self._lane.streams:
                continue
            record = self._record(state.stream)
            marker = record.marker if record is not None else None
            start = document.lsn if state.stream in document.processing else state.cdc_from
            if marker is None or start is None:
                continue
            done = cdc_thread_id(state.stream, state.generation, start) in marker.thread_ids
            if marker.generation != state.generation or (not done and marker.to != state.committed_to):
                self._set_aside(state.stream)

    def _recall_decisions(self, stream: StreamId) -> None:
        """What an earlier run decided about a stream and could not carry out."""
        state = self._lane.ledger.document.stream(stream)
        if state is not None and state.reload is not None:
            self._lane.reload(
                stream,
                state.reload.reason,
                replace=state.reload.replace,
                asked=True,
                by_difference=state.reload.by_difference,
            )
        elif state is not None and state.is_loading and state.load_by_difference:
            # Nobody has the rows any more that were found then; but they may be in the table.
            left = recover_chunks(self._lane.ledger.document, stream, self._is_thread_committed).to_read
            if left:
                reason = "an earlier comparison was cut short"
                self._lane.reload(stream, reason, asked=True, by_difference=True)
        if state is not None and state.paused is not None:
            self._lane.listener.note(f"{stream} is paused since {state.paused.since}; its changes are kept.")

    def _tell_what_a_load_loses(self, stream: StreamId, configured: LaneStream) -> None:
        """Of a table that is there and of which the state knows nothing; others are told of by `reload`."""
        record = self._record(stream)
        begins = self._lane.ledger.document.stream(stream) is None
        if not begins or configured.mode in ("strict_cdc", "full_refresh"):
            return
        if record is None or record.marker is None:
            return
        if configured.soft_deletes:
            self._lane.listener.note(
                f"{stream} is loaded anew. Rows that were deleted at the source are not kept."
            )
        elif configured.write == "append":
            self._lane.listener.note(f"{stream} is loaded anew. The history that its table has is not kept.")

    def _adopt_position(self, stream: StreamId) -> None:
        """The table knows best where it is, when no round is open.

        Ahead of the state: the state was put back. Behind it: somebody rolled the table back, and what was
        taken from it is written again, from the log if that still has it. Of another load than the state's:
        no position says how they differ, unless a load is under way, which will replace it or just has.
        """
        state = self._lane.ledger.document.stream(stream)
        record = self._record(stream)
        marker = record.marker if record is not None else None
        if state is None or state.committed_to is None or marker is None or marker.to is None:
            return
        if marker.generation != state.generation:
            if state.load_generation == state.generation:
                self._lane.reload(stream, OTHER_LOAD)
            return
        if marker.to == state.committed_to:
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
        record = self._record(stream)
        follows = state is not None and state.has_completed_backfill and configured.mode != "full_refresh"
        if not follows or record is None or stream in self._lane.to_reload or self._lane.is_paused(stream):
            return
        evolution = plan_evolution(
            record.schema, configured.info.schema, keeps_older_rows=configured.keeps_older_rows
        )
        if evolution.kind in ("resync", "unsure"):
            self._lane.follow_source(stream, evolution.reason)

    def _reload_changed_layouts(self) -> None:
        """A table that is configured otherwise than it was written cannot go on as it is."""
        for stream, configured in self._lane.streams.items():
            state = self._lane.ledger.document.stream(stream)
            if state is None or configured.mode == "full_refresh":
                continue
            if not state.has_completed_backfill:
                # A load that replaces it is under way, with rounds beside it: those are over.
                if state.committed_to is not None and not self._lane.is_layout_of(
                    stream, self._record(stream)
                ):
                    self._set_aside(stream)
            elif state.sync_mode == "full_refresh":
                self._lane.reload(stream, "its changes are to be followed from now on", replace=True)
            elif state.sync_mode == "strict_cdc" and configured.mode == "cdc":
                self._lane.reload(stream, "it is to hold all rows from now on")
            elif state.sync_mode != configured.mode and "incremental" in (state.sync_mode, configured.mode):
                self._set_aside(stream)
                self._lane.reload(stream, "it is to be read in another way from now on", replace=True)
            elif not self._lane.is_layout_of(stream, self._record(stream)):
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

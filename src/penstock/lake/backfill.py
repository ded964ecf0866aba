"""Loads tables: which ones, from where they were left, and the swap that shows them.

What is exact about going on with a load is proved in `load`; here it is decided. A load ends with a swap
that is idempotent by load id, and only then does the state say that the table is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock import failpoints
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.selection import SelectionError
from penstock.core.stream import StreamId
from penstock.lake.by_difference import ByDifference
from penstock.lake.joining import Joining
from penstock.lake.lane_state import LaneState, LaneStream
from penstock.lake.leaves import leaf_marks, with_leaves
from penstock.lake.load import (
    Loader,
    LoadOutcome,
    StreamLoad,
    can_resume,
    columns_of,
    is_as_planned,
    takes_own_snapshot,
)
from penstock.lake.load_progress import LoadProgress
from penstock.ledger import incremental, two_phase
from penstock.ledger.load_record import LoadPoint, LoadRecord
from penstock.ledger.recovery import recover_chunks
from penstock.sources.base import ReadingSession
from penstock.sources.chunk import ChunkMethod
from penstock.sources.tables import SourceTable


class Backfill:
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._joining = Joining(lane)
        self._differing = ByDifference(lane, self._altered, self._swap)
        self._swapped: set[StreamId] = set()
        self._postponed = False
        self._recovered: set[StreamId] = set()  # their loads were complete before this run began

    def streams_to_load(self) -> list[StreamId]:
        """Streams without a complete backfill, those whose table must be loaded again, and full refreshes.

        Not those that are paused: their loads wait with them.
        """
        return [stream for stream in self._lane.streams if self._needs_load(stream)]

    def _needs_load(self, stream: StreamId) -> bool:
        state = self._lane.ledger.document.stream(stream)
        if self._lane.is_paused(stream):
            return False
        if self._lane.streams[stream].mode == "full_refresh":
            return stream not in self._swapped
        return state is None or not state.has_completed_backfill or stream in self._lane.to_reload

    def refresh(self) -> None:
        """Have full refreshes read once more."""
        self._swapped.clear()

    def load(self, streams: Iterable[StreamId], point: LoadPoint) -> None:
        """Load these streams under one snapshot. Those that must be tried again stay in `streams_to_load`."""
        names = list(streams)
        joining = [stream for stream in names if self._lane.streams[stream].mode == "strict_cdc"]
        for stream in joining:
            self._join(stream, point)
        names = [stream for stream in names if stream not in joining]
        compared = [stream for stream in names if stream in self._lane.by_difference]
        if compared and self._lane.settings.comparer is not None:
            left = self._differing.bring(compared, point)
            names = [stream for stream in names if stream in left or stream not in compared]
        if not names:
            return
        reading = self._lane.settings.reading
        with LoadProgress(reading, self._lane.listener) as progress:
            loader = Loader(
                reading,
                self._lane.spark(),
                self._lane.ledger,
                self._lane.records,
                self._lane.settings.epoch,
                point,
                progress,
                self._lane.settings.chunks_at_once,
                self._lane.settings.origin,
                self._lane.settings.rows_per_second,
                self._lane.settings.snapshot_age_max_s,
                {stream for stream in names if self._lane.streams[stream].per_chunk},
            )
            with reading.session() as session:
                loads = [self._plan_load(loader, session, stream) for stream in names]
            for load in loads:
                self._lane.listener.stream_started(str(load.stream), "load", load.info.estimated_rows)
            self._complete([load for load in loads if not load.to_read], LoadOutcome({}, {}, frozenset()))
            for stream in loader.run([load for load in loads if load.to_read], self._complete):
                self._postpone(stream)

    def _postpone(self, stream: StreamId) -> None:
        """The rest of a load is read under another snapshot: it goes on like one that was cut short."""
        self._lane.to_reload.discard(stream)
        self._postponed = True
        self._lane.listener.note(f"{stream}: its snapshot was held long enough; going on under a new one.")

    def was_postponed(self) -> bool:
        """Whether a load has chunks left only because its snapshot was let go, since this was last asked."""
        postponed, self._postponed = self._postponed, False
        return postponed

    def _complete(self, loads: Sequence[StreamLoad], outcome: LoadOutcome) -> None:
        """Show what is read to its end, whatever else is still being read."""
        altered = self._altered_since(loads)
        for load in loads:
            if load.stream in outcome.rewritten | altered:
                self._lane.to_reload.add(load.stream)
                self._lane.listener.note(
                    f"{load.stream} was rewritten at the source while it was read; loading again."
                )
                continue
            totals = self._lane.totals[load.stream]
            totals.rows_loaded = outcome.rows.get(load.stream, 0)
            totals.dead_letters += outcome.dead_letters.get(load.stream, 0)
            self._lane.to_reload.discard(load.stream)
            self._swap(load.stream, self._read_until_now(load))
            self._lane.listener.stream_finished(str(load.stream), "load", totals.rows_loaded)

    def _read_until_now(self, load: StreamLoad) -> LoadRecord:
        """The load's record, with the position that the log must pass before the table shows one moment."""
        settings = self._lane.settings
        if settings.reading.shows_one_moment(load.info) or not self._lane.streams[load.stream].reads_log:
            return load.record
        if takes_own_snapshot(settings.reading, load.info, load.sync_mode, load.target):
            record = self._lane.records.load(load.stream)
            assert record is not None, "what a chunk found out was made durable before it was committed"
            return record
        assert settings.position_now is not None, "a stream that reads the log has somebody to read it"
        record = load.record.read_until(LoadPoint(settings.position_now(), ""))
        self._lane.records.save(record)
        return record

    def _join(self, stream: StreamId, point: LoadPoint) -> None:
        record = self._joining.begin(stream, point)
        if record is not None:
            self._lane.to_reload.discard(stream)
            self._swap(stream, record)

    def _altered_since(self, loads: Sequence[StreamLoad]) -> set[StreamId]:
        """Tables whose columns changed while they were read: a name may have stood for another column."""
        return self._altered({load.stream: load.info for load in loads if load.to_read})

    def _altered(self, read: Mapping[StreamId, SourceTable]) -> set[StreamId]:
        if not read:
            return set()
        tables = self._lane.settings.reading.tables(list(read))
        present = {table.stream: table for table in tables}
        return {
            stream
            for stream, info in read.items()
            if stream not in present or not self._has_columns(stream, present[stream].schema, info)
        }

    def _has_columns(self, stream: StreamId, present: TableSchema, info: SourceTable) -> bool:
        try:
            part = self._lane.streams[stream].selection.of(present)
        except SelectionError:
            return False
        return columns_of(part.lasting) == columns_of(info.schema.lasting)

    def _plan_load(self, loader: Loader, session: ReadingSession, stream: StreamId) -> StreamLoad:
        configured = self._lane.streams[stream]
        configured.target().arrow_schema()  # a clash of names is said before anything is read
        going_on = self._go_on_with_load(loader, stream, configured)
        if going_on is not None:
            return going_on
        is_global = stream in self._lane.ledger.document.global_streams
        if is_global and not self._lane.beside_rounds:  # else it has left, or rounds keep its table up
            self._lane.ledger.write(two_phase.leave_global(self._lane.ledger.document, stream))
        return loader.plan(
            session,
            configured.info,
            configured.mode,
            configured.target(),
            self._lane.table(stream),
            self._method(configured),
            self._lane.settings.rows_per_chunk,
            loader.note(configured.info, configured.cursors()) if configured.cursor is not None else None,
        )

    def _go_on_with_load(self, loader: Loader, stream: StreamId, configured: LaneStream) -> StreamLoad | None:
        """A load that an earlier run began, if going on with it is exact."""
        record = self._lane.records.load(stream)
        state = self._lane.ledger.document.stream(stream)
        if record is None or state is None or not state.is_loading or state.load_id != record.load_id:
            return None
        if stream in self._lane.to_reload or not self._reads_by_same_cursor(stream, configured):
            return None
        configured = _as_begun(configured, record)
        target, table = configured.target(), self._lane.table(stream)
        recovery = recover_chunks(self._lane.ledger.document, stream, self._lane.is_thread_committed)
        self._lane.ledger.write(recovery.document)
        if not recovery.to_read and is_as_planned(record, configured.info, configured.mode, target):
            self._recovered.add(stream)
            return StreamLoad(stream, configured.mode, target, table, configured.info, record, ())
        reason = can_resume(record, configured.info, configured.mode, target, per_chunk=configured.per_chunk)
        if reason is None:
            told = "; its table will show more than one moment" if configured.per_chunk else ""
            self._lane.listener.note(f"{stream}: going on with a load that was cut short{told}.")
            return loader.resume(configured.info, configured.mode, target, table, record, recovery.to_read)
        self._lane.listener.note(f"{stream}: the load starts again, because {reason}.")
        return None

    def _reads_by_same_cursor(self, stream: StreamId, configured: LaneStream) -> bool:
        names = None if configured.cursor is None else configured.cursor.names
        return incremental.load_cursor_names(self._lane.ledger.document, stream) == names

    def _method(self, configured: LaneStream) -> ChunkMethod:
        reading, info = self._lane.settings.reading, configured.info
        if reading.shows_one_moment(info):
            # A key stays in its range, a row in its page only until it is updated.
            by_key = configured.per_chunk or self._lane.settings.method == "key"
            return reading.method_for(info, "key") if by_key else "ctid"
        if takes_own_snapshot(reading, info, configured.mode, configured.target()):
            return "ctid"
        # One query shows one moment. Several do so together with the log, by the key that it names rows by.
        return reading.method_for(info, "key") if configured.reads_log and info.schema.key else "ctid"

    def _swap(self, stream: StreamId, record: LoadRecord) -> None:
        """Publish a load whose chunks are all committed; idempotent by load id.

        A resumed load mixes moments of the source: it is shown once the log has passed the newest of them.
        """
        failpoints.reach("load.before_swap")
        with self._lane.rounds:
            self._leave_open_round(stream)
            self._swap_between_rounds(stream, record)

    def _leave_open_round(self, stream: StreamId) -> None:
        """A round that failed is still open. The table it was for is about to go."""
        document = self._lane.ledger.document
        state = document.stream(stream)
        if stream in document.processing or (state is not None and state.next_cdc_pos is not None):
            self._lane.ledger.write(two_phase.set_aside(document, stream))

    def _swap_between_rounds(self, stream: StreamId, record: LoadRecord) -> None:
        mode = self._lane.streams[stream].mode
        follows = self._lane.streams[stream].reads_log
        by_cursor = mode == "incremental"
        table = self._lane.table(stream)
        swapped = table.swap(
            record.load_id,
            self._lane.settings.epoch,
            record.generation,
            record.oldest_point if follows else None,
            self._readable_from(stream, record) if follows else None,
            keep_files=mode != "full_refresh" and self._keeps_history(stream, record),
            cursor=incremental.noted_by_load(self._lane.ledger.document, stream) if by_cursor else None,
            leaves=leaf_marks(self._lane.streams[stream].info) or None,
            timeline=self._lane.settings.timeline if follows else None,
        )
        failpoints.reach("load.swapped")
        assert swapped.marker is not None
        document = two_phase.load_done(
            self._lane.ledger.document, stream, swapped.marker.to, read_to=record.newest_point
        )
        if follows and not self._lane.beside_rounds:
            document = two_phase.join_global(document, stream)
        document = (incremental.load_moved if by_cursor else incremental.forget)(document, stream)
        if mode != "full_refresh":
            document = with_leaves(document, self._lane.streams[stream].info)
        self._lane.ledger.write(document)
        if follows or stream not in self._recovered:
            self._swapped.add(stream)
            self._lane.read_on.add(stream)
        self._recovered.discard(stream)
        failpoints.reach("load.done")
        self.forget_load(stream, record)
        self._lane.being_loaded.discard(stream)
        self._lane.kept_up.discard(stream)

    def _readable_from(self, stream: StreamId, record: LoadRecord) -> Lsn:
        """Readers of a table that was kept up have seen later changes than the load: they do not go back."""
        state = self._lane.ledger.document.stream(stream)
        seen = state.committed_to if state is not None else None
        return record.newest_point if seen is None else max(record.newest_point, seen)

    def _keeps_history(self, stream: StreamId, record: LoadRecord) -> bool:
        """Whether a reload adds to an append table: its rows are history, and its columns are the same."""
        configured = self._lane.streams[stream]
        before = self._lane.table(stream).record()
        state = self._lane.ledger.document.stream(stream)
        replaces = stream in self._lane.to_replace or (state is not None and state.load_replaces)
        if configured.write != "append" or replaces or before is None:
            return False
        if state is not None and state.load_generation == state.generation:
            return False  # to this state the table is new: its rows would be the same again
        return before.directory is not None and self._lane.has_layout(stream, record.schema)

    def forget_load(self, stream: StreamId, record: LoadRecord) -> None:
        """The load record goes when no snapshot of it is ahead of the table any more."""
        state = self._lane.ledger.document.stream(stream)
        assert state is not None
        position = (
            self._lane.ledger.document.lsn
            if stream in self._lane.ledger.document.global_streams
            else state.cdc_from
        )
        shown = self._lane.table(stream).record()
        waits_for = shown.readable_from if shown is not None else None
        if waits_for is not None or len(record.points) > 1:
            if position is None or position < max(record.newest_point, waits_for or record.newest_point):
                return
            self._lane.table(stream).publish(self._lane.settings.epoch, position)
        self._lane.records.delete(stream)


def _as_begun(configured: LaneStream, record: LoadRecord) -> LaneStream:
    """A load goes on with the columns that it began with, where others only came to them since
    (`TableSchema.lasting`): the log, from its point on, tells of those."""
    wanted = configured.target().schema
    if wanted == record.schema or wanted.lasting != record.schema.lasting:
        return configured
    return replace(configured, info=configured.info.read_as(record.schema))

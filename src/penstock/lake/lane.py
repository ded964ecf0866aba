"""The lake lane: keeps tables true to the log, in rounds of the two-phase commit.

The lane owns the state document. Its caller gives it a snapshot when there is something to load and the
end of the log when there is something to follow, and asks it how far everything is flushed. All it
believes about a table it has asked the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock import failpoints
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.base import Marker, WriteMode
from penstock.destinations.parquet import ParquetDestination
from penstock.lake.apply import Outcome, StreamWork, apply
from penstock.lake.evolve import plan_evolution
from penstock.lake.leaves import with_leaves
from penstock.lake.load import Loader, StreamLoad, can_resume, columns_of, is_as_planned, owns_keys
from penstock.lake.load_progress import LoadProgress
from penstock.lake.skip import skip_rule
from penstock.lake.target import Target
from penstock.lake.work import MustReload, plan_schema
from penstock.ledger import two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.recovery import recover_chunks, recover_round, recover_stream_round
from penstock.ledger.state import SyncMode
from penstock.ledger.threads import cdc_thread_id
from penstock.log.reader import ChangeLog, LogRange
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.chunks import ChunkMethod
from penstock.sources.postgres.connection import connect

ROUND_BYTES_MAX = 256 * 1024 * 1024


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


class LakeLane:
    def __init__(
        self,
        settings: LaneSettings,
        streams: Sequence[LaneStream],
        ledger: Ledger,
        records: LoadRecords,
        log: ChangeLog,
        destination: ParquetDestination,
        spark: Callable[[], SparkSession],
        listener: ProgressListener,
    ) -> None:
        self._settings = settings
        self._streams = {stream.info.stream: stream for stream in streams}
        self._ledger = ledger
        self._records = records
        self._log = log
        self._destination = destination
        self._spark = spark
        self._listener = listener
        self.totals = {stream: StreamTotals() for stream in self._streams}
        self._reload: set[StreamId] = set()
        self._replace: set[StreamId] = set()
        self._swapped: set[StreamId] = set()
        self._recovered: set[StreamId] = set()  # their loads were complete before this run began

    @property
    def streams(self) -> Mapping[StreamId, LaneStream]:
        return self._streams

    def use_tables(self, streams: Sequence[LaneStream]) -> None:
        """The same streams, with their tables as the catalog has them now."""
        self._streams |= {
            stream.info.stream: stream for stream in streams if stream.info.stream in self._streams
        }

    def reload(self, stream: StreamId, reason: str, *, replace: bool = False) -> None:
        """Have a stream loaded again in this run.

        An append table keeps its history and gets the loaded rows besides, unless it is to be replaced.
        """
        if replace:
            self._replace.add(stream)
        if stream not in self._reload:
            self._reload.add(stream)
            self._listener.note(f"{stream} is loaded again: {reason}.")

    def position(self) -> Lsn | None:
        """Up to where every stream of the log is committed."""
        return self._ledger.document.lsn

    def sweep(self, grace_s: float) -> None:
        """Remove versions that no reader can still be reading, and files that belong to none."""
        for stream in self._streams:
            self._destination.table(stream).sweep(grace_s)

    # Recovery

    def recover(self) -> None:
        """Settle what an earlier run left open: roll forward what the destination has, repeat the rest."""
        self._reload_changed_layouts()
        recovery = recover_round(self._ledger.document, set(self._streams), self._is_thread_committed)
        for stream in recovery.dropped:
            self._listener.note(f"{stream} is no longer configured; its part of the open round is given up.")
        self._ledger.write(recovery.document)
        if recovery.kind == "bounded":
            assert recovery.start is not None
            assert recovery.to is not None
            self._listener.note(f"Finishing the round that an earlier run left open, up to {recovery.to}.")
            self._finish_global_round(recovery.streams, recovery.start, recovery.to)
        for stream in list(self._streams):
            own = recover_stream_round(self._ledger.document, stream, self._is_thread_committed)
            self._ledger.write(own.document)
            if own.kind == "bounded":
                assert own.start is not None
                assert own.to is not None
                self._finish_stream_round(stream, own.start, own.to)
        self._forget_removed_streams()
        for stream, configured in self._streams.items():
            self._adopt_position(stream)
            self._reload_if_replaced(stream, configured)

    def _adopt_position(self, stream: StreamId) -> None:
        """A table that is ahead of the state, with no round open, tells that the state was put back."""
        state = self._ledger.document.stream(stream)
        record = self._destination.table(stream).record()
        marker = record.marker if record is not None else None
        if state is None or state.committed_to is None or marker is None or marker.to is None:
            return
        if marker.generation == state.generation and marker.to > state.committed_to:
            self._listener.note(f"{stream}: the table is ahead of the state; going on from {marker.to}.")
            self._ledger.write(two_phase.adopt(self._ledger.document, stream, marker.to))

    def _reload_if_replaced(self, stream: StreamId, configured: LaneStream) -> None:
        """Rows may have been replaced without a single event: the catalog tells, the log may not for long."""
        state = self._ledger.document.stream(stream)
        record = self._destination.table(stream).record()
        follows = state is not None and state.has_completed_backfill and configured.mode != "full_refresh"
        if not follows or record is None or stream in self._reload:
            return
        evolution = plan_evolution(record.schema, configured.info.schema)
        if evolution.kind in ("resync", "unsure"):
            self.reload(stream, evolution.reason)

    def _reload_changed_layouts(self) -> None:
        """A table that is configured otherwise than it was written cannot go on as it is."""
        for stream, configured in self._streams.items():
            state = self._ledger.document.stream(stream)
            if state is None or not state.has_completed_backfill or configured.mode == "full_refresh":
                continue
            if state.sync_mode == "full_refresh":
                self.reload(stream, "its changes are to be followed from now on", replace=True)
            elif not self._has_layout(stream, configured):
                self._ledger.write(two_phase.set_aside(self._ledger.document, stream))
                self.reload(
                    stream, "`write` or `rename` is not what the table was written with", replace=True
                )

    def _has_layout(
        self, stream: StreamId, configured: LaneStream, schema: TableSchema | None = None
    ) -> bool:
        table = self._destination.table(stream)
        record = table.record()
        if record is None or not record.files:
            return False
        written: list[str] = pq.read_schema(table.files_directory / record.files[0].name).names
        return written == list(configured.target(schema or record.schema).arrow_schema().names)

    def _forget_removed_streams(self) -> None:
        document = self._ledger.document
        for stream in set(document.streams) - set(self._streams):
            document = two_phase.remove_stream(document, stream)
            self._records.delete(stream)
        self._ledger.write(document)

    def _is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        return self._destination.table(stream).is_thread_committed(thread_id)

    # Loads

    def streams_to_load(self) -> list[StreamId]:
        """Streams without a complete backfill, those whose table must be loaded again, and full refreshes."""
        return [stream for stream in self._streams if self._needs_load(stream)]

    def _needs_load(self, stream: StreamId) -> bool:
        state = self._ledger.document.stream(stream)
        if self._streams[stream].mode == "full_refresh":
            return stream not in self._swapped
        return state is None or not state.has_completed_backfill or stream in self._reload

    def load(self, streams: Iterable[StreamId], point: LoadPoint) -> None:
        """Load these streams under one snapshot. Those that must be tried again stay in `streams_to_load`."""
        names = list(streams)
        with LoadProgress(self._settings.url, self._listener) as progress:
            loader = Loader(
                self._settings.url,
                self._spark(),
                self._ledger,
                self._records,
                self._settings.epoch,
                point,
                self._settings.server_version,
                progress,
                self._settings.chunks_at_once,
            )
            loads = [self._plan_load(loader, stream) for stream in names]
            for load in loads:
                self._listener.stream_started(str(load.stream), "load", load.info.estimated_rows)
            outcome = loader.run([load for load in loads if load.to_read])
        altered = self._altered_since(loads)
        for load in loads:
            if load.stream in outcome.rewritten | altered:
                self._reload.add(load.stream)
                self._listener.note(
                    f"{load.stream} was rewritten at the source while it was read; loading again."
                )
                continue
            totals = self.totals[load.stream]
            totals.rows_loaded = outcome.rows.get(load.stream, 0)
            totals.dead_letters += outcome.dead_letters.get(load.stream, 0)
            self._reload.discard(load.stream)
            self._swap(load.stream, load.record)
            self._listener.stream_finished(str(load.stream), "load", totals.rows_loaded)

    def _altered_since(self, loads: Sequence[StreamLoad]) -> set[StreamId]:
        """Tables whose columns changed while they were read: a name may have stood for another column."""
        with connect(self._settings.url) as connection:
            present = {table.stream: table for table in discover(connection, [load.stream for load in loads])}
        return {
            load.stream
            for load in loads
            if load.to_read
            and (
                load.stream not in present
                or columns_of(present[load.stream].schema) != columns_of(load.info.schema)
            )
        }

    def _plan_load(self, loader: Loader, stream: StreamId) -> StreamLoad:
        configured = self._streams[stream]
        configured.target().arrow_schema()  # a clash of names is said before anything is read
        going_on = self._go_on_with_load(loader, stream, configured)
        if going_on is not None:
            return going_on
        if stream in self._ledger.document.global_streams:
            self._ledger.write(two_phase.leave_global(self._ledger.document, stream))
        return loader.plan(
            configured.info,
            configured.mode,
            configured.target(),
            self._destination.table(stream),
            self._method(configured),
            self._settings.rows_per_chunk,
        )

    def _go_on_with_load(self, loader: Loader, stream: StreamId, configured: LaneStream) -> StreamLoad | None:
        """A load that an earlier run began, if going on with it is exact."""
        record = self._records.load(stream)
        state = self._ledger.document.stream(stream)
        if record is None or state is None or not state.is_loading or state.load_id != record.load_id:
            return None
        if stream in self._reload:
            return None
        target, table = configured.target(), self._destination.table(stream)
        recovery = recover_chunks(self._ledger.document, stream, self._is_thread_committed)
        self._ledger.write(recovery.document)
        if not recovery.to_read and is_as_planned(record, configured.info, configured.mode, target):
            self._recovered.add(stream)
            return StreamLoad(stream, configured.mode, target, table, configured.info, record, ())
        reason = can_resume(record, configured.info, configured.mode, target)
        if reason is None:
            self._listener.note(f"{stream}: going on with a load that was cut short.")
            return loader.resume(configured.info, configured.mode, target, table, record, recovery.to_read)
        self._listener.note(f"{stream}: the load starts again, because {reason}.")
        return None

    def _method(self, configured: LaneStream) -> ChunkMethod:
        return self._settings.method if configured.info.schema.key else "ctid"

    def _swap(self, stream: StreamId, record: LoadRecord) -> None:
        """Publish a load whose chunks are all committed; idempotent by load id.

        A resumed load mixes moments of the source: it is shown once the log has passed the newest of them.
        """
        failpoints.reach("load.before_swap")
        follows = self._streams[stream].mode != "full_refresh"
        table = self._destination.table(stream)
        swapped = table.swap(
            record.load_id,
            self._settings.epoch,
            record.generation,
            record.oldest_point if follows else None,
            record.newest_point if follows else None,
            keep_files=follows and self._keeps_history(stream, record),
        )
        failpoints.reach("load.swapped")
        assert swapped.marker is not None
        document = two_phase.load_done(self._ledger.document, stream, swapped.marker.to)
        if follows:
            document = two_phase.join_global(document, stream)
        self._ledger.write(with_leaves(document, self._streams[stream].info) if follows else document)
        if follows or stream not in self._recovered:
            self._swapped.add(stream)
        self._recovered.discard(stream)
        failpoints.reach("load.done")
        self._forget_load(stream, record)

    def _keeps_history(self, stream: StreamId, record: LoadRecord) -> bool:
        """Whether a reload adds to an append table: its rows are history, and its columns are the same."""
        configured = self._streams[stream]
        before = self._destination.table(stream).record()
        if configured.write != "append" or stream in self._replace or before is None:
            return False
        return before.directory is not None and self._has_layout(stream, configured, record.schema)

    def _forget_load(self, stream: StreamId, record: LoadRecord) -> None:
        """The load record goes when no snapshot of it is ahead of the table any more."""
        state = self._ledger.document.stream(stream)
        assert state is not None
        position = (
            self._ledger.document.lsn if stream in self._ledger.document.global_streams else state.cdc_from
        )
        if len(record.points) > 1 and (position is None or position < record.newest_point):
            return
        if len(record.points) > 1 and position is not None:
            self._destination.table(stream).publish(self._settings.epoch, position)
        self._records.delete(stream)

    # Following the log

    def follow(self, to: Lsn) -> None:
        """Apply the log up to `to` to every stream that is loaded; those that cannot go on are set aside."""
        for end in self._batches(self._ledger.document.lsn, to):
            self._global_round(end)
        for stream in self._streams:
            state = self._ledger.document.stream(stream)
            if state is not None and state.cdc_from is not None and state.has_completed_backfill:
                for end in self._batches(state.cdc_from, to):
                    if not self._stream_round(stream, end):
                        break
                self._ledger.write(two_phase.join_global(self._ledger.document, stream))
            record = self._records.load(stream)
            if record is not None and state is not None and state.has_completed_backfill:
                self._forget_load(stream, record)

    def flushed(self) -> Lsn | None:
        """Up to where neither log nor source is needed by this lane."""
        document = self._ledger.document
        loading = {state.stream for state in document.stream_states if state.is_loading}
        return two_phase.flushed_position(document, self._records.open_points(loading))

    def _batches(self, after: Lsn | None, to: Lsn) -> list[Lsn]:
        if after is None or after >= to:
            return []
        start = self._log.start()
        if start is None or after < start:
            raise StateError(
                f"The change log begins at {start}, but changes from {after} on are still to be applied.",
                remedy="Restore the state directory from a backup, or run `penstock resync --yes`.",
            )
        return self._log.boundaries(after, to, ROUND_BYTES_MAX)

    def _global_round(self, to: Lsn) -> None:
        start = self._ledger.document.lsn
        assert start is not None
        changed = set(self._log.streams_with_changes(start, to))
        for stream in sorted(changed & set(self._ledger.document.global_streams)):
            if not self._can_go_on(stream, start, to):
                self._ledger.write(two_phase.leave_global(self._ledger.document, stream))
        streams = sorted(changed & set(self._ledger.document.global_streams))
        failpoints.reach("cdc.preparing")
        self._ledger.write(two_phase.prepare_round(self._ledger.document, to, streams))
        failpoints.reach("cdc.prepared")
        self._finish_global_round(streams, start, to)

    def _finish_global_round(self, streams: Sequence[StreamId], start: Lsn, to: Lsn) -> None:
        for work, outcome in self._apply([self._work(stream, start, to) for stream in streams]):
            failpoints.reach("cdc.written")
            if self._is_gap_in_resumed_load(work, outcome):
                continue
            self._commit(work, outcome)
            failpoints.reach("cdc.committed")
            self._ledger.write(two_phase.stream_committed(self._ledger.document, work.stream, to))
            failpoints.reach("cdc.processed")
        failpoints.reach("cdc.all_processed")
        self._ledger.write(two_phase.finish_round(self._ledger.document))
        failpoints.reach("cdc.moved")

    def _stream_round(self, stream: StreamId, to: Lsn) -> bool:
        """A round of a stream that is not level with the others; False if it cannot go on."""
        state = self._ledger.document.stream(stream)
        assert state is not None
        assert state.cdc_from is not None
        start = state.cdc_from
        if not self._can_go_on(stream, start, to):
            return False
        self._ledger.write(two_phase.prepare_stream_round(self._ledger.document, stream, to))
        self._finish_stream_round(stream, start, to)
        return True

    def _finish_stream_round(self, stream: StreamId, start: Lsn, to: Lsn) -> None:
        has_changes = bool(self._log.files(stream, start, to).files)
        if has_changes:
            [(work, outcome)] = self._apply([self._work(stream, start, to)])
            if self._is_gap_in_resumed_load(work, outcome):
                return
            self._commit(work, outcome)
        self._ledger.write(
            two_phase.finish_stream_round(self._ledger.document, stream, committed=has_changes)
        )

    # Pieces

    def _can_go_on(self, stream: StreamId, start: Lsn, to: Lsn) -> bool:
        """Whether the table can take the range; if not, the stream is set aside with its reason."""
        plan = self._plan_work(stream, start, to)
        if isinstance(plan, MustReload):
            self.reload(stream, plan.reason)
        return isinstance(plan, StreamWork)

    def _work(self, stream: StreamId, start: Lsn, to: Lsn) -> StreamWork:
        work = self._plan_work(stream, start, to)
        assert isinstance(work, StreamWork), "asked before the round was prepared"
        return work

    def _plan_work(self, stream: StreamId, start: Lsn, to: Lsn) -> StreamWork | MustReload:
        """A function of the table's record and the log alone, so that recovery comes to the same answer."""
        table = self._destination.table(stream)
        record = table.record()
        assert record is not None, "only a loaded table follows the log"
        assert record.marker is not None, "only a loaded table follows the log"
        changes = self._log.files(stream, start, to)
        plan = plan_schema(record.schema, changes.files, self._log.schema)
        if isinstance(plan, MustReload):
            return plan
        if truncated_in_part(changes) and self._streams[stream].write == "upsert":
            return MustReload("a single partition was truncated")
        load = self._records.load(stream)
        skip = None
        if load is not None and len(load.points) > 1 and owns_keys(load):
            skip = skip_rule(load, self._streams[stream].target())
            if changes.truncates and start < load.newest_point:
                return MustReload("the table was truncated while it was being loaded")
        if truncated_in_part(changes):
            self.reload(stream, "a single partition was truncated")
        return StreamWork(
            stream=stream,
            table=table,
            target=self._streams[stream].target(plan.schema),
            files=record.files,
            changes=changes.files,
            truncates=changes.truncates,
            after=start,
            to=to,
            columns=plan.columns,
            rewrite=plan.rewrite,
            skip=skip,
        )

    def _apply(self, works: Sequence[StreamWork]) -> list[tuple[StreamWork, Outcome]]:
        if not works:
            return []
        for work in works:
            self._listener.stream_started(str(work.stream), "apply", sum(file.rows for file in work.changes))
        outcomes = apply(self._spark(), works)
        for stream, outcome in outcomes.items():
            self.totals[stream].add(outcome)
            self._listener.stream_finished(str(stream), "apply", sum(outcome.operations.values()))
        return [(work, outcomes[work.stream]) for work in works]

    def _is_gap_in_resumed_load(self, work: StreamWork, outcome: Outcome) -> bool:
        """Whether a row that was read by neither part of a resumed load lacks values: then load again.

        Between two reads by pages a row may move to a page that was read before. Its change is in the log,
        but large values that did not change are not. Nobody has seen the table yet.
        """
        if not outcome.unresolved or self._records.load(work.stream) is None:
            return False
        self._ledger.write(two_phase.set_aside(self._ledger.document, work.stream))
        self.reload(work.stream, "rows with large values moved while its load was cut short")
        return True

    def _commit(self, work: StreamWork, outcome: Outcome) -> None:
        state = self._ledger.document.stream(work.stream)
        assert state is not None
        assert state.generation is not None
        work.table.commit_changes(
            expected_to=state.committed_to,
            marker=self._marker(work.stream, state.generation, work.after, work.to),
            schema=work.target.schema,
            added=outcome.added,
            removed=sorted(outcome.removed),
            dead_letter_files=outcome.dead_letters,
        )

    def _marker(self, stream: StreamId, generation: str, start: Lsn, to: Lsn) -> Marker:
        thread_id = cdc_thread_id(stream, generation, start)
        return Marker(generation, self._settings.epoch, start, to, (thread_id,))


def truncated_in_part(changes: LogRange) -> bool:
    """Whether a partition was emptied alone, and the whole table not after it."""
    last = max(changes.truncates, default=(-1, -1))
    return any((tx, op) > last for tx, op, _ in changes.leaf_truncates)

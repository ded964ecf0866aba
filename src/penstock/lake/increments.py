"""Reads incremental streams on: what their cursors show to be new is merged into the tables.

A round per stream and sync, all streams under one snapshot and in the same few Spark jobs. The order of its
durable steps, and why a crash between any two of them changes nothing, is proved in `ledger.incremental`.

What a round finds: every row whose cursor lies in its window as of the snapshot. A row that commits late is
found if its value is not older than the last cursor less the lookback; older ones, rows that changed without
a new cursor, and deletes are not seen by this mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import failpoints
from penstock.core.cursor import Cursors, CursorValue
from penstock.core.errors import StaleLookupError
from penstock.core.position import Lsn
from penstock.core.selection import SelectionError
from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile, Marker, TableRecord
from penstock.lake.apply import Outcome, StreamWork, merge
from penstock.lake.column_ids import dropped_partition, evolved_columns
from penstock.lake.delete_stage import delete_paths
from penstock.lake.evolve import plan_evolution
from penstock.lake.file_merging import merge_small_files
from penstock.lake.fold_task import FoldResult
from penstock.lake.held_rows import ComparedFile, HeldRange
from penstock.lake.increment_task import IncrementTask, read_increment
from penstock.lake.lane_state import LaneState, LaneStream
from penstock.lake.letter_merging import merge_letters
from penstock.lake.light import Stages
from penstock.lake.load import columns_of
from penstock.lake.load_progress import LoadProgress
from penstock.lake.load_task import LoadTask
from penstock.lake.session import run_tasks
from penstock.lake.target import Target
from penstock.lake.work import MustReload, SchemaPlan, unfit_default, words_of
from penstock.ledger import incremental
from penstock.ledger.load_record import LoadPoint
from penstock.ledger.threads import incremental_thread_id
from penstock.sources.base import ReadingSession
from penstock.sources.chunk import PlannedChunk
from penstock.sources.cursor import CursorChunk
from penstock.sources.pace import share
from penstock.sources.tables import SourceTable


@dataclass(frozen=True, slots=True)
class _Round:
    """One stream's round: from `start`, what it reads, and which cursors it advances."""

    work: StreamWork
    record: TableRecord
    start: Cursors
    advanced: Cursors
    chunks: tuple[CursorChunk, ...]

    @property
    def stream(self) -> StreamId:
        return self.work.stream

    @property
    def reached(self) -> dict[str, CursorValue]:
        return {**self.start, **self.advanced}


class Increments:
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane

    def streams_to_advance(self) -> list[StreamId]:
        """Loaded incremental streams that this run has not read on yet."""
        return [stream for stream in self._lane.streams if self._waits(stream)]

    def _waits(self, stream: StreamId) -> bool:
        state = self._lane.ledger.document.stream(stream)
        loaded = state is not None and state.has_completed_backfill and stream not in self._lane.to_reload
        is_ours = self._lane.streams[stream].mode == "incremental" and not self._lane.is_paused(stream)
        return is_ours and loaded and stream not in self._lane.read_on

    def advance(self, streams: Sequence[StreamId], point: LoadPoint) -> None:
        """One round for each of these streams. Those that must be tried again still wait afterwards."""
        with self._lane.settings.reading.session(point.snapshot) as session:
            planned = [self._plan(session, stream) for stream in streams]
        rounds = [each for each in planned if each is not None]
        if not rounds:
            return
        self._prepare(rounds)
        outcomes, rewritten = self._read(rounds, point)
        rewritten |= self._altered_since(rounds)
        for each in rounds:
            if each.stream in rewritten:
                self._give_up(each, "it was rewritten at the source while it was read")
            else:
                self._commit(each, outcomes[each.stream])

    def _plan(self, session: ReadingSession, stream: StreamId) -> _Round | None:
        """What there is to do for a stream; None if nothing is, or its table must be loaded again."""
        configured = self._lane.streams[stream]
        assert configured.cursor is not None, "the configuration has one for this mode"
        table = self._lane.table(stream)
        record = table.record()
        assert record is not None, "only a loaded table is read on"
        target = configured.target()
        plan = self._schema_plan(record, target, configured)
        if isinstance(plan, MustReload):
            if self._lane.may_follow(stream, plan.reason):
                self._lane.reload(stream, plan.reason)
            return None
        rewrite = plan.rewrite
        if rewrite is not None and not self._lane.may_follow(stream, words_of(record.schema, rewrite)):
            return None
        start = incremental.cursors(self._lane.ledger.document, stream, configured.cursor.names)
        noted = session.note(configured.info, configured.cursors(), start)
        chunks = tuple(
            chunk
            for leaf in configured.info.leaves
            for window in noted.windows
            for chunk in session.cut(leaf, window, self._lane.settings.rows_per_chunk)
        )
        if not chunks and not noted.advanced and rewrite is None:
            self._lane.read_on.add(stream)
            return None
        work = StreamWork(
            stream=stream,
            table=table,
            target=target.with_ids_of(evolved_columns(record, target, rewrite), record.layout),
            files=table.files(record),
            read_from=record.snapshot_id,
            changes=(),
            truncates=(),
            after=Lsn(0),
            to=Lsn(0),
            columns={},
            rewrite=rewrite,
            letters=record.dead_letters,
        )
        return _Round(work, record, start, noted.advanced, chunks)

    def _schema_plan(
        self, record: TableRecord, target: Target, configured: LaneStream
    ) -> SchemaPlan | MustReload:
        """How the table gets the columns that the source has now."""
        evolution = plan_evolution(record.schema, configured.info.schema)
        if evolution.kind in ("resync", "unsure"):
            return MustReload(evolution.reason)
        plan = SchemaPlan(target.schema, {}, evolution.columns if evolution.kind == "rewrite" else None)
        unfit = unfit_default(plan, target.schema) if target.write == "upsert" else None
        if unfit is not None:
            return MustReload(f"rows read column {unfit} as a default that its type cannot hold")
        held = target.with_ids_of(evolved_columns(record, target, plan.rewrite))
        table = self._lane.table(configured.info.stream)
        if (column := dropped_partition(table, record, held)) is not None:
            return MustReload(f"column {column}, by which its files are partitioned, is gone")
        return plan

    def _prepare(self, rounds: Sequence[_Round]) -> None:
        """Step (1), for all rounds at once."""
        document = self._lane.ledger.document
        for each in rounds:
            if each.advanced:
                document = incremental.prepare(document, each.stream, each.advanced)
        failpoints.reach("incremental.preparing")
        self._lane.ledger.write(document)
        failpoints.reach("incremental.prepared")

    def _read(
        self, rounds: Sequence[_Round], point: LoadPoint
    ) -> tuple[dict[StreamId, Outcome], set[StreamId]]:
        """Step (2): every round's files, and the streams whose tables were rewritten meanwhile."""
        rewritten: set[StreamId] = set()
        rows = dict.fromkeys((each.stream for each in rounds), 0)
        settled: dict[StreamId, list[DataFile]] = {each.stream: [] for each in rounds}
        spark, totals = self._lane.spark(), self._lane.totals

        def read(staging: Mapping[StreamId, Path]) -> dict[StreamId, list[FoldResult]]:
            tasks = [
                (each.stream, self._task(each, chunk, point, progress, staging[each.stream] / str(number)))
                for each in rounds
                for number, chunk in enumerate(each.chunks)
            ]
            at_once = self._lane.settings.chunks_at_once
            results = run_tasks(
                spark, read_increment, [task for _, task in tasks], "read increments", at_once
            )
            folded: dict[StreamId, list[FoldResult]] = {each.stream: [] for each in rounds}
            for (stream, _), result in zip(tasks, results, strict=True):
                folded[stream].append(result.folded)
                rows[stream] += result.rows
                settled[stream] += [result.settled] if result.settled is not None else []
                if result.table_rewritten:
                    rewritten.add(stream)
            return folded

        for each in rounds:
            self._lane.listener.stream_started(str(each.stream), "load", None)
        with LoadProgress(self._lane.settings.reading, self._lane.listener) as progress:
            works = [each.work for each in rounds]
            stages = Stages(self._lane.spark)
            outcomes = merge(stages, works, read)
            merge_small_files(stages, works, outcomes)
            merge_letters(stages, works, outcomes)
        for each in rounds:
            outcomes[each.stream].settled += settled[each.stream]
            totals[each.stream].rows_loaded += rows[each.stream]
            self._lane.listener.stream_finished(str(each.stream), "load", rows[each.stream])
        failpoints.reach("incremental.written")
        return outcomes, rewritten

    def _task(
        self, each: _Round, chunk: CursorChunk, point: LoadPoint, progress: LoadProgress, staging: Path
    ) -> IncrementTask:
        work, leaf = each.work, chunk.leaf
        reading = self._lane.settings.reading.chunk(
            PlannedChunk(str(leaf.stream), None, None, leaf.filenode, 0),
            leaf,
            "ctid",
            point.snapshot,
            reader=progress.reader(work.stream),
            condition=chunk.condition,
        )
        load = LoadTask(
            reading,
            target=work.target,
            path=work.table.files_directory / new_file_name("increment"),
            dead_letter_path=work.table.dead_letters_directory / new_file_name("increment"),
            position=int(point.consistent_point),
            rows_per_second=share(
                self._lane.settings.rows_per_second,
                self._lane.settings.chunks_at_once or self._lane.spark().sparkContext.defaultParallelism,
            ),
        )
        compared = tuple(
            ComparedFile(
                work.table.path(file),
                work.table.file_location(file.name),
                file.deletes,
                delete_paths(work.table, file),
            )
            for file in work.files
        )
        held = HeldRange(compared, work.rewrite, chunk.cursor.column, chunk.low, chunk.high)
        settled = work.table.dead_letters_directory / new_file_name("settled")
        return IncrementTask(load, held, work.table.dead_letter_paths(), settled, staging)

    def _altered_since(self, rounds: Sequence[_Round]) -> set[StreamId]:
        """Tables whose columns changed while they were read: a name may have stood for another column."""
        tables = self._lane.settings.reading.tables([each.stream for each in rounds])
        present = {table.stream: table for table in tables}
        return {each.stream for each in rounds if not self._is_as_read(each, present.get(each.stream))}

    def _is_as_read(self, each: _Round, present: SourceTable | None) -> bool:
        configured = self._lane.streams[each.stream]
        try:
            part = None if present is None else configured.selection.of(present.schema)
        except SelectionError:
            return False
        return part is not None and columns_of(part) == columns_of(configured.info.schema)

    def _give_up(self, each: _Round, reason: str) -> None:
        self._lane.listener.note(f"{each.stream} is read again: {reason}.")
        self._lane.ledger.write(incremental.give_up(self._lane.ledger.document, each.stream))

    def _commit(self, each: _Round, outcome: Outcome) -> None:
        """Steps (3) and (4)."""
        letters = outcome.dead_letters or outcome.settled or outcome.merged_letters
        files = outcome.added or outcome.removed or outcome.deletes or letters
        if each.advanced or files or each.work.rewrite is not None:
            try:
                each.work.commit(outcome, self._marker(each), expected_cursor=each.start)
            except StaleLookupError:
                self._give_up(each, "somebody else changed the table's files meanwhile")
                return
            failpoints.reach("incremental.committed")
        if each.advanced:
            self._lane.ledger.write(incremental.move(self._lane.ledger.document, each.stream))
            failpoints.reach("incremental.moved")
        self._lane.totals[each.stream].add(outcome)
        self._lane.read_on.add(each.stream)

    def _marker(self, each: _Round) -> Marker:
        """The round's own; of one that does not advance, the marker there is."""
        assert each.record.marker is not None, "only a loaded table is read on"
        marker = replace(each.record.marker, epoch=self._lane.settings.epoch)
        if not each.advanced:
            return marker
        choice = self._lane.streams[each.stream].cursor
        assert choice is not None, "the configuration has one for this mode"
        thread_id = incremental_thread_id(each.stream, marker.generation, each.start, choice.names)
        return replace(marker, thread_ids=(thread_id,), cursor=each.reached)

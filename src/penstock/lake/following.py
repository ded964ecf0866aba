"""Follows the log: applies it to loaded tables in rounds of the two-phase commit.

A round is durable in the state before anything is written, and moves the position only when every stream
of it is committed; what it does is a function of the tables' records and the log alone, so that recovery
comes to the same files. A stream that cannot go on leaves the round and is loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock import failpoints
from penstock.core.errors import StaleLookupError, StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.records import Marker
from penstock.lake.apply import ROUND_BYTES_MAX, Outcome, StreamWork, apply, fold, merge
from penstock.lake.backfill import Backfill
from penstock.lake.file_merging import merge_small_files
from penstock.lake.fold_task import FoldResult
from penstock.lake.lane_state import LaneState
from penstock.lake.leaves import known_leaves
from penstock.lake.letter_merging import merge_letters
from penstock.lake.light import Stages, rewriting_is_light
from penstock.lake.rewinding import Rewinds
from penstock.lake.round_plan import plan_round, truncated_in_part
from penstock.lake.work import MustReload, untold, words_of
from penstock.ledger import two_phase
from penstock.ledger.load_record import LoadRecord
from penstock.ledger.threads import cdc_thread_id

EARLY_ROUND_BYTES = 16 * 1024 * 1024
LOOKUPS_MAX = 5  # while somebody else changes the table's files


@dataclass(frozen=True, slots=True)
class Waiting:
    """The part of the log that is sealed and beyond the global position."""

    bytes: int = 0
    has_changes: bool = False  # of streams of this lane
    end: Lsn | None = None


class Following:
    def __init__(self, lane: LaneState, backfill: Backfill) -> None:
        self._lane = lane
        self._backfill = backfill
        # In one pool jobs wait for each other; a round must not wait for the chunks of a load.
        self.stages = Stages(lane.spark, pool="rounds")
        self._rewinds = Rewinds(lane, self.stages, self._marker)

    def follow(self, to: Lsn) -> None:
        """Apply the log up to `to` to every stream that is loaded; those that cannot go on are set aside.

        Afterwards, what was asked to be applied again, to tables as they are then: nobody waits for it.
        """
        self._follow_together(to)
        for stream in self._lane.streams:
            if self._lane.leaves_off():
                return
            with self._lane.rounds:
                if stream not in self._lane.being_loaded or stream in self._lane.kept_up:
                    self._bring_level(stream, to)
        self._rewinds.carry_out()

    def take_to(self, position: Lsn) -> None:
        """Apply the log, which is sealed beyond it, exactly up to a position where no step may end."""
        self._follow_together(position, exactly=True)

    def is_at(self, stream: StreamId, position: Lsn) -> bool:
        """Whether a round of this stream, by itself or with others, would begin there."""
        document = self._lane.ledger.document
        if document.dialect.shares_position:
            return stream in document.global_streams and document.lsn == position
        return self._stands_at(stream, position)

    def _follow_together(self, to: Lsn, *, exactly: bool = False) -> None:
        """Rounds of many streams each: of those that share a position, or that stand at the same one."""
        for end in self._batches(self._lane.ledger.document.lsn, to, exactly=exactly):
            if self._lane.leaves_off():
                return
            self._global_round(end)
        for start, streams in sorted(self._standing().items()):
            at = start
            for end in self._batches(start, to, exactly=exactly):
                if self._lane.leaves_off():
                    return
                with self._lane.rounds:
                    self._round_of_each(streams, at, end)
                at = end

    def _standing(self) -> dict[Lsn, list[StreamId]]:
        """Streams that have a position of their own for good, by that position."""
        document = self._lane.ledger.document
        standing: dict[Lsn, list[StreamId]] = {}
        if not document.dialect.shares_position:
            for state in document.stream_states:
                if state.stream not in self._lane.streams or state.cdc_from is None:
                    continue
                if self._stands_at(state.stream, state.cdc_from):
                    standing.setdefault(state.cdc_from, []).append(state.stream)
        return standing

    def _bring_level(self, stream: StreamId, to: Lsn) -> None:
        """Rounds of a stream that does not share the global position, until it does."""
        state = self._lane.ledger.document.stream(stream)
        if state is None or state.paused is not None:
            return
        if state.cdc_from is not None and (state.has_completed_backfill or stream in self._lane.kept_up):
            for end in self._batches(state.cdc_from, to):
                if self._lane.leaves_off() or not self._stream_round(stream, end):
                    break
            if self._lane.is_paused(stream):
                return
            self._lane.ledger.write(two_phase.join_global(self._lane.ledger.document, stream))
        record = None if stream in self._lane.being_loaded else self._load_shown(stream)
        if record is not None:
            self._backfill.forget_load(stream, record)

    def waiting(self) -> Waiting:
        start = self._lane.ledger.document.level
        steps = self._lane.log.after(start) if start is not None else []
        if not steps:
            return Waiting()
        has_changes = any(table.stream in self._lane.streams for step in steps for table in step.tables)
        return Waiting(sum(step.bytes for step in steps), has_changes, steps[-1].end)

    def follow_ahead(self) -> None:
        """A round of what is sealed, if it costs no more now than as a part of a later one.

        That is so for rows that only add files. Where rows of the table must be found and replaced, every
        round costs anew, so those wait until they fill one.
        """
        start = self._lane.ledger.document.level
        if start is None:
            return
        waiting = self._lane.log.after(start)
        if not waiting:
            return
        end, size = waiting[-1].end, sum(manifest.bytes for manifest in waiting)
        if size >= ROUND_BYTES_MAX or (size >= EARLY_ROUND_BYTES and self._only_adds(start, end)):
            self._follow_together(end)

    def is_light_to_change(self) -> bool:
        """Whether light rounds could write all files again, of tables where a change has files written again.

        Where rows are deleted by position, rounds look up no more than keys: those are light as long as they
        have few of them.
        """
        tables = [self._lane.table(stream) for stream in self._lane.streams]
        rewritten = [table for table in tables if not table.deletes_rows or table.rewrites_rows]
        found = [(table, record) for table in rewritten if (record := table.record()) is not None]
        return rewriting_is_light(
            [file for table, record in found if record.write == "upsert" for file in table.files(record)]
        )

    def _only_adds(self, start: Lsn, end: Lsn) -> bool:
        return all(
            stream not in self._lane.streams
            or self._lane.streams[stream].write == "append"
            or all(file.ops.keys() <= {"i"} for file in changes.files)
            for stream, changes in self._lane.log.streams_with_changes(start, end).items()
        )

    def _batches(self, after: Lsn | None, to: Lsn, *, exactly: bool = False) -> list[Lsn]:
        """Where rounds end: with a step each, and `exactly` with `to` at last, in whichever step that is."""
        if after is None or after >= to:
            return []
        start = self._lane.log.start()
        if start is None or after < start:
            raise StateError(
                f"The change log begins at {start}, but changes from {after} on are still to be applied.",
                remedy="Restore the state directory from a backup, or run `penstock resync --yes`.",
            )
        ends = self._lane.log.boundaries(after, to, ROUND_BYTES_MAX)
        return [*ends, to] if exactly and ends[-1:] != [to] else ends

    def _global_round(self, to: Lsn) -> None:
        with self._lane.rounds:
            self._round_of_all(to)

    def _round_of_all(self, to: Lsn) -> None:
        start = self._lane.ledger.document.lsn
        assert start is not None
        changed = set(self._lane.log.streams_with_changes(start, to))
        for stream in sorted(changed & set(self._lane.ledger.document.global_streams)):
            goes_on = self._can_go_on(stream, start, to)
            if not goes_on and stream in self._lane.ledger.document.global_streams:
                self._lane.ledger.write(two_phase.leave_global(self._lane.ledger.document, stream))
        streams = sorted(changed & set(self._lane.ledger.document.global_streams))
        if not streams:
            moved = two_phase.prepare_round(self._lane.ledger.document, to, ())
            self._lane.ledger.write(two_phase.finish_round(moved))
            return
        failpoints.reach("cdc.preparing")
        self._lane.ledger.write(two_phase.prepare_round(self._lane.ledger.document, to, streams))
        failpoints.reach("cdc.prepared")
        began = time.monotonic()
        self.finish_global_round(streams, start, to)
        self._lane.rounds_heard.round_done(time.monotonic() - began)

    def finish_global_round(self, streams: Sequence[StreamId], start: Lsn, to: Lsn) -> None:
        for work, outcome in self._apply([self.work(stream, start, to) for stream in streams]):
            failpoints.reach("cdc.written")
            if not self.commit(work, outcome):
                continue
            failpoints.reach("cdc.committed")
            self._lane.ledger.write(two_phase.stream_committed(self._lane.ledger.document, work.stream, to))
            failpoints.reach("cdc.processed")
        failpoints.reach("cdc.all_processed")
        self._lane.ledger.write(two_phase.finish_round(self._lane.ledger.document))
        failpoints.reach("cdc.moved")

    def _round_of_each(self, streams: Sequence[StreamId], start: Lsn, to: Lsn) -> None:
        """The rounds of streams that stand at `start`, side by side; each is committed by itself.

        Those with nothing up to `to` are moved there in one document: their words must not grow old at the
        source because nothing happens (correctness 55).
        """
        changed = set(self._lane.log.streams_with_changes(start, to))
        here = [stream for stream in streams if self._stands_at(stream, start)]
        going = [each for each in here if each in changed and self._can_go_on(each, start, to)]
        if going:
            failpoints.reach("cdc.preparing")
            document = self._lane.ledger.document
            for stream in going:
                document = two_phase.prepare_stream_round(document, stream, to)
            self._lane.ledger.write(document)
            failpoints.reach("cdc.prepared")
            began = time.monotonic()
            self._finish_each(going, start, to)
            self._lane.rounds_heard.round_done(time.monotonic() - began)
        idle = [stream for stream in here if stream not in changed]
        self._lane.ledger.write(two_phase.pass_over(self._lane.ledger.document, idle, to))
        if going:
            failpoints.reach("cdc.moved")

    def _finish_each(self, streams: Sequence[StreamId], start: Lsn, to: Lsn) -> None:
        for work, outcome in self._apply([self.work(stream, start, to) for stream in streams]):
            failpoints.reach("cdc.written")
            if not self.commit(work, outcome):
                continue
            failpoints.reach("cdc.committed")
            self._lane.ledger.write(
                two_phase.finish_stream_round(self._lane.ledger.document, work.stream, committed=True)
            )
            failpoints.reach("cdc.processed")
        failpoints.reach("cdc.all_processed")

    def _stands_at(self, stream: StreamId, position: Lsn) -> bool:
        """Whether a round of this stream may begin there: it is loaded, or kept up, and nobody moved it."""
        state = self._lane.ledger.document.stream(stream)
        if state is None or state.cdc_from != position or state.next_cdc_pos is not None:
            return False
        if stream in self._lane.kept_up:
            return True
        is_free = stream not in self._lane.being_loaded and stream not in self._lane.to_reload
        return is_free and state.paused is None and state.has_completed_backfill

    def _stream_round(self, stream: StreamId, to: Lsn) -> bool:
        """A round of a stream that is not level with the others; False if it cannot go on."""
        state = self._lane.ledger.document.stream(stream)
        assert state is not None
        assert state.cdc_from is not None
        start = state.cdc_from
        if not self._can_go_on(stream, start, to):
            return False
        self._lane.ledger.write(two_phase.prepare_stream_round(self._lane.ledger.document, stream, to))
        return self.finish_stream_round(stream, start, to)

    def finish_stream_round(self, stream: StreamId, start: Lsn, to: Lsn) -> bool:
        """False if the stream was set aside instead."""
        changes = self._lane.log.files(stream, start, to)
        has_changes = bool(changes.files or changes.alterations)
        if has_changes:
            [(work, outcome)] = self._apply([self.work(stream, start, to)])
            if not self.commit(work, outcome):
                return False
        self._lane.ledger.write(
            two_phase.finish_stream_round(self._lane.ledger.document, stream, committed=has_changes)
        )
        return True

    def _can_go_on(self, stream: StreamId, start: Lsn, to: Lsn) -> bool:
        """Whether the table can take the range; if not, the stream is set aside with its reason."""
        plan = self._plan_work(stream, start, to)
        change = self._schema_change(stream, plan)
        if stream in self._lane.kept_up:
            return self._keeps_up(stream, plan, change)
        if self._lacks_columns(stream, start, to):
            return False
        if change is not None and not self._lane.may_follow(stream, change):
            return False
        if isinstance(plan, MustReload):
            if plan.first and self._would_append_again(stream):
                first = f"{plan.first}; its rows are appended once more when it is resumed"
                self._lane.pause_to_reload(stream, f"{plan.reason}: {first}", plan.reason)
            else:
                self._lane.reload(stream, plan.reason)
            return False
        self._tell_of_untold(plan)
        return True

    def _would_append_again(self, stream: StreamId) -> bool:
        """Whether a table would get all its rows once more, and so each time until somebody does what is to
        be done; unless that load was decided already, as by resuming it."""
        configured = self._lane.streams[stream]
        return (
            configured.mode == "cdc" and configured.write == "append" and stream not in self._lane.to_reload
        )

    def _tell_of_untold(self, plan: StreamWork) -> None:
        later = untold(plan.rewrite, plan.target.schema)
        for column in later:
            self._lane.listener.note(
                f"{plan.stream}: column {column} is generated and came later; rows from before are null in "
                "it, since no event tells what they have there."
            )
        in_versions = {name for each in plan.columns.values() for name in untold(each, plan.target.schema)}
        for column in sorted(in_versions.difference(later)):
            self._lane.listener.note(
                f"{plan.stream}: column {column} is generated and was not published for a while; what "
                "changed meanwhile is null in it, since no event tells what it has there."
            )

    def _lacks_columns(self, stream: StreamId, start: Lsn, to: Lsn) -> bool:
        """Whether changes come without columns that they should have. Then it stands still, with the way out:
        each further one would come so too, and a load would not help before they are published again."""
        configured, log = self._lane.streams[stream], self._lane.log
        versions = {file.schema_id for file in log.files(stream, start, to).files}
        if not any(configured.selection.unpublished(log.schema(each)) for each in versions):
            return False
        return self._lane.hold_up(self._lane.settings.source.lacking([configured.info]))

    def _keeps_up(self, stream: StreamId, plan: StreamWork | MustReload, change: str | None) -> bool:
        """A table that is loaded anew follows what it can; its successor will meet the rest of the log."""
        evolves = change is None or self._lane.streams[stream].on_schema_change == "evolve"
        if evolves and isinstance(plan, StreamWork):
            return True
        self._lane.kept_up.discard(stream)
        return False

    def _schema_change(self, stream: StreamId, plan: StreamWork | MustReload) -> str | None:
        if isinstance(plan, MustReload):
            return plan.reason if plan.by_schema else None
        record = self._lane.table(stream).record()
        return None if plan.rewrite is None or record is None else words_of(record.schema, plan.rewrite)

    def work(self, stream: StreamId, start: Lsn, to: Lsn) -> StreamWork:
        work = self._plan_work(stream, start, to)
        assert isinstance(work, StreamWork), "asked before the round was prepared"
        return work

    def _plan_work(self, stream: StreamId, start: Lsn, to: Lsn) -> StreamWork | MustReload:
        """A function of the table's record and the log alone, so that recovery comes to the same answer."""
        table = self._lane.table(stream)
        record = table.record()
        assert record is not None, "only a loaded table follows the log"
        configured, log = self._lane.streams[stream], self._lane.log
        plan = plan_round(configured, table, record, log, self._load_shown(stream), start, to)
        emptied = isinstance(plan, StreamWork) and truncated_in_part(log.files(stream, start, to))
        if emptied and stream not in self._lane.kept_up:
            self._lane.reload(stream, "a single partition was truncated")
        return plan

    def _load_shown(self, stream: StreamId) -> LoadRecord | None:
        """The load that the table's rows come from, while the log has not passed its snapshots."""
        state = self._lane.ledger.document.stream(stream)
        return self._lane.records.load(stream) if state is not None and state.has_completed_backfill else None

    def _apply(self, works: Sequence[StreamWork]) -> list[tuple[StreamWork, Outcome]]:
        if not works:
            return []
        for work in works:
            self._lane.listener.stream_started(
                str(work.stream), "apply", sum(file.rows for file in work.changes)
            )
        outcomes = merge(
            self.stages, works, lambda staging: self._told(works, fold(self.stages, works, staging))
        )
        merge_small_files(self.stages, works, outcomes)
        merge_letters(self.stages, works, outcomes)
        for stream, outcome in outcomes.items():
            self._lane.totals[stream].add(outcome)
            self._lane.listener.stream_finished(str(stream), "apply", sum(outcome.operations.values()))
        return [(work, outcomes[work.stream]) for work in works]

    def _told(
        self, works: Sequence[StreamWork], folded: dict[StreamId, list[FoldResult]]
    ) -> dict[StreamId, list[FoldResult]]:
        """What was folded, once the listener knows; finding and replacing rows of the tables comes after."""
        for work in works:
            rows = sum(sum(result.operations.values()) for result in folded[work.stream])
            size = sum(file.bytes for file in work.changes)
            self._lane.listener.progressed(str(work.stream), "apply", rows, size)
        return folded

    def _lacks_values(self, work: StreamWork, outcome: Outcome) -> bool:
        """Whether a row that the table does not have lacks values: then load again.

        Between two reads by pages a row may move to a page that was read before. Its change is in the log,
        but large values that did not change are not. Nobody has seen the table yet. A row that an update
        brings into the stream's filter was not in the table either.
        """
        load = self._load_shown(work.stream)
        resumed = load is not None and len(load.points) > 1
        if not outcome.unresolved or not (resumed or work.target.condition is not None):
            return False
        if self._lane.streams[work.stream].mode == "strict_cdc":
            return False  # rows that the table never had are what it expects
        self._lane.ledger.write(two_phase.set_aside(self._lane.ledger.document, work.stream))
        if work.stream in self._lane.kept_up:
            self._lane.kept_up.discard(work.stream)
            return True
        reason = "rows with large values moved while its load was cut short"
        if not resumed:
            reason = "rows came into its filter and the log lacks large values of theirs"
        self._lane.reload(work.stream, reason)
        return True

    def commit(
        self, work: StreamWork, outcome: Outcome, make: Callable[[StreamWork], Outcome] | None = None
    ) -> bool:
        """Commit what a round wrote; False if it lacks values, now or after it was looked up again.

        `make`: how to write it again; by default, from the log.
        """
        state = self._lane.ledger.document.stream(work.stream)
        assert state is not None
        assert state.generation is not None
        lookups = 1
        while not self._lacks_values(work, outcome):
            try:
                marker = self._marker(work.stream, state.generation, work.after, work.to)
                record = work.commit(outcome, marker, expected_to=state.committed_to)
                self._lane.rounds_heard.committed(work.stream, work.changes, record)
                return True
            except StaleLookupError:
                if lookups == LOOKUPS_MAX:
                    raise
            lookups += 1
            work = self.work(work.stream, work.after, work.to)
            outcome = apply(self.stages, [work])[work.stream] if make is None else make(work)
        return False

    def _marker(self, stream: StreamId, generation: str, start: Lsn, to: Lsn) -> Marker:
        thread_id = cdc_thread_id(stream, generation, start)
        leaves = known_leaves(self._lane.ledger.document, self._lane.streams[stream].info)
        return Marker(
            generation,
            self._lane.settings.epoch,
            start,
            to,
            (thread_id,),
            leaves=leaves,
            timeline=self._lane.settings.timeline,
        )

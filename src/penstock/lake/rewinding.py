"""Applies changes to a table that holds them already: what `penstock state rewind` asks for.

The range is `(to, C]`, where C is the table's own position: all of it in one round and one commit, after
which the table is at C as it was before. Cut into several, the first would take rows back to what they were
in between, for readers to see, and values that a later one tells could no longer be told from ones that never
changed. So the range has a bound, and beyond it the table is better loaded.

Why the end is the same table, but for rows that are not as the log has them: `fold`, *again*. What the range
does not touch stays. A row that lacks a large value takes it from the table's row of the same key; where that
row is gone nobody has the value, and the table is loaded again, unless its rows are nowhere else
(`strict_cdc`). Rows that do not fit are dead letters from the first time. An append table has a row for each
change and would have it twice: it is refused, and so is a range through which the table's columns cannot be
followed, in words that name the way out.

A table that was spoilt may have files that cannot be read, and a range may be more than a task can hold. What
fails before the commit changed nothing; it would fail each time, so it is given up with a note, as is a table
whose files others change as often as we look, and one that refuses the commit for a reason of its own. Not so
for what is no matter of the table: a full disk, a destination that is away, another leader, a run that is to
end. Then the wish stays, and who called begins anew: the table is asked first what it holds, since a commit
may have been made that nobody heard of. And all of it comes after the rounds, so that none waits.

The state's part, and what a crash leaves: `ledger/rewinding.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock import failpoints
from penstock.core.errors import (
    CommitConflictError,
    DestinationAwayError,
    DestinationError,
    LogGoneError,
    SourceError,
    StaleLookupError,
    StaleTermError,
    StorageError,
    told_of,
)
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.records import Marker
from penstock.lake.apply import ROUND_BYTES_MAX, Outcome, StreamWork, apply
from penstock.lake.buckets import IndivisibleError
from penstock.lake.lane_state import LaneState
from penstock.lake.light import Stages
from penstock.lake.rewind_range import why_not
from penstock.lake.round_plan import plan_round
from penstock.lake.work import MustReload
from penstock.ledger import rewinding
from penstock.ledger.state import StreamState
from penstock.ledger.threads import new_generation
from penstock.logs import log_unexpected

LOOKUPS_MAX = 5  # while somebody else changes the table's files
_LOG_GONE = "the change log no longer has all of it"
#: What these tell of is no matter of the table, which can take the log again afterwards.
_OF_OTHERS = (CommitConflictError, DestinationAwayError, SourceError, StaleTermError, StorageError)
MakeMarker = Callable[[StreamId, str, Lsn, Lsn], Marker]


class Rewinds:
    """`marker`: that of a round, by stream, generation, start and end."""

    def __init__(self, lane: LaneState, stages: Stages, marker: MakeMarker) -> None:
        self._lane = lane
        self._stages = stages
        self._marker = marker

    def carry_out(self) -> None:
        """What was asked for, of streams that are loaded and stand between two rounds."""
        asked = [state for state in self._lane.ledger.document.stream_states if state.rewind is not None]
        for stream in (state.stream for state in asked):
            if self._lane.leaves_off():
                return
            with self._lane.rounds:
                state = self._lane.ledger.document.stream(stream)
                if state is not None and self._is_free(state):
                    self._rewind(state)

    def _is_free(self, state: StreamState) -> bool:
        """Whether nothing else is under way with the table; what is loaded anew forgets what was asked."""
        lane, document = self._lane, self._lane.ledger.document
        if state.stream not in lane.streams or state.stream in lane.being_loaded | lane.to_reload:
            return False
        is_between = state.next_cdc_pos is None and state.stream not in document.processing
        is_shown = state.has_completed_backfill and lane.records.load(state.stream) is None
        return is_between and is_shown and state.paused is None and state.reload is None

    def _rewind(self, state: StreamState) -> None:
        lane, stream, wanted = self._lane, state.stream, state.rewind
        assert wanted is not None
        work = self._work(state, wanted.to)
        if isinstance(work, Refused):
            self._give_up(stream, wanted.to, work)
            return
        generation = wanted.generation or new_generation(lane.settings.origin)
        lane.ledger.write(rewinding.prepared(lane.ledger.document, stream, generation))
        failpoints.reach("rewind.prepared")
        lane.listener.stream_started(str(stream), "apply", sum(file.rows for file in work.changes))
        refused = self._commit(state, work, generation)
        if refused is not None:
            self._give_up(stream, wanted.to, refused)
            return
        failpoints.reach("rewind.committed")
        lane.ledger.write(rewinding.done(lane.ledger.document, stream, wanted.to))
        failpoints.reach("rewind.done")
        lane.listener.note(
            f"{stream}: the log after {wanted.to} is applied to its table once more, up to {work.to}."
        )

    def _commit(self, state: StreamState, work: StreamWork, generation: str) -> Refused | None:
        """None, or why nothing was committed and nothing will be."""
        for _ in range(LOOKUPS_MAX):
            for file in work.files:  # rows may be elsewhere in it than its index has them
                work.table.index_path(file).unlink(missing_ok=True)
            outcome = self._applied(work)
            if isinstance(outcome, Refused):
                return outcome
            if outcome.unresolved:
                return Refused("it lacks large values of rows that the table has not either", reloads=True)
            failpoints.reach("rewind.written")
            try:
                marker = self._marker(work.stream, generation, work.after, work.to)
                work.commit(outcome, marker, expected_to=state.committed_to, rewinds=state.generation)
            except StaleLookupError:
                work = self._looked_up_again(work)
                continue
            except DestinationError as error:
                if isinstance(error, _OF_OTHERS):
                    raise
                if not _has_taken(work, generation):
                    return _refused_by("committing it", error)
            self._lane.totals[work.stream].add(outcome)
            self._lane.listener.stream_finished(str(work.stream), "apply", sum(outcome.operations.values()))
            return None
        return Refused(f"others changed the table's files meanwhile, {LOOKUPS_MAX} times in a row")

    def _looked_up_again(self, work: StreamWork) -> StreamWork:
        record = work.table.record()
        assert record is not None
        return replace(work, files=work.table.files(record), read_from=record.snapshot_id)

    def _work(self, state: StreamState, start: Lsn) -> StreamWork | Refused:
        lane, stream, to = self._lane, state.stream, state.committed_to
        configured, table = lane.streams[stream], lane.table(stream)
        record = table.record()
        if record is None or record.marker is None or to is None:
            return Refused("it has no table that follows the log")
        if configured.write == "append":
            return Refused("each of its changes would be there twice, since it is an append table")
        if state.replayable_from is None or start < state.replayable_from:
            return Refused("that is before the log alone made the table what it is")
        if start >= to:
            return Refused(f"the table is at {to}, which is not after that")
        try:
            changes = lane.log.files(stream, start, to)
        except LogGoneError:
            return Refused(_LOG_GONE)
        reason = why_not(
            changes,
            lambda schema_id: configured.selection.of(lane.log.schema(schema_id)),
            keeps_older_rows=configured.keeps_older_rows,
            keeps_deleted=configured.soft_deletes,
        )
        if reason is not None:
            return Refused(reason)
        try:
            plan = plan_round(configured, table, record, lane.log, None, start, to)
        except LogGoneError:
            return Refused(_LOG_GONE)
        if isinstance(plan, MustReload):
            return Refused(plan.reason)
        if plan.rewrite is not None:
            return Refused("its columns were others then, and changed back")
        return replace(plan, again=True)

    def _applied(self, work: StreamWork) -> Outcome | Refused:
        """What the log makes of the table. Files of the log may go meanwhile: no lane needs them, so that
        nothing but their age holds them."""
        try:
            return apply(self._stages, [work])[work.stream]
        except IndivisibleError:
            return Refused(
                "keys of rows changed whose large values were not sent again, so that it can only be taken "
                f"whole, and it has {work.change_bytes:,} bytes of changes; {ROUND_BYTES_MAX:,} are the most"
            )
        except Exception as error:
            if isinstance(error, _OF_OTHERS) or _is_disk_full(error) or self._lane.leaves_off():
                raise
            try:
                self._lane.log.files(work.stream, work.after, work.to)
            except LogGoneError:
                return Refused(_LOG_GONE)
            return _refused_by("applying it", error)

    def _give_up(self, stream: StreamId, to: Lsn, refused: Refused) -> None:
        """Forget the wish, with the table as it was; where only a load is left, that is durable before."""
        lane, only_rows = self._lane, self._lane.streams[stream].mode == "strict_cdc"
        if refused.reloads and not only_rows:
            lane.reload(stream, f"of the log after {to}, {refused.reason}")
            lane.ledger.write(rewinding.given_up(lane.ledger.document, stream))
            return
        lane.ledger.write(rewinding.given_up(lane.ledger.document, stream))
        way_out = "begins it anew, empty" if only_rows else "loads it anew"
        lane.listener.note(
            f"{stream}: the log after {to} is not applied again: {refused.reason}. Its table stays as it "
            f"was; `penstock resync {stream}` {way_out}."
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """`reloads`: the table is loaded again for it, if the source has its rows."""

    reason: str
    reloads: bool = False


def _refused_by(doing: str, error: Exception) -> Refused:
    log_unexpected("applying the log again", error)
    told = told_of(doing, error)
    message = told.message.removesuffix(".")
    if not message.startswith("Iceberg"):  # a name
        message = message[:1].lower() + message[1:]
    return Refused(f"{message} ({told.detail.removesuffix('.')})" if told.detail else message)


def _has_taken(work: StreamWork, generation: str) -> bool:
    """Whether a commit was made all the same: it failed after it."""
    record = work.table.record()
    return record is not None and record.marker is not None and record.marker.generation == generation


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)

"""What becomes of each event on its way to a target that takes records: the decisions of one thread.

An event is here from `take` until it is at the target, or durable as a dead letter: then, and not before, its
number is marked and its room in the queue is given back. `reached` is what follows: the end of the last whole
transaction before which nothing is under way.

A record that fails for a reason of its own, as far as the target says, is a dead letter after a number of
attempts. Each must be borne out: after the first, an attempt counts if the part of the target that the record
belongs to (a shard) has taken others since the last one that did. A part that takes nothing is in trouble
itself, whatever it says of each record, and however well the others are: it is tried without end (correctness
50), and the position is held. So is a record that fails where nobody else sends anything.

While the position is held, others go past: a bit is remembered of each, and of each batch where it ends. When
`AheadLimits` of them have, the flow `is_full`, and nothing more is to be given to it until the oldest event
that is under way has arrived. So it is while letters are replayed, since nothing is noted meanwhile, and all
that was sent would have to be read back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import structlog

from penstock import failpoints
from penstock.core.errors import StaleTermError, TargetError
from penstock.streams.ack_tracker import AckTracker
from penstock.streams.batcher import MicroBatcher
from penstock.streams.blocked_keys import BEHIND_ANOTHER, Rows, Why
from penstock.streams.call_order import CallOrder
from penstock.streams.dead_letters import Dead, DeadLetters
from penstock.streams.error_classes import ErrorClass
from penstock.streams.events import Batch, Events, Int64s
from penstock.streams.parcels import Parcel
from penstock.streams.publish_measures import PublishMeasures
from penstock.streams.publisher import Standing
from penstock.streams.record_call import Answer
from penstock.streams.replays import Portion
from penstock.streams.retry import RetryPolicy
from penstock.streams.trouble import TroubleMet

_logger = structlog.get_logger("penstock.streams")


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """How many may be beyond the oldest event that is under way: about 1 and 400 bytes for each."""

    events: int = 1_000_000
    batches: int = 100_000


@dataclass(frozen=True, slots=True)
class _Span:
    """A batch that has not been passed: the numbers of its events, and what holds behind it."""

    first: int
    after: int
    batch: int
    end: Standing | None  # None: more of its transaction is to come


def room_of(batch: Batch) -> int:
    """How much room a batch takes in the queue: as many as its events, and one if there is none."""
    return len(batch) or 1


class RecordFlow:
    """`task_done` is told what needs no room in the queue any more: how many events, how many bytes."""

    def __init__(
        self,
        letters: DeadLetters,
        classify: Callable[[str, str], ErrorClass],
        retry: RetryPolicy,
        measures: PublishMeasures,
        trouble: TroubleMet,
        letter_trouble: TroubleMet,
        task_done: Callable[[int, int], None],
        ahead: AheadLimits,
    ) -> None:
        self._letters = letters
        self._classify = classify
        self._retry = retry
        self._measures = measures
        self._trouble, self._letter_trouble = trouble, letter_trouble
        self._task_done = task_done
        self._ahead = ahead
        self._order = CallOrder(self._take_out)
        self._dead: list[tuple[Parcel, list[Why]]] = []
        self._spans: deque[_Span] = deque()
        self._portion: Portion | None = None
        self._replaying: set[int] = set()
        self._replay_since = 0  # the number of the first event that came after the letters
        self._hold_until, self._held, self._is_held = 0.0, 0, False
        self._answers = 0
        self._took: dict[int, int] = {}  # each part of the target, and the last answer by which it took some

    def begin(self, standing: Standing) -> None:
        self._tracker = AckTracker(standing.position)
        self._newest = self.reached = standing

    @property
    def reached_id(self) -> int:
        return self._tracker.frontier_id - 1

    @property
    def newest_id(self) -> int:
        return self._tracker.next_id - 1

    @property
    def calls_under_way(self) -> int:
        return self._order.calls_under_way

    @property
    def is_replaying(self) -> bool:
        return self._portion is not None

    @property
    def is_full(self) -> bool:
        """Never while nothing is under way: then only the rest of a transaction can move anything."""
        ahead = self._tracker.next_id - self._tracker.open_id
        is_full = ahead > 0 and (ahead >= self._ahead.events or len(self._spans) >= self._ahead.batches)
        if self.is_replaying:
            is_full |= self._tracker.next_id - self._replay_since >= self._ahead.events
            self._letter_trouble.is_full(is_full)
        self._trouble.is_full(is_full)
        return is_full

    def take(self, batch: Batch, sizes: list[Int64s], now: float) -> None:
        self._letters.saw(len(batch))
        first = self._tracker.register_many(batch.end, len(batch), is_last=batch.is_last)
        loads = self._newest.loads if batch.loads is None else batch.loads
        number = self._newest.batches + 1
        self._newest = replace(self._newest, position=batch.end, loads=loads, batches=number)
        end = self._newest if batch.is_last else None
        if len(batch):
            self._spans.append(_Span(first, first + len(batch), number, end))
        else:
            self._task_done(room_of(batch), 0)
            self._end_with(end)
        for events, its_sizes in zip(batch.events, sizes, strict=True):
            if len(events):
                ids = np.arange(first, first + len(events))
                self._order.add(Parcel.of(events, ids, its_sizes), now)
                first += len(events)
        self._advance()

    def _end_with(self, end: Standing | None) -> None:
        """A batch without events: what holds behind it holds behind the events before it, and needs no span
        of its own, of which there would be more and more while an event is held."""
        if end is not None and self._spans:
            self._spans[-1] = replace(self._spans[-1], end=end)
        elif end is not None:
            self.reached = end

    def replay(self, portion: Portion, sizes: Callable[[Events], Int64s], now: float) -> None:
        """Send these; until they are there or are kept, `is_replaying`."""
        self._portion = portion
        self._replay_since = self._tracker.next_id
        self._replaying = {letter.number for letter in portion.letters}
        for events, numbers in portion.parts():
            self._order.add(Parcel.of(events, -np.array(numbers, np.int64), sizes(events)), now)

    def next_call(self, batcher: MicroBatcher, now: float) -> tuple[int, Parcel] | None:
        self._is_held = now < self._hold_until
        return None if self._is_held else self._order.next_call(batcher, now)

    def wait_s(self, now: float, most_s: float) -> float:
        """How long until `next_call` may have a call that it did not have before."""
        if self._is_held:
            return max(0.0, min(most_s, self._hold_until - now))
        return self._order.wait_s(now, most_s)

    def settle(self, call: int, answer: Answer, now: float) -> None:
        """What the answer to a call means for each of its events."""
        self._order.ended(call)
        parcel = answer.parcel
        if answer.error is not None:
            if not isinstance(answer.error, TargetError):
                raise answer.error
            self._measures.retried()
            _logger.warning("the target takes nothing, trying again", said=answer.error.message)
            self._hold(now)
            self._done(parcel.take(answer.found))
            if parcel.is_replay:
                self._letter_trouble.met(answer.error.message)
            elif self._oldest(parcel) is not None:
                self._trouble.met(answer.error.message)
            self._again(parcel.without(answer.found), now)
            return
        away = np.union1d(answer.missing, np.array(list(answer.failed), np.intp)).astype(np.intp)
        self._answers += 1
        taken = np.delete(answer.places, np.union1d(away, answer.found).astype(np.intp))
        self._took |= dict.fromkeys(np.unique(taken).tolist(), self._answers)
        self._done(parcel.without(away))
        self._settle_failed(parcel, answer, now)

    def bury(self) -> None:
        """Make dead letters durable; only then are their events done with."""
        if not self._dead:
            return
        firsts = np.array([span.first for span in self._spans])
        batches = np.array([span.batch for span in self._spans])
        letters = []
        for parcel, why in self._dead:
            span = np.searchsorted(firsts, parcel.ids, side="right") - 1
            letters.append(Dead(parcel.events, why, batches[span], parcel.ids - firsts[span]))
        self._letters.write(letters)
        failpoints.reach("streams.letter_written")
        dead, self._dead = self._dead, []
        for parcel, _ in dead:
            self._done(parcel)

    def _settle_failed(self, parcel: Parcel, answer: Answer, now: float) -> None:
        classes = {row: self._classify(*why) for row, why in answer.failed.items()}
        if ErrorClass.STALE in classes.values():
            raise StaleTermError("A later leader writes to the target.")
        rows = [row for row, of in classes.items() if of in (ErrorClass.RECORD, ErrorClass.POISON)]
        borne_out = self._borne_out(parcel, answer, rows)
        parcel = _refused(parcel, rows, borne_out, self._answers)
        fallen = {
            row: (*answer.failed[row], int(parcel.attempts[row]))
            for row, of in classes.items()
            if of is ErrorClass.POISON
            or (of is ErrorClass.RECORD and row in borne_out and self._is_exhausted(parcel, row))
        }
        again = np.array(sorted({*answer.missing.tolist(), *classes} - fallen.keys()), np.intp)
        if 2 * sum(of is ErrorClass.TARGET for of in classes.values()) > len(parcel):
            self._hold(now)
        elif not len(answer.missing):
            self._held = 0
        self._refuse(parcel, dict(sorted(fallen.items())))
        if len(again):
            self._measures.retried()
            self._meet(parcel, answer, again)
            self._again(parcel.take(again), now)

    def _borne_out(self, parcel: Parcel, answer: Answer, rows: Sequence[int]) -> set[int]:
        """Those that were refused by a part of the target which has taken others since the last time that
        counted, or takes some by this answer."""
        before = np.where(parcel.refused_at < 0, self._answers - 1, parcel.refused_at)
        return {row for row in rows if self._took.get(int(answer.places[row]), -1) > before[row]}

    def _is_exhausted(self, parcel: Parcel, row: int) -> bool:
        return self._retry.is_exhausted(int(parcel.attempts[row]))

    def _refuse(self, parcel: Parcel, fallen: dict[int, Why]) -> None:
        if not fallen:
            return
        rows = np.fromiter(fallen, np.intp, len(fallen))
        if parcel.is_replay:
            assert self._portion is not None
            numbers = dict(zip((-parcel.ids[rows]).tolist(), fallen.values(), strict=True))
            self._keep(numbers)
        else:
            self._letters.blocked.fall(parcel.events, fallen)
            self._dead.append((parcel.take(rows), list(fallen.values())))

    def _keep(self, refused: dict[int, Why]) -> None:
        """Letters that were refused again stay, and those behind them in their keys."""
        assert self._portion is not None
        before = {letter.number for letter in self._portion.letters}
        self._portion = self._letters.replays.keep(self._portion, refused)
        staying = before - {letter.number for letter in self._portion.letters}
        self._order.remove(-np.array(sorted(staying), np.int64))
        self._replaying -= staying
        self._end_replay()

    def _end_replay(self) -> None:
        if self._portion is not None and not self._replaying:
            failpoints.reach("streams.letter_replayed")
            self._letter_trouble.over()
            self._letters.replays.done(self._portion)
            self._portion = None

    def _done(self, parcel: Parcel) -> None:
        if not len(parcel):
            return
        if parcel.is_replay:
            self._replaying -= set((-parcel.ids).tolist())
            self._end_replay()
        else:
            open_id = self._tracker.open_id
            self._tracker.mark_many(parcel.ids)
            if self._tracker.open_id > open_id:
                self._trouble.over()
            self._task_done(len(parcel), int(parcel.sizes.sum()))
            self._advance()

    def _again(self, parcel: Parcel, now: float) -> None:
        if len(parcel):
            parcel = replace(parcel, failures=parcel.failures + 1)
            self._order.again(parcel, now + self._retry.pause_s(int(parcel.failures.max())))

    def _meet(self, parcel: Parcel, answer: Answer, again: Rows) -> None:
        """Some of these are tried again: why, if they hold the position."""
        stream, said = str(parcel.events.stream), answer.failed
        if parcel.is_replay:
            failed = [row for row in again.tolist() if row in said]
            if failed:
                self._letter_trouble.met(said[failed[0]][0], stream)
        elif (oldest := self._oldest(parcel)) is not None and oldest in said:
            self._trouble.met(said[oldest][0], stream)

    def _oldest(self, parcel: Parcel) -> int | None:
        """The row of the event that holds the position, if it is here."""
        rows = np.flatnonzero(parcel.ids == self._tracker.open_id)
        return int(rows[0]) if len(rows) else None

    def _hold(self, now: float) -> None:
        """No calls for a while: the target takes little or nothing."""
        self._held += 1
        self._hold_until = now + self._retry.pause_s(self._held)

    def _advance(self) -> None:
        while self._spans and self._spans[0].after <= self._tracker.frontier_id:
            span = self._spans.popleft()
            if span.end is not None:
                self.reached = span.end

    def _take_out(self, parcel: Parcel, rows: Rows, first: bool) -> Rows:
        """Events that must not be sent become dead letters: which of these rows.

        Whatever is of a blocked key joins its letters; what is refused already falls once it is the first of
        its key here, so that nothing before it is taken for something behind it.
        """
        if parcel.is_replay or not self._letters.concerns(parcel.events):
            return rows[:0]
        events = parcel.events.take(rows)
        if first:
            fallen = self._letters.refused(events)
            self._letters.blocked.fall(events, fallen)
        else:
            fallen = dict.fromkeys(self._letters.blocked.rows(events).tolist(), BEHIND_ANOTHER)
        gone = rows[np.fromiter(fallen, np.intp, len(fallen))]
        if len(gone):
            self._dead.append((parcel.take(gone), list(fallen.values())))
        return gone


def _refused(parcel: Parcel, rows: Sequence[int], borne_out: AbstractSet[int], answer: int) -> Parcel:
    """With one more attempt of each record that was refused for a reason of its own, as far as one counts."""
    counting = [row for row in rows if parcel.refused_at[row] < 0 or row in borne_out]
    if not counting:
        return parcel
    attempts, refused_at = parcel.attempts.copy(), parcel.refused_at.copy()
    attempts[counting] += 1
    refused_at[counting] = answer
    return replace(parcel, attempts=attempts, refused_at=refused_at)

"""Publishing to a target that takes records one by one and says of each what became of it (`RecordTarget`).

Why nothing is lost: an event counts as done when the target has confirmed it, was found to have it, or it is
a dead letter on disk; the standing moves to the end of the last whole transaction before which all are done
(`ack_tracker`), and only what the target has noted durably is told to anybody.

Why nothing is doubled: what lies behind the noted standing is read back when a term begins, and what is there
is not sent. A call whose answer was lost is read back before anything of it is sent again.

Why order holds: see `call_order`. One thread decides (`record_flow`); calls are made by a few others, which
decide nothing. While replayed dead letters are under way nothing is noted, so that after a crash they are
read back too, and those that arrived are taken out of the file.

Why it stays small: events under way have room in the queue, and events that went past one that is tried
again and again are few enough to be remembered (`AheadLimits`); beyond that nothing is taken out of the
queue, which fills up, and the lane waits.

Cost: about 2 µs per event beside the target's call, while no key is blocked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock import failpoints
from penstock.core.errors import TargetError
from penstock.metrics import Sample
from penstock.streams.batcher import MicroBatcher
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.error_classes import ErrorClass
from penstock.streams.events import Batch, Int64s
from penstock.streams.inflight import QueueLimits
from penstock.streams.parcels import Parcel
from penstock.streams.publisher import Standing, StoppedError, Term
from penstock.streams.publishing_thread import PublishingThread
from penstock.streams.record_call import Answer, RecordCall
from penstock.streams.record_flow import AheadLimits, RecordFlow, room_of
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import RecordTarget
from penstock.streams.trouble import Trouble, TroubleMet

_BATCHES_AT_ONCE = 1000
_THREADS_MAX = 64  # made when calls need them: the target says how many at once, and may say more later
_logger = structlog.get_logger("penstock.streams")


class RecordPublisher(PublishingThread[RecordTarget, tuple[Batch, list[Int64s]]]):
    """See `Publisher`. It has a thread of its own from `begin` to `close`, and others that make calls."""

    def __init__(
        self,
        target: RecordTarget,
        letters: DeadLetters,
        classify: Callable[[str, str], ErrorClass],
        retry: RetryPolicy | None = None,
        queue: QueueLimits | None = None,
        note_every_s: float = 1.0,
        linger_s: float = 0.0,
        ahead: AheadLimits | None = None,
        *,
        requests_every_s: float = 0.5,
    ) -> None:
        super().__init__(target, letters, queue)
        self._retry = retry or RetryPolicy()
        self._note_every_s = note_every_s
        self._linger_s = linger_s
        self._requests_every_s = requests_every_s
        self._letter_trouble = TroubleMet()
        self._flow = RecordFlow(
            letters,
            classify,
            self._retry,
            self._measures,
            self._trouble,
            self._letter_trouble,
            self._queue.task_done,
            ahead or AheadLimits(),
        )
        self._call = RecordCall(
            target, self._retry, self._measures, self._trouble, self._letter_trouble, self._stopped
        )
        self._answers: deque[tuple[int, Answer]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._note_at, self._note_failures, self._requests_at = 0.0, 0, 0.0

    @property
    def trouble(self) -> Trouble | None:
        """Letters that are replayed hold the position too: nothing is noted meanwhile."""
        return self._trouble.trouble or self._letter_trouble.trouble

    def open(self, term: Term) -> Standing | None:
        try:
            self._standing = self._target.open(term)
        finally:
            self._measures.unproved(self._target.unproven)
        self._begun_at = self._letters.begin(term, self._standing, self._target.is_there)
        return self._standing

    def publish(self, batch: Batch) -> None:
        sizes = [self._target.sizes(events) for events in batch.events]
        self._hand_over((batch, sizes), room_of(batch), sum(int(each.sum()) for each in sizes))

    def samples(self) -> list[Sample]:
        in_flight = self._queue.count, self._queue.bytes
        return self._measures.samples(self._letters.counts, len(self._letters.blocked), in_flight)

    def _prepare(self, standing: Standing) -> None:
        self._flow.begin(standing)
        self._pool = ThreadPoolExecutor(_THREADS_MAX, f"send-{self._letters.lane}")

    def _wind_up(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _turn(self) -> None:
        if self._flow.is_full:
            self._queue.rest(self._patience_s())
        else:
            self._take(self._queue.get(self._patience_s()))
        while self._answers:
            call, answer = self._answers.popleft()
            self._flow.settle(call, answer, time.monotonic())
        self._start_calls()
        self._flow.bury()
        self._note_if_due()
        self._serve_requests()

    def _take(self, arrived: tuple[Batch, list[Int64s]] | None) -> None:
        for more in reversed(range(_BATCHES_AT_ONCE)):
            if arrived is None:
                break
            self._flow.take(*arrived, time.monotonic())
            arrived = self._queue.get() if more and not self._flow.is_full else None

    def _start_calls(self) -> None:
        limits = self._target.limits
        batcher = self._batcher()
        while self._flow.calls_under_way < max(1, limits.calls):
            chosen = self._flow.next_call(batcher, time.monotonic())
            if chosen is None:
                return
            assert self._pool is not None
            call, parcel = chosen
            last = self._flow.newest_id if parcel.is_replay else int(parcel.ids.max())
            self._pool.submit(self._make_call, call, parcel, last)

    def _make_call(self, call: int, parcel: Parcel, last: int) -> None:
        self._answers.append((call, self._call.make(parcel, last)))
        self._queue.poke()

    def _note_if_due(self) -> None:
        reached = self._flow.reached
        if reached is self._standing or self._flow.is_replaying:
            return
        if self._note_wait_s() > 0:
            return
        try:
            self._target.note(reached, self._flow.reached_id)
        except TargetError as error:
            self._note_failures += 1
            self._trouble.met(error.message)
            self._note_at = time.monotonic() + self._retry.pause_s(self._note_failures)
            _logger.warning("the target cannot note its position, trying again", said=error.message)
            return
        failpoints.reach("streams.record_noted")
        if self._note_failures:
            self._trouble.over()
        self._note_at, self._note_failures = time.monotonic() + self._note_every_s, 0
        self._moved_to(reached)

    def _write_down(self, standing: Standing) -> None:
        failures = 0
        while True:
            try:
                self._target.note(standing, -1)
                self._trouble.over()
                return
            except TargetError as error:
                failures += 1
                self._trouble.met(error.message)
                _logger.warning("the target cannot note its position, trying again", said=error.message)
                if self._stopped.wait(self._retry.pause_s(failures)):
                    raise StoppedError from error

    def _serve_requests(self) -> None:
        """Replay or drop dead letters, if somebody has asked."""
        if self._flow.is_replaying or time.monotonic() < self._requests_at:
            return
        self._requests_at = time.monotonic() + self._requests_every_s
        portion = self._letters.replays.next(self.standing.batches, self.standing.replays + 1)
        if portion is not None:
            self._flow.replay(portion, self._target.sizes, time.monotonic())
            self._requests_at = 0.0
            self._queue.poke()

    def _patience_s(self) -> float:
        """Until something is to be done that nobody pokes for."""
        now = time.monotonic()
        wait_s = self._requests_every_s if self._flow.is_replaying else max(0.0, self._requests_at - now)
        if self._flow.calls_under_way < max(1, self._target.limits.calls):
            wait_s = self._flow.wait_s(now, wait_s)
        if self._flow.reached is not self._standing and not self._flow.is_replaying:
            wait_s = min(wait_s, self._note_wait_s())
        return wait_s

    def _note_wait_s(self) -> float:
        if self._is_draining and not self._note_failures:
            return 0.0
        return max(0.0, self._note_at - time.monotonic())

    def _batcher(self) -> MicroBatcher:
        limits = self._target.limits
        return MicroBatcher(limits.records, limits.bytes, self._linger_s)

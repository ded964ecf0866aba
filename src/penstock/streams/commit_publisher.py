"""Publishing to a target that takes events and standing at once, all or nothing (`CommitTarget`).

Why nothing is lost or doubled: a commit holds whole batches of whole source transactions and the standing
behind them, so target and position move together; a crash leaves both as they were, or neither. Events that
cannot be sent are dead letters on disk before the commit that passes them, and count only if it happened
(`dead_letters`). Order is the order of writing, by one thread.

Group commit: while a commit is under way the next batches wait in the queue, and go together into the next
one; an idle lane commits each batch at once. A commit ends where a source transaction does, never in between.
A position without events is committed once a second at most.

Cost: nothing per event, while no key is blocked; the target's own call is all there is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from penstock.metrics import Sample
from penstock.streams.commit_writer import CommitWriter
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.events import Batch
from penstock.streams.inflight import QueueLimits
from penstock.streams.publisher import Standing, Term
from penstock.streams.publishing_thread import PublishingThread
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import CommitTarget
from penstock.streams.trouble import TroubleMet

_IDLE_COMMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """When no more batches join a commit; twice these bytes are kept, to write it again."""

    count: int = 100_000
    bytes: int = 16 * 1024 * 1024


class CommitPublisher(PublishingThread[CommitTarget, Batch]):
    """See `Publisher`. After `begin` the target is called by a thread of its own, until `close`.

    `trouble`: where a target says what it waits for, if its calls may last long.
    """

    def __init__(
        self,
        target: CommitTarget,
        letters: DeadLetters,
        retry: RetryPolicy | None = None,
        queue: QueueLimits | None = None,
        commit: CommitLimits | None = None,
        *,
        requests_every_s: float = 0.5,
        trouble: TroubleMet | None = None,
    ) -> None:
        super().__init__(target, letters, queue, trouble)
        self._limits = commit or CommitLimits()
        self._requests_every_s = requests_every_s
        self._writer = CommitWriter(
            target,
            letters,
            retry or RetryPolicy(),
            2 * self._limits.bytes,
            self._measures,
            self._trouble,
            self._stopped,
        )
        self._next: Standing | None = None  # what the target holds after the open commit
        self._is_whole = True  # the open commit ends with a whole transaction
        self._batches = 0  # taken, over all terms
        self._committed_at, self._requests_at = 0.0, 0.0

    def open(self, term: Term) -> Standing | None:
        self._standing = self._target.open(term)
        self._begun_at = self._batches = self._letters.begin(term, self._standing)
        return self._standing

    def begin(self, standing: Standing) -> None:
        super().begin(replace(standing, letters=self._letters.mark))

    def publish(self, batch: Batch) -> None:
        self._hand_over(batch, len(batch) + 1, batch.bytes)  # one without events takes room too

    def samples(self) -> list[Sample]:
        in_flight = self._queue.count, self._queue.bytes
        return self._measures.samples(self._letters.counts, len(self._letters.blocked), in_flight)

    def _write_down(self, standing: Standing) -> None:
        self._writer.commit(standing)

    def _prepare(self, standing: Standing) -> None:
        self._next = standing

    def _turn(self) -> None:
        """Take one more batch, or end the commit, or look around."""
        if self._next is self._standing and self._is_whole:
            self._serve_requests()
        batch = self._queue.get(self._patience_s())
        if batch is not None:
            self._take(batch)
        has_more = batch is not None and not self._is_full()
        if self._is_whole and self._next is not self._standing and not has_more and self._patience_s() <= 0:
            assert self._next is not None
            self._commit(self._next)

    def _take(self, batch: Batch) -> None:
        self._batches += 1
        size = batch.bytes
        self._writer.write(self._batches, batch.events)
        assert self._next is not None
        loads = self._next.loads if batch.loads is None else batch.loads
        self._next = replace(self._next, position=batch.end, loads=loads, batches=self._batches)
        self._is_whole = batch.is_last
        self._queue.task_done(len(batch) + 1, size)

    def _commit(self, standing: Standing) -> None:
        self._writer.commit(standing)
        self._committed_at = time.monotonic()
        self._moved_to(standing)

    def _is_full(self) -> bool:
        return self._writer.count >= self._limits.count or self._writer.bytes >= self._limits.bytes

    def _patience_s(self) -> float:
        """How long to wait for another batch before something else is to be done."""
        if not self._is_whole or self._next is self._standing:
            return self._requests_every_s
        if self._writer.count or self._is_draining:
            return 0.0
        return self._committed_at + _IDLE_COMMIT_S - time.monotonic()

    def _serve_requests(self) -> None:
        """Replay or drop dead letters, if somebody has asked: between two commits."""
        if time.monotonic() < self._requests_at:
            return
        standing = self.standing
        portion = self._letters.replays.next(standing.batches, standing.replays + 1)
        if portion is None:
            self._requests_at = time.monotonic() + self._requests_every_s
            return
        standing = replace(standing, replays=portion.replay)
        if self._writer.replay(portion, standing):
            self._standing = self._next = standing

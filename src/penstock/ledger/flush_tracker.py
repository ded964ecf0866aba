"""One safe position for many consumers: up to where everything that was handed out is durable somewhere.

A transaction is handed to the consumers that it concerns; each of them says how far it has flushed, in its
own time. The position that may be given up behind us is the least of those behind, and never goes back.

Why nothing is given up that somebody still needs:

1. A consumer enters when a transaction is handed to it, with "everything before this transaction": it was
   handed nothing in between. It leaves when it has flushed the last that it was handed. So whoever is not
   tracked needs nothing up to `last_seen_offset`.
2. While somebody is behind, what is reported lies below the transaction of the least flushed offset: a flush
   may end in the midst of a transaction, and half of one is not flushed (`tx - 1`). Nobody behind: the last
   transaction itself.
3. A keepalive's position is reported only while nobody is behind: otherwise a transaction below it may
   still be unflushed.
4. A notice may overtake the transaction that it speaks of. It is kept until that is handed out, and counts
   then; a consumer that had nothing to write says so at once.

The consumers behind and the heap over them change together. The heap drops entries that no longer hold when
they come up, and is made anew when most of it is such, so a step costs O(log n) and memory is bounded by
the number of consumers.

The same class serves both levels (correctness 44): capture tracks lanes, the live lane tracks shapes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.offset import LogOffset

_SPARE_ENTRIES = 64


@dataclass(slots=True)
class _Behind:
    sent: LogOffset
    flushed: LogOffset
    since: float  # when it last made progress, or got something to make it with
    asked: bool = False


class FlushTracker:
    """Offsets are handed out in their order. `now` is any clock that does not go back."""

    def __init__(self, flushed: LogOffset) -> None:
        self.last_seen_offset = flushed
        self._reported = int(flushed.tx)
        self._behind: dict[str, _Behind] = {}
        self._heap: list[tuple[LogOffset, str]] = []
        self._early: dict[str, LogOffset] = {}

    @property
    def flushed(self) -> int:
        """What may be given up behind us: a `tx`, or one below it."""
        return self._reported

    @property
    def is_level(self) -> bool:
        """Whether everything that was handed out is flushed."""
        return not self._behind

    def behind(self) -> dict[str, LogOffset]:
        """How far those have come that are behind."""
        return {consumer: each.flushed for consumer, each in self._behind.items()}

    def hold(self, consumer: str, flushed: LogOffset, now: float = 0.0) -> None:
        """Know a consumer from before: it needs everything after `flushed` again."""
        if flushed < self.last_seen_offset:
            self._put(consumer, _Behind(self.last_seen_offset, flushed, now))

    def transaction(self, last: LogOffset, consumers: Iterable[str], now: float = 0.0) -> None:
        """A transaction that ends with `last` is handed to these. `transactions` does it for a batch."""
        self.transactions(int(last.tx), last, consumers, now)

    def transactions(
        self, first_tx: int, last: LogOffset, consumers: Iterable[str], now: float = 0.0
    ) -> None:
        """Transactions from `first_tx` to the one that ends with `last` are handed to each of these."""
        if last <= self.last_seen_offset or first_tx <= self.last_seen_offset.tx:
            raise ValueError("transactions are handed out in their order, each once")
        before = LogOffset(first_tx - 1, math.inf)
        for consumer in consumers:
            early = self._early.pop(consumer, before)
            if early >= last:
                if early > last:
                    self._early[consumer] = early
                continue
            tracked = self._behind.get(consumer)
            if tracked is None:
                self._put(consumer, _Behind(last, max(before, early), now))
            else:
                tracked.sent = last
        self.last_seen_offset = last
        self._report()

    def notify_flushed(self, consumer: str, offset: LogOffset, now: float = 0.0) -> None:
        """A consumer holds everything up to `offset`. Going back is not news."""
        if offset > self.last_seen_offset:
            self._early[consumer] = max(offset, self._early.get(consumer, offset))
        tracked = self._behind.get(consumer)
        if tracked is None or offset <= tracked.flushed:
            return
        if offset >= tracked.sent:
            del self._behind[consumer]
        else:
            self._put(consumer, _Behind(tracked.sent, offset, now))
        self._report()

    def keepalive(self, position: int) -> None:
        """The source has nothing up to `position` but what was handed out."""
        if self.is_level and position > self.last_seen_offset.tx:
            self.last_seen_offset = LogOffset(position, 0)
            self._report()

    def remove(self, consumer: str) -> None:
        """Nobody needs anything for this one any more."""
        self._early.pop(consumer, None)
        if self._behind.pop(consumer, None) is not None:
            self._report()

    def challenge(self, grace_s: float, now: float) -> tuple[list[str], list[str]]:
        """Those to ask, because they made no progress for `grace_s`; those that were asked as long ago.

        Whether the latter are dropped is for the caller: a shape is, a lake or a stream lane never.
        """
        ask: list[str] = []
        overdue: list[str] = []
        for consumer, each in self._behind.items():
            if now - each.since < grace_s:
                continue
            (overdue if each.asked else ask).append(consumer)
            each.asked, each.since = True, now
        return ask, overdue

    def excuse(self, now: float) -> None:
        """It was nobody's own fault that they made no progress: they have the whole time again."""
        for each in self._behind.values():
            each.asked, each.since = False, now

    def _put(self, consumer: str, entry: _Behind) -> None:
        self._behind[consumer] = entry
        heapq.heappush(self._heap, (entry.flushed, consumer))
        if len(self._heap) > 2 * len(self._behind) + _SPARE_ENTRIES:
            self._heap = [(each.flushed, name) for name, each in self._behind.items()]
            heapq.heapify(self._heap)

    def _report(self) -> None:
        least = self._least()
        safe = int(self.last_seen_offset.tx) if least is None else _below(least)
        self._reported = max(self._reported, safe)

    def _least(self) -> LogOffset | None:
        while self._heap:
            flushed, consumer = self._heap[0]
            entry = self._behind.get(consumer)
            if entry is not None and entry.flushed == flushed:
                return flushed
            heapq.heappop(self._heap)
        return None


def _below(flushed: LogOffset) -> int:
    """The last transaction that is flushed whole for certain."""
    return int(flushed.tx) if flushed.op == math.inf else int(flushed.tx) - 1


def align_offset_to_txn_boundary(offset: LogOffset, boundaries: dict[LogOffset, LogOffset]) -> LogOffset:
    """What a consumer reports for what its storage flushed: the end of that transaction, if it is its end.

    `boundaries`: own last offset of a transaction → the transaction's last offset, in order; those up to
    `offset` are used up. A flush in the midst of a transaction stays as it is.
    """
    aligned = offset
    for own in [own for own in boundaries if own <= offset]:
        boundary = boundaries.pop(own)
        if own == offset:
            aligned = boundary
    return aligned

"""How far everything has arrived, when events arrive in any order.

Every event gets the next number, its `ack_id`: many events share a position, so a position cannot name one.
The frontier is the end of the last whole transaction before which every number is published. Nothing beyond
it is ever told as flushed, so nothing that is still under way can be forgotten by the source.

Numbers come in ranges and are marked in arrays: a bit per event under way, nothing else per event. A range
without events is a keepalive: it moves the frontier as soon as all before it has arrived.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from penstock.core.position import Lsn
from penstock.streams.events import Int64s

_ROOM = 1024


class AckTracker:
    """For one thread. Positions are registered in their order."""

    def __init__(self, frontier: Lsn) -> None:
        self._frontier = frontier
        self._frontier_id = 0
        self._newest = frontier
        self._next_id = 0
        self._first_open = 0  # all numbers below are published
        self._done = np.zeros(_ROOM, np.bool_)  # of the numbers from `_first_open` on
        self._ends: deque[tuple[int, Lsn]] = deque()  # first number after a whole transaction, its end

    @property
    def frontier_lsn(self) -> Lsn:
        return self._frontier

    @property
    def frontier_id(self) -> int:
        """All numbers below are published, and are whole transactions."""
        return self._frontier_id

    @property
    def next_id(self) -> int:
        return self._next_id

    @property
    def open_id(self) -> int:
        """The least number that is not published; `next_id`, if all are."""
        return self._first_open

    def register(self, lsn: Lsn, *, is_last: bool = True) -> int:
        return self.register_many(lsn, 1, is_last=is_last)

    def register_many(self, lsn: Lsn, count: int, *, is_last: bool = True) -> int:
        """Number `count` events up to `lsn`, return the first number; `is_last`: nothing more up to there."""
        if lsn < self._newest:
            raise ValueError(f"{lsn} comes after {self._newest}")
        self._newest = lsn
        first = self._next_id
        self._next_id += count
        self._grow(self._next_id - self._first_open)
        if is_last:
            if self._ends and self._ends[-1][0] == self._next_id:
                self._ends.pop()  # nothing lies between them
            self._ends.append((self._next_id, lsn))
            self._advance()
        return first

    def mark_published_by_id(self, ack_id: int) -> None:
        self.mark_many(np.array([ack_id], np.int64))

    def mark_many(self, ack_ids: Int64s) -> None:
        """Published, all of them; once more changes nothing."""
        if not len(ack_ids):
            return
        if not 0 <= ack_ids.min() <= ack_ids.max() < self._next_id:
            raise ValueError("an event is marked as published that was never registered")
        self._done[ack_ids[ack_ids >= self._first_open] - self._first_open] = True
        self._advance()

    def _advance(self) -> None:
        under_way = self._next_id - self._first_open
        arrived = 0
        if self._done[0]:  # else it costs the same however many have gone past the first
            waiting = ~self._done[:under_way]
            arrived = int(waiting.argmax()) if waiting.any() else under_way
        if arrived:
            self._done[: under_way - arrived] = self._done[arrived:under_way]
            self._done[under_way - arrived : under_way] = False
            self._first_open += arrived
        while self._ends and self._ends[0][0] <= self._first_open:
            self._frontier_id, self._frontier = self._ends.popleft()

    def _grow(self, size: int) -> None:
        if size > len(self._done):
            self._done = np.concatenate([self._done, np.zeros(size, np.bool_)])

"""What is under way to a target: bounded by count and by bytes, so that a slow target makes the reader wait.

Something larger than the bounds goes in alone. Whoever waits is let go by `stop`. Capture reads the source in
another process, which answers its keepalives however long anybody waits here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.streams.publisher import StoppedError

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class QueueLimits:
    count: int = 100_000
    bytes: int = 16 * 1024 * 1024


class InflightEventQueue(Generic[_Item]):
    """First in, first out. What was taken out counts until `task_done` says how much of it no longer does."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._count = 0
        self._bytes = 0
        self._poked = False
        self._stopped = False

    @property
    def count(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return self._bytes

    def put(self, item: _Item, count: int, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room(count, size))
            if self._stopped:
                raise StoppedError
            self._items.append(item)
            self._count += count
            self._bytes += size
            self._changed.notify_all()

    def get(self, within_s: float = 0.0) -> _Item | None:
        """The next one; None after that time, or when somebody has poked."""
        with self._changed:
            deadline = time.monotonic() + within_s
            while not (self._items or self._poked or self._stopped):
                rest_s = deadline - time.monotonic()
                if rest_s <= 0 or not self._changed.wait(rest_s):
                    break
            self._poked = False
            if self._stopped:
                raise StoppedError
            return self._items.popleft() if self._items else None

    def rest(self, within_s: float) -> None:
        """Take nothing, until that time is over or somebody has poked."""
        with self._changed:
            self._changed.wait_for(lambda: self._poked or self._stopped, within_s)
            self._poked = False
            if self._stopped:
                raise StoppedError

    def poke(self) -> None:
        """Let whoever waits for an item look around."""
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    def task_done(self, count: int, size: int) -> None:
        with self._changed:
            assert count <= self._count, "more is done than was put in"
            self._count -= count
            self._bytes -= size
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _has_room(self, count: int, size: int) -> bool:
        if not (self._count or self._bytes):
            return True
        return self._count + count <= self._limits.count and self._bytes + size <= self._limits.bytes

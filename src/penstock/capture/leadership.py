"""One capture per source: a lock there, and our own count of how long it is ours.

The source takes the lock away from a holder that has been silent for three heartbeats, so a process that
was stopped (SIGSTOP, a frozen machine) does not hold it for ever (correctness 17). Each heartbeat asks
whether the lock is held still, so losing it is noticed.

Our own count of those three heartbeats begins when the last answered question was *asked*, the source's
when it was answered: ours is over first. So a process that wakes up, or whose network is gone, knows that it
no longer leads without being told (`require`). Losing the lock between that look and a commit does no harm
either: the log's manifests are created exclusively.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.core.errors import PenstockError

HEARTBEATS_MISSED_MAX = 3
#: names how long to wait, in seconds, for what a predecessor that has just ended still holds
PATIENCE_VARIABLE = "PENSTOCK_PATIENCE_S"
_PATIENCE_S = "5"
_POLL_S = 0.1
_STANDBY_POLL_S = 0.2
_LAST_BEAT_S = 0.2


def patience_s() -> float:
    return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE_S))


class Lock(Protocol):
    """A lock at the source, which takes it away from a holder that it has not heard of for a lease."""

    def take(self) -> bool:
        """Whether it was free, and is ours now."""

    def is_held(self) -> bool:
        """Have the source say that it is ours still, by which it hears of us; False if it does not answer."""

    def busy(self) -> PenstockError:
        """Another has it: who that is."""

    def lost(self) -> PenstockError:
        """It was ours."""

    def release(self) -> None:
        """Let it go, also while a question whether it is held waits for its answer."""


class Leadership:
    """Holds the lock until `release`; `on_lost` is called once if it is lost before.

    `open_lock` is given the lease, in seconds.
    """

    def __init__(
        self,
        open_lock: Callable[[float], Lock],
        on_lost: Callable[[PenstockError], None],
        heartbeat_s: float,
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._lease_s = HEARTBEATS_MISSED_MAX * heartbeat_s
        self._lock = open_lock(self._lease_s)
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._asked_at = 0.0
        self._lost = False
        self._thread = threading.Thread(target=self._beat, name="capture-heartbeat", daemon=True)

    def acquire(self) -> None:
        """Take the lock, or say who has it."""
        deadline = time.monotonic() + patience_s()
        while not self._try():
            if time.monotonic() > deadline:
                raise self._lock.busy()
            time.sleep(_POLL_S)

    def wait(self, stop: threading.Event, on_waiting: Callable[[], None]) -> bool:
        """Take the lock, however long that takes; False if `stop` was set before.

        `on_waiting` is called once if another has it.
        """
        waiting = False
        while not stop.is_set():
            if self._try():
                return True
            if not waiting:
                waiting = True
                on_waiting()
            stop.wait(_STANDBY_POLL_S)
        return False

    def require(self) -> None:
        """Raise if the source may have given the lock to another by now."""
        if self.is_lost:
            raise self._lock.lost()

    @property
    def is_lost(self) -> bool:
        return self._lost or _now() - self._asked_at >= self._lease_s

    def release(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_BEAT_S)  # a beat that is under way ends, unless the network is silent
        self._lost = True  # from here on another may have it, whoever of ours is still at work
        self._lock.release()

    def _try(self) -> bool:
        self._asked_at = _now()
        if not self._lock.take():
            return False
        self._thread.start()
        return True

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            asked_at = _now()
            if not self._lock.is_held():
                self._lost = True
                if not self._ended.is_set():
                    self._on_lost(self._lock.lost())
                return
            self._asked_at = asked_at


def _now() -> float:
    """Goes on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

"""What a target does not take, for a person: since when, of which stream, and what the target said of it.

A target is tried without end (correctness 50), so a lane that stands still has not failed: without this, only
its log would say why. What passes within seconds is not told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

TOLD_AFTER_S = 5.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Trouble:
    """`said`: the target's words, or its code; no value of a row. `is_full`: nothing more goes past it.

    `is_wait`: no call has failed, one has no answer yet.
    """

    said: str
    since: float  # by the clock, in seconds
    stream: str = ""
    is_full: bool = False
    is_wait: bool = False

    def told(self, now: float) -> str:
        """Empty, as long as it may pass by itself."""
        if now - self.since < TOLD_AFTER_S:
            return ""
        at = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        what = f"an event of {self.stream}" if self.stream else "what is sent"
        others = ""
        if self.stream:
            others = "; as many others as may are past it" if self.is_full else "; others go past it"
        return f"since {at} the target does not take {what} ({self.said}): it is tried again{others}"


class TroubleMet:
    """What was met last. Written and read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.trouble: Trouble | None = None

    def met(self, said: str, stream: str = "") -> None:
        """Once more, or another one: it lasts since the first time."""
        with self._lock:
            trouble = self.trouble or Trouble(said, self._clock())
            self.trouble = replace(trouble, said=said, stream=stream, is_wait=False)

    def waits(self, said: str) -> None:
        """Still no answer, to a call that may last long: over when it comes, unless something has failed."""
        with self._lock:
            trouble = self.trouble or Trouble(said, self._clock(), is_wait=True)
            self.trouble = replace(trouble, said=said) if trouble.is_wait else trouble

    def answered(self) -> None:
        with self._lock:
            if self.trouble is not None and self.trouble.is_wait:
                self.trouble = None

    def is_full(self, is_full: bool) -> None:
        with self._lock:
            if self.trouble is not None and self.trouble.is_full != is_full:
                self.trouble = replace(self.trouble, is_full=is_full)

    def over(self) -> None:
        with self._lock:
            self.trouble = None


class TroubleWatch:
    """While it is entered, `tell` is given what `trouble` there is; "" when it is over.

    The lane may wait for the target then, and look at nothing: `orders_came` is asked instead, and `give_up`
    called if so, for a lane whose target takes nothing is what somebody would pause.
    """

    def __init__(
        self,
        trouble: Callable[[], Trouble | None],
        tell: Callable[[str], None],
        orders_came: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self._trouble = trouble
        self._tell = tell
        self._orders_came = orders_came
        self._give_up = give_up
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stream-trouble", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is told any more when it returns: what comes next has its own words."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        told = ""
        while not self._ended.wait(_LOOK_EVERY_S):
            trouble = self._trouble()
            now = "" if trouble is None else trouble.told(time.time())
            if now != told:
                self._tell(now)
                told = now
            if now and self._orders_came():
                self._give_up()
                return

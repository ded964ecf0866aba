"""How long it is known that this lane's term leads, on its own clock.

Where a target can shut a former leader out (Kafka, a file), nobody needs this. Kinesis cannot: what stands
instead is that a leader begins no call unless it is proved that it leads, and that a new one waits before it
looks at what is there.

A proof is capture's word that it leads this term, and counts from when it was *asked* for. Capture says so
only while its own lease of the lock at the source lasts (`capture.leadership`), so no other term has begun
before that moment. A successor begins later, waits W, and reads: whatever was begun within L of a proof, and
takes T at most to arrive, is there by then if L + T <= W. The clock goes on while the process is stopped and
while the machine sleeps, so whoever wakes up finds that its proof is old, and asks again.

That holds for a successor that waits. It does not if it finds that nobody is at work: so a lane first lets
others see that it is, durably, and rests on no proof that was asked for before (`forget`). By one that was
asked for later, no other term had begun by then, and whoever begins after it sees it.

What remains is a stop between the last look at the clock and the call's last byte: that call is under way,
and arrives when its process goes on. So the look is as late as it can be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Lease:
    """`leads` asks capture. Without one, the lead is taken for granted. Used by several threads at once."""

    def __init__(self, leads: Callable[[], bool] | None = None) -> None:
        self._leads = leads
        self._proved_at = self._counts_from = float("-inf")
        self._asking = threading.Lock()

    def renew(self) -> bool:
        """Ask; whether this term leads."""
        with self._asking:
            return self._ask()

    def forget(self) -> None:
        """Only what is asked for from now on is a proof, and no answer that is awaited still."""
        self._counts_from = _now()

    def is_proved(self, within_s: float) -> bool:
        """Whether there is a proof that is younger than that. Nobody is asked."""
        if self._leads is None:
            return True
        proved_at = self._proved_at
        return proved_at >= self._counts_from and _now() - proved_at < within_s

    def prove(self, within_s: float) -> bool:
        """The same, but if there is none, asks for it."""
        if self.is_proved(within_s):
            return True
        with self._asking:
            # Another thread may have asked meanwhile; an answer that took too long is none.
            return self.is_proved(within_s) or (self._ask() and self.is_proved(within_s))

    def _ask(self) -> bool:
        asked_at = _now()
        if self._leads is not None and not self._leads():
            return False
        self._proved_at = asked_at
        return True


def _now() -> float:
    """Goes on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

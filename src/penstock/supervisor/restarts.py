"""When a process that died is started again, and when no more.

Pure: times go in, a delay comes out. The delay doubles from death to death and begins anew with a process
that lived for a minute; too many deaths in ten minutes park the process, so that one that cannot succeed does
not go on failing unseen.

A parked process may be tried once more when time has passed, since what it died of may have: it is on trial
until it has lived for a minute, and parked again at once if it does not.
"""

from __future__ import annotations

FIRST_DELAY_S = 0.5
DELAY_S_MAX = 30.0
LIVED_S = 60.0
WINDOW_S = 600.0


class Restarts:
    def __init__(self, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._deaths: list[float] = []
        self._delay_s = FIRST_DELAY_S
        self._on_trial = False

    def died(self, at_s: float, lived_s: float) -> float | None:
        """Seconds until the next start; None: park it."""
        if self.is_on_trial(lived_s):
            return None
        if self._on_trial:
            self.forgive()
        self._deaths = [death for death in self._deaths if death > at_s - WINDOW_S]
        self._deaths.append(at_s)
        if len(self._deaths) > self._restarts_max:
            return None
        if lived_s >= LIVED_S:
            self._delay_s = FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_S_MAX)
        return delay_s

    def try_once(self) -> None:
        """It was parked for long enough: the next life is a trial."""
        self._on_trial = True

    def is_on_trial(self, lived_s: float) -> bool:
        """Of a process that has lived for so long."""
        return self._on_trial and lived_s < LIVED_S

    def forgive(self) -> None:
        """Somebody looked at it, or it stood its trial: what was before does not count."""
        self._on_trial = False
        self._deaths.clear()
        self._delay_s = FIRST_DELAY_S

"""Keeps the reading of tables below a rate of rows, so that the source has time for others.

The rate of the pipeline file is shared out evenly over the chunks that are read at the same time, so that no
two of them need to talk to each other. A reader sleeps after each block for as long as it is ahead of its
share; the server waits with it, since the connection takes no more meanwhile. Chunks that end early leave
their share unused: the rate is a limit, not a promise.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def share(rows_per_second: int | None, at_once: int) -> float | None:
    """What one of `at_once` readers may read; None: as much as it can."""
    return None if rows_per_second is None else rows_per_second / max(1, at_once)


class Pace:
    def __init__(
        self,
        rows_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()
        self._rows = 0

    def read(self, rows: int) -> None:
        """So many more were read; returns when they were not read too fast."""
        if self._rows_per_second is None:
            return
        self._rows += rows
        ahead_s = self._rows / self._rows_per_second - (self._clock() - self._begun)
        if ahead_s > 0:
            self._sleep(ahead_s)

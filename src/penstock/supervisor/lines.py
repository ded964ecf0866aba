"""Lines of a process, read with limits: a long line is cut, and of a flood the rest is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import IO

#: A line of metrics has about a hundred bytes for each sample.
SAID_BYTES_MAX = 32 << 20
LOGGED_BYTES_MAX = 16 << 10
LOGGED_LINES_MAX = 500
_WINDOW_S = 10.0


def lines(pipe: IO[bytes], bytes_max: int) -> Iterator[str]:
    """Each line without its end; what one has beyond `bytes_max` is passed over."""
    while line := pipe.readline(bytes_max):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = pipe.readline(bytes_max)
        yield line.decode(errors="replace").rstrip("\r\n")


class Flood:
    """Lets through so many lines in ten seconds, and says how many it did not."""

    def __init__(
        self, lines_max: int = LOGGED_LINES_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines_max = lines_max
        self._clock = clock
        self._since = clock()
        self._lines = 0

    def let_through(self, line: str) -> list[str]:
        """What to write in place of this line."""
        now = self._clock()
        left_out = 0
        if now - self._since >= _WINDOW_S:
            left_out = max(0, self._lines - self._lines_max)
            self._since, self._lines = now, 0
        self._lines += 1
        said = [f"{left_out} lines were left out here."] if left_out else []
        return [*said, line] if self._lines <= self._lines_max else said

"""Lines for somebody who may not read them: whoever hands one over never waits.

A terminal that is held, or a full pipe of a collector that hangs, blocks whoever writes there. So each output
has a thread of its own that does, and lines wait for it in a queue; those that find it full are left out, and
their number is written in their place. What waits at the end is written within a time limit.

The thread writes through a file of its own: one that is blocked for ever would else hold the lock of
`sys.stderr`, which Python wants once more when the process ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TextIO, TypeVar

LINES_MAX = 2000
LAST_LINES_S = 2.0

Line = TypeVar("Line")


class Outlet(Generic[Line]):
    """`left_out` makes the line for so many that were. `around` is entered and left by the thread too."""

    def __init__(
        self,
        write: Callable[[Line], object],
        left_out: Callable[[int], Line],
        around: AbstractContextManager[object] | None = None,
        lines_max: int = LINES_MAX,
    ) -> None:
        self._write = write
        self._left_out = left_out
        self._around = around or nullcontext()
        # A line, and how many were left out before it; None at the end.
        self._waiting: queue.Queue[tuple[int, Line | None]] = queue.Queue(lines_max)
        self._lock = threading.Lock()
        self._left_out_count = 0
        self._thread = threading.Thread(target=self._write_all, name="outlet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, line: Line) -> None:
        with self._lock:
            try:
                self._waiting.put_nowait((self._left_out_count, line))
                self._left_out_count = 0
            except queue.Full:
                self._left_out_count += 1

    def end(self, within_s: float = LAST_LINES_S) -> None:
        """Write what waits, as far as that is possible within the time."""
        ends_at = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._waiting.put((self._left_out_count, None), timeout=within_s)
        self._thread.join(max(0.0, ends_at - time.monotonic()))

    def _write_all(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._around:
            while True:
                left_out, line = self._waiting.get()
                # Whoever read may be gone: then lines go nowhere.
                with contextlib.suppress(OSError, ValueError):
                    if left_out:
                        self._write(self._left_out(left_out))
                    if line is not None:
                        self._write(line)
                if line is None:
                    return


def own_file(file: TextIO) -> TextIO:
    """Another file for where `file` goes, with no lock that others want."""
    try:
        number = os.dup(file.fileno())
    except io.UnsupportedOperation:  # one that is no file of the system's
        return file
    return open(number, "w", encoding=file.encoding, errors="backslashreplace")

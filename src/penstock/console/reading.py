"""What the console has read by a process of its own, because it needs Java: one at a time.

A JVM takes seconds and hundreds of megabytes, and whoever may look may ask; so somebody who comes while one
is at work is told to come again, instead of starting another. The process has `within_s`, which is less than
a connection has, and may say `bytes_max`; then it is killed. It is of our own process group, so that nothing
of it outlives the console, and the JVM ends with the process that started it.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Sequence

WITHIN_S = 50.0
BYTES_MAX = 16 << 20
RETRY_AFTER_S = 5
_PIECE_BYTES = 1 << 16


class BusyError(Exception):
    """Another one is being read."""


class NotReadError(Exception):
    """It took too long, or said too much."""


class Reading:
    def __init__(self, within_s: float = WITHIN_S, bytes_max: int = BYTES_MAX) -> None:
        self._within_s = within_s
        self._bytes_max = bytes_max
        self._turn = threading.Lock()

    def run(self, command: Sequence[str]) -> tuple[int, bytes]:
        """The exit code, and what was said on stdout."""
        if not self._turn.acquire(blocking=False):
            raise BusyError
        try:
            return self._run(command)
        finally:
            self._turn.release()

    def _run(self, command: Sequence[str]) -> tuple[int, bytes]:
        ends_at = time.monotonic() + self._within_s
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            try:
                assert child.stdout is not None
                said = self._said(child.stdout.fileno(), ends_at)
                return child.wait(max(0.0, ends_at - time.monotonic())), said
            except subprocess.TimeoutExpired:
                raise NotReadError("it took too long") from None
            finally:
                child.kill()  # nothing, if it has ended

    def _said(self, descriptor: int, ends_at: float) -> bytes:
        said = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while (left_s := ends_at - time.monotonic()) > 0:
                if not selector.select(left_s):
                    continue
                piece = os.read(descriptor, _PIECE_BYTES)
                if not piece:
                    return bytes(said)
                said += piece
                if len(said) > self._bytes_max:
                    raise NotReadError("it said too much")
        raise NotReadError("it took too long")

"""Files that are locked against other processes; the kernel frees the lock of one that ends, however.

A file that several processes change, each by reading it and writing it anew, has a lock of its own beside it
(`held`), which is held for as long as that takes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.core.errors import SourceBusyError

_LOOK_EVERY_S = 0.02


def lock_file(path: Path) -> int | None:
    """The lock file, opened and locked; None if somebody else has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # a leader has put another file there since it was opened


@contextmanager
def held(path: Path, within_s: float = 10.0) -> Iterator[None]:
    """Hold the lock file at `path`, when whoever has it lets go; SourceBusyError if that takes too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ends_at = time.monotonic() + within_s
    while (descriptor := lock_file(path)) is None:
        if time.monotonic() >= ends_at:
            raise SourceBusyError(
                f"Another process has held {path} for {within_s:g} s.",
                remedy="Try again; if it stays so, look for a command of Penstock that hangs, and end it.",
            )
        time.sleep(_LOOK_EVERY_S)
    try:
        yield
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the file that is open there is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

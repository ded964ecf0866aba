"""Bodies that wait for their clients: each in memory up to 512 KiB and in an unnamed file beyond.

All of them together take no more than `SPOOLED_BYTES_MAX`: clients that ask for much and read nothing fill no
disk. Whoever needs more than is left is told to come again.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock.shapes.shape import SnapshotProblem

PIECE_BYTES = 256 << 10
SPOOLED_BYTES_MAX = 4 << 30
_MEMORY_BYTES_MAX = 512 << 10
_RETRY_AFTER_S = 5


class Spools:
    """Used from any thread."""

    def __init__(self, directory: Path, bytes_max: int = SPOOLED_BYTES_MAX) -> None:
        self.directory = directory
        self.used_bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def open(self) -> Spool:
        return Spool(self)

    def take(self, count: int) -> None:
        with self._lock:
            if self.used_bytes + count > self._bytes_max:
                message = "Too much is waiting to be read by other clients, please retry"
                raise SnapshotProblem(503, message, _RETRY_AFTER_S)
            self.used_bytes += count

    def give_back(self, count: int) -> None:
        with self._lock:
            self.used_bytes -= count


class Spool:
    """One body: written, then read. What it takes is given back when it is closed or collected."""

    def __init__(self, spools: Spools) -> None:
        self._spools = spools
        self.size = 0
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES_MAX, dir=str(spools.directory))  # noqa: SIM115

    def write(self, content: bytes) -> None:
        """A `SnapshotProblem` if there is no room for it."""
        self._spools.take(len(content))
        self.size += len(content)
        self._file.write(content)

    def pieces(self) -> Iterator[bytes]:
        """All of it, from its start."""
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        size, self.size = self.size, 0
        self._spools.give_back(size)
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

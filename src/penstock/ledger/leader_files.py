"""Files that only the leader replaces, also one that is stopped between its last look and the write.

No look at a lease can prevent a late write: the process may be stopped right after it. But a rename fails if
what it renames is gone. So a leader writes under temporary names in a directory of its own, which it makes
once, and its successor removes that directory before it writes anything itself. From then on nothing can be
renamed out of it, and nothing be written into it. Why no directory of an earlier leader is left then:

    former    makes its directory, looks at its lease, writes
    latter    takes the lock, makes its directory, lists the others, looks at its lease, removes them, writes

Whoever writes has looked at its lease after its directory was there, and the lease was over before the lock
was given to another (`capture/leadership.py`): the latter lists it. Whoever wakes up before that look finds
the lease over, and never writes. And nobody removes a successor's: what is removed was listed before a look
that found the lease to hold, when there was no successor. By the same reason a leader whose directory is gone
while its lease holds was not replaced: somebody tidied up, and it makes another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock import durable


class LeaderFiles:
    """`directory`: where leaders have theirs, beside the files.

    `may_write` raises where the lease is over, or may be.
    """

    def __init__(self, directory: Path, may_write: Callable[[], None]) -> None:
        self._directory = directory
        self._may_write = may_write
        self._own: Path | None = None

    def replace(self, path: Path, content: bytes) -> None:
        """As `durable.replace`; an error, and nothing is written, if another leads by now."""
        if self._own is None:
            self._own = self._begun()
        self._may_write()
        try:
            durable.replace(path, content, through=self._own)
        except FileNotFoundError:
            self._own = None
            self._may_write()
            self._own = self._begun()
            durable.replace(path, content, through=self._own)

    def _begun(self) -> Path:
        own = self._directory / uuid.uuid4().hex
        with durable.storage_errors(f"Could not write to {self._directory}."):
            own.mkdir(parents=True)
            others = [path for path in self._directory.iterdir() if path != own and path.is_dir()]
            self._may_write()
            for path in others:
                _remove(path)
        return own


def _remove(directory: Path) -> None:
    """Under another name at once: what a path through it names is gone then, whenever that is opened."""
    gone = directory.with_suffix(".gone")
    with suppress(FileNotFoundError):
        directory.rename(gone)
    with suppress(OSError):  # a network file system keeps what somebody has open: the next leader tries
        for path in gone.iterdir():
            path.unlink(missing_ok=True)
        gone.rmdir()

"""Whose turn it is to write a directory of shapes.

    lock    locked by the process that has the shapes open
    claim   in which of capture's terms they are wanted: its epoch, and a word that is another each time
    held.N  the files themselves; N is one more for each process that opens them

Instances that stand by for each other may share a directory. The one that leads claims it, and whoever has it
open sees that it is not theirs any more: before each write (`require`), and a second later even if there is
nothing to write. It lets go, and waits.

A holder that was stopped (SIGSTOP) would keep the lock for ever. So the leader takes its place after a while:
it removes the lock file and locks a new one. A holder that wakes then finds the claim, and another file than
the one that it has locked.

It may have been stopped between such a look and a write. So whoever opens the files renames their directory
first: no path that an earlier holder knows leads to them any more, and it makes, renames and removes nothing
in there. What it had open it could still write to. That is the newest segment of the commit log, for as long
as it is on disk; the next one says how far those before it count (`commit_log`). A shape's own file is open
for the one write only (`shape_files.write_at`).
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

from penstock import durable
from penstock.core.errors import SourceBusyError, StorageError
from penstock.core.position import Lsn
from penstock.file_lock import is_at, lock_file

_LOCK, _CLAIM, _FILES = "lock", "claim", "held."
_UNHELD = "commits", "shapes", "removed"  # where earlier versions had them: beside the lock


class Claim(NamedTuple):
    epoch: Lsn
    word: str

    @classmethod
    def read(cls, directory: Path) -> Claim:
        """The newest; one of no term if there is none."""
        try:
            epoch, word = (directory / _CLAIM).read_text().split()
            return cls(Lsn.parse(epoch), word)
        except (FileNotFoundError, ValueError):
            return cls(Lsn(0), "")

    @classmethod
    def write(cls, directory: Path, epoch: Lsn) -> Claim:
        claim = cls(epoch, uuid.uuid4().hex)
        durable.replace(directory / _CLAIM, f"{claim.epoch} {claim.word}\n".encode())
        return claim


class Place:
    """Held by one process, from the making of this object to `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = lock_file(directory / _LOCK)
        if self._descriptor is None:
            raise StorageError(
                f"Another process has the shapes in {directory} open.",
                remedy="Stop it, or give each its own directory.",
            )
        self._claim = Claim.read(directory)
        self.files = self._take_files()  #: where they are while nobody else opens them

    def _take_files(self) -> Path:
        """Give their directory a name of its own. If somebody passes us meanwhile, what we look for is not
        there any more; one that we made after that has a lower number than theirs, and counts for nothing."""
        before = files_of(self._directory)
        try:
            if before is None:
                before = self._directory / f"{_FILES}1"
                before.mkdir()
            mine = before.with_name(f"{_FILES}{_number(before) + 1}")
            before.rename(mine)
        except (FileExistsError, FileNotFoundError) as error:
            self.close()
            raise _not_ours(self._directory) from error
        for name in _UNHELD:
            if (self._directory / name).exists():  # an earlier version was at work since
                shutil.rmtree(mine / name, ignore_errors=True)
                (self._directory / name).rename(mine / name)
        durable.sync_directory(mine)
        durable.sync_directory(self._directory)
        for other in self._directory.glob(f"{_FILES}*"):
            if _number(other) < _number(mine):
                shutil.rmtree(other, ignore_errors=True)
        return mine

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def hold(self, epoch: Lsn) -> None:
        """A term has begun in which this is ours. `SourceBusyError` if it is somebody else's."""
        self.require()
        self._claim = Claim.write(self._directory, epoch)

    def require(self) -> None:
        """`SourceBusyError` if this is not ours any more."""
        assert self._descriptor is not None
        newest = Claim.read(self._directory)
        is_claimed = newest != self._claim and newest.epoch >= self._claim.epoch
        if is_claimed or not is_at(self._descriptor, self._directory / _LOCK):
            raise _not_ours(self._directory)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def files_of(directory: Path) -> Path | None:
    """Where the files of the shapes are; None if none were ever opened, by a version that names the place."""
    return max(directory.glob(f"{_FILES}*"), key=_number, default=None)


def is_held(directory: Path) -> bool:
    """Whether a process has the shapes there open."""
    if not (directory / _LOCK).exists():
        return False
    descriptor = lock_file(directory / _LOCK)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def claim(directory: Path, epoch: Lsn) -> bool:
    """As the leader of this term: have whoever holds it now let go. False if that is for a later term."""
    if Claim.read(directory).epoch > epoch:
        return False
    Claim.write(directory, epoch)
    return True


def take(directory: Path) -> None:
    """Go past a holder that does not let go, though it has had the time."""
    (directory / _LOCK).unlink(missing_ok=True)


def _number(files: Path) -> int:
    return int(files.name.removeprefix(_FILES))


def _not_ours(directory: Path) -> SourceBusyError:
    return SourceBusyError(
        f"Another instance leads, and has the shapes in {directory}.",
        remedy="Nothing need be done: this one waits, and takes them over when it leads.",
    )

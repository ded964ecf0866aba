"""Whose turn it is to write a directory of shapes.

    lock    locked by the process that has the shapes open
    claim   in which of capture's terms they are wanted: its epoch, and a word that is another each time

Instances that stand by for each other may share a directory. The one that leads claims it, and whoever has it
open sees that it is not theirs any more: before each write (`require`), and a second later even if there is
nothing to write. It lets go, and waits.

A holder that was stopped (SIGSTOP) would keep the lock for ever. So the leader takes its place after a while:
it removes the lock file and locks a new one. A holder that wakes then finds the claim, and another file than
the one that it has locked, and writes nothing more.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import NamedTuple

from penstock import durable
from penstock.core.errors import SourceBusyError, StorageError
from penstock.core.position import Lsn
from penstock.file_lock import is_at, lock_file

_LOCK, _CLAIM = "lock", "claim"


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
            raise SourceBusyError(
                f"Another instance leads, and has the shapes in {self._directory}.",
                remedy="Nothing need be done: this one waits, and takes them over when it leads.",
            )

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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

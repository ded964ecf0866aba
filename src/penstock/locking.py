"""One at a time in a state directory: a file that whoever writes the state holds locked.

The kernel frees the lock when its holder ends, however. It keeps people from running two commands at once on
one machine; that two writers do no harm rests on the state's versions and the tables' epochs, not on this.

The lake process of `penstock run` is the exception. A predecessor that was stopped (SIGSTOP) holds the lock
and may hold it for ever, while the source has long chosen another leader. So the leader's lake process takes
the place of such a holder: it removes the file and locks a new one. Only of another lake process, though: the
file says who holds it, and a command that is at work is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.core.errors import SourceBusyError
from penstock.file_lock import lock_file
from penstock.ledger.run_file import read_running

NAME = "lock"
_RUN = b"run\n"


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Hold the lock, or say who has it."""
    descriptor = _locked(state)
    if descriptor is None:
        raise _busy(state)
    try:
        os.ftruncate(descriptor, 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def only_leader(state: Path, wait: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock as the lake process of a leader; `wait` is called while a command has it, and may end it.

    Raises what `only_one` raises if `wait` returns True.
    """
    while (descriptor := _locked(state)) is None:
        # Looked at twice: a command that has just locked the file has not yet said that it is none of us.
        is_predecessor = _holder(state) == _RUN
        if wait():
            raise _busy(state)
        if is_predecessor and _holder(state) == _RUN:
            (state / NAME).unlink(missing_ok=True)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _RUN, 0)
        yield
    finally:
        os.close(descriptor)


def is_locked_by_run(state: Path) -> bool:
    """Whether the lake process of a run is at work on the state."""
    descriptor = _locked(state)
    if descriptor is None:
        return is_held_by_run(state)
    os.close(descriptor)
    return False


def is_held_by_run(state: Path) -> bool:
    """Whether the lake process of a run was the last to lock the state; asked of a state that is locked."""
    return _holder(state) == _RUN


def _locked(state: Path) -> int | None:
    state.mkdir(parents=True, exist_ok=True)
    return lock_file(state / NAME)


def _holder(state: Path) -> bytes:
    try:
        return (state / NAME).read_bytes()
    except FileNotFoundError:
        return b""


def _busy(state: Path) -> SourceBusyError:
    running = read_running(state)
    if running is not None or _holder(state) == _RUN:
        where = "" if running is None else f", as process {running.pid} on {running.host}"
        return SourceBusyError(
            f"`penstock run` is at work on this pipeline{where}.",
            remedy="Stop it, run this command, then start it again; it goes on where it stopped.",
        )
    return SourceBusyError(
        "Another sync of this pipeline is running.", remedy="Wait until it is done, or stop it."
    )

"""Who may write the state: one command, or the lake process of the leader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.errors import SourceBusyError
from penstock.ledger.run_file import RunFile, Running
from penstock.locking import only_leader, only_one

_HOLD = """
import sys
from pathlib import Path
from penstock.locking import only_leader, only_one
with {how}:
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held_by_another(state: Path, how: str) -> Iterator[None]:
    """By another process, for as long as this lasts; it may as well be stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD.format(how=how.format(state=repr(str(state))))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate("\n")


COMMAND = "only_one(Path({state}))"
LEADER = "only_leader(Path({state}), lambda: False)"


def _never() -> bool:
    pytest.fail("there is nobody to wait for")


def test_of_two_commands_one_is_refused(tmp_path: Path) -> None:
    with (
        held_by_another(tmp_path, COMMAND),
        pytest.raises(SourceBusyError, match="Another sync"),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):
        pass


def test_a_command_is_told_that_the_pipeline_runs(tmp_path: Path) -> None:
    RunFile(tmp_path, Running(os.getpid(), "here", "", {}, "now")).keep(leading=True)
    with (
        held_by_another(tmp_path, LEADER),
        pytest.raises(SourceBusyError, match=r"`penstock run` is at work.* here"),
        only_one(tmp_path),
    ):
        pass


def test_a_leader_takes_the_place_of_a_predecessor_that_does_not_end(tmp_path: Path) -> None:
    with (
        held_by_another(tmp_path, LEADER),
        only_leader(tmp_path, lambda: False),
        pytest.raises(SourceBusyError),
        only_one(tmp_path),
    ):
        pass
    with only_leader(tmp_path, _never):  # nobody holds it any more
        pass


def test_a_leader_waits_for_a_command(tmp_path: Path) -> None:
    waits = iter([False, False, True])
    with (
        held_by_another(tmp_path, COMMAND),
        pytest.raises(SourceBusyError),
        only_leader(tmp_path, lambda: next(waits)),
    ):
        pass
    assert next(waits, None) is None, "it was asked as often as it had to wait"


def test_a_command_after_a_run_that_was_killed_is_taken_for_a_command(tmp_path: Path) -> None:
    with only_leader(tmp_path, _never):
        pass
    waits = iter([False, True])
    with (
        held_by_another(tmp_path, COMMAND),
        pytest.raises(SourceBusyError),
        only_leader(tmp_path, lambda: next(waits)),
    ):
        pass

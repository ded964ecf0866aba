"""A leader that was stopped, wherever that was, replaces nothing that its successor wrote."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import SourceBusyError
from penstock.core.position import Lsn
from penstock.ledger.lanes import LaneRegistry
from penstock.ledger.leader_files import LeaderFiles


class Leases:
    """Who leads: the one that took the lead last."""

    def __init__(self) -> None:
        self._leader = 0

    def taken(self) -> Callable[[], None]:
        self._leader += 1
        number = self._leader

        def may_write() -> None:
            if number != self._leader:
                raise SourceBusyError("The lead was lost.")

        return may_write


#: Everything of the system that a write is made of: it is stopped before each of them in turn.
CALLS = ["mkdir", "listdir", "scandir", "stat", "rename", "rmdir", "fsync", "replace"]


def stop_before(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int, meanwhile: Callable[[], object]
) -> None:
    """Before the n-th call from now on, `meanwhile` happens."""
    real, count = getattr(os, call), [0]

    def stopped(*given: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            monkeypatch.setattr(os, call, real)
            meanwhile()
        return real(*given, **named)

    monkeypatch.setattr(os, call, stopped)


@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("call", CALLS)
def test_stopped_before_any_step_of_a_write_it_writes_nothing_late(
    call: str, number: int, has_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, path = Leases(), tmp_path / "lanes.json"
    former = LeaderFiles(tmp_path / "leaders", leases.taken())
    if has_written:
        former.replace(path, b"former")
    successor: list[LeaderFiles] = []

    def take_over() -> None:
        successor.append(LeaderFiles(tmp_path / "leaders", leases.taken()))
        successor[0].replace(path, b"successor")

    stop_before(monkeypatch, call, number, take_over)
    try:
        former.replace(path, b"late")
    except SourceBusyError:
        assert successor, "nobody else has led"
    if not successor:
        return  # a write has no such step
    assert path.read_bytes() == b"successor"
    with pytest.raises(SourceBusyError):
        former.replace(path, b"late")
    successor[0].replace(path, b"goes on")
    assert path.read_bytes() == b"goes on"


def test_a_list_of_lanes_keeps_those_that_joined_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, path = Leases(), tmp_path / "lanes.json"
    former = LaneRegistry(path, leases.taken())
    former.join("lake")
    former.flushed("lake", Lsn(100))
    stop_before(monkeypatch, "replace", 1, lambda: LaneRegistry(path, leases.taken()).join("kafka"))
    with pytest.raises(SourceBusyError):
        former.save()
    assert LaneRegistry(path).positions() == {"kafka": None, "lake": None}


def test_who_leads_still_goes_on_though_somebody_tidied_up(tmp_path: Path) -> None:
    leases, path = Leases(), tmp_path / "lanes.json"
    files = LeaderFiles(tmp_path / "leaders", leases.taken())
    files.replace(path, b"before")
    shutil.rmtree(tmp_path / "leaders")
    files.replace(path, b"after")
    assert path.read_bytes() == b"after"


def test_one_leader_leaves_one_directory(tmp_path: Path) -> None:
    leases, path = Leases(), tmp_path / "lanes.json"
    for number in range(5):
        files = LeaderFiles(tmp_path / "leaders", leases.taken())
        files.replace(path, b"%d" % number)
        files.replace(path, b"%d" % number)
    [directory] = (tmp_path / "leaders").iterdir()
    assert list(directory.iterdir()) == []


def test_what_a_file_system_keeps_of_a_former_leader_shuts_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system has another name for a file that is open, and does not remove that."""
    path = tmp_path / "file"
    LeaderFiles(tmp_path / "leaders", lambda: None).replace(path, b"former")
    [former] = (tmp_path / "leaders").iterdir()
    (former / ".nfs1").write_bytes(b"open")

    def busy(*_: Any, **__: Any) -> None:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(Path, "unlink", busy)
    for content in (b"latter", b"last"):
        LeaderFiles(tmp_path / "leaders", lambda: None).replace(path, content)
        assert path.read_bytes() == content

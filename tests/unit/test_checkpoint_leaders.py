"""Checkpoints of two leaders: one was stopped and wakes up when the other has taken over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.capture.checkpoints import CheckpointSaver
from penstock.core.errors import SourceBusyError
from penstock.core.position import Lsn
from penstock.ledger.checkpoint import CheckpointFile
from penstock.ledger.checkpoint_history import Leader
from penstock.ledger.checkpoint_store import ObjectStore
from penstock.log.writer import LogWriter
from tests.conftest import wait_until

FORMER, LATTER, NEXT = (Leader("7", Lsn(epoch)) for epoch in (0x10, 0x20, 0x30))


@pytest.fixture(params=["directory", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    path = tmp_path / "checkpoint.json"
    if request.param == "directory":
        return path
    (tmp_path / "checkpoint.history").mkdir()  # a store would need none
    return f"file://{path}"


def leads() -> None:
    """A lease that holds."""


def is_over() -> NoReturn:
    raise SourceBusyError("The lead was lost.")


class Lease:
    def __init__(self) -> None:
        self.holds = True

    def __call__(self) -> None:
        if not self.holds:
            is_over()


def saved_by(
    place: str | Path, leader: Leader, lsn: int, may_save: Callable[[], None] = leads
) -> CheckpointFile:
    file = CheckpointFile(place, leader=leader, may_save=may_save)
    assert file.save(Lsn(lsn), lsn)
    return file


def stop_before_the_write(
    place: str | Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Whoever replaces the file next is stopped right before it; it wakes up after `meanwhile`."""
    owner, name = (ObjectStore, "write") if isinstance(place, str) else (os, "replace")
    write: Callable[..., None] = getattr(owner, name)

    def write_late(*given: object) -> None:
        if any(str(each).endswith("/checkpoint.json") or each == "checkpoint.json" for each in given):
            monkeypatch.setattr(owner, name, write)
            meanwhile()
        write(*given)

    monkeypatch.setattr(owner, name, write_late)


def test_a_checkpoint_says_by_whom_it_is(tmp_path: Path) -> None:
    saved_by(tmp_path / "checkpoint.json", LATTER, 200)
    fields = json.loads((tmp_path / "checkpoint.json").read_text())
    assert list(fields) == ["lsn", "timestamp", "message_count", "system_id", "epoch"]
    assert (fields["system_id"], fields["epoch"]) == ("7", "0/20")


def test_what_a_woken_leader_writes_is_not_taken_for_the_newest(
    place: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped after it had looked at its lease: no look comes after that."""
    lease = Lease()
    former = saved_by(place, FORMER, 100, lease)

    def take_over() -> None:
        lease.holds = False
        saved_by(place, LATTER, 200)

    stop_before_the_write(place, monkeypatch, take_over)
    former.save(Lsn(110), 110)
    for leader in (LATTER, NEXT):
        found = CheckpointFile(place, leader=leader).load()
        assert found is not None
        assert (found.lsn, found.message_count, found.leader) == (200, 200, LATTER)


def test_in_a_store_it_is_put_back_and_in_a_directory_it_is_never_written(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, latter = Lease(), CheckpointFile(place, leader=LATTER, may_save=leads)
    former = saved_by(place, FORMER, 100, lease)

    def take_over() -> None:
        lease.holds = False
        assert latter.save(Lsn(200), 200)

    stop_before_the_write(place, monkeypatch, take_over)
    is_in_store = isinstance(place, str)
    assert former.save(Lsn(110), 110) == is_in_store
    path = tmp_path / "checkpoint.json"
    assert json.loads(path.read_text())["epoch"] == ("0/10" if is_in_store else "0/20")
    latter.keep()
    assert json.loads(path.read_text())["lsn"] == "0/C8"


def test_on_a_quiet_source_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    log = LogWriter(tmp_path / "log", system_id="7", timeline=1, epoch=Lsn(0x20), end=Lsn(200), last_seq=0)
    saver = CheckpointSaver(path, log, interval_s=0.05, may_save=leads)
    wait_until(lambda: saver.saved == 200, "the first one to be saved")
    content = path.read_bytes()
    path.write_text('{"lsn": "0/1", "system_id": "7", "epoch": "0/10"}')
    wait_until(lambda: path.read_bytes() == content, "it to be put back")
    saver.close()
    assert (saver.saves, saver.failures) == (1, 0)


def test_who_knows_that_its_lead_is_over_writes_nothing(place: str | Path, tmp_path: Path) -> None:
    saved_by(place, LATTER, 200)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    woken = CheckpointFile(place, leader=FORMER, may_save=is_over)
    assert not woken.save(Lsn(110), 110)
    assert (woken.failed_saves, woken.last_saved) == (1, None)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_a_saver_saves_nothing_when_its_lead_is_over(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    log = LogWriter(tmp_path / "log", system_id="7", timeline=1, epoch=Lsn(0x10), end=Lsn(100), last_seq=0)
    saver = CheckpointSaver(path, log, may_save=is_over)
    assert saver.save_before_acknowledging() == 0
    saver.close()
    assert not path.exists()


def test_a_woken_leader_removes_nothing_of_its_successor(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it had saved nothing before it was stopped."""
    former = CheckpointFile(place, history_kept=1, leader=FORMER)
    stop_before_the_write(place, monkeypatch, lambda: saved_by(place, LATTER, 200))
    assert former.save(Lsn(110), 110)
    late = CheckpointFile(place, history_kept=1, leader=FORMER)
    assert late.save(Lsn(120), 120)
    kept = [json.loads(path.read_text()) for path in (tmp_path / "checkpoint.history").iterdir()]
    assert [each["lsn"] for each in kept if each["epoch"] == "0/20"] == ["0/C8"]


def test_epochs_of_another_source_shut_nobody_out(place: str | Path, tmp_path: Path) -> None:
    saved_by(place, Leader("another", Lsn(0x900)), 900)
    found = CheckpointFile(place, leader=LATTER).load()
    assert found is not None
    assert found.lsn == 900
    saved_by(place, LATTER, 200)
    for _ in ("the file", "its history"):
        found = CheckpointFile(place, leader=NEXT).load()
        assert found is not None
        assert found.lsn == 200
        (tmp_path / "checkpoint.json").unlink(missing_ok=True)


def test_a_source_that_was_put_back_shuts_nobody_out(place: str | Path, tmp_path: Path) -> None:
    """Its epochs come again. Who leads knows that none of those it finds is of a successor."""
    saved_by(place, NEXT, 900)
    saved_by(place, LATTER, 200)
    found = CheckpointFile(place, leader=LATTER).load()
    assert found is not None
    assert found.lsn == 200
    assert len(list((tmp_path / "checkpoint.history").iterdir())) == 1


def test_a_history_of_an_older_version_is_read_and_gives_way(tmp_path: Path) -> None:
    path, older = tmp_path / "checkpoint.json", tmp_path / "checkpoint.history" / "01790000000000000000.json"
    older.parent.mkdir()
    older.write_text('{"lsn": "0/64", "message_count": 100}')
    found = CheckpointFile(path, leader=LATTER).load()
    assert found is not None
    assert found.lsn == 100
    saved_by(path, LATTER, 200)
    path.unlink()
    found = CheckpointFile(path, leader=NEXT).load()
    assert found is not None
    assert found.lsn == 200

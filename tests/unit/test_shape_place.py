"""Who may write a directory of shapes that instances share."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.capture.base import Hello
from penstock.core.errors import CaptureAwayError, SourceBusyError, StorageError
from penstock.core.position import Lsn
from penstock.shapes import service
from penstock.shapes.storage import place
from penstock.shapes.storage.place import Place
from tests.conftest import wait_until


def test_a_directory_is_held_by_one_process_until_it_lets_go(tmp_path: Path) -> None:
    assert not place.is_held(tmp_path)
    held = Place(tmp_path)
    assert place.is_held(tmp_path)
    with pytest.raises(StorageError, match="Another process"):
        Place(tmp_path)
    held.close()
    assert not place.is_held(tmp_path)
    Place(tmp_path).close()


def test_a_claim_of_a_later_term_ends_the_holders(tmp_path: Path) -> None:
    held = Place(tmp_path)
    held.hold(Lsn(5))
    held.require()

    assert not place.claim(tmp_path, Lsn(4)), "a leader that was replaced"
    held.require()
    assert place.claim(tmp_path, Lsn(6))
    with pytest.raises(SourceBusyError):
        held.require()
    with pytest.raises(SourceBusyError):
        held.hold(Lsn(5))


def test_who_opened_it_without_leading_lets_go_for_the_term_that_goes_on(tmp_path: Path) -> None:
    first = Place(tmp_path)
    first.hold(Lsn(5))
    first.close()  # the leader's process starts again, and another instance's comes first
    other = Place(tmp_path)
    other.require()

    assert place.claim(tmp_path, Lsn(5))
    with pytest.raises(SourceBusyError):
        other.require()


def test_an_epoch_may_lie_below_the_one_before_on_another_server(tmp_path: Path) -> None:
    held = Place(tmp_path)
    held.hold(Lsn(50))
    held.hold(Lsn(7))
    held.require()
    assert place.claim(tmp_path, Lsn(8))
    with pytest.raises(SourceBusyError):
        held.require()


def test_a_holder_that_was_stopped_is_passed_and_writes_nothing_when_it_wakes(tmp_path: Path) -> None:
    stopped = Place(tmp_path)
    place.take(tmp_path)
    successor = Place(tmp_path)
    successor.require()
    with pytest.raises(SourceBusyError):
        stopped.require()
    stopped.close()
    assert place.is_held(tmp_path)


def test_whoever_opens_the_files_has_a_directory_of_its_own_for_them(tmp_path: Path) -> None:
    assert place.files_of(tmp_path) is None
    stopped = Place(tmp_path)
    (stopped.files / "shapes").mkdir()
    place.take(tmp_path)
    (tmp_path / "held.1").mkdir()  # of one that found none, was passed, and made it when it woke
    successor = Place(tmp_path)
    assert not stopped.files.exists()
    assert (successor.files / "shapes").exists()
    assert list(tmp_path.glob("held.*")) == [place.files_of(tmp_path)] == [successor.files]


def test_what_an_earlier_version_has_made_since_is_what_counts(tmp_path: Path) -> None:
    """It does not know of the directories that are held, and has begun anew beside the lock."""
    opened = Place(tmp_path)
    for name, said in (("shapes", "old"), ("commits", "old")):
        (opened.files / name).mkdir()
        (opened.files / name / said).touch()
    opened.close()
    for name in ("shapes", "commits", "removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "new").touch()
    files = Place(tmp_path).files
    assert {path.relative_to(files).as_posix() for path in files.glob("*/*")} == {
        "shapes/new", "commits/new", "removed/new",
    }  # fmt: skip
    assert not (tmp_path / "removed").exists()


def test_who_is_passed_while_it_opens_the_files_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Place(tmp_path).close()
    found = place.files_of(tmp_path)
    place.take(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(place, "files_of", lambda _: found)
        Place(tmp_path)
        place.take(tmp_path)
        with pytest.raises(SourceBusyError):
            Place(tmp_path)
    assert not place.is_held(tmp_path)


class Capture:
    def __init__(self, epoch: Lsn | None) -> None:
        self.epoch = epoch
        self.asked = 0

    def hello(self) -> Hello:
        self.asked += 1
        if self.epoch is None:
            raise CaptureAwayError("away")
        return Hello(leading=True, epoch=self.epoch, reason="")


class Waiting:
    """A process that waits for a directory."""

    def __init__(self, directory: Path, epoch: Lsn | None) -> None:
        self.stop_asked, self.capture = threading.Event(), Capture(epoch)
        self.result: bool | None = None
        channel = cast(Any, SimpleNamespace(stop_asked=self.stop_asked, state=lambda *_: None))
        self.door = door = cast(Any, SimpleNamespace(status="starting"))

        def wait() -> None:
            self.result = service.wait_for_place(channel, door, directory, cast(Any, self.capture))

        self.thread = threading.Thread(target=wait)
        self.thread.start()

    def has_it(self) -> bool:
        self.thread.join(120)
        return self.result is True


def test_the_leader_has_the_holder_let_go(tmp_path: Path) -> None:
    holder = Place(tmp_path)
    holder.hold(Lsn(5))
    waiting = Waiting(tmp_path, Lsn(6))

    def is_told() -> bool:
        try:
            holder.require()
        except SourceBusyError:
            return True
        return False

    wait_until(is_told, "the holder to be told")
    assert waiting.thread.is_alive()
    holder.close()
    assert waiting.has_it()


def test_the_leader_passes_a_holder_that_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_TAKE_AFTER_S", 0.3)
    Place(tmp_path).hold(Lsn(5))
    assert Waiting(tmp_path, Lsn(6)).has_it()
    Place(tmp_path).close()


def test_who_does_not_lead_waits_and_leaves_the_holder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_TAKE_AFTER_S", 0.0)
    monkeypatch.setattr(service, "_LET_GO_S", 0.01)
    holder = Place(tmp_path)
    holder.hold(Lsn(5))
    claim = (tmp_path / "claim").read_text()
    for waiting in Waiting(tmp_path, None), Waiting(tmp_path, Lsn(4)):
        wait_until(lambda capture=waiting.capture: capture.asked > 1, "it to have looked")  # type: ignore[misc]
        waiting.stop_asked.set()
        waiting.thread.join(120)
        assert waiting.result is False
    holder.require()
    assert (tmp_path / "claim").read_text() == claim

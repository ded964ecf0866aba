"""Whoever leads knows for how long, whatever kind of lock the source has."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from penstock.capture import leadership
from penstock.capture.leadership import HEARTBEATS_MISSED_MAX, Leadership
from penstock.core.errors import PenstockError, SourceBusyError, SourceError
from tests.conftest import wait_until

HEARTBEAT_S = 0.01
LONG_S = 3600.0


@dataclass
class FakeLock:
    """Free from the `free_from`-th time on that it is asked for."""

    free_from: int = 1
    held: bool = False
    tries: int = 0
    lease_s: float = 0.0
    beats: threading.Event = field(default_factory=threading.Event)

    def opened(self, lease_s: float) -> FakeLock:
        self.lease_s = lease_s
        return self

    def take(self) -> bool:
        self.tries += 1
        self.held = self.tries >= self.free_from
        return self.held

    def is_held(self) -> bool:
        self.beats.set()
        return self.held

    def busy(self) -> SourceBusyError:
        return SourceBusyError("Another has it.")

    def lost(self) -> SourceError:
        return SourceError("It was lost.")

    def release(self) -> None:
        self.held = False


def test_a_lock_that_is_lost_is_told_once_and_no_longer_leads() -> None:
    lock, told = FakeLock(), list[PenstockError]()
    leader = Leadership(lock.opened, told.append, HEARTBEAT_S)
    leader.acquire()
    assert lock.lease_s == HEARTBEATS_MISSED_MAX * HEARTBEAT_S
    assert lock.beats.wait(LONG_S)
    lock.held = False
    wait_until(lambda: bool(told), "the loss to be told")
    with pytest.raises(SourceError, match="It was lost"):
        leader.require()
    leader.release()
    assert [error.message for error in told] == ["It was lost."]


def test_a_process_that_wakes_up_knows_that_its_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(leadership, "_now", lambda: now)
    leader = Leadership(FakeLock().opened, lambda _: None, LONG_S)
    leader.acquire()
    now += HEARTBEATS_MISSED_MAX * LONG_S - 1
    leader.require()
    now += 1
    with pytest.raises(SourceError):
        leader.require()
    leader.release()


def test_a_release_is_no_loss() -> None:
    lock, told = FakeLock(), list[PenstockError]()
    leader = Leadership(lock.opened, told.append, HEARTBEAT_S)
    leader.acquire()
    leader.release()
    leader._thread.join()
    assert told == []


def test_a_standby_waits_until_the_lock_is_free_and_says_so_once() -> None:
    lock, waiting = FakeLock(free_from=3), list[int]()
    leader = Leadership(lock.opened, lambda _: None, LONG_S)
    assert leader.wait(threading.Event(), lambda: waiting.append(lock.tries))
    assert waiting == [1]
    leader.release()

    stopped = threading.Event()
    stopped.set()
    assert not Leadership(FakeLock().opened, lambda _: None, LONG_S).wait(stopped, lambda: None)


def test_who_has_the_lock_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leadership.PATIENCE_VARIABLE, "0")
    with pytest.raises(SourceBusyError, match="Another has it"):
        Leadership(FakeLock(free_from=1000).opened, lambda _: None, LONG_S).acquire()


def test_who_gave_the_lock_back_does_not_lead_any_more() -> None:
    """Another may have it at once, while a thread of ours is still about to write."""
    leader = Leadership(FakeLock().opened, lambda _: None, LONG_S)
    leader.acquire()
    leader.require()
    leader.release()
    assert leader.is_lost

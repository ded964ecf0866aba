"""A comparison waits for the log as long as it comes nearer to the source's position, and no longer."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.capture.base import Progress
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.verify.opened import log_read_to

pytestmark = pytest.mark.unit

TARGET = Lsn(1000)
STILL_S = 60.0


def at(position: int, log_end: int, received: int = 0) -> Progress:
    return Progress(Lsn(position), Lsn(log_end), 0, 0, received, 0, Lsn(0))


class Log:
    """Where capture stands, look by look, each half a minute after the one before; and then the end."""

    def __init__(self, looks: Iterable[Progress], now: SimpleNamespace) -> None:
        self._looks = list(looks)
        self._now = now
        self.targets: list[Lsn] = []

    def note_target(self) -> Lsn:
        raise AssertionError("nobody asks")

    def read_to(self, target: Lsn) -> None:
        self.targets.append(target)

    def reached(self, within_s: float | None = None) -> Lsn | None:
        assert within_s is not None
        self._now.s += 30.0
        return None if self._looks else TARGET

    def progress(self) -> Progress:
        return self._looks.pop(0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(s=0.0)
    monkeypatch.setattr("penstock.verify.opened.time", SimpleNamespace(monotonic=lambda: clock.s))
    return clock


@pytest.mark.parametrize(
    "looks",
    [
        [at(100, 100)] * 10,
        [at(2000 + look, 900) for look in range(10)],
    ],
    ids=["nothing comes", "what is beyond it comes, and what is before it is not sealed"],
)
def test_a_log_that_stands_still_ends_the_comparison_and_says_what_to_do(
    looks: list[Progress], now: Any
) -> None:
    log = Log(looks, now)
    with pytest.raises(SourceError, match=r"0/3E8, and stands at .* since 60 seconds") as caught:
        log_read_to(log, TARGET, STILL_S)
    assert "penstock status" in caught.value.remedy
    assert log.targets == [TARGET]
    assert now.s == 30.0 * 4, "the first look begins it, and the third after that is late"


@pytest.mark.parametrize(
    "looks",
    [
        [at(100 + look, 100) for look in range(50)],
        [at(100, 100, received=look) for look in range(50)],
        [at(2000, 100 + look) for look in range(50)],
    ],
    ids=["it is read", "a transaction comes", "it is sealed"],
)
def test_a_log_that_comes_nearer_is_waited_for_however_long_it_takes(looks: list[Progress], now: Any) -> None:
    assert log_read_to(Log(looks, now), TARGET, STILL_S) == TARGET
    assert now.s > 10 * STILL_S

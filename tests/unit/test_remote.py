"""What a lane's side of the service decides by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.capture import remote
from penstock.capture.base import Hello
from penstock.capture.remote import RemoteCapture
from penstock.core.errors import CaptureAwayError, ConfigError

NOBODY = "grpc+tcp://127.0.0.1:1"
STANDS_BY, LEADS = (Hello(leading=leading, epoch=None, reason="", reading=False) for leading in (False, True))


def test_a_certificate_that_is_not_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem") as raised:
        RemoteCapture(NOBODY, "lake", "token", tmp_path / "missing.pem")
    assert "tail.certificate" in raised.value.remedy


def answers(*given: Hello | str) -> Callable[[RemoteCapture], Hello]:
    left = iter(given)

    def hello(_: RemoteCapture) -> Hello:
        answer = next(left)
        if isinstance(answer, str):
            raise CaptureAwayError(answer, remedy="Wait.")
        return answer

    return hello


def test_whoever_waits_long_is_told_why_and_when_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ASK_EVERY_S", 0.001)
    monkeypatch.setattr(remote, "_SAY_AWAY_AFTER_S", -1.0)
    monkeypatch.setattr(RemoteCapture, "hello", answers("a", "a", "b", STANDS_BY, STANDS_BY, "a", LEADS))
    said: list[str] = []
    with RemoteCapture(NOBODY, "lake") as capture:
        assert capture.wait_until_leading(threading.Event(), said.append)
    assert said == ["a", "b", "", "a"]


def test_whoever_waits_shortly_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ASK_EVERY_S", 0.001)
    monkeypatch.setattr(RemoteCapture, "hello", answers("a", STANDS_BY, "a", LEADS))
    said: list[str] = []
    with RemoteCapture(NOBODY, "lake") as capture:
        assert capture.wait_until_leading(threading.Event(), said.append)
    assert said == []

"""What the console has read by another process: one at a time, for so long, and so much of it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from penstock.console import screens
from penstock.console.reading import BusyError, NotReadError, Reading
from tests.conftest import wait_until
from tests.unit.test_console_attacks import LOOK, served

_WAITS = """
import json, os, pathlib, sys, time
pathlib.Path(sys.argv[1], f"pid-{os.getpid()}").touch()
while not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
print(json.dumps({"stream": "public.orders", "dead_letters": 0, "shown": []}))
"""


def _waiting(directory: Path) -> list[str]:
    return [sys.executable, "-c", _WAITS, str(directory)]


def _started(directory: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in directory.glob("pid-*")]


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_who_comes_while_one_is_read_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would be a JVM."""
    monkeypatch.setattr(screens, "_command", lambda _path, _arguments: _waiting(tmp_path))
    console, client = served(tmp_path, {"destination": {"type": "iceberg", "warehouse": "./lake"}})
    statuses: list[int] = []
    headers = client.login(LOOK)
    path = "/api/letters/lake?stream=public.orders"
    first = threading.Thread(
        target=lambda: statuses.append(client.ask("GET", path, headers=headers).status), daemon=True
    )
    try:
        first.start()
        wait_until(lambda: len(_started(tmp_path)) == 1, "the first to be read")
        others = [client.ask("GET", path, headers=headers) for _ in range(5)]
        assert [(other.status, other.headers["retry-after"]) for other in others] == [(503, "5")] * 5
        (tmp_path / "go").touch()
        first.join(30)
        assert statuses == [200]
        assert client.ask("GET", path, headers=headers).status == 200, "then it is somebody else's turn"
        assert len(_started(tmp_path)) == 2
    finally:
        (tmp_path / "go").touch()
        console.stop()


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(NotReadError, match="too long"):
        Reading(within_s=0.5).run(_waiting(tmp_path))
    assert all(map(_is_gone, _started(tmp_path)))


def test_one_that_says_too_much_is_ended(tmp_path: Path) -> None:
    endless = f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, f'pid-{{os.getpid()}}').touch()\n"
    endless += "while True: os.write(1, b'x' * 65536)"
    with pytest.raises(NotReadError, match="too much"):
        Reading(bytes_max=1 << 20).run([sys.executable, "-c", endless])
    (pid,) = _started(tmp_path)
    assert _is_gone(pid)


def test_what_failed_says_so_and_lets_the_next_one_in() -> None:
    reading = Reading()
    assert reading.run([sys.executable, "-c", "print('{}'); raise SystemExit(3)"]) == (3, b"{}\n")
    with pytest.raises(OSError, match="nothing-like-it"):
        reading.run(["/nothing-like-it"])
    try:
        assert reading.run([sys.executable, "-c", ""]) == (0, b"")
    except BusyError:
        pytest.fail("the turn was not given back")

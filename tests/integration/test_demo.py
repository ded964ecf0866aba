"""`penstock demo`: both sides are equal in the end, and nothing is left behind however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.cli.failure import INTERRUPTED
from tests.conftest import wait_until

COMMAND = [
    sys.executable,
    "-c",
    "from penstock.cli.main import main; main()",
    "--json",
    "demo",
    "--rows",
    "400",
]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """As root, Postgres runs as another user: it could not enter pytest's own directories."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.slow
def test_it_loads_follows_compares_and_keeps_what_it_is_asked_to(open_directory: Path) -> None:
    kept = open_directory / "shop"
    done = subprocess.run(
        [*COMMAND, "--rounds", "1", "--keep", str(kept)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["equal"]
    assert len(answer["comparison"]) == 5
    assert all(table["source_rows"] > 0 for table in answer["comparison"])
    assert sum(stream["rows_loaded"] for stream in answer["load"]["streams"]) == 400 + 100 + 200 + 20 + 2
    assert (kept / "penstock.yaml").stat().st_mode & 0o077 == 0, "others could read the password"
    again = subprocess.run(
        [*COMMAND, "--keep", str(kept)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "not empty" in json.loads(again.stdout)["error"]["message"]


@pytest.mark.slow
def test_ctrl_c_ends_every_process_it_started() -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        started: set[psutil.Process] = set()

        def is_at_work() -> bool:
            started.update(psutil.Process(demo.pid).children(recursive=True))
            return any(map(_is_capture, started)) or demo.poll() is not None

        wait_until(is_at_work, "the demo to start capture", timeout_s=120)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=120)
    assert demo.returncode == INTERRUPTED, errors
    _, alive = psutil.wait_procs(list(started), timeout=120)
    assert alive == []


def _is_capture(process: psutil.Process) -> bool:
    try:
        return "penstock.capture" in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


@pytest.mark.slow
def test_its_console_is_one_link_and_all_of_it_ends_with_enter(open_directory: Path) -> None:
    command = [each for each in COMMAND if each != "--json"]
    kept = open_directory / "shop"
    with subprocess.Popen(
        [*command, "--rounds", "1", "--keep", str(kept), "--console"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as demo:
        assert demo.stdin is not None
        assert demo.stdout is not None
        link = next(line.strip() for line in demo.stdout if "#token=" in line)
        url, _, token = link.partition("/#token=")
        request = urllib.request.Request(f"{url}/api/view", headers={"Authorization": f"Bearer {token}"})

        def follows() -> bool:
            with urllib.request.urlopen(request, timeout=120) as answer:
                view = json.load(answer)
            return bool(view["totals"]["states"].get("following") == 5 and view["holds"]["level"] == "good")

        wait_until(follows, "the console to show a pipeline that follows", 120)
        demo.stdin.write("\n")
        demo.stdin.close()
        assert demo.wait(120) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(request, timeout=120)

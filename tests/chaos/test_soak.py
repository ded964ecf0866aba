"""`make soak` runs `tests.chaos.soak`; without a number of seconds only the sequence of faults is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.chaos import soak
from tests.chaos.matrix import SEED
from tests.chaos.soak import Soak, faults, own_disk
from tests.conftest import wait_until

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("PENSTOCK_SOAK_S", "0"))
DESTINATION = os.environ.get("PENSTOCK_SOAK_DESTINATION") or ("parquet", "iceberg")[SEED // 2 % 2]
_KEEPS_A_DISK = """
import pathlib, sys
from tests.chaos.soak import own_disk
with own_disk(pathlib.Path(sys.argv[1])) as mounted:
    print(mounted, flush=True)
    sys.stdin.read()
"""


def test_what_breaks_is_told_by_the_seed() -> None:
    def first(seed: int) -> list[tuple[float, str, float]]:
        return [(fault.pause_s, fault.kind, fault.chance.random()) for fault in islice(faults(seed), 20)]

    assert first(7) == first(7)
    assert first(7) != first(8)
    assert len({kind for _, kind, _ in first(7)[:6]}) == 6, "each kind once"


@pytest.mark.slow
@pytest.mark.skipif(not SECONDS, reason="only by `make soak`")
@pytest.mark.timeout(SECONDS + 1200)
def test_nothing_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    with own_disk(tmp_path / "pipeline") as mounted:
        Soak(tmp_path / "pipeline", SEED, has_disk=mounted, destination=DESTINATION).run(SECONDS)


def test_a_disk_is_full_although_others_write_to_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def resize(_: Path, size: str) -> None:
        sizes.append(int(size))
        if len(sizes) < 4:
            raise subprocess.CalledProcessError(32, "mount")

    monkeypatch.setattr(soak, "_resize", resize)
    monkeypatch.setattr(psutil, "disk_usage", lambda _: SimpleNamespace(used=1000))
    assert soak._fill(tmp_path) == 1000
    slack = [size - 1000 for size in sizes]
    assert slack == sorted(set(slack)), "each try leaves more"


def test_a_disk_is_unmounted_however_its_process_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KEEPS_A_DISK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"True\n":
            pytest.skip("no file system of its own can be mounted here")
        assert tmp_path.is_mount()
        process.kill()
    wait_until(lambda: not tmp_path.is_mount(), "its disk to be gone")

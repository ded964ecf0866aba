"""`make soak` runs `tests.chaos.soak`; without a number of seconds only the sequence of faults is tested."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import psycopg
import pytest
from psycopg import errors

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos import soak
from tests.chaos.counting_connection import CountingConnection
from tests.chaos.matrix import SEED
from tests.chaos.soak import Soak, faults, own_disk
from tests.chaos.soak_writers import SoakWriters
from tests.conftest import Database, wait_until

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


def test_a_lake_is_slow_only_if_somebody_stood_still() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as lake:
        there = {"lake": [lake], "jvm": list[subprocess.Popen[bytes]]()}

        def send(number: signal.Signals, role: str) -> list[int]:
            for process in there[role]:
                process.send_signal(number)
            return [process.pid for process in there[role]]

        leader = SimpleNamespace(name="a", send=send)

        def watch(_seconds: float) -> None:
            wait_until(
                lambda: all(map(soak._stands_still, [each.pid for each in there["lake"]])), "it to stop"
            )

        under = cast("Soak", SimpleNamespace(leader=lambda: leader, watch=watch))
        assert soak._slow_lake(under, random.Random(1)).hit, "without a JVM too"
        wait_until(lambda: not soak._stands_still(lake.pid), "it to go on")
        there["lake"] = []
        assert not soak._slow_lake(under, random.Random(1)).hit


def give_up(transaction: psycopg.Transaction) -> None:
    raise psycopg.Rollback(transaction)


def test_only_what_was_committed_counts(database: Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with CountingConnection.connect(database.url, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("INSERT INTO orders SELECT generate_series(1, 10)")
            connection.execute("SELECT * FROM orders")
            connection.execute("UPDATE orders SET id = -id WHERE id <= 3")
            with connection.transaction() as savepoint:
                connection.execute("DELETE FROM orders")
                give_up(savepoint)
        with connection.transaction() as transaction:
            connection.execute("DELETE FROM orders")
            give_up(transaction)
        assert connection.changed == 10 + 3
        connection.execute("DELETE FROM orders WHERE id < 0")
        with contextlib.suppress(errors.UniqueViolation), connection.transaction():
            connection.execute("DELETE FROM orders WHERE id = 10")
            connection.execute("INSERT INTO orders VALUES (4)")
        with contextlib.suppress(psycopg.OperationalError), connection.transaction():
            connection.execute("DELETE FROM orders")
            database.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        assert connection.changed == 10 + 3 + 3
    assert database.query("SELECT count(*) FROM orders") == [(7,)]


@pytest.mark.slow
def test_writers_catch_up_what_they_could_not_write_while_the_server_was_away() -> None:
    pace = 600
    with EmbeddedPostgres() as server:
        writers = SoakWriters(server.url(), seed=1, changes_per_s=pace)
        writers.setup()
        began = time.monotonic()
        writers.start()

        def missing() -> float:
            return pace * (time.monotonic() - began) - writers.changes

        try:
            wait_until(lambda: writers.changes > pace, "some changes")
            server.stop()
            wait_until(lambda: missing() > 3 * pace, "the writers to miss it for some seconds")
            server.start()
            wait_until(lambda: writers.connected > 0, "the writers to be back")
            behind, before = missing(), writers.changes
            wait_until(lambda: missing() < 0.1 * pace, "the pace to be kept again")
            assert writers.changes - before < 6 * behind, "soon, and not by the way"
        finally:
            writers.stop()
    assert writers.away_s > 1
    assert writers.rate > pace, "the seconds in which it was away do not count"


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

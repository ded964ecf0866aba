"""Capture (slot to sealed log) beside `pg_recvlogical` to /dev/null, over the same log.

Both read the same million inserted rows of 11 columns from slots at the same position, in turns,
over TCP on this machine. Printed: the ratio of their speeds (medians of the warm runs; the first run
of capture compiles and is not counted), CPU-seconds of the capture process per million rows from
`read_to` to "sealed" (user + system), and the peak memory of the process.

`python bench/capture.py [--rows N] [--runs N] [--check]`; with `--check` it fails below the bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import psycopg

from penstock.capture.client import CaptureProcess
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.embedded import EmbeddedPostgres

RATIO_MIN = 0.9
CPU_S_PER_MILLION_MAX = 2.5
MEMORY_MIB_MAX = 512
ROWS_PER_TRANSACTION = 10_000
_SLOT_FREE_S = 30.0
STREAM = StreamId("public", "measured")

_TABLE = """
CREATE TABLE measured (
    id bigint PRIMARY KEY, small int, large bigint, amount numeric(12,2), title text, digest text,
    at timestamptz, day date, flag boolean, ratio float8, document jsonb)
"""
_INSERT = """
INSERT INTO measured
SELECT i, mod(i, 1000), i * 123456789::bigint, mod(i, 100000) * 1.37, 'some text value ' || i, md5(i::text),
       now(), current_date, mod(i, 2) = 0, i * 3.14159, jsonb_build_object('key', i, 'value', 'abc')
FROM generate_series(%s::bigint, %s::bigint) AS i
"""


@dataclass(frozen=True)
class Result:
    rows: int
    receive_rows_per_s: float
    capture_rows_per_s: float
    ratio: float
    cpu_s_per_million: float
    peak_mib: float
    log_mib: float


@dataclass(frozen=True)
class Run:
    seconds: float
    cpu_s: float
    peak_mib: float
    log_bytes: int


class Measured:
    """A database with the rows in its log, and a slot from before them to copy from."""

    def __init__(self, server: EmbeddedPostgres, rows: int) -> None:
        self._server = server
        self.rows = rows
        self.connection = psycopg.connect(server.url(), autocommit=True)
        self.connection.execute(_TABLE.encode())
        self.connection.execute("CREATE PUBLICATION penstock FOR TABLE measured")
        self.connection.execute("SELECT pg_create_logical_replication_slot('origin', 'pgoutput')")
        for first in range(1, rows + 1, ROWS_PER_TRANSACTION):
            self.connection.execute(_INSERT.encode(), (first, min(first + ROWS_PER_TRANSACTION - 1, rows)))
        self.connection.execute("CHECKPOINT")
        self.end = str(self._value("SELECT pg_current_wal_lsn()::text"))

    def _value(self, query: str) -> object:
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def copy_slot(self, name: str) -> str:
        self.connection.execute("SELECT pg_copy_logical_replication_slot('origin', %s)", (name,))
        return name

    def drop_slot(self, name: str) -> None:
        """Its reader has ended, but the server may not know that yet."""
        deadline = time.monotonic() + _SLOT_FREE_S
        while self._value(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{name}'"):
            assert time.monotonic() < deadline, f"somebody reads slot {name}"
            time.sleep(0.01)
        self.connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))

    def drop(self) -> None:
        """Leave nothing of it on the server."""
        self.drop_slot("origin")
        self.connection.execute("DROP TABLE measured")
        self.connection.execute("DROP PUBLICATION penstock")
        self.connection.close()

    def receive(self, slot: str) -> float:
        """Seconds that pg_recvlogical takes to the end of the rows."""
        command = [
            str(self._server.bin("pg_recvlogical")), "--dbname", self._server.url(), "--slot", slot,
            "--start", "--file", "/dev/null", "--endpos", self.end, "--no-loop",
            "--option", "proto_version=1", "--option", "publication_names=penstock",
        ]  # fmt: skip
        start = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    def capture(self, slot: str, directory: Path) -> Run:
        """Read the same rows into a change log."""
        spec = CaptureSpec(
            source=PostgresSpec(self._server.url(), slot, "penstock"),
            log_directory=directory / "log",
            checkpoint_path=directory / "checkpoint.json",
            streams=(STREAM,),
            lanes={"lake": None},
        )
        with CaptureProcess(spec) as capture:
            capture.start()
            assert capture.pid is not None
            process = psutil.Process(capture.pid)
            before = process.cpu_times()
            start = time.perf_counter()
            capture.read_to(Lsn.parse(self.end))
            capture.wait_reached()
            seconds = time.perf_counter() - start
            after = process.cpu_times()
            peak = peak_mib(capture.pid)
        log = ChangeLog(directory / "log")
        found = log.files(STREAM, Lsn(0), Lsn(2**63))
        assert found.rows == self.rows, "every row is in the log once"
        return Run(seconds, after.user + after.system - before.user - before.system, peak, found.bytes)


def peak_mib(pid: int) -> float:
    """The kernel's own record of how large the process has been."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(rows: int, runs: int) -> Result:
    receives: list[float] = []
    captures: list[Run] = []
    settings = {"max_wal_size": "8GB", "max_replication_slots": "20"}
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(settings=settings) as server:
        measured = Measured(server, rows)
        for number in range(runs + 1):
            slot = measured.copy_slot(f"receive_{number}")
            received_s = measured.receive(slot)
            measured.drop_slot(slot)
            slot = measured.copy_slot(f"capture_{number}")
            run = measured.capture(slot, Path(directory) / str(number))
            measured.drop_slot(slot)
            if number:  # the first run of each warms caches
                receives.append(received_s)
                captures.append(run)
        measured.connection.close()
    receive_s = statistics.median(receives)
    capture_s = statistics.median(run.seconds for run in captures)
    return Result(
        rows=rows,
        receive_rows_per_s=rows / receive_s,
        capture_rows_per_s=rows / capture_s,
        ratio=receive_s / capture_s,
        cpu_s_per_million=statistics.median(run.cpu_s for run in captures) * 1e6 / rows,
        peak_mib=max(run.peak_mib for run in captures),
        log_mib=captures[0].log_bytes / 2**20,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the bar")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.rows, arguments.runs)
    if arguments.json:
        print(json.dumps(asdict(result)))
    else:
        print(f"pg_recvlogical      {result.receive_rows_per_s:12,.0f} rows/s")
        print(f"capture             {result.capture_rows_per_s:12,.0f} rows/s")
        print(f"ratio               {result.ratio:12.2f} (bar {RATIO_MIN})")
        print(f"CPU-s per million   {result.cpu_s_per_million:12.2f}")
        print(f"peak memory         {result.peak_mib:12.0f} MiB (bar {MEMORY_MIB_MAX})")
        print(f"log                 {result.log_mib:12.0f} MiB")
    below = (
        result.ratio < RATIO_MIN
        or result.peak_mib > MEMORY_MIB_MAX
        or result.cpu_s_per_million > CPU_S_PER_MILLION_MAX
    )
    return 1 if arguments.check and below else 0


if __name__ == "__main__":
    sys.exit(main())

"""`verify` of a table against a full load of the same table, in the same run; and its memory by table size.

A comparison reads the source as a load does, and the table besides; it writes nothing. The table is synced
once, and the log has nothing for it. Both sides find a Spark session and workers that are warm. Memory by
table size is that of `penstock verify` in a process of its own, driver and Java, for each size. Then five
differences are planted in the table (`bench/planted.py`), which must be found, named and repaired.

Beside that, how often 50 comparisons of a table into which 2,000 rows a second are written find a difference
that is none: updates of rows and keys, inserts and deletes, several statements in a transaction. Every tenth
is followed by a sync, the others find the changes in the log alone.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from pathlib import Path

from rich.console import Console

from bench import planted, workload
from bench.comparison import Bars, Comparison, Figure, Run
from bench.load import TABLE, ToParquet
from bench.pipelines import PARQUET, Lake, new_pipeline
from bench.resources import driver_peak_bytes, measured
from penstock import Pipeline
from penstock.sources.postgres.embedded import EmbeddedPostgres

BARS = Bars(ratio_min=0.5)
SMALL = "public.tenth"
BUSY = "public.busy"
BUSY_ROWS = 100_000
CHANGES_PER_S = 2_000
RATE_MIN = 0.95 * CHANGES_PER_S  # or the comparisons were not beside such writers
RUNS = 50
GROWTH_MAX = 1.3  # of memory, for ten times the rows


def compare(
    server: EmbeddedPostgres,
    rows: int,
    rounds: int,
    directory: Path,
    console: Console,
    lake: Lake = PARQUET,
) -> tuple[Comparison, list[Figure]]:
    """The table of `load.prepare` must be there."""
    reference = ToParquet(directory)
    title = f"verify of {rows:,} rows in {lake.name} tables"
    comparison = Comparison(f"{lake.prefix}verify", title, "full load to Parquet", BARS)
    pipeline = _synced(directory / f"{lake.prefix}verify", TABLE, lake)
    console.log(f"{comparison.name}: a warm-up round, not counted")
    for number in range(rounds + 1):
        theirs, ours = reference.load(TABLE, rows), _verify(pipeline, rows)
        if number:
            console.log(comparison.add_round(theirs, ours))
    large = _peak_bytes(pipeline, rows, console)
    found = planted.figures(pipeline, TABLE, lake, title)
    pipeline.teardown()
    small = _tenth(server, rows // 10, directory, console, lake)
    growth = Figure(f"memory of {title}, against a tenth of the rows", large / small, GROWTH_MAX, "×")
    return comparison, [growth, *found, *_false_alarms(server, directory, console, lake)]


def _peak_bytes(pipeline: Pipeline, rows: int, console: Console) -> int:
    """Of driver and Java, in a process that has compared nothing before."""
    file = pipeline.config.state.parent / "penstock.yaml"
    peak = driver_peak_bytes([sys.executable, "-m", "penstock", "-c", str(file), "verify"])
    console.log(f"verify: driver and Java, {rows:,} rows: {peak / 2**20:,.0f} MiB at most")
    return peak


def _tenth(server: EmbeddedPostgres, rows: int, directory: Path, console: Console, lake: Lake) -> int:
    """Peak memory for a table of so many rows."""
    with workload.connect(server) as connection:
        workload.drop_table(connection, SMALL)
        workload.create_table(connection, SMALL)
        workload.insert_rows(connection, SMALL, 1, rows)
        workload.settle(connection, SMALL)
        pipeline = _synced(directory / f"{lake.prefix}verify-tenth", SMALL, lake)
        peak = _peak_bytes(pipeline, rows, console)
        pipeline.teardown()
        workload.drop_table(connection, SMALL)
    return peak


def _false_alarms(server: EmbeddedPostgres, directory: Path, console: Console, lake: Lake) -> list[Figure]:
    with workload.connect(server) as connection:
        workload.drop_table(connection, BUSY)
        workload.create_table(connection, BUSY)
        workload.insert_rows(connection, BUSY, 1, BUSY_ROWS)
        workload.settle(connection, BUSY)
    pipeline = _synced(directory / f"{lake.prefix}verify-busy", BUSY, lake)
    alarms = 0
    with _Writer(server) as writer:
        for number in range(1, RUNS + 1):
            report = pipeline.verify()
            assert report.complete, report
            alarms += not report.equal
            if number % 10 == 0:
                pipeline.sync()
                console.log(f"{number} comparisons, {writer.rate:,.0f} changes/s, {alarms} alarms")
        rate = writer.rate
    pipeline.teardown()
    title = f"{RUNS} comparisons beside writers, {lake.name}"
    return [
        Figure(f"false alarms in {title}", alarms, 0),
        Figure(f"what was written during {title}", rate, RATE_MIN, "changes/s", at_least=True),
    ]


class _Writer:
    """Writes 2,000 rows a second, or as many as the server takes, until the block is left."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._stop = threading.Event()
        self._changes = 0
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._write, name="writer")

    @property
    def rate(self) -> float:
        return self._changes / (time.monotonic() - self._began)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        with workload.connect(self._server) as connection:
            for number in itertools.count():
                late_s = time.monotonic() - self._began - self._changes / CHANGES_PER_S
                if self._stop.wait(max(0.0, -late_s)):
                    return
                first = BUSY_ROWS + 1 + 50 * number
                touched = f"id % 1000 = {number % 1000}"
                with connection.transaction():
                    workload.insert_rows(connection, BUSY, first, first + 49)
                    connection.execute(f"UPDATE {BUSY} SET weight = weight + 1 WHERE {touched}".encode())
                    gone, moved = (f"id BETWEEN {first - n} AND {first - n + 24}" for n in (500, 475))
                    connection.execute(f"DELETE FROM {BUSY} WHERE {gone}".encode())
                    connection.execute(f"UPDATE {BUSY} SET id = -id WHERE {moved}".encode())
                self._changes += 200


def _synced(directory: Path, table: str, lake: Lake) -> Pipeline:
    name = f"bench_{directory.name.replace('-', '_')}"
    shutil.rmtree(directory, ignore_errors=True)
    pipeline = new_pipeline(directory, table, mode="cdc", slot=name, publication=name, lake=lake)
    pipeline.sync()
    return pipeline


def _verify(pipeline: Pipeline, rows: int) -> Run:
    with measured() as meter:
        report = pipeline.verify()
    [stream] = report.streams
    assert stream.verdict == "equal", stream
    assert stream.source_rows == stream.table_rows == rows, stream
    return Run(rows, meter.usage)

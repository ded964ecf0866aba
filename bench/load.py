"""Full load of a table to Parquet, slot and change log not involved (`mode: full_refresh`).

Penstock's time is one `Pipeline.sync()` on a fresh state: planning the chunks, reading, casting, writing
durable Parquet files, committing the table and the state. The Spark session is already running and the
workers have loaded their libraries (a whole load is run first and not counted): a Spark start, 5–10 s once
per process, is excluded.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Run
from bench.pipelines import new_pipeline, rows_in, timed_sync
from bench.references import LoadReference
from penstock.sources.postgres.embedded import EmbeddedPostgres

TABLE = "public.loaded"
BARS = Bars(ratio_min=0.5, cpu_s_per_million_max=2.5)


def prepare(server: EmbeddedPostgres, rows: int, console: Console) -> None:
    console.log(f"making a table of {rows:,} rows × 11 columns")
    with workload.connect(server) as connection:
        workload.create_table(connection, TABLE)
        workload.insert_rows(connection, TABLE, 1, rows)
        workload.settle(connection, TABLE)


def compare(
    reference: LoadReference, rows: int, rounds: int, directory: Path, console: Console, bars: Bars = BARS
) -> Comparison:
    comparison = Comparison("load", f"full load of {rows:,} rows to Parquet", reference.name, bars)
    console.log("full load: a warm-up round, not counted")
    reference.load(TABLE, rows)
    _load(directory / "load-warm", rows)
    for number in range(1, rounds + 1):
        theirs = reference.load(TABLE, rows)
        ours = _load(directory / f"load-{number}", rows)
        console.log(comparison.add_round(theirs, ours))
    return comparison


def _load(directory: Path, rows: int) -> Run:
    slot = directory.name.replace("-", "_")  # not created: a full refresh needs none
    pipeline = new_pipeline(directory, TABLE, mode="full_refresh", slot=slot, publication="bench_load")
    run = timed_sync(pipeline, TABLE, rows)
    found = rows_in(pipeline, TABLE)
    assert found == rows, f"the table has {found:,} rows instead of {rows:,}"
    shutil.rmtree(directory)
    return run

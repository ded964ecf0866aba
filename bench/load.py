"""Full load of a table, slot and change log not involved (`mode: full_refresh`).

Penstock's time is one `Pipeline.sync()` on a fresh state: planning the chunks, reading, casting, writing
durable files, committing the table and the state. The Spark session is already running and the
workers have loaded their libraries (a whole load is run first and not counted): a Spark start, 5–10 s once
per process, is excluded. A load to Parquet tables is measured by Postgres' own COPY, one to Iceberg tables
by the same load to Parquet (`ToParquet`), which shows what the commits of Iceberg cost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Run
from bench.pipelines import PARQUET, Lake, new_pipeline, rows_in, timed_sync
from bench.references import LoadReference
from penstock.sources.postgres.embedded import EmbeddedPostgres

TABLE = "public.loaded"
BARS = Bars(ratio_min=0.5, cpu_s_per_million_max=2.5)
ICEBERG_BARS = Bars(ratio_min=0.8)


class ToParquet:
    name = "Penstock to Parquet"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, table: str, rows: int) -> Run:
        return _load(self._directory / "load-to-parquet", table, rows, PARQUET)


def prepare(server: EmbeddedPostgres, rows: int, console: Console) -> None:
    console.log(f"making a table of {rows:,} rows × 11 columns")
    with workload.connect(server) as connection:
        workload.create_table(connection, TABLE)
        workload.insert_rows(connection, TABLE, 1, rows)
        workload.settle(connection, TABLE)


def compare(
    reference: LoadReference,
    rows: int,
    rounds: int,
    directory: Path,
    console: Console,
    bars: Bars = BARS,
    lake: Lake = PARQUET,
) -> Comparison:
    title = f"full load of {rows:,} rows to {lake.name}"
    comparison = Comparison(f"{lake.prefix}load", title, reference.name, bars)
    console.log(f"{comparison.name}: a warm-up round, not counted")
    for number in range(rounds + 1):
        theirs = reference.load(TABLE, rows)
        ours = _load(directory / f"load-{number}", TABLE, rows, lake)
        if number:
            console.log(comparison.add_round(theirs, ours))
    return comparison


def _load(directory: Path, table: str, rows: int, lake: Lake) -> Run:
    slot = directory.name.replace("-", "_")  # not created: a full refresh needs none
    pipeline = new_pipeline(
        directory, table, mode="full_refresh", slot=slot, publication="bench_load", lake=lake
    )
    run = timed_sync(pipeline, table, rows)
    found = rows_in(pipeline, table)
    assert found == rows, f"the table has {found:,} rows instead of {rows:,}"
    shutil.rmtree(directory)
    return run

"""Penstock as the benchmarks run it: a pipeline file as a user would write it, with the defaults."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from bench.comparison import Run
from bench.resources import measured
from penstock import Pipeline

#: The pipeline file names this variable, so that no password is written to a file.
URL_VARIABLE = "PENSTOCK_BENCH_URL"


def new_pipeline(directory: Path, table: str, *, mode: str, slot: str, publication: str) -> Pipeline:
    """A pipeline on a fresh state, in a directory of its own."""
    directory.mkdir(parents=True)
    file = directory / "penstock.yaml"
    file.write_text(
        f"""
source: {{type: postgres, url: "${{{URL_VARIABLE}}}", slot: {slot}, publication: {publication}}}
destination: {{type: parquet, path: ./lake}}
state: ./state
streams:
  - {{table: {table}, mode: {mode}}}
"""
    )
    return Pipeline.from_yaml(file)


def use_server(url: str) -> None:
    os.environ[URL_VARIABLE] = url


def timed_sync(pipeline: Pipeline, table: str, rows: int) -> Run:
    """One sync that must move exactly `rows` rows."""
    with measured() as meter:
        report = pipeline.sync()
    moved = sum(stream.rows_loaded + stream.changes for stream in report.streams)
    if moved != rows:
        raise AssertionError(f"a sync of {table} moved {moved:,} rows instead of {rows:,}")
    return Run(rows, meter.usage)


def rows_in(pipeline: Pipeline, table: str) -> int:
    """Rows of the committed table, by the footers of its files."""
    return sum(pq.read_metadata(file).num_rows for file in pipeline.table(table).path.glob("*.parquet"))

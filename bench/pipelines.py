"""Penstock as the benchmarks run it: a pipeline file as a user would write it, with the defaults.

A process has one Spark session, and one that was started without Iceberg's jars stays without: `start_spark`
goes before everything else where a pipeline of the run has Iceberg tables.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.comparison import Run
from bench.resources import measured
from penstock import Pipeline
from penstock.lake import iceberg_session
from penstock.lake.session import spark_session

#: The pipeline file names this variable, so that no password is written to a file.
URL_VARIABLE = "PENSTOCK_BENCH_URL"


@dataclass(frozen=True, slots=True)
class Lake:
    """A kind of table: what people call it, what the names of its benchmarks begin with, its setting."""

    name: str
    prefix: str
    setting: str


PARQUET = Lake("Parquet", "", "{type: parquet, path: ./lake}")
ICEBERG = Lake("Iceberg", "iceberg-", "{type: iceberg, warehouse: ./lake, catalog: {type: sqlite}}")


def start_spark(directory: Path) -> SparkSession:
    """A session that can write both kinds of tables."""
    packages = (iceberg_session.ICEBERG, iceberg_session.SQLITE)
    return spark_session("local[*]", iceberg_session.iceberg_conf(packages), directory / "spark.log")


def new_pipeline(
    directory: Path, table: str, *, mode: str, slot: str, publication: str, lake: Lake = PARQUET
) -> Pipeline:
    """A pipeline on a fresh state, in a directory of its own."""
    directory.mkdir(parents=True)
    file = directory / "penstock.yaml"
    file.write_text(
        f"""
source: {{type: postgres, url: "${{{URL_VARIABLE}}}", slot: {slot}, publication: {publication}}}
destination: {lake.setting}
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
    """Rows of the committed table: by the footers of its files, or as Spark counts those of Iceberg."""
    if pipeline.config.destination.type == "iceberg":
        return pipeline.table(table).spark(SparkSession.builder.getOrCreate()).count()
    return sum(pq.read_metadata(file).num_rows for file in pipeline.table(table).path.glob("*.parquet"))

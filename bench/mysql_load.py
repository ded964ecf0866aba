"""Full load of a MySQL table to Parquet against a plain read of it by PyMySQL, the driver's own way.

A real MySQL 9 holds the 11 columns of `bench.binlog`. The reference is one connection with a server-side
cursor (`SSCursor`), which the driver has for large results: every row becomes Python objects and is dropped.
Penstock's time is one `Pipeline.sync()` on a fresh state (`mode: full_refresh`), from planning the chunks to
the committed table, on one connection too: one query shows one moment. Both speak plain TCP. The Spark
session is there before, and the first round of both is not counted.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pymysql
from pymysql.cursors import SSCursor
from rich.console import Console

from bench.binlog import new_table
from bench.comparison import Bars, Comparison, Run
from bench.pipelines import rows_in, timed_sync
from bench.resources import measured
from penstock import Pipeline
from tests.mysql_server import MysqlServer

ROWS_MAX = 2_000_000
BARS = Bars(ratio_min=3.0)
_TABLE = "bench.measured"


def compare(rows: int, rounds: int, directory: Path, console: Console) -> Comparison:
    rows = min(rows, ROWS_MAX)
    title = f"full load of {rows:,} rows of MySQL to Parquet"
    comparison = Comparison("mysql-load", title, "PyMySQL's SSCursor", BARS)
    console.log(f"making a MySQL table of {rows:,} rows × 11 columns")
    with MysqlServer(directory / "mysql-load-server", settings=["--skip-log-bin"]) as server:
        new_table(server, rows)
        for number in range(rounds + 1):
            theirs = _read(server, rows)
            ours = _load(server, directory / f"mysql-load-{number}", rows)
            if number:
                console.log(comparison.add_round(theirs, ours))
    return comparison


def _read(server: MysqlServer, rows: int) -> Run:
    with (
        closing(
            pymysql.connect(
                host="127.0.0.1", port=server.port, user="root", charset="utf8mb4", ssl_disabled=True
            )
        ) as connection,
        connection.cursor(SSCursor) as cursor,
        measured() as meter,
    ):
        cursor.execute(f"SELECT * FROM {_TABLE}")
        found = sum(1 for _ in cursor)
    assert found == rows, f"{found:,} rows were read instead of {rows:,}"
    return Run(rows, meter.usage)


def _load(server: MysqlServer, directory: Path, rows: int) -> Run:
    directory.mkdir(parents=True)
    file = directory / "penstock.yaml"
    file.write_text(
        f"""
source: {{type: mysql, url: "mysql://root@127.0.0.1:{server.port}/bench?ssl_mode=disabled"}}
destination: {{type: parquet, path: ./lake}}
state: ./state
streams:
  - {{table: {_TABLE}, mode: full_refresh}}
"""
    )
    pipeline = Pipeline.from_yaml(file)
    run = timed_sync(pipeline, _TABLE, rows)
    found = rows_in(pipeline, _TABLE)
    assert found == rows, f"the table has {found:,} rows instead of {rows:,}"
    shutil.rmtree(directory)
    return run

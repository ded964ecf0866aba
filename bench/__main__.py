"""`python -m bench`: Penstock against what Postgres' own clients reach on the same machine in the same run.

capture  the change log against `pg_recvlogical` to /dev/null, equal slots on the same write-ahead log
tail     an always-on capture with one and with three readers of its tail against `pg_recvlogical`, and the
         way from capture to a lane against a bare Flight hop
load     a full load to Parquet against `COPY … (FORMAT binary)` to /dev/null on one connection
verify   a comparison of a table with its source against a full load of it, its memory by table size, planted
         differences, false alarms beside writers
changes  inserted rows from the slot to the committed table against `pg_recvlogical` on the same log
mysql-load
         a full load of a MySQL table to Parquet against PyMySQL's server-side cursor
mongodb  a collection as loads read it, as columns and as JSON, against pymongoarrow and `bson.json_util`; a
         change stream against a bare `watch()` loop
binlog   1 M rows of a MySQL binary log to Arrow columns against its packets, read and not decoded, and into
         the change log; 100,000 transactions of one row; compressed logs of both servers, in which none
         may be missing
tables   200 tables of 1,000 rows: seconds per table to discover, load and follow them; no reference
upserts  100,000 changed keys into an Iceberg table against `MERGE INTO`, into one ten times as large, and
         100 keys end to end

shapes-router   changes against many conditions in the router alone
shapes-latency  from a write to a client that polls: one shape, during a first sync, while steps are sealed,
                beside 10,000 shapes, beside 1,000 with ILIKE
shapes-sync     a first sync of 1 M rows against `COPY (SELECT to_json …)`, and 1,000 at once
shapes-fanout   a change to 1,000 clients that poll against a bare server that pushes the same bytes
shapes-memory   per idle shape, of a large DELETE; changes made durable for 10,000 shapes; the slot's lag

streams-kafka    rows to Kafka, in transactions, against `pg_recvlogical`; from a write to a consumer at 1,000
                 changes a second; memory
streams-kinesis  rows to a Kinesis emulator against a bare PutRecords loop; CPU where Kinesis costs nothing

iceberg-load, iceberg-changes, iceberg-tables: the same into Iceberg tables, the first two against Parquet's.
iceberg-verify: of an Iceberg table, against a load to Parquet.

Method. One embedded Postgres, fsync off, on the machine that also runs Penstock, so both share its cores;
where it is named, a MySQL or a MongoDB there.
Each comparison has a warm-up that is not counted, then rounds: the reference and Penstock one after the
other. The ratio is the median of the rounds' quotients. A Spark start is excluded: the session is there
before a clock starts. CPU seconds and peak memory are those of the whole process tree (driver, Java, Python
workers, capture) without Postgres. After each run the number of committed rows is compared with the source's.

With --check, or CHECK=1 in the environment, the exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from bench import (
    binlog,
    capturing,
    changes,
    load,
    mongodb,
    mysql_load,
    shapes_fanout,
    shapes_latency,
    shapes_memory,
    shapes_router,
    shapes_sync,
    streams_kafka,
    streams_kinesis,
    tables,
    tail,
    upserts,
    verify,
    workload,
)
from bench.command import finish, new_console, parse_arguments, warn_if_busy
from bench.comparison import Comparison, Figure
from bench.pipelines import ICEBERG, PARQUET, start_spark, use_server
from bench.references import BinaryCopy, ReceiveLogical
from penstock.sources.postgres.embedded import EmbeddedPostgres

NAMES = (
    "capture", "tail", "load", "verify", "changes", "tables", "binlog", "mysql-load", "mongodb",
    "iceberg-load", "iceberg-verify", "iceberg-changes", "iceberg-tables", "upserts",
    "shapes-router", "shapes-latency", "shapes-sync", "shapes-fanout", "shapes-memory",
    "streams-kafka", "streams-kinesis",
)  # fmt: skip
#: Those for which no Spark session is started.
WITHOUT_SPARK = {
    "capture",
    "tail",
    "binlog",
    "mongodb",
    *(name for name in NAMES if name.startswith(("shapes-", "streams-"))),
}
_SHAPES = {
    "shapes-latency": shapes_latency.measure,
    "shapes-fanout": shapes_fanout.measure,
    "shapes-memory": shapes_memory.measure,
}
_STREAMS = {"streams-kafka": streams_kafka.compare, "streams-kinesis": streams_kinesis.compare}


def main() -> int:
    arguments = parse_arguments("python -m bench", __doc__ or "", NAMES)
    console = new_console()
    warn_if_busy(console)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, workload.new_server() as server:
        use_server(server.url())
        benchmarks = Benchmarks(
            server, Path(name), console, arguments.rows, arguments.changes, arguments.rounds
        )
        benchmarks.run(arguments.names)
    return finish(console, benchmarks.comparisons, arguments, benchmarks.many, benchmarks.figures)


class Benchmarks:
    """Those asked for, one after the other, on one server and in one Spark session."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        directory: Path,
        console: Console,
        rows: int,
        change_rows: int,
        rounds: int,
    ) -> None:
        self.comparisons: list[Comparison] = []
        self.many: list[tables.ManyTables] = []
        self.figures: list[Figure] = []
        self._server = server
        self._directory = directory
        self._console = console
        self._rows = rows
        self._change_rows = change_rows
        self._rounds = rounds

    @cached_property
    def _spark(self) -> SparkSession:
        return start_spark(self._directory)

    def run(self, names: Sequence[str]) -> None:
        if set(names) - WITHOUT_SPARK:
            _ = self._spark  # before any clock starts
        if "capture" in names:
            self._capture()
        if "tail" in names:
            compared, found = tail.compare(
                self._server, self._change_rows, self._rounds, self._directory, self._console
            )
            self.comparisons += compared
            self.figures += found
        self._other_sources(names)
        if {"load", "iceberg-load", "verify", "iceberg-verify"} & set(names):
            self._load(names)
        if {"changes", "iceberg-changes"} & set(names):
            self._changes(names)
        for lake in (PARQUET, ICEBERG):
            if f"{lake.prefix}tables" in names:
                with workload.connect(self._server) as connection:
                    self.many.append(tables.run(connection, self._directory, self._console, lake))
        if "upserts" in names:
            compared, found = upserts.run(
                self._server, self._spark, self._rounds, self._directory, self._console
            )
            self.comparisons += compared
            self.figures += found
        self._shapes(names)
        for name in names:
            if name in _STREAMS:
                comparison, found = _STREAMS[name](
                    self._server, self._change_rows, self._rounds, self._directory, self._console
                )
                self.comparisons.append(comparison)
                self.figures += found

    def _other_sources(self, names: Sequence[str]) -> None:
        place = (self._rounds, self._directory, self._console)
        if "binlog" in names:
            compared, found = binlog.compare(self._change_rows, *place)
            self.comparisons += compared
            self.figures += found
        if "mysql-load" in names:
            self.comparisons.append(mysql_load.compare(self._rows, *place))
        if "mongodb" in names:
            compared, found = mongodb.compare(*place)
            self.comparisons += compared
            self.figures += found

    def _shapes(self, names: Sequence[str]) -> None:
        place = (self._directory, self._console)
        if "shapes-router" in names:
            self.figures += shapes_router.measure(self._console)
        if "shapes-sync" in names:
            comparison, found = shapes_sync.compare(self._server, self._rounds, *place)
            self.comparisons.append(comparison)
            self.figures += found
        for name in names:
            if name in _SHAPES:
                self.figures += _SHAPES[name](self._server, *place)

    def _capture(self) -> None:
        self.comparisons.append(
            capturing.compare(self._server, self._change_rows, self._rounds, self._directory, self._console)
        )

    def _load(self, names: Sequence[str]) -> None:
        load.prepare(self._server, self._rows, self._console)
        work = (self._rows, self._rounds, self._directory, self._console)
        if "load" in names:
            self.comparisons.append(load.compare(BinaryCopy(self._server), *work))
        if "iceberg-load" in names:
            reference = load.ToParquet(self._directory)
            self.comparisons.append(load.compare(reference, *work, load.ICEBERG_BARS, ICEBERG))
        for lake in (PARQUET, ICEBERG):
            if f"{lake.prefix}verify" in names:
                comparison, found = verify.compare(self._server, *work, lake)
                self.comparisons.append(comparison)
                self.figures += found
        with workload.connect(self._server) as connection:
            workload.drop_table(connection, load.TABLE)

    def _changes(self, names: Sequence[str]) -> None:
        with workload.connect(self._server) as connection:
            work = (connection, self._change_rows, self._rounds, self._directory, self._console)
            if "changes" in names:
                changes.prepare(connection)
                receive = ReceiveLogical(self._server, connection, changes.PUBLICATION)
                self.comparisons.append(changes.compare(receive, *work))
            if "iceberg-changes" in names:
                changes.prepare(connection)
                reference = changes.ToParquet(self._directory)
                self.comparisons.append(changes.compare(reference, *work, changes.ICEBERG_BARS, ICEBERG))


if __name__ == "__main__":
    sys.exit(main())

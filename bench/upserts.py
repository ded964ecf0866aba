"""Changed rows into Iceberg tables: against `MERGE INTO`, in a table ten times as large, and end to end.

A batch updates keys chosen uniformly at random among those of a table at the source; a pipeline follows it.
Timed is what comes after the log is read: folding the batch, finding its rows in the table, writing rows and
position deletes, the commit, the state and the acknowledgement. That is what `MERGE INTO … WHEN MATCHED THEN
UPDATE SET *` does in the same session, merge-on-read, with the batch's rows as a Parquet file and a copy of
the table. Each round has one batch of the smaller table, its `MERGE INTO`, and one batch of the larger table,
so that all three meet a JVM that is equally warm; the first three, in which it still compiles what both use,
are not counted. Afterwards both copies must have the same rows (by their number and the sum of their hashes),
and the larger table as many as the source.

A batch of 100 keys is timed end to end instead: a whole `Pipeline.sync()`, the start of capture included.
Peak memory is that of `penstock sync` in a process of its own, driver and Java, while it applies a batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as column
from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Figure, Run
from bench.pipelines import ICEBERG, new_pipeline, rows_in, timed_sync
from bench.references import create_publication
from bench.resources import Meter, driver_peak_bytes, measured
from penstock.pipeline import Pipeline, Silence
from penstock.sources.postgres.embedded import EmbeddedPostgres

KINDS = ("bigint", "uuid")
ROWS = 1_000_000
TIMES_LARGER = 10
CHANGED = 100_000
FEW = 100
WARM_UPS = 3
BARS = Bars(ratio_min=3.0)
CPU_GROWTH_MAX = 2.0
MEMORY_GROWTH_MAX = 1.25
FEW_SECONDS_MAX = 1.5

_NAMES = ("id", "n1", "n2", "n3", "n4", "t1", "t2", "t3", "t4")
_COLUMNS = "id {kind}, n1 bigint, n2 bigint, n3 bigint, n4 bigint, t1 text, t2 text, t3 text, t4 text"
_ROWS = """
    SELECT {key}, i % 1000, i * 123456789, i * 7919 % 1000003, i * 104729 % 1000000007,
           'some text value ' || i % 1000, (i * 31)::text, (i * 7919 % 1000003)::text, 'abc'
    FROM generate_series(1, {rows}::bigint) AS i
"""
_UPDATE = "UPDATE {table} SET n1 = n1 + 1, t2 = t2 || '+' FROM unnest(%s::bigint[]) AS i WHERE id = {key}"
_CHANGED = "SELECT {table}.* FROM {table}, unnest(%s::bigint[]) AS i WHERE id = {key}"
#: The key of row i. That of UUIDs is in no order, as those of applications are.
_KEYS = {"bigint": sql.SQL("i"), "uuid": sql.SQL("md5(i::text)::uuid")}


@dataclass(frozen=True, slots=True)
class Subject:
    """A table at the source, and batches of changes to it."""

    server: EmbeddedPostgres
    kind: str
    rows: int
    random: np.random.Generator

    @property
    def table(self) -> str:
        return f"public.changed_{self.kind}_{self.rows}"

    @property
    def slot(self) -> str:
        return f"bench_{self.kind}_{self.rows}"

    def create(self) -> None:
        with workload.connect(self.server) as connection:
            columns = sql.SQL(_COLUMNS).format(kind=sql.SQL(self.kind))
            connection.execute(self._with("CREATE TABLE {table} ({columns})", columns=columns))
            rows = sql.SQL(_ROWS).format(key=_KEYS[self.kind], rows=sql.Literal(self.rows))
            connection.execute(self._with("INSERT INTO {table} {rows}", rows=rows))
            connection.execute(self._with("ALTER TABLE {table} ADD PRIMARY KEY (id)"))
            connection.execute(self._with("VACUUM (ANALYZE) {table}"))
            create_publication(connection, self.slot, self.table)

    def pipeline(self, directory: Path) -> Pipeline:
        """A pipeline that follows the table and has it loaded."""
        pipeline = new_pipeline(
            directory / self.slot,
            self.table,
            mode="cdc",
            slot=self.slot,
            publication=self.slot,
            lake=ICEBERG,
        )
        timed_sync(pipeline, self.table, self.rows)
        return pipeline

    def change(self, count: int) -> list[int]:
        """Change so many rows in one transaction; which."""
        chosen: list[int] = (self.random.choice(self.rows, count, replace=False) + 1).tolist()
        with workload.connect(self.server) as connection:
            done = connection.execute(self._with(_UPDATE), (chosen,)).rowcount
        assert done == count, f"{done} rows were changed at the source"
        return chosen

    def write(self, numbers: Sequence[int], path: Path) -> None:
        """These rows as they are now, as a Parquet file."""
        with workload.connect(self.server) as connection:
            rows = connection.execute(self._with(_CHANGED), (list(numbers),)).fetchall()
        ids, *others = zip(*rows, strict=True)
        key = ids if self.kind == "bigint" else [str(value) for value in ids]
        pq.write_table(pa.table([pa.array(key), *map(pa.array, others)], names=_NAMES), path)

    def _with(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        table = sql.Identifier(*self.table.split("."))
        return sql.SQL(statement).format(table=table, key=_KEYS[self.kind], **parts)


class AfterReading(Silence):
    """Measures from when the log is read to its end: from there on a sync applies what it holds."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def stream_finished(self, stream: str, phase: str, rows: int) -> None:
        if phase == "capture":
            self._meter.restart()


def apply_batch(pipeline: Pipeline, rows: int) -> Run:
    """One sync; what it costs from the sealed log on. Memory is that of all of it."""
    with measured() as meter:
        report = pipeline.sync(AfterReading(meter))
    applied = sum(stream.updates for stream in report.streams)
    assert applied == rows, f"a sync applied {applied:,} updates instead of {rows:,}"
    return Run(rows, meter.usage)


class MergeInto:
    """A copy of a table, and the same batches by `MERGE INTO`."""

    name = "MERGE INTO"

    def __init__(self, spark: SparkSession, original: DataFrame, name: str, directory: Path) -> None:
        self._spark = spark
        self._batch = directory / f"{name}.parquet"
        self.table = f"bench.copies.{name}"
        for key, value in {"": _CATALOG, ".type": "hadoop", ".warehouse": str(directory / "copies")}.items():
            spark.conf.set(f"spark.sql.catalog.bench{key}", value)
        writer = original.writeTo(self.table).using("iceberg").tableProperty("format-version", "2")
        writer.tableProperty("write.merge.mode", "merge-on-read").create()

    def run(self, subject: Subject, numbers: Sequence[int]) -> Run:
        subject.write(numbers, self._batch)
        self._spark.read.parquet(str(self._batch)).createOrReplaceTempView("batch")
        with measured() as meter:
            self._spark.sql(
                f"MERGE INTO {self.table} AS t USING batch AS s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        return Run(len(numbers), meter.usage)


_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def run(
    server: EmbeddedPostgres,
    spark: SparkSession,
    rounds: int,
    directory: Path,
    console: Console,
    rows: int = ROWS,
) -> tuple[list[Comparison], list[Figure]]:
    """Comparisons with `MERGE INTO`, and what is held against a bar of its own."""
    subjects = {
        (kind, count): Subject(server, kind, count, np.random.default_rng(count))
        for kind in KINDS
        for count in (rows, TIMES_LARGER * rows)
    }
    console.log(f"upserts: making tables of {rows:,} and {TIMES_LARGER * rows:,} rows")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(Subject.create, subjects.values()))
    comparisons, figures = [], []
    for kind in KINDS:
        small, large = subjects[kind, rows], subjects[kind, TIMES_LARGER * rows]
        comparison, found = _compare(small, large, spark, rounds, directory, console)
        comparisons.append(comparison)
        figures += found
        if kind == KINDS[0]:
            figures.append(_memory_growth(small, large, directory, console))
        with workload.connect(server) as connection:
            workload.drop_slots(connection)
    return comparisons, figures


def _compare(
    small: Subject, large: Subject, spark: SparkSession, rounds: int, directory: Path, console: Console
) -> tuple[Comparison, list[Figure]]:
    title = f"{CHANGED:,} changed {small.kind} keys into {small.rows:,} rows"
    comparison = Comparison("upserts", title, MergeInto.name, BARS)
    console.log(f"upserts: loading tables with {small.kind} keys; {WARM_UPS} warm-up rounds, not counted")
    pipeline, larger = small.pipeline(directory), large.pipeline(directory)
    reference = MergeInto(spark, pipeline.table(small.table).spark(spark), small.slot, directory)
    growth: list[float] = []
    for number in range(WARM_UPS + rounds):
        changed = small.change(CHANGED)
        ours, theirs = apply_batch(pipeline, CHANGED), reference.run(small, changed)
        large.change(CHANGED)
        more = apply_batch(larger, CHANGED)
        if number >= WARM_UPS:
            growth.append(more.usage.cpu_s / ours.usage.cpu_s)
            console.log(comparison.add_round(theirs, ours))
            console.log(
                f"upserts: the same into {large.rows:,} rows: {more.usage.seconds:.2f} s, "
                f"{growth[-1]:.2f} times the CPU"
            )
    assert _content(pipeline.table(small.table).spark(spark)) == _content(spark.table(reference.table)), (
        "the table differs from what MERGE INTO made"
    )
    assert rows_in(larger, large.table) == large.rows, "the larger table does not have the source's rows"
    times = median(growth)
    return comparison, [
        Figure(f"CPU of {title}: times that, into {large.rows:,}", times, CPU_GROWTH_MAX),
        _few(small, pipeline, rounds, console),
    ]


def _few(subject: Subject, pipeline: Pipeline, rounds: int, console: Console) -> Figure:
    spent = []
    for number in range(rounds + 1):
        subject.change(FEW)
        run = timed_sync(pipeline, subject.table, FEW)
        if number:
            spent.append(run.usage.seconds)
            console.log(
                f"upserts: {FEW} changed {subject.kind} keys end to end: {run.usage.seconds:.2f} s, "
                f"{run.usage.cpu_s:.2f} CPU-s"
            )
    title = f"{FEW} changed {subject.kind} keys into {subject.rows:,} rows, source to acknowledgement"
    return Figure(title, median(spent), FEW_SECONDS_MAX, "s")


def _memory_growth(small: Subject, large: Subject, directory: Path, console: Console) -> Figure:
    peaks = []
    for subject in (small, large):
        subject.change(CHANGED)
        file = directory / subject.slot / "penstock.yaml"
        peaks.append(driver_peak_bytes([sys.executable, "-m", "penstock", "-c", str(file), "sync"]))
        console.log(f"upserts: driver and Java, {subject.rows:,} rows: {peaks[-1] / 2**20:,.0f} MiB at most")
    title = f"peak driver memory, {large.rows:,} rows ÷ {small.rows:,} rows"
    return Figure(title, peaks[1] / peaks[0], MEMORY_GROWTH_MAX)


def _content(rows: DataFrame) -> tuple[object, ...]:
    """The number of rows and the sum of their hashes, whatever their order."""
    hashed = column.xxhash64(*rows.columns).cast("decimal(38,0)")
    return tuple(rows.agg(column.count("*"), column.sum(hashed)).collect()[0])

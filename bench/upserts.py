"""`python -m bench.upserts`: changed rows into an Iceberg table, against `MERGE INTO` of the same batch.

A batch is a Parquet file of rows with keys chosen uniformly at random among the table's. Penstock: stages 1
to 3 of a round as Spark tasks and the commit. The reference: `MERGE INTO … WHEN MATCHED THEN UPDATE SET *` in
the same session, into a copy of the table, merge-on-read. Both are warm: one batch each goes before the
clock starts. CPU is that of the whole process tree (driver, Java, Python workers).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather
from pyspark.sql import SparkSession

from bench.resources import Usage, measured
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.base import DataFile, Marker, TableRecord
from penstock.destinations.iceberg import IcebergDestination, IcebergSettings
from penstock.destinations.parquet_files import new_file_name
from penstock.lake.apply import StreamWork, merge
from penstock.lake.fold_task import FoldResult, Staged
from penstock.lake.iceberg_session import ICEBERG, SQLITE, iceberg_conf, java_of
from penstock.lake.output import OutputFile
from penstock.lake.session import run_tasks, spark_session
from penstock.lake.target import Target

CHANGED = 100_000
SMALL = 100
ROWS_PER_FILE = 500_000
FASTER_THAN_MERGE_MIN = 3.0
CPU_GROWTH_MAX = 2.0
SMALL_BATCH_SECONDS_MAX = 1.5
_EPOCH = Lsn(1)


@dataclass(frozen=True, slots=True)
class FirstTask:
    """Stage 1 of a batch that needs no folding: its rows as a file, its keys staged."""

    batch: Path
    target: Target
    path: Path
    keys: Path


def first_stage(task: FirstTask) -> FoldResult:
    rows = pq.read_table(task.batch)
    with OutputFile(task.path, task.target.arrow_schema(), task.target.key[0]) as output:
        output.write_table(rows)
    feather.write_feather(rows.select(task.target.key), str(task.keys), compression="uncompressed")
    return FoldResult(output.data_file, None, Staged(task.keys), False, {"u": rows.num_rows})


class Subject:
    """A table of `rows` rows with a key of one type, and batches for it."""

    def __init__(self, spark: SparkSession, directory: Path, kind: str, rows: int) -> None:
        self.spark = spark
        self.directory = directory
        self.kind = kind
        self.rows = rows
        self.stream = StreamId("bench", f"{kind}_{rows}")
        self.random = np.random.default_rng(rows)
        id_type = ("int8", "bigint") if kind == "bigint" else ("uuid", "uuid")
        columns = [SourceColumn("id", 20, -1, *id_type, 1)]
        columns += [SourceColumn(f"n{i}", 20, -1, "int8", "bigint", 2 + i) for i in range(4)]
        columns += [SourceColumn(f"t{i}", 25, -1, "text", "text", 6 + i) for i in range(4)]
        self.target = Target(TableSchema(self.stream, tuple(columns), key=("id",)), "upsert")
        self.destination = destination(spark, directory)
        self.table = self.destination.table(self.stream)
        self.position = 100
        self._load()

    def keys(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        if self.kind == "bigint":
            return pa.array(numbers)
        # A fixed bijection, so that the same number is the same UUID in every batch, in no order.
        return pa.array(
            [str(uuid.UUID(int=(int(n) * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for n in numbers]
        )

    def content(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]], schema: pa.Schema) -> pa.Table:
        count = len(numbers)
        ints = [pa.array(self.random.integers(0, 10**9, count)) for _ in range(4)]
        texts = [pa.array(self.random.integers(0, 10**12, count)).cast(pa.string()) for _ in range(4)]
        return pa.table([self.keys(numbers), *ints, *texts], schema=schema)

    def _load(self) -> None:
        begun = self.table.begin_load(
            "load", _EPOCH, self.target.schema, "upsert", self.target.arrow_schema()
        )
        assert begun.load is not None
        self.target = self.target.with_ids_of(begun.load.columns)
        schema, files = self.target.arrow_schema(), []
        for start in range(0, self.rows, ROWS_PER_FILE):
            path = self.table.files_directory / new_file_name("load")
            with OutputFile(path, schema, "id") as output:
                output.write_table(
                    self.content(np.arange(start, min(start + ROWS_PER_FILE, self.rows)), schema)
                )
            assert output.data_file is not None
            files.append(output.data_file)
        self.table.commit_chunks("load", _EPOCH, ["all"], files)
        self.table.swap("load", _EPOCH, "g", Lsn(self.position))

    def batch(self, rows: int) -> Path:
        path = self.directory / f"batch-{uuid.uuid4().hex}.parquet"
        numbers = self.random.choice(self.rows, rows, replace=False)
        pq.write_table(self.content(numbers, self.target.arrow_schema()), path)
        return path

    def penstock(self, batch: Path) -> None:
        """One batch, committed."""
        record = self.table.record()
        assert record is not None
        work = self._work(record)

        def make_rows(staging: Mapping[StreamId, Path]) -> dict[StreamId, list[FoldResult]]:
            task = FirstTask(
                batch,
                self.target,
                self.table.files_directory / new_file_name("changes"),
                staging[self.stream] / "keys.arrow",
            )
            return {self.stream: run_tasks(self.spark, first_stage, [task], "make rows")}

        outcome = merge(self.spark, [work], make_rows)[self.stream]
        before, self.position = self.position, self.position + 1
        self.table.commit_changes(
            Lsn(before),
            Marker("g", _EPOCH, Lsn(before), Lsn(self.position), (f"t{before}",)),
            self.target.schema,
            added=outcome.added,
            removed=sorted(outcome.removed),
            deletes=outcome.deletes,
            columns=self.target.arrow_schema(),
            read_from=record.snapshot_id,
        )

    def _work(self, record: TableRecord) -> StreamWork:
        files: tuple[DataFile, ...] = self.table.files(record)
        after, to = Lsn(self.position), Lsn(self.position + 1)
        return StreamWork(
            self.stream,
            self.table,
            self.target,
            files,
            (),
            (),
            after,
            to,
            {},
            None,
            read_from=record.snapshot_id,
        )

    def copy_for_merge(self) -> str:
        name = f"penstock.bench.copy_{self.kind}_{self.rows}"
        rows = self.spark.read.format("iceberg").load(self.table.metadata_location())
        rows.writeTo(name).using("iceberg").tableProperty("format-version", "2").tableProperty(
            "write.merge.mode", "merge-on-read"
        ).create()
        return name

    def merge_into(self, name: str, batch: Path) -> None:
        self.spark.read.parquet(str(batch)).createOrReplaceTempView("batch")
        self.spark.sql(
            f"MERGE INTO {name} AS t USING batch AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def destination(spark: SparkSession, directory: Path) -> IcebergDestination:
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{directory}/catalog.db", "jdbc.schema-version": "V1"}
    settings = IcebergSettings("penstock", {**catalog, "warehouse": str(directory)}, directory)
    return IcebergDestination(settings, lambda: java_of(spark))


def new_session(directory: Path) -> SparkSession:
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # for the workers
    prefix = "spark.sql.catalog.penstock"
    catalog = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{directory}/catalog.db",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": str(directory),
    }
    conf = {"spark.driver.memory": "3g", **iceberg_conf((ICEBERG, SQLITE)), **catalog}
    return spark_session("local[*]", conf, directory / "spark.log")


def rounds(run: Callable[[Path], None], batches: Sequence[Path]) -> list[Usage]:
    run(batches[0])
    usages = []
    for batch in batches[1:]:
        with measured() as meter:
            run(batch)
        usages.append(meter.usage)
    return usages


def middle(usages: Sequence[Usage]) -> tuple[float, float]:
    return statistics.median(each.seconds for each in usages), statistics.median(
        each.cpu_s for each in usages
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.upserts", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000_000, help="0 leaves the large table out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["bigint", "uuid"])
    arguments = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        spark = new_session(directory)
        for kind in arguments.kinds:
            subject = Subject(spark, directory, kind, arguments.rows)
            batches = [subject.batch(CHANGED) for _ in range(arguments.rounds + 1)]
            seconds, cpu = middle(rounds(subject.penstock, batches))
            small = middle(
                rounds(subject.penstock, [subject.batch(SMALL) for _ in range(arguments.rounds + 1)])
            )
            merged = middle(rounds(partial(subject.merge_into, subject.copy_for_merge()), batches))
            print(
                f"{kind}: {CHANGED:,} of {arguments.rows:,}: {seconds:.2f} s, {cpu:.2f} CPU-s; MERGE INTO "
                f"{merged[0]:.2f} s, {merged[1]:.2f} CPU-s; {merged[0] / seconds:.1f} times faster"
            )
            print(f"{kind}: {SMALL} of {arguments.rows:,}: {small[0]:.2f} s, {small[1]:.2f} CPU-s")
            if merged[0] / seconds < FASTER_THAN_MERGE_MIN:
                failures.append(f"{kind}: {merged[0] / seconds:.1f} times MERGE INTO")
            if small[0] > SMALL_BATCH_SECONDS_MAX:
                failures.append(f"{kind}: a batch of {SMALL} rows takes {small[0]:.2f} s")
            if arguments.large:
                large = Subject(spark, directory, kind, arguments.large)
                batches = [large.batch(CHANGED) for _ in range(arguments.rounds + 1)]
                more = middle(rounds(large.penstock, batches))
                growth = more[1] / cpu
                print(
                    f"{kind}: {CHANGED:,} of {arguments.large:,}: {more[0]:.2f} s, {more[1]:.2f} CPU-s; "
                    f"{growth:.2f} times the CPU"
                )
                if growth > CPU_GROWTH_MAX:
                    failures.append(f"{kind}: {growth:.2f} times the CPU in the larger table")
    for failure in failures:
        print(f"below the bar: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    from bench import upserts  # noqa: PLW0406 (tasks know this module by its name)

    sys.exit(upserts.main())

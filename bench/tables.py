"""Many small tables: what a table costs when there is next to nothing in it.

200 tables of 1,000 rows, found by a wildcard, into Parquet or Iceberg tables. Four pieces of work, each timed
alone: `Pipeline.discover()`, the first `Pipeline.sync()` (publication, slot, load of every table, hand-over
to the log), one round of changes in every table, and a sync that finds nothing to do. There is no reference:
the bar is the time per table of the first three together. Spark jobs are counted as well, since a job per
table would cost more than the table's rows. The session is running before the clock starts; a Spark start is
excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql
from pyspark import SparkContext
from rich.console import Console
from rich.table import Table

from bench import workload
from bench.pipelines import Lake, new_pipeline, rows_in, timed_sync
from bench.resources import Usage, measured
from penstock import Pipeline

TABLES = 200
ROWS = 1_000
SECONDS_PER_TABLE_MAX = 1.0
CHANGED_ROWS = 30


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of work over all tables; `jobs` counts its Spark jobs."""

    name: str
    usage: Usage
    jobs: int
    counted: bool = True

    @property
    def seconds_per_table(self) -> float:
        return self.usage.seconds / TABLES


@dataclass(frozen=True, slots=True)
class ManyTables:
    lake: Lake
    parts: tuple[Part, ...]

    @property
    def title(self) -> str:
        return f"{TABLES} {self.lake.name} tables"

    @property
    def seconds_per_table(self) -> float:
        return sum(part.seconds_per_table for part in self.parts if part.counted)

    def failures(self) -> list[str]:
        problems = []
        if self.seconds_per_table > SECONDS_PER_TABLE_MAX:
            spent = f"{self.seconds_per_table:.2f} s per table"
            problems.append(f"{self.title}: {spent} is above {SECONDS_PER_TABLE_MAX:g}")
        jobs = sum(part.jobs for part in self.parts)
        if jobs >= TABLES:
            problems.append(f"{self.title}: {jobs} Spark jobs, as many as there are tables")
        return problems

    def results_table(self) -> Table:
        table = Table(title=f"{self.title} of {ROWS:,} rows; bar: {SECONDS_PER_TABLE_MAX:g} s per table")
        table.add_column("")
        for heading in ("seconds", "per table", "CPU-s", "Spark jobs"):
            table.add_column(heading, justify="right")
        for part in self.parts:
            table.add_row(
                part.name,
                f"{part.usage.seconds:.1f}",
                f"{part.seconds_per_table * 1000:.0f} ms",
                f"{part.usage.cpu_s:.1f}",
                str(part.jobs),
            )
        verdict = "[red]above[/red]" if self.failures() else "[green]met[/green]"
        table.add_row("in all", "", f"{self.seconds_per_table * 1000:.0f} ms", "", verdict)
        return table

    def to_json(self) -> dict[str, Any]:
        return {
            "lake": self.lake.name,
            "tables": TABLES,
            "rows": ROWS,
            "seconds_per_table": self.seconds_per_table,
            "parts": {part.name: [part.usage.seconds, part.usage.cpu_s, part.jobs] for part in self.parts},
        }


def prepare(connection: workload.Connection, names: Sequence[str]) -> None:
    connection.execute("DROP SCHEMA IF EXISTS many CASCADE")
    connection.execute("CREATE SCHEMA many")
    for name in names:
        workload.create_table(connection, name)
        workload.insert_rows(connection, name, 1, ROWS)
    connection.execute("VACUUM (ANALYZE)")
    connection.execute("CHECKPOINT")


def run(connection: workload.Connection, directory: Path, console: Console, lake: Lake) -> ManyTables:
    console.log(f"{lake.prefix}tables: making {TABLES} tables of {ROWS:,} rows")
    names = [f"many.table_{number:03d}" for number in range(TABLES)]
    prepare(connection, names)
    _warm_up(directory, names[0], lake, console)
    pipeline = _pipeline(directory / f"{lake.prefix}tables", "many.*", lake)
    found = _part("discover", lambda: _discover(pipeline, names))
    loaded = _part("load", lambda: timed_sync(pipeline, "many.*", TABLES * ROWS))
    _change(connection, names)
    followed = _part("changes", lambda: timed_sync(pipeline, "many.*", TABLES * 3 * CHANGED_ROWS))
    idle = _part("nothing to do", lambda: timed_sync(pipeline, "many.*", 0), counted=False)
    pipeline.teardown()
    for name in names:
        assert rows_in(pipeline, name) == ROWS, f"{name} does not have the rows of the source"
    return ManyTables(lake, (found, loaded, followed, idle))


def _pipeline(directory: Path, tables: str, lake: Lake) -> Pipeline:
    slot = f"bench_{directory.name.replace('-', '_')}"
    return new_pipeline(directory, tables, mode="cdc", slot=slot, publication=slot, lake=lake)


def _warm_up(directory: Path, table: str, lake: Lake, console: Console) -> None:
    """Starts Spark and lets its workers compile and import what they need."""
    console.log(f"{lake.prefix}tables: one table is loaded first, not counted")
    pipeline = _pipeline(directory / f"{lake.prefix}tables-first", table, lake)
    pipeline.sync()
    pipeline.teardown()


def _discover(pipeline: Pipeline, names: Sequence[str]) -> None:
    found = {str(table.stream) for table in pipeline.discover()}
    assert found.issuperset(names), "discover found fewer tables than there are"


def _change(connection: workload.Connection, names: Sequence[str]) -> None:
    """In every table, a transaction of its own: rows added, changed and removed; its size stays the same."""
    for name in names:
        table = sql.Identifier(*name.split("."))
        with connection.transaction():
            workload.insert_rows(connection, name, ROWS + 1, ROWS + CHANGED_ROWS)
            for statement in (
                "UPDATE {} SET quantity = -1 WHERE id <= {}",
                "DELETE FROM {} WHERE id > 500 AND id <= 500 + {}",
            ):
                connection.execute(sql.SQL(statement).format(table, sql.Literal(CHANGED_ROWS)))


def _part(name: str, work: Callable[[], object], *, counted: bool = True) -> Part:
    before = _jobs()
    with measured() as meter:
        work()
    return Part(name, meter.usage, _jobs() - before, counted)


def _jobs() -> int:
    return len(SparkContext.getOrCreate().statusTracker().getJobIdsForGroup(None))

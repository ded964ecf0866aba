"""Change data capture of inserted rows, from the slot to the committed table.

For every round there is a slot of the reference and a pipeline with its own slot, all made before the rows
are inserted; so all read the same write-ahead log, in full, one after the other. Penstock's time is one
`Pipeline.sync()`: starting capture, reading the slot, writing the change log, folding and applying it to an
upsert table, committing, acknowledging. Every pipeline has followed some changes before (not counted), so
the Spark session and its workers are warm; a Spark start is excluded.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison
from bench.pipelines import new_pipeline, rows_in, timed_sync
from bench.references import ChangeReference, create_publication
from penstock import Pipeline

TABLE = "public.followed"
PUBLICATION = "bench_followed"
BARS = Bars(ratio_min=0.6)
WARM_UP_ROWS = 50_000


def prepare(connection: workload.Connection) -> None:
    workload.create_table(connection, TABLE)
    create_publication(connection, PUBLICATION, TABLE)


def compare(
    reference: ChangeReference,
    connection: workload.Connection,
    rows: int,
    rounds: int,
    directory: Path,
    console: Console,
    bars: Bars = BARS,
) -> Comparison:
    comparison = Comparison(
        "changes", f"CDC of {rows:,} inserted rows, slot to committed table", reference.name, bars
    )
    slots = [f"bench_reference_{number}" for number in range(1, rounds + 1)]
    pipelines = [_following_pipeline(directory, number) for number in range(1, rounds + 1)]
    for slot in slots:
        reference.create_slot(slot)
    _warm_up(reference, connection, slots, pipelines, console)

    console.log(f"inserting {rows:,} rows in transactions of {workload.TRANSACTION_ROWS:,}")
    workload.insert_rows(connection, TABLE, WARM_UP_ROWS + 1, WARM_UP_ROWS + rows)
    connection.execute("CHECKPOINT")
    end = workload.log_end(connection)
    for slot, pipeline in zip(slots, pipelines, strict=True):
        theirs = reference.read(slot, end, rows)
        ours = timed_sync(pipeline, TABLE, rows)
        console.log(comparison.add_round(theirs, ours))
        found = rows_in(pipeline, TABLE)
        assert found == WARM_UP_ROWS + rows, f"the table has {found:,} rows"
    return comparison


def _following_pipeline(directory: Path, number: int) -> Pipeline:
    pipeline = new_pipeline(
        directory / f"changes-{number}",
        TABLE,
        mode="cdc",
        slot=f"bench_penstock_{number}",
        publication=PUBLICATION,
    )
    pipeline.sync()  # the table is empty: this makes the slot and hands over to the log
    return pipeline


def _warm_up(
    reference: ChangeReference,
    connection: workload.Connection,
    slots: list[str],
    pipelines: list[Pipeline],
    console: Console,
) -> None:
    console.log(f"changes: every slot and pipeline follows {WARM_UP_ROWS:,} rows first, not counted")
    workload.insert_rows(connection, TABLE, 1, WARM_UP_ROWS)
    end = workload.log_end(connection)
    for slot, pipeline in zip(slots, pipelines, strict=True):
        reference.read(slot, end, WARM_UP_ROWS)
        timed_sync(pipeline, TABLE, WARM_UP_ROWS)

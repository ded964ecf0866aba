"""Change data capture of inserted rows, from the slot to the committed table.

For every round there is a slot of the reference and a pipeline with its own slot, all made before the rows
are inserted; so all read the same write-ahead log, in full, one after the other. Penstock's time is one
`Pipeline.sync()`: starting capture, reading the slot, writing the change log, folding and applying it to an
upsert table, committing, acknowledging. Every pipeline has followed some changes before (not counted), so
the Spark session and its workers are warm; a Spark start is excluded. Parquet tables are measured by
`pg_recvlogical`, Iceberg tables by the same changes into Parquet tables (`ToParquet`).
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Run
from bench.pipelines import PARQUET, Lake, new_pipeline, rows_in, timed_sync
from bench.references import ChangeReference, create_publication
from penstock import Pipeline

TABLE = "public.followed"
PUBLICATION = "bench_followed"
BARS = Bars(ratio_min=0.6)
ICEBERG_BARS = Bars(ratio_min=0.8)
WARM_UP_ROWS = 50_000


class ToParquet:
    name = "Penstock to Parquet"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pipelines: dict[str, Pipeline] = {}

    def create_slot(self, slot: str) -> None:
        self._pipelines[slot] = _following_pipeline(self._directory / slot, slot, PARQUET)

    def read(self, slot: str, end: str, rows: int) -> Run:
        return timed_sync(self._pipelines[slot], TABLE, rows)


def prepare(connection: workload.Connection) -> None:
    """The table, empty, and its publication; what an earlier comparison left is gone."""
    workload.drop_table(connection, TABLE)
    workload.drop_slots(connection)
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
    lake: Lake = PARQUET,
) -> Comparison:
    title = f"CDC of {rows:,} inserted rows, slot to committed {lake.name} table"
    comparison = Comparison(f"{lake.prefix}changes", title, reference.name, bars)
    slots = [f"bench_reference_{number}" for number in range(1, rounds + 1)]
    own_slots = [f"bench_{lake.name.lower()}_{number}" for number in range(1, rounds + 1)]
    pipelines = [_following_pipeline(directory / slot, slot, lake) for slot in own_slots]
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
    workload.drop_slots(connection)
    return comparison


def _following_pipeline(directory: Path, slot: str, lake: Lake) -> Pipeline:
    pipeline = new_pipeline(directory, TABLE, mode="cdc", slot=slot, publication=PUBLICATION, lake=lake)
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

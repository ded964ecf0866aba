"""Iceberg tables that earlier versions wrote open in this one, and go on.

`tests/fixtures/iceberg-1` is the warehouse of a pipeline of the first version that had Iceberg tables, after
a load of 20 rows, a round with updates, a delete and a key change, and a round with an added column: an
upsert table, with files of deletes, and an append table. Its markers know neither leaves nor timeline, and
nothing is written down for snapshots that expire. It is never written anew. All paths in it have one length,
so that others can take their place: for that its manifests are stored instead of deflated, and its files are
not compressed.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination, IcebergTable
from penstock.destinations.records import DataFile, Marker, TableRecord
from penstock.lake.maintenance import Maintenance
from tests.conftest import Database
from tests.iceberg import session, sqlite_destination
from tests.integration.test_compact import LIMITS
from tests.oracle_iceberg import iceberg_rows
from tests.pipelines import DESTINATIONS, Notes, PipelineUnderTest

FIXTURE = Path(__file__).parents[1] / "fixtures" / "iceberg-1" / "lake"
#: Where the fixture says it is.
WAREHOUSE = "/warehouse" + "_" * 190
STATE, HISTORY = StreamId("public", "state"), StreamId("public", "history")
IDS = [*range(1, 6), *range(8, 21), 107, 500]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy whose paths are those of this test."""
    room = len(WAREHOUSE) - len(str(tmp_path)) - len("//lake")
    warehouse = tmp_path / ("_" * room) / "lake"
    assert len(str(warehouse)) == len(WAREHOUSE)
    for file in FIXTURE.rglob("*"):
        if file.is_file():
            copy = warehouse / file.relative_to(FIXTURE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes().replace(WAREHOUSE.encode(), str(warehouse).encode()))
    return warehouse


def rows(warehouse: Path, stream: StreamId) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = iceberg_rows(warehouse, str(stream)).to_pylist()
    return sorted(found, key=lambda row: row["id"])


def recorded(table: IcebergTable) -> tuple[TableRecord, Marker]:
    record = table.record()
    assert record is not None
    assert record.marker is not None
    return record, record.marker


def write(table: IcebergTable, record: TableRecord, values: dict[str, Any]) -> DataFile:
    assert record.columns is not None
    path = table.files_directory / "of-this-version.parquet"
    pq.write_table(pa.Table.from_pylist([values], record.columns), path)
    return DataFile(path.name, 1, path.stat().st_size)


def test_the_tables_are_read_and_take_the_next_batch(kept: Path) -> None:
    destination = sqlite_destination(kept)
    assert sorted(destination.streams()) == [HISTORY, STATE]
    table = destination.table(STATE)
    record, marker = recorded(table)
    assert marker.to is not None
    assert (marker.leaves, marker.timeline, marker.cursor) == (None, None, None)
    assert record.write == "upsert"
    assert [column.name for column in record.schema.columns] == ["id", "amount", "note", "extra"]
    assert marker.thread_ids
    assert all(map(table.is_thread_committed, marker.thread_ids))
    before = rows(kept, STATE)
    assert [row["id"] for row in before] == IDS
    assert [row["note"] for row in before] == [*["changed"] * 5, *["loaded"] * 14, "added"]
    assert before[1]["amount"] == Decimal("2.50")
    assert [row["extra"] for row in before] == [*[7] * 19, 8]

    end = Lsn(int(marker.to) + 8)
    following = Marker(marker.generation, record.epoch, marker.to, end, ("next",), timeline=1)
    added = {"id": 501, "amount": Decimal("0.25"), "note": "of this version", "extra": 9}
    table.commit_changes(
        marker.to,
        following,
        record.schema,
        added=[write(table, record, added)],
        removed=[],
        columns=record.columns,
        read_from=record.snapshot_id,
    )
    assert sqlite_destination(kept).table(STATE).is_thread_committed("next")
    assert recorded(sqlite_destination(kept).table(STATE))[1] == following
    assert rows(kept, STATE) == [*before, added]


def test_a_history_keeps_its_changes(kept: Path) -> None:
    record, marker = recorded(sqlite_destination(kept).table(HISTORY))
    assert record.write == "append"
    assert marker.timeline is None
    assert sorted(row["_op"] for row in rows(kept, HISTORY)) == sorted(
        [*"r" * 20, *"u" * 5, *"d" * 2, *"i" * 2]
    )


@pytest.mark.slow
def test_compaction_leaves_rows_and_position_as_they_are(kept: Path) -> None:
    before, (_, marker) = rows(kept, STATE), recorded(sqlite_destination(kept).table(STATE))
    destination: IcebergDestination = sqlite_destination(kept)
    done = Maintenance(destination, LIMITS, lambda: session(kept), Notes()).compact(STATE, by_hand=True)
    assert done is not None
    assert done.snapshots_expired > 0
    assert rows(kept, STATE) == before
    assert recorded(sqlite_destination(kept).table(STATE))[1] == marker


@pytest.mark.slow
def test_a_pipeline_whose_source_is_another_one_loads_them_anew(kept: Path, database: Database) -> None:
    for table in ("state", "history"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, amount numeric(10,2), note text, extra int)"
        )
        database.execute(
            f"INSERT INTO {table} SELECT n, n, 'of another source', n FROM generate_series(1, 9) n"
        )
    streams = ["public.state", {"table": "public.history", "write": "append"}]
    settings = {"destination": DESTINATIONS["iceberg"]}
    pipeline = PipelineUnderTest(kept.parent, database.url, streams, settings)
    pipeline.sync()
    database.execute("UPDATE state SET note = 'followed' WHERE id < 4; DELETE FROM state WHERE id = 5")
    pipeline.sync()
    pipeline.assert_same("public.state")
    pipeline.drop()

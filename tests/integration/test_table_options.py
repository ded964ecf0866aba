"""Options of Iceberg tables: partitions, order, properties, place; chosen at first and changed later."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from penstock import Pipeline
from penstock.core.errors import DestinationError, SourceError
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.records import DataFile
from tests.conftest import Database
from tests.iceberg import rewrite_all, session, sqlite_destination
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = [
    pytest.mark.parametrize("make", ["iceberg"], indirect=True),
    pytest.mark.usefixtures("loads_by_spark"),
]

ITEMS = "public.items"
ICEBERG = {"type": "iceberg", "warehouse": "./lake"}
COPY_ON_WRITE = {**ICEBERG, "upserts": "copy_on_write"}


def items(database: Database, rows: int = 60) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, region text, at timestamptz, note text);"
        "INSERT INTO items SELECT i, CASE i % 4 WHEN 0 THEN NULL ELSE 'r' || i % 4 END, "
        f"timestamptz '1969-12-31 12:00+00' + i * interval '1 hour', 'n' FROM generate_series(1, {rows}) i"
    )


def stream(**iceberg: Any) -> dict[str, Any]:
    return {"table": ITEMS, "iceberg": iceberg}


def table_of(pipeline: PipelineUnderTest) -> IcebergTable:
    return sqlite_destination(pipeline.warehouse).table(StreamId.parse(ITEMS))


def files_of(table: IcebergTable) -> tuple[DataFile, ...]:
    record = table.record()
    assert record is not None
    return table.files(record)


def partitions(files: Iterable[DataFile]) -> set[tuple[Any, ...]]:
    return {tuple(json.loads(file.partition or "{}").values()) for file in files}


def rows_by_partition(table: IcebergTable) -> dict[int, str | None]:
    """Of each id in the table's files, deleted or not, the partition."""
    return {
        number: file.partition
        for file in files_of(table)
        for number in pq.read_table(table.path(file), columns=["id"], partitioning=None)["id"].to_pylist()
    }


def change(database: Database) -> None:
    """Rows move between partitions, change inside one, come and go."""
    database.execute("UPDATE items SET region = 'r9' WHERE id % 5 = 0")
    database.execute("UPDATE items SET note = 'changed' WHERE id % 5 = 1")
    database.execute("DELETE FROM items WHERE id % 7 = 0")
    database.execute("INSERT INTO items VALUES (1000, NULL, NULL, NULL), (1001, 'r1', '2026-01-01', 'new')")
    database.execute("UPDATE items SET id = id + 5000, region = 'r2' WHERE id % 11 = 0")


def notes_of_reloads(pipeline: PipelineUnderTest) -> list[str]:
    return [note for note in pipeline.notes if "loaded again" in note]


@pytest.mark.parametrize(
    "destination",
    [
        pytest.param(ICEBERG, id="merge_on_read"),
        pytest.param(COPY_ON_WRITE, id="copy_on_write", marks=pytest.mark.slow),
        pytest.param({**ICEBERG, "format_version": 3}, id="version_3", marks=pytest.mark.slow),
    ],
)
def test_a_partitioned_table_equals_its_source_to_every_reader(
    database: Database, make: MakePipeline, destination: dict[str, Any]
) -> None:
    items(database)
    chosen = stream(partition_by=["region", "day(at)"])
    pipeline = make([chosen], load={"rows_per_chunk": 25}, destination=destination)
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    table = table_of(pipeline)
    assert (None, "1969-12-31") in partitions(files_of(table))
    change(database)
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    assert not notes_of_reloads(pipeline)
    held = {*partitions(files_of(table_of(pipeline)))}
    assert ("r9", "1970-01-01") in held
    assert (None, None) in held
    for file in files_of(table_of(pipeline)):
        rows = pq.read_table(table.path(file), partitioning=None)
        assert len(set(rows["region"].to_pylist())) == 1
        assert len({at and at.date() for at in rows["at"].to_pylist()}) == 1
    if destination == COPY_ON_WRITE:
        assert not any(file.deletes for file in files_of(table_of(pipeline)))
    assert_pruned(pipeline, database)


def assert_pruned(pipeline: PipelineUnderTest, database: Database) -> None:
    """A reader that asks for one region opens the files of one region, and finds its rows."""
    location = table_of(pipeline).metadata_location()
    frame = session(pipeline.directory).read.format("iceberg").load(location).where("region = 'r9'")
    expected = sorted(row[0] for row in database.query("SELECT id FROM items WHERE region = 'r9'"))
    assert sorted(row["id"] for row in frame.collect()) == expected
    all_files = files_of(table_of(pipeline))
    opened = {Path(name.removeprefix("file:")).name for name in frame.inputFiles()}
    assert opened <= {file.name for file in all_files if "r9" in str(file.partition)}
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{pipeline.warehouse}/catalog.db")
    scan = catalog.load_table(ITEMS).scan(row_filter="region = 'r9'")
    assert {Path(task.file.file_path).name for task in scan.plan_files()} <= {
        file.name for file in all_files if "r9" in str(file.partition)
    }
    assert sorted(scan.to_arrow()["id"].to_pylist()) == expected
    counted = scan.to_duckdb("items").execute("SELECT count(*), sum(id) FROM items").fetchall()
    assert counted == [(len(expected), sum(expected))]
    catalog.engine.dispose()


@pytest.mark.slow
def test_partitions_are_what_iceberg_itself_computes(database: Database, make: MakePipeline) -> None:
    """Iceberg's own writer puts every row back into the partition that it came from."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, s smallint, l bigint, n numeric(20,3), w numeric(38,5), "
        "t text, b bytea, d date, ts timestamp, tz timestamptz, yes boolean)"
    )
    database.execute(
        "INSERT INTO items SELECT i, i * 37 - 900, i * -123456789012345, i * -1.003, "
        "i * -987654321012345678901234567.12345, "
        "'ä🙂' || repeat('x', i % 5) || i, decode(md5(i::text), 'hex'), date '1970-01-05' - i * 17, "
        "timestamp '1970-01-02' - i * interval '7 hours 1 microsecond', "
        "timestamptz '1969-12-30 00:00+00' + i * interval '59 minutes', "
        "i % 2 = 0 FROM generate_series(1, 50) i; "
        "INSERT INTO items (id) VALUES (51)"
    )
    fields = ["s", "truncate(10, s)", "bucket(7, s)", "l", "truncate(1000, l)", "bucket(5, l)", "n"]
    fields += ["bucket(3, n)", "bucket(4, w)", "truncate(7, w)", "truncate(2, t)"]
    fields += ["bucket(6, t)", "truncate(3, b)", "bucket(5, b)", "d", "year(d)", "bucket(4, d)", "month(ts)"]
    fields += ["bucket(3, ts)", "hour(tz)", "tz", "bucket(2, tz)", "yes"]
    pipeline = make([stream(partition_by=fields)])
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    table = table_of(pipeline)
    ours = rows_by_partition(table)
    assert len(ours) == 51
    assert rewrite_all(table) > 0
    table = table_of(pipeline)
    assert all("/" in file.name for file in files_of(table)), (
        "in directories, where Iceberg's writer puts them"
    )
    assert rows_by_partition(table) == ours


@pytest.mark.slow
def test_options_change_without_a_reload_and_leave_alone_what_they_do_not_name(
    database: Database, make: MakePipeline
) -> None:
    items(database)
    pipeline = make([ITEMS])
    pipeline.sync()
    table = table_of(pipeline)
    table.handle.table.updateProperties().set("somebody", "else").set("write.target", "1").commit()
    loaded = files_of(table)
    assert all(file.spec_id is None for file in loaded)

    def choose(**iceberg: Any) -> None:
        pipeline.streams = [stream(**iceberg)]
        pipeline.write_file()
        change_one(database)
        pipeline.sync()
        pipeline.assert_same(ITEMS)

    choose(partition_by=["region"], sort_by=["at desc", "id"], properties={"write.target": "2"})
    table = table_of(pipeline)
    names = {file.name for file in loaded}
    assert names <= {file.name for file in files_of(table)}
    assert all(file.spec_id is not None for file in files_of(table) if file.name not in names)
    properties = dict(table.handle.table.properties())
    assert (properties["somebody"], properties["write.target"]) == ("else", "2")
    assert table.handle.table.sortOrder().isSorted()
    choose(partition_by=["bucket(4, id)"])
    table = table_of(pipeline)
    assert len({file.spec_id for file in files_of(table)}) == 3
    assert table.handle.table.sortOrder().isSorted()
    snapshot = table.handle.table.currentSnapshot().snapshotId()
    pipeline.sync()
    again = table_of(pipeline).handle.table
    assert again.currentSnapshot().snapshotId() == snapshot, "nothing changed, so nothing is committed"
    choose(partition_by=[], sort_by=[])
    table = table_of(pipeline)
    assert table.handle.table.spec().isUnpartitioned()
    assert not table.handle.table.sortOrder().isSorted()
    assert not notes_of_reloads(pipeline)


def change_one(database: Database) -> None:
    database.execute("UPDATE items SET note = note || 'x', region = 'm' WHERE id IN (3, 4)")
    database.execute("INSERT INTO items SELECT max(id) + 1, 'new', now(), 'n' FROM items")


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", [True, False])
def test_rows_of_each_file_are_in_order_and_the_file_says_so(
    database: Database, make: MakePipeline, partitioned: bool
) -> None:
    items(database)
    parts = {"partition_by": ["region"]} if partitioned else {}
    pipeline = make([stream(sort_by=["at desc nulls first", "id"], **parts)])
    pipeline.sync()
    change(database)
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{pipeline.warehouse}/catalog.db")
    tasks = list(catalog.load_table(ITEMS).scan().plan_files())
    assert len(tasks) > 1
    for task in tasks:
        assert task.file.sort_order_id == 1
        rows = pq.read_table(task.file.file_path, partitioning=None).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["at"] is not None, -at_us(row["at"]), row["id"]))
    catalog.engine.dispose()


def at_us(at: Any) -> float:
    return 0.0 if at is None else float(at.timestamp())


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"write": "append", "partition_by": ["day(_commit_ts)", "_op"]},
        {"mode": "full_refresh"},
        {"mode": "incremental", "cursor": "id"},
        {"mode": "strict_cdc"},
        {"deletes": "soft", "partition_by": ["day(_deleted_at)"]},
    ],
    ids=lambda settings: str(next(iter(settings.values()))),
)
def test_every_way_of_writing_knows_partitions(
    database: Database, make: MakePipeline, settings: dict[str, Any]
) -> None:
    items(database)
    chosen = settings.pop("partition_by", ["region", "truncate(10, id)"])
    pipeline = make([{**stream(partition_by=chosen, sort_by=["id desc"]), **settings}])
    pipeline.sync()
    database.execute("INSERT INTO items SELECT i, 'r' || i % 3, now(), 'x' FROM generate_series(100, 130) i")
    database.execute("UPDATE items SET region = 'moved', id = id + 200 WHERE id > 120")
    pipeline.sync()
    files = files_of(table_of(pipeline))
    assert files
    assert all(file.spec_id is not None for file in files)
    if settings.get("write") != "append" and settings.get("mode") != "strict_cdc":
        assert {row[0] for row in database.query("SELECT id FROM items")} <= set(
            rows_by_partition(table_of(pipeline))
        )
    if settings.get("mode") == "full_refresh":
        pipeline.assert_same(ITEMS)


@pytest.mark.slow
def test_a_resync_and_a_truncate_keep_the_partitions(database: Database, make: MakePipeline) -> None:
    items(database)
    pipeline = make([stream(partition_by=["region"])])
    pipeline.sync()
    database.execute("TRUNCATE items; INSERT INTO items VALUES (1, 'a', now(), 'x'), (2, 'b', now(), 'x')")
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    Pipeline.from_yaml(pipeline.file).resync([ITEMS])
    pipeline.assert_same(ITEMS)
    assert partitions(files_of(table_of(pipeline))) == {("a",), ("b",)}


@pytest.mark.slow
def test_a_renamed_partition_column_is_the_same_and_a_dropped_one_has_to_leave_the_file(
    database: Database, make: MakePipeline
) -> None:
    items(database)
    pipeline = make([stream(partition_by=["region"])])
    pipeline.sync()
    spec = files_of(table_of(pipeline))[0].spec_id
    database.execute("ALTER TABLE items RENAME region TO zone")
    pipeline.streams = [stream(partition_by=["zone"])]
    pipeline.write_file()
    for turn in range(2):
        database.execute(f"UPDATE items SET zone = 'other{turn}' WHERE id % 6 = {turn}")
        pipeline.sync()
        pipeline.assert_same(ITEMS)
    assert not notes_of_reloads(pipeline)
    assert {file.spec_id for file in files_of(table_of(pipeline))} == {spec}
    database.execute("ALTER TABLE items DROP COLUMN zone")
    with pytest.raises(SourceError, match="`partition_by` names zone") as refused:
        pipeline.sync()
    assert "take it out" in refused.value.remedy
    pipeline.streams = [stream(partition_by=["bucket(2, id)"])]
    pipeline.write_file()
    database.execute("UPDATE items SET note = 'later' WHERE id % 2 = 0; DELETE FROM items WHERE id % 3 = 0")
    pipeline.sync()
    assert notes_of_reloads(pipeline)
    pipeline.assert_same(ITEMS)
    assert partitions(files_of(table_of(pipeline))) <= {(0,), (1,)}
    database.execute("UPDATE items SET note = 'last' WHERE id % 5 = 0")
    pipeline.sync()
    pipeline.assert_same(ITEMS)


@pytest.mark.slow
def test_a_partition_column_of_another_type_is_a_partition_again_after_the_next_sync(
    database: Database, make: MakePipeline
) -> None:
    items(database)
    pipeline = make([stream(partition_by=["truncate(1, note)"])])
    pipeline.sync()
    database.execute("ALTER TABLE items ALTER COLUMN note TYPE int USING id")
    for turn in range(2):
        database.execute(f"INSERT INTO items VALUES ({2000 + turn}, 'x', now(), {turn})")
        pipeline.sync()
        pipeline.assert_same(ITEMS)
    assert (1,) in partitions(files_of(table_of(pipeline)))


@pytest.mark.slow
def test_a_table_has_a_directory_of_its_own_and_keeps_it(database: Database, make: MakePipeline) -> None:
    items(database)
    pipeline = make([stream(location="./far/away")])
    pipeline.sync()
    pipeline.assert_same(ITEMS)
    place = pipeline.directory / "far" / "away"
    assert list((place / "data").glob("*.parquet"))
    pipeline.streams = [stream(location="./elsewhere")]
    pipeline.write_file()
    with pytest.raises(DestinationError, match="elsewhere") as refused:
        pipeline.sync()
    assert str(place) in refused.value.remedy
    pipeline.streams = [stream()]
    pipeline.write_file()
    change(database)
    pipeline.sync()
    pipeline.assert_same(ITEMS)


def test_columns_that_do_not_fit_are_named_before_anything_is_read(
    database: Database, make: MakePipeline
) -> None:
    items(database)
    for chosen, said in [
        ({"partition_by": ["day(note)"]}, "does not fit a column of type string"),
        ({"partition_by": ["nowhere"]}, "no column of that name"),
        ({"sort_by": ["nowhere"]}, "no column of that name"),
    ]:
        pipeline = make([stream(**chosen)])
        with pytest.raises(SourceError, match=said):
            pipeline.sync()

"""Iceberg tables of format version 3: deletes are deletion vectors, and all readers we know apply them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.core.errors import DestinationError
from penstock.core.stream import StreamId
from penstock.destinations.deletion_vectors import read_vector
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.records import DataFile, HeldDeletes, Span
from penstock.pipeline import Pipeline
from tests.conftest import Database
from tests.iceberg import rewrite_all, session, sqlite_destination
from tests.integration import test_sync
from tests.integration.test_iceberg_sync import by_id
from tests.oracle_iceberg import iceberg_rows
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

V2 = {"type": "iceberg", "warehouse": "./lake"}
V3 = {**V2, "format_version": 3}

PROMISES: list[Callable[..., None]] = [
    test_sync.test_a_loaded_table_and_its_changes_equal_the_source,
    test_sync.test_an_append_table_holds_every_change_once,
    test_sync.test_a_truncate_empties_an_upsert_table_and_is_one_row_of_an_append_table,
    test_sync.test_values_that_were_not_sent_are_kept,
    test_sync.test_resync_loads_one_table_again_and_leaves_no_gap,
]


@pytest.fixture
def make(make: MakePipeline) -> MakePipeline:
    """Pipelines with tables of version 3, unless they say otherwise."""

    def make_pipeline(streams: list[Any], url: str | None = None, **settings: Any) -> PipelineUnderTest:
        return make(streams, url, **({"destination": V3} | settings))

    return make_pipeline


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__.removeprefix("test_"))
def test_tables_of_version_3_keep_what_all_tables_promise(
    promise: Callable[..., None], make: MakePipeline, request: pytest.FixtureRequest
) -> None:
    names = inspect.signature(promise).parameters
    promise(**{name: make if name == "make" else request.getfixturevalue(name) for name in names})


def orders(database: Database, make: MakePipeline, **settings: Any) -> PipelineUnderTest:
    """A loaded table of several files."""
    test_sync.orders(database, 200)
    pipeline = make(["public.orders"], load={"rows_per_chunk": 50}, **settings)
    pipeline.sync()
    return pipeline


def table_of(pipeline: PipelineUnderTest) -> IcebergTable:
    return sqlite_destination(pipeline.directory / "lake").table(StreamId("public", "orders"))


def files_of(pipeline: PipelineUnderTest) -> tuple[DataFile, ...]:
    table = table_of(pipeline)
    record = table.record()
    assert record is not None
    assert record.rows == live_rows(record.file_count, table.files(record))
    return table.files(record)


def live_rows(file_count: int, files: tuple[DataFile, ...]) -> int:
    assert file_count == len(files)
    return sum(file.rows - sum(held.rows for held in file.deletes) for file in files)


def vectors_of(pipeline: PipelineUnderTest) -> dict[str, HeldDeletes]:
    """By data file; there is never a second, nor anything beside it."""
    found = {file.name: file.deletes for file in files_of(pipeline) if file.deletes}
    assert all(len(deletes) == 1 and deletes[0].vector is not None for deletes in found.values())
    return {name: deletes[0] for name, deletes in found.items()}


def assert_same(pipeline: PipelineUnderTest) -> None:
    """The source, what PyIceberg reads and what Spark reads."""
    pipeline.assert_same("public.orders")
    by_spark = frame_of(pipeline).toArrow()
    assert by_id(by_spark) == by_id(iceberg_rows(pipeline.warehouse, "public.orders"))


def frame_of(pipeline: PipelineUnderTest) -> Any:
    spark = session(pipeline.directory)
    return spark.read.format("iceberg").load(table_of(pipeline).metadata_location())


@pytest.mark.slow
def test_a_file_that_is_touched_again_gets_one_new_vector_with_all_that_is_deleted(
    database: Database, make: MakePipeline
) -> None:
    pipeline = orders(database, make)
    before: dict[str, HeldDeletes] = {}
    for turn in range(3):
        database.execute(f"UPDATE orders SET note = 'turn {turn}' WHERE id % 10 = {turn}")
        database.execute(f"DELETE FROM orders WHERE id % 17 = {turn}")
        database.execute(f"INSERT INTO orders (id) VALUES ({1000 + turn})")
        pipeline.sync()
        assert_same(pipeline)
        after = vectors_of(pipeline)
        assert len(after) > 1
        for name, held in before.items():
            old, new = (
                set(read_vector(Path(each.location), each.vector).tolist())  # type: ignore[arg-type]
                for each in (held, after[name])
            )
            assert old < new
        before = after
    assert table_of(pipeline).handle.known_metadata().format_version == 3


@pytest.mark.slow
def test_iceberg_finds_in_our_files_what_we_find(database: Database, make: MakePipeline) -> None:
    pipeline = orders(database, make)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    vectors, table = vectors_of(pipeline), table_of(pipeline)
    assert len({held.location for held in vectors.values()}) == len(vectors) > 1
    java, opened = table.catalog.java, table.handle.table
    deserialize = java.iceberg("deletes.PositionDeleteIndex").deserialize
    tasks = opened.newScan().planFiles().iterator()
    while tasks.hasNext():
        task = tasks.next()
        [deletes] = list(task.deletes())
        held = vectors[table.handle.files.name(str(task.file().location()))]
        reader = java.iceberg("puffin.Puffin").read(opened.io().newInputFile(held.location)).build()
        [blob] = list(reader.fileMetadata().blobs())
        assert str(blob.type()) == "deletion-vector-v1"
        assert str(blob.properties().get("referenced-data-file")) == str(task.file().location())
        assert held.vector == Span(int(blob.offset()), int(blob.length()))
        [found] = [pair.second() for pair in list(reader.readAll(reader.fileMetadata().blobs()).iterator())]
        by_java = deserialize(found.array(), deletes)  # checks magic number, checksum and count
        ours = read_vector(Path(held.location), held.vector).tolist()
        assert int(by_java.cardinality()) == len(ours)
        assert all(by_java.isDeleted(position) for position in ours)


def row_ids(pipeline: PipelineUnderTest) -> list[int]:
    ids = [row[0] for row in frame_of(pipeline).select("_row_id").collect()]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    return ids


@pytest.mark.slow
def test_every_row_has_an_id_of_its_own(database: Database, make: MakePipeline) -> None:
    """Row lineage: ids are given out by commits, whichever branch they go to."""
    pipeline = orders(database, make)
    database.execute("UPDATE orders SET note = 'x' WHERE id % 10 = 0; INSERT INTO orders (id) VALUES (1000)")
    pipeline.sync()
    Pipeline.from_yaml(pipeline.file).resync(["public.orders"])
    database.execute("UPDATE orders SET note = 'y' WHERE id % 7 = 0; INSERT INTO orders (id) VALUES (2000)")
    pipeline.sync()
    ids = row_ids(pipeline)
    assert len(ids) == 202
    metadata = table_of(pipeline).handle.known_metadata().java
    assert max(ids) < int(metadata.nextRowId())
    assert all(snapshot.firstRowId() is not None for snapshot in metadata.snapshots())


@pytest.mark.slow
def test_copy_on_write_leaves_no_vectors_behind(database: Database, make: MakePipeline) -> None:
    pipeline = orders(database, make)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    assert vectors_of(pipeline)
    pipeline.settings = {**pipeline.settings, "destination": {**V3, "upserts": "copy_on_write"}}
    pipeline.write_file()
    database.execute("UPDATE orders SET note = 'x' WHERE id % 3 = 1; DELETE FROM orders WHERE id = 2")
    pipeline.sync()
    assert not vectors_of(pipeline)
    assert_same(pipeline)


@pytest.mark.slow
def test_a_column_added_with_a_default_is_right_where_rows_are_deleted(
    database: Database, make: MakePipeline
) -> None:
    """Files are written again without the rows that their vectors name."""
    pipeline = orders(database, make)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    database.execute("ALTER TABLE orders ADD extra int DEFAULT 7")
    database.execute("UPDATE orders SET note = 'x' WHERE id % 3 = 1")
    pipeline.sync()
    assert_same(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["iceberg.staged", "iceberg.committed"])
def test_a_sync_that_was_killed_around_a_commit_of_vectors_goes_on(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    pipeline = orders(database, make)
    database.execute("UPDATE orders SET note = 'changed' WHERE id % 3 = 0")
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'killed' WHERE id % 5 = 0")
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert ended.struck == (f"{failpoint}=kill",), str(ended)
    database.execute("DELETE FROM orders WHERE id % 5 = 1")
    pipeline.sync()
    assert vectors_of(pipeline)
    assert_same(pipeline)


@pytest.mark.slow
def test_a_table_of_version_2_is_upgraded_and_its_delete_files_go_into_vectors(
    database: Database, make: MakePipeline
) -> None:
    pipeline = orders(database, make, destination=V2)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    assert all(file.deletes[0].vector is None for file in files_of(pipeline))

    pipeline.settings = {**pipeline.settings, "destination": V3}
    pipeline.write_file()
    database.execute("UPDATE orders SET note = 'upgraded' WHERE id < 20")
    pipeline.sync()
    assert table_of(pipeline).handle.known_metadata().format_version == 3
    assert_same(pipeline)

    database.execute("DELETE FROM orders WHERE id < 60 AND id % 3 = 1")
    pipeline.sync()
    by_vector = {any(held.vector for held in file.deletes) for file in files_of(pipeline) if file.deletes}
    assert by_vector == {True, False}, "files that were not touched keep their delete files"
    assert_same(pipeline)
    database.execute("UPDATE orders SET note = 'all'")
    pipeline.sync()
    vectors_of(pipeline)
    assert_same(pipeline)
    row_ids(pipeline)


@pytest.mark.slow
def test_a_table_is_not_taken_back_to_version_2_and_goes_on_without_being_asked_to(
    database: Database, make: MakePipeline
) -> None:
    pipeline = orders(database, make)
    pipeline.settings = {**pipeline.settings, "destination": {**V2, "format_version": 2}}
    pipeline.write_file()
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    with pytest.raises(DestinationError, match="format version 3") as refused:
        pipeline.sync()
    assert "Set `format_version: 3`" in str(refused.value.remedy)
    pipeline.settings = {**pipeline.settings, "destination": V2}
    pipeline.write_file()
    pipeline.sync()
    assert vectors_of(pipeline)
    assert_same(pipeline)


def spark_with_catalog(pipeline: PipelineUnderTest) -> SparkSession:
    """As somebody else would have it: the tables are `penstock.public.…`."""
    spark = session(pipeline.directory).newSession()
    spark.conf.set("spark.sql.catalog.penstock", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in sqlite_destination(pipeline.directory / "lake").settings.catalog.items():
        spark.conf.set(f"spark.sql.catalog.penstock.{key}", value)
    spark.conf.set("spark.sql.catalog.penstock.cache-enabled", "false")
    return spark


def delete_by_spark(pipeline: PipelineUnderTest, condition: str) -> None:
    spark = spark_with_catalog(pipeline)
    spark.sql(
        "ALTER TABLE penstock.public.orders SET TBLPROPERTIES "
        "('write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'file')"
    )
    spark.sql(f"DELETE FROM penstock.public.orders WHERE {condition}")


@pytest.mark.slow
def test_vectors_that_spark_wrote_are_merged_into_ours(database: Database, make: MakePipeline) -> None:
    pipeline = orders(database, make)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    delete_by_spark(pipeline, "id % 3 = 1 AND id < 100")
    theirs = {Path(held.location).name for held in vectors_of(pipeline).values()}
    assert any(not name.startswith("deletes-") for name in theirs)
    database.execute("UPDATE orders SET note = 'x' WHERE id % 9 = 2")
    pipeline.sync()
    vectors_of(pipeline)
    database.execute("DELETE FROM orders WHERE id % 3 = 1 AND id < 100")  # what Spark took for itself
    pipeline.sync()
    assert_same(pipeline)


@pytest.mark.parametrize(
    "destination",
    [pytest.param(V2, id="positions"), pytest.param(V3, id="vectors", marks=pytest.mark.slow)],
)
def test_a_row_that_somebody_deleted_doubles_no_other_row_of_an_incremental_append_table(
    database: Database, make: MakePipeline, destination: dict[str, Any]
) -> None:
    """The window is read again: of the touched file all rows but the deleted one are known to be there."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, n int NOT NULL);"
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 100) n"
    )
    stream = {"table": "public.orders", "mode": "incremental", "cursor": "n", "write": "append"}
    pipeline = make([stream], destination=destination)
    pipeline.sync()
    delete_by_spark(pipeline, "id = 50")
    assert [held.rows for file in files_of(pipeline) for held in file.deletes] == [1]
    database.execute("INSERT INTO orders VALUES (101, 101)")
    pipeline.sync()
    ids = iceberg_rows(pipeline.warehouse, "public.orders").column("id").to_pylist()
    assert sorted(ids) == list(range(1, 102))


@pytest.mark.slow
@pytest.mark.parametrize("meddling", ["delete", "compact"])
def test_a_foreign_commit_between_lookup_and_commit_loses_nothing(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, meddling: str
) -> None:
    """Somebody's vector, or compaction, of the very files that ours concern: the rows are looked up again."""
    pipeline = orders(database, make)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'again' WHERE id % 5 = 0")
    meddled: list[str] = []

    def meddle(name: str) -> None:
        if name == "cdc.written" and not meddled:
            meddled.append(name)
            if meddling == "compact":
                assert rewrite_all(table_of(pipeline)) > 0
            else:
                delete_by_spark(pipeline, "id % 3 = 1")

    monkeypatch.setattr("penstock.failpoints.reach", meddle)
    pipeline.sync()
    assert meddled
    database.execute("DELETE FROM orders WHERE id % 3 = 1") if meddling == "delete" else None
    pipeline.sync()
    assert_same(pipeline)


def test_somebody_elses_upgrade_between_lookup_and_commit_loses_nothing(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = orders(database, make, destination=V2)
    database.execute("DELETE FROM orders WHERE id % 3 = 0")
    upgraded: list[str] = []

    def upgrade(name: str) -> None:
        if name == "cdc.written" and not upgraded:
            upgraded.append(name)
            table_of(pipeline).handle.table.updateProperties().set("format-version", "3").commit()

    monkeypatch.setattr("penstock.failpoints.reach", upgrade)
    pipeline.sync()
    assert upgraded
    assert vectors_of(pipeline)
    assert_same(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["table", "spark"])
def test_vectors_outlive_the_expiry_of_those_they_took_the_place_of(
    database: Database, make: MakePipeline, by: str
) -> None:
    """Iceberg's own expiry takes the file of a replaced vector away, whatever else lies in it."""
    pipeline = orders(database, make)
    for change in (
        "DELETE FROM orders WHERE id % 3 = 0",
        "DELETE FROM orders WHERE id IN (1, 2)",
        "INSERT INTO orders (id) VALUES (1000)",
        "INSERT INTO orders (id) VALUES (1001)",
    ):
        database.execute(change)
        pipeline.sync()
    table = table_of(pipeline)
    java, opened = table.catalog.java, table.handle.table
    references = opened.manageSnapshots()
    for name in [name for name, found in opened.refs().items() if found.isTag()]:
        references.removeTag(name)  # with only one branch left, Iceberg looks at what was deleted alone
    references.commit()
    if by == "spark":
        actions = java.jvm.org.apache.iceberg.spark.actions.SparkActions.get()
        actions.expireSnapshots(opened).expireOlderThan(2**62).retainLast(1).execute()
    else:
        opened.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert_same(pipeline)

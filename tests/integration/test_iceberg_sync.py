"""`penstock sync` into Iceberg tables: the same promises as for Parquet, value by value, and Iceberg's own.

A selection of what is tested for Parquet runs here again; `make iceberg` runs more of it, and with ALL=1 all.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import SparkContext

from penstock.core.errors import HistoryUnknownError
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.records import TableRecord
from penstock.lake import light
from penstock.lake.recovery import Recovery
from penstock.pipeline import Pipeline
from tests.conftest import Database
from tests.duckdb_reader import copy_rows
from tests.iceberg import rewrite_all, sqlite_destination
from tests.integration import test_change_traps, test_review, test_sync
from tests.oracle import assert_same
from tests.oracle_iceberg import iceberg_metadata
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = pytest.mark.parametrize("make", ["iceberg"], indirect=True)

PROMISES: list[Callable[..., None]] = [
    test_sync.test_a_loaded_table_and_its_changes_equal_the_source,
    test_sync.test_an_append_table_holds_every_change_once,
    test_sync.test_a_truncate_empties_an_upsert_table_and_is_one_row_of_an_append_table,
    test_sync.test_values_that_were_not_sent_are_kept,
    test_sync.test_a_full_refresh_replaces_the_table_each_time_and_needs_no_slot,
    test_sync.test_resync_loads_one_table_again_and_leaves_no_gap,
    test_change_traps.test_a_constant_default_that_was_changed_meanwhile_is_right_in_every_row,
    test_review.test_an_append_table_keeps_its_history_when_it_is_loaded_again,
    test_sync.test_a_resumed_load_by_pages_equals_the_source,
]


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__.removeprefix("test_"))
def test_iceberg_tables_keep_what_parquet_tables_promise(
    promise: Callable[..., None], make: MakePipeline, request: pytest.FixtureRequest
) -> None:
    arguments = {name: request.getfixturevalue(name) for name in inspect.signature(promise).parameters}
    promise(**arguments)


def table_of(pipeline: PipelineUnderTest, stream: str) -> IcebergTable:
    return sqlite_destination(pipeline.directory / "lake").table(StreamId.parse(stream))


def changed_table(database: Database, make: MakePipeline) -> PipelineUnderTest:
    test_sync.orders(database, 200)
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'changed' WHERE id % 3 = 0")
    database.execute("DELETE FROM orders WHERE id % 7 = 0")
    pipeline.sync()
    return pipeline


def test_pyiceberg_and_duckdb_read_what_spark_reads(database: Database, make: MakePipeline) -> None:
    """DuckDB by way of PyIceberg; by its own extension below."""
    pipeline = changed_table(database, make)
    pipeline.assert_same("public.orders")
    lake = pipeline.directory / "lake"
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{lake}/catalog.db", warehouse=str(lake))
    scan = catalog.load_table("public.orders").scan()
    spark = Pipeline.from_yaml(pipeline.file).table("public.orders").to_arrow()
    assert by_id(scan.to_arrow()) == by_id(spark)
    counted = scan.to_duckdb("orders").execute("SELECT count(*), sum(id) FROM orders").fetchall()
    assert counted == database.query("SELECT count(*), sum(id) FROM orders")


LAYOUTS: dict[str, dict[str, Any]] = {
    "files of deletes": {"upserts": "merge_on_read"},
    "no deletes": {"upserts": "copy_on_write"},
    "deletion vectors": {"format_version": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_duckdb_reads_metadata_columns_and_deletes_by_itself(
    database: Database, make: MakePipeline, layout: str
) -> None:
    test_sync.orders(database, 200)
    pipeline = make(["public.orders"], destination={**DESTINATIONS["iceberg"], **LAYOUTS[layout]})
    pipeline.sync()
    database.execute("ALTER TABLE orders ADD COLUMN more int; ALTER TABLE orders RENAME amount TO total")
    database.execute("UPDATE orders SET note = 'changed', more = 1 WHERE id % 3 = 0")
    database.execute("DELETE FROM orders WHERE id % 7 = 0")
    pipeline.sync()
    pipeline.assert_same("public.orders")
    table = table_of(pipeline, "public.orders")
    record = table.record()
    assert record is not None
    assert any(file.deletes for file in table.files(record)) == (layout != "no deletes")
    rows = pipeline.directory / "duckdb"
    rows.mkdir()
    copy_rows(iceberg_metadata(pipeline.warehouse, "public.orders"), rows / "rows.parquet")
    assert_same(database.url, "public.orders", rows)


def spark_jobs() -> int:
    return len(SparkContext.getOrCreate().statusTracker().getJobIdsForGroup(None))


def test_a_small_round_is_the_same_on_spark_and_without_a_job_of_it(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = changed_table(database, make)
    for changes_max in (light.CHANGES_MAX, 0):
        monkeypatch.setattr(light, "CHANGES_MAX", changes_max)
        monkeypatch.setattr(light, "TABLE_FILES_MAX", changes_max)
        database.execute("UPDATE orders SET note = note || '+' WHERE id % 2 = 0")
        database.execute("UPDATE orders SET id = id + 1000 WHERE id < 20; DELETE FROM orders WHERE id = 40")
        before = spark_jobs()
        pipeline.sync()
        assert (spark_jobs() == before) is (changes_max > 0)
        pipeline.assert_same("public.orders")


def by_id(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


def test_a_table_that_was_rolled_back_gets_its_changes_again(database: Database, make: MakePipeline) -> None:
    pipeline = changed_table(database, make)
    table = table_of(pipeline, "public.orders").handle.table
    table.manageSnapshots().rollbackTo(table.currentSnapshot().parentId()).commit()
    database.execute("INSERT INTO orders (id) VALUES (5000)")
    pipeline.sync()
    assert any("rolled back" in note for note in pipeline.notes)
    pipeline.assert_same("public.orders")


@pytest.mark.slow
def test_rows_that_somebody_else_added_or_compacted_are_neither_lost_nor_doubled(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign commit falls between our lookup and our commit; the rows are looked up again."""
    pipeline = changed_table(database, make)
    database.execute("UPDATE orders SET note = 'again' WHERE id % 5 = 0")
    compacted: list[int] = []

    def compact(name: str) -> None:
        if name == "cdc.written" and not compacted:
            compacted.append(rewrite_all(table_of(pipeline, "public.orders")))

    monkeypatch.setattr("penstock.failpoints.reach", compact)
    pipeline.sync()
    assert compacted
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["iceberg.staged", "iceberg.committed"])
def test_a_sync_that_was_killed_around_a_commit_goes_on(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    pipeline = changed_table(database, make)
    database.execute("UPDATE orders SET note = 'killed' WHERE id % 5 = 0")
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert ended.killed, str(ended)
    assert ended.struck == (f"{failpoint}=kill",)
    database.execute("INSERT INTO orders (id) VALUES (6000)")
    pipeline.sync()
    pipeline.assert_same("public.orders")


def test_copy_on_write_leaves_no_deletes_behind(database: Database, make: MakePipeline) -> None:
    test_sync.orders(database, 100)
    destination = {"type": "iceberg", "warehouse": "./lake", "upserts": "copy_on_write"}
    pipeline = make(["public.orders"], destination=destination)
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'x' WHERE id % 3 = 0; DELETE FROM orders WHERE id = 1")
    pipeline.sync()
    pipeline.assert_same("public.orders")
    table = table_of(pipeline, "public.orders")
    record = table.record()
    assert record is not None
    assert all(not file.deletes for file in table.files(record))


@pytest.mark.slow
@pytest.mark.parametrize("write", ["upsert", "append"])
def test_an_incremental_stream_compares_rows_by_columns_and_not_by_their_names(
    database: Database, make: MakePipeline, write: str
) -> None:
    """Files are not written again when columns change: theirs have other names, or lack some."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, a text, b text);"
        "INSERT INTO items SELECT i, i, 'a' || i, 'b' || i FROM generate_series(1, 20) i"
    )
    stream = {"table": "public.items", "mode": "incremental", "cursor": "n", "lookback": 5, "write": write}
    pipeline = make([stream])
    pipeline.sync()
    steps = [
        "ALTER TABLE items ADD c int",
        "INSERT INTO items VALUES (21, 21, 'a21', 'b21', 21)",
        "ALTER TABLE items RENAME a TO x",
        "ALTER TABLE items RENAME x TO a",
        "ALTER TABLE items RENAME a TO t; ALTER TABLE items RENAME b TO a; ALTER TABLE items RENAME t TO b",
        "INSERT INTO items VALUES (22, 22, 'a22', 'b22', 22)",
        "SELECT 1",
    ]
    for step in steps:
        database.execute(step)
        report = pipeline.sync()
        assert report.streams[0].rows_loaded == step.startswith("INSERT"), step
        if write == "upsert":
            pipeline.assert_same("public.items")
    held = table_of(pipeline, "public.items").record()
    assert held is not None
    assert held.rows == 22
    assert not [note for note in pipeline.notes if "loaded again" in note]


@pytest.mark.slow
@pytest.mark.parametrize("in_a_round", [True, False])
def test_a_table_that_was_rolled_back_past_a_load_is_loaded_again(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, in_a_round: bool
) -> None:
    pipeline = changed_table(database, make)
    before = table_of(pipeline, "public.orders").handle.table.currentSnapshot().snapshotId()
    database.execute("DELETE FROM orders WHERE id < 50")
    Pipeline.from_yaml(pipeline.file).resync(["public.orders"])
    database.execute("INSERT INTO orders (id) VALUES (5000)")
    if in_a_round:

        def cut_short(name: str) -> None:
            if name == "cdc.written":
                raise InterruptedError

        with monkeypatch.context() as patched:
            patched.setattr("penstock.failpoints.reach", cut_short)
            with pytest.raises(InterruptedError):
                pipeline.sync()
    table_of(pipeline, "public.orders").handle.table.manageSnapshots().rollbackTo(before).commit()
    pipeline.sync()
    assert any("of another load" in note for note in pipeline.notes), pipeline.notes
    pipeline.assert_same("public.orders")
    database.execute("UPDATE orders SET note = 'last' WHERE id = 5000")
    pipeline.sync()
    pipeline.assert_same("public.orders")


def test_an_incremental_table_that_was_rolled_back_past_a_load_is_loaded_again(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    database.execute("INSERT INTO items VALUES (1, 1), (2, 2)")
    pipeline = make([{"table": "public.items", "mode": "incremental", "cursor": "n"}])
    pipeline.sync()
    before = table_of(pipeline, "public.items").handle.table.currentSnapshot().snapshotId()
    database.execute("DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (3, 3)")
    Pipeline.from_yaml(pipeline.file).resync(["public.items"])
    table_of(pipeline, "public.items").handle.table.manageSnapshots().rollbackTo(before).commit()
    pipeline.sync()
    assert any("of another load" in note for note in pipeline.notes), pipeline.notes
    pipeline.assert_same("public.items")


def test_values_that_somebody_took_from_the_table_before_the_second_lookup_are_not_missed(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lacks large values that did not change. The first lookup found them, the second does not."""
    large = "(SELECT string_agg(md5(g || ''), '') FROM generate_series(1, 3000) g)"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text);"
        f"INSERT INTO t SELECT n, n, {large} FROM generate_series(1, 4) n"
    )
    pipeline = make([{"table": "public.t", "where": "id > 0"}])
    pipeline.sync()
    database.execute("UPDATE t SET n = 9 WHERE id = 3")
    emptied: list[int] = []

    def empty(name: str) -> None:
        if name == "cdc.written" and not emptied:
            table = table_of(pipeline, "public.t")
            every = table.catalog.java.iceberg("expressions.Expressions").alwaysTrue()
            table.handle.table.newDelete().deleteFromRowFilter(every).commit()
            emptied.append(1)

    monkeypatch.setattr("penstock.failpoints.reach", empty)
    pipeline.sync()
    assert emptied
    assert any("loaded again" in note for note in pipeline.notes), pipeline.notes
    pipeline.assert_same("public.t")


def test_recovery_asks_the_catalog_once_about_each_table(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = changed_table(database, make)
    recover, record = Recovery.recover, IcebergTable.record
    asked: list[StreamId] = []

    def counted(table: IcebergTable) -> TableRecord | None:
        asked.append(table.stream)
        return record(table)

    def recover_counting(recovery: Recovery) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "record", counted)
            recover(recovery)

    monkeypatch.setattr(Recovery, "recover", recover_counting)
    pipeline.sync()
    assert asked == [StreamId.parse("public.orders")]


def lose_history(pipeline: PipelineUnderTest, stream: str) -> None:
    """Others compact the table, let all older snapshots expire and keep no older metadata."""
    rewrite_all(table_of(pipeline, stream))
    table = table_of(pipeline, stream).handle.table
    table.manageSnapshots().removeTag("penstock_fence").commit()
    table.updateProperties().set("write.metadata.previous-versions-max", "1").commit()
    rewrite_all(table_of(pipeline, stream))
    table.refresh()
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000)).retainLast(1).commit()
    table.updateProperties().set("of", "others").commit()


@pytest.mark.slow
@pytest.mark.parametrize("all_streams", [False, True])
def test_a_table_whose_history_cannot_be_told_is_loaded_anew_in_its_place(
    database: Database, make: MakePipeline, all_streams: bool
) -> None:
    pipeline = changed_table(database, make)
    lose_history(pipeline, "public.orders")
    database.execute("UPDATE orders SET note = 'since' WHERE id % 5 = 0")
    with pytest.raises(HistoryUnknownError) as unknown:
        pipeline.sync()
    assert "penstock resync public.orders" in unknown.value.remedy
    uuid = str(table_of(pipeline, "public.orders").handle.table.uuid())
    if not all_streams:
        killed = pipeline.sync_apart("load.planned=kill", command=["resync", "public.orders"])
        assert killed.killed, str(killed)
        pipeline.sync()
    else:
        Pipeline.from_yaml(pipeline.file).resync()
    pipeline.assert_same("public.orders")
    assert str(table_of(pipeline, "public.orders").handle.table.uuid()) == uuid
    database.execute("DELETE FROM orders WHERE id % 4 = 0")
    pipeline.sync()
    pipeline.assert_same("public.orders")

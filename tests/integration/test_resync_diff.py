"""`penstock resync --diff`: after a lost slot a table is put right where it differs, and then followed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import Pipeline
from penstock.core.errors import ConfigError, PositionGoneError
from penstock.core.report import StreamReport, SyncReport
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.beside import WriterBeside
from tests.conftest import Database
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.traps import STREAMS, MakePipeline, PauseAt, assert_exact
from tests.verifiable import damage_file, data_files, without_beginning, without_end

#: On both kinds of tables; Iceberg's cost Java's start.
BOTH = pytest.mark.parametrize(
    "make", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True
)
ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, n int, v text, large text)"
#: So long that it is stored out of line: an update of another column sends none of it.
LARGE = "(SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 100) AS j)"
ROWS = 1000
#: What happens while nobody reads: 10 rows go, 20 come, 30 change (5 of them a large value), 10 move.
LOST = (
    "DELETE FROM items WHERE id BETWEEN 11 AND 20",
    f"INSERT INTO items SELECT i, 0, 'new', {LARGE} FROM generate_series(2001, 2020) AS i",
    "UPDATE items SET v = 'changed' WHERE id BETWEEN 101 AND 125",
    "UPDATE items SET large = reverse(large) WHERE id BETWEEN 126 AND 130",
    "UPDATE items SET id = id + 10000 WHERE id BETWEEN 201 AND 210",
    "UPDATE items SET v = v || '!' WHERE id = 300",
    "UPDATE items SET v = left(v, -1) WHERE id = 300",
)
DIFFER = 10 + 20 + 30 + 2 * 10


def fill(database: Database, rows: int = ROWS) -> None:
    database.execute(ITEMS)
    database.execute("ALTER TABLE items ALTER COLUMN large SET STORAGE EXTERNAL")
    database.execute(
        f"INSERT INTO items SELECT i, i % 7, 'v' || i, {LARGE} FROM generate_series(1, {rows}) AS i"
    )


def lose_slot(database: Database, pipeline: PipelineUnderTest, *statements: str) -> None:
    """Drop the slot, with changes on both sides of that which nobody has read."""
    database.execute("UPDATE items SET n = n WHERE id = 1")
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    for statement in statements:
        database.execute(statement)


def resync(pipeline: PipelineUnderTest, *streams: str) -> SyncReport:
    return Pipeline.from_yaml(pipeline.file).resync(streams, pipeline.notes, diff=True)


def of(report: SyncReport, stream: str = "public.items") -> StreamReport:
    [found] = [each for each in report.streams if each.stream == stream]
    return found


def is_equal(pipeline: PipelineUnderTest) -> bool:
    return Pipeline.from_yaml(pipeline.file).verify().equal


@BOTH
def test_after_a_lost_slot_only_the_rows_that_differ_are_written(
    database: Database, make: MakePipeline
) -> None:
    fill(database)
    pipeline = make(["public.items"])
    pipeline.sync()
    lose_slot(database, pipeline, *LOST)
    with pytest.raises(PositionGoneError, match="does not exist any more") as refused:
        pipeline.sync()
    assert "resync --diff --yes" in refused.value.remedy
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded) == (DIFFER, 0)
    pipeline.assert_same("public.items")
    # The log goes on from there: large values that do not change come from the table.
    database.execute("UPDATE items SET n = n + 1 WHERE id % 10 = 5 AND id <= 1000")
    database.execute("DELETE FROM items WHERE id % 10 = 6")
    assert (of(pipeline.sync()).updates, of(pipeline.sync()).updates) == (98, 0)
    pipeline.assert_same("public.items")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [without_beginning, without_end])
def test_a_table_with_a_file_that_cannot_be_read_is_loaded(
    database: Database, make: MakePipeline, damage: Callable[[bytes], bytes]
) -> None:
    fill(database)
    pipeline = make(["public.items"])
    pipeline.sync()
    lose_slot(database, pipeline, *LOST)
    [path] = data_files(pipeline, "public.items")
    damage_file(path, damage)
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded) == (0, ROWS + 10), report
    assert "a file of its table cannot be read" in " ".join(pipeline.notes)
    pipeline.assert_same("public.items")


class Writer(WriterBeside):
    """Rows come, change, move and go, in transactions of several statements, until the block is left."""

    def write(self, connection: Any, number: int) -> None:
        low = 50_000 + number * 10
        for statement in (
            f"INSERT INTO items SELECT i, 0, 'w', {LARGE} FROM generate_series({low}, {low}+9) i",
            f"UPDATE items SET n = n + 1 WHERE id % 97 = {number % 97}",
            f"DELETE FROM items WHERE id = {low - 5}",
            f"UPDATE items SET id = -id WHERE id = {low - 14}",
        ):
            connection.execute(statement.encode())


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("in_spark", [False, True], ids=["light", "spark"])
def test_writers_go_on_and_lose_nothing(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, in_spark: bool
) -> None:
    fill(database)
    pipeline = make(["public.items"], load={"rows_per_chunk": 150})
    pipeline.sync()
    if in_spark:
        monkeypatch.setattr("penstock.verify.comparison.LIGHT_ROWS_MAX", 0)
    with Writer(database) as writer:
        lose_slot(database, pipeline, *LOST)
        writer.wait_for_more()
        report = of(resync(pipeline))
        writer.wait_for_more()
    assert report.rows_loaded == 0
    assert report.rows_repaired > DIFFER
    pipeline.sync()
    pipeline.assert_same("public.items")


@pytest.mark.slow
@BOTH
def test_readers_see_the_old_table_until_the_commit(
    database: Database, make: MakePipeline, pause_at: PauseAt
) -> None:
    fill(database, 300)
    pipeline = make(["public.items"])
    pipeline.sync()
    before = read(pipeline)
    lose_slot(database, pipeline, *LOST)
    pause = pause_at("load.written=pause")
    with ThreadPoolExecutor(1) as thread:
        with pause:
            running = thread.submit(resync, pipeline)
            pause.wait(running)
            assert read(pipeline).equals(before)
            database.execute("UPDATE items SET v = 'meanwhile' WHERE id = 7")
        running.result(timeout=400)
    pipeline.sync()
    pipeline.assert_same("public.items")


def read(pipeline: PipelineUnderTest, stream: str = "public.items") -> pa.Table:
    return Pipeline.from_yaml(pipeline.file).table(stream).to_arrow().sort_by("id")


#: Where it is killed, and how many rows are then left to be written by whoever goes on.
BEFORE_COMMIT = ["load.recorded", "load.preparing", "load.written"]
AFTER_COMMIT = ["load.committed", "load.before_swap", "load.swapped", "load.done"]
OF_PARQUET = ["destination.file_write", "destination.version_built"], ["destination.recorded"]
OF_ICEBERG = ["iceberg.staged"], ["iceberg.committed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "place", "left"),
    [
        *(("parquet", place, DIFFER) for place in [*BEFORE_COMMIT, *OF_PARQUET[0]]),
        *(("parquet", place, 0) for place in [*AFTER_COMMIT, *OF_PARQUET[1]]),
        *(("iceberg", place, DIFFER) for place in ["load.written", *OF_ICEBERG[0]]),
        *(("iceberg", place, 0) for place in ["load.committed", *OF_ICEBERG[1]]),
    ],
)
def test_a_kill_anywhere_is_gone_on_with_and_nothing_is_written_twice(
    database: Database, make: MakePipeline, kind: str, place: str, left: int
) -> None:
    fill(database)
    pipeline = make(["public.items"], destination=DESTINATIONS[kind])
    pipeline.sync()
    lose_slot(database, pipeline, *LOST)
    ended = pipeline.sync_apart(f"{place}=kill", command=("resync", "--diff", "--yes"))
    assert ended.killed, str(ended)
    # These come after P: from the log, if the commit is there, and else with what differs.
    database.execute("UPDATE items SET v = 'later' WHERE id BETWEEN 901 AND 905")
    report = of(pipeline.sync())
    assert (report.rows_repaired, report.rows_loaded) == (left + 5 if left else 0, 0)
    assert report.updates == (0 if left else 5)
    pipeline.assert_same("public.items")
    assert is_equal(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["resync.ordered", "load.preparing", "load.committed"])
def test_the_same_command_after_a_kill_begins_anew_and_comes_to_the_same(
    database: Database, make: MakePipeline, place: str
) -> None:
    fill(database)
    pipeline = make(["public.items"])
    pipeline.sync()
    lose_slot(database, pipeline, *LOST)
    ended = pipeline.sync_apart(f"{place}=kill", command=("resync", "--diff", "--yes"))
    assert ended.killed, str(ended)
    if place == "resync.ordered":
        with pytest.raises(PositionGoneError):
            pipeline.sync()
    database.execute("UPDATE items SET v = 'later' WHERE id BETWEEN 901 AND 905")
    ended = pipeline.sync_apart(command=("resync", "--diff", "--yes"))
    assert ended.status == 0, str(ended)
    [stream] = ended.answer["streams"]
    assert stream["rows_repaired"] == (5 if place == "load.committed" else DIFFER + 5)
    pipeline.sync()
    pipeline.assert_same("public.items")


@pytest.mark.slow
@BOTH
def test_deleted_rows_that_are_kept_stay(database: Database, make: MakePipeline) -> None:
    fill(database, 100)
    pipeline = make([{"table": "public.items", "deletes": "soft"}])
    pipeline.sync()
    database.execute("DELETE FROM items WHERE id <= 10")
    pipeline.sync()
    early = deleted(pipeline)
    assert set(early) == set(range(1, 11))
    lose_slot(database, pipeline, "DELETE FROM items WHERE id BETWEEN 11 AND 20")
    database.execute("UPDATE items SET id = 1000 WHERE id = 21")
    database.execute("INSERT INTO items SELECT i, 0, 'again', 'short' FROM generate_series(1, 3) AS i")
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded) == (10 + 2 + 3, 0)
    now = deleted(pipeline)
    assert set(now) == set(range(4, 22))
    assert all(now[key] == early[key] for key in range(4, 11))
    live = read(pipeline).filter(pc.is_null(pc.field("_deleted_at")))
    assert live.num_rows == 100 - 20 + 3
    assert is_equal(pipeline)
    database.execute("DELETE FROM items WHERE id = 50")
    database.execute("INSERT INTO items VALUES (21, 0, 'back', 'short')")
    pipeline.sync()
    assert set(deleted(pipeline)) == {*range(4, 21), 50}
    assert is_equal(pipeline)


def deleted(pipeline: PipelineUnderTest) -> dict[int, object]:
    rows = read(pipeline)
    ended = rows.filter(pc.is_valid(pc.field("_deleted_at")))
    return dict(zip(ended.column("id").to_pylist(), ended.column("_deleted_at").to_pylist(), strict=True))


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_dead_letters_are_those_of_the_source_as_it_is(
    database: Database, make: MakePipeline, deletes: str
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int, day date)")
    database.execute("INSERT INTO items SELECT i, 0, '2026-01-01' FROM generate_series(1, 20) AS i")
    database.execute("UPDATE items SET day = 'infinity' WHERE id IN (1, 2)")
    pipeline = make([{"table": "public.items", "deletes": deletes}])
    pipeline.sync()
    database.execute("DELETE FROM items WHERE id = 9")
    pipeline.sync()
    # 1 fits now, 2 does not still, 3 and 9 do not any more.
    lose_slot(database, pipeline, "UPDATE items SET day = '2026-01-02' WHERE id = 1")
    database.execute("UPDATE items SET day = '-infinity' WHERE id = 3")
    database.execute("INSERT INTO items VALUES (9, 0, 'infinity')")
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded, report.dead_letters) == (2, 0, 3)
    assert read(pipeline).column("id").to_pylist() == [1, *range(4, 9), *range(10, 21)]
    [status] = Pipeline.from_yaml(pipeline.file).status().streams
    assert (status.dead_letters, status.dead_keys) == (3, 3)
    assert is_equal(pipeline)
    database.execute("UPDATE items SET day = '2026-01-03' WHERE id = 9")
    pipeline.sync()
    assert 9 in read(pipeline).column("id").to_pylist()
    [status] = Pipeline.from_yaml(pipeline.file).status().streams
    assert status.dead_keys == 2


def test_a_table_that_holds_no_rows_of_the_source_is_refused_by_name(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    with pytest.raises(ConfigError, match=r"public\.history \(write: append\)") as refused:
        resync(pipeline)
    assert "penstock resync public.state --diff --yes" in refused.value.remedy
    with pytest.raises(ConfigError, match=r"public\.history \(write: append\)") as refused:
        resync(pipeline, "public.history")
    assert "penstock resync public.history" in refused.value.remedy


@pytest.mark.slow
def test_of_a_lost_slot_the_streams_that_are_named_are_compared_and_the_others_loaded(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    tables.execute("UPDATE state SET v = 'x' WHERE id = 3; UPDATE history SET v = 'x' WHERE id = 3")
    command = ("resync", "public.state", "--diff")
    ended = pipeline.sync_apart(command=command)
    assert ended.answer["error"]["code"] == "config", str(ended)
    ended = pipeline.sync_apart(command=(*command, "--yes"))
    assert ended.status == 0, str(ended)
    streams = {each["stream"]: each for each in ended.answer["streams"]}
    assert (streams["public.state"]["rows_repaired"], streams["public.state"]["rows_loaded"]) == (1, 0)
    assert (streams["public.history"]["rows_repaired"], streams["public.history"]["rows_loaded"]) == (0, 20)
    tables.execute("UPDATE state SET v = 'y' WHERE id = 4; UPDATE history SET v = 'y' WHERE id = 4")
    pipeline.sync()
    pipeline.assert_same("public.state")


@pytest.mark.slow
@BOTH
def test_with_its_slot_a_stream_is_put_right_beside_the_others(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'x' WHERE id < 4; UPDATE history SET v = 'x' WHERE id < 4")
    report = resync(pipeline, "public.state")
    assert (of(report, "public.state").rows_repaired, of(report, "public.state").rows_loaded) == (3, 0)
    assert of(report, "public.history").updates == 3
    tables.execute("DELETE FROM state WHERE id = 9; DELETE FROM history WHERE id = 9")
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["load.preparing", "load.committed", "load.done"])
def test_a_kill_beside_the_others_loses_nothing(tables: Database, make: MakePipeline, place: str) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'x' WHERE id < 4; UPDATE history SET v = 'x' WHERE id < 4")
    ended = pipeline.sync_apart(f"{place}=kill", command=("resync", "public.state", "--diff"))
    assert ended.killed, str(ended)
    tables.execute("UPDATE state SET v = 'y' WHERE id = 6; UPDATE history SET v = 'y' WHERE id = 6")
    assert of(pipeline.sync(), "public.state").rows_loaded == 0
    assert_exact(pipeline)


@pytest.mark.slow
def test_a_table_of_which_much_differs_is_loaded(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    pipeline = make(["public.items"])
    pipeline.sync()
    monkeypatch.setattr("penstock.verify.differences.SMALL_ROWS_MAX", 100)
    lose_slot(database, pipeline, "UPDATE items SET v = 'all of them'")
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded) == (0, ROWS)
    assert any("more than a third of its 1,000 rows differ" in note for note in pipeline.notes)
    pipeline.assert_same("public.items")


@pytest.mark.slow
@BOTH
def test_a_table_with_other_columns_is_loaded(database: Database, make: MakePipeline) -> None:
    fill(database, 50)
    pipeline = make(["public.items"])
    pipeline.sync()
    lose_slot(database, pipeline, "ALTER TABLE items ADD COLUMN more int DEFAULT 7")
    report = of(resync(pipeline))
    assert (report.rows_repaired, report.rows_loaded) == (0, 50)
    assert any("loaded and not compared: its columns" in note for note in pipeline.notes)
    pipeline.assert_same("public.items")


@pytest.mark.slow
@BOTH
def test_parts_and_partitions_of_tables_are_put_right(parted: Database, make: MakePipeline) -> None:
    fill(parted, 200)
    pipeline = make([{"table": "public.items", "where": "n < 4", "rename": {"v": "words"}}, "public.m"])
    pipeline.sync()
    lose_slot(parted, pipeline, "UPDATE items SET n = 9 WHERE n = 3", "VACUUM FULL items")
    parted.execute("UPDATE items SET n = 1 WHERE n = 5 AND id < 50")
    parted.execute("DELETE FROM m WHERE id < 6; INSERT INTO m VALUES (200, '2026-02-02')")
    came, went = (
        parted.query(f"SELECT count(*) FROM items WHERE {where}")[0][0]
        for where in ("id % 7 = 5 AND id < 50", "n = 9")
    )
    report = resync(pipeline)
    assert (of(report).rows_repaired, of(report).rows_loaded) == (came + went, 0)
    assert (of(report, "public.m").rows_repaired, of(report, "public.m").rows_loaded) == (6, 0)
    assert is_equal(pipeline)
    parted.execute("UPDATE items SET v = 'z' WHERE id % 5 = 0; DELETE FROM m WHERE id = 10")
    pipeline.sync()
    assert is_equal(pipeline)
    pipeline.assert_same("public.m")


@pytest.mark.slow
def test_a_slot_that_the_server_has_invalidated_is_replaced(tmp_path: Path) -> None:
    small = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(settings={"wal_level": "logical", **small}) as server:
        with connect(server.url()) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
            connection.execute("INSERT INTO items SELECT i, 0 FROM generate_series(1, 100) AS i")
            pipeline = PipelineUnderTest(tmp_path / "pipeline", server.url(), ["public.items"])
            pipeline.sync()
            for number in range(6):
                connection.execute("UPDATE items SET n = n + 1 WHERE id = %s", (number + 1,))
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            with pytest.raises(PositionGoneError, match="lost"):
                pipeline.sync()
            report = of(resync(pipeline))
            assert (report.rows_repaired, report.rows_loaded) == (6, 0)
            connection.execute("UPDATE items SET n = -1 WHERE id = 50")
        pipeline.sync()
        pipeline.assert_same("public.items")

"""What streams of MySQL and MariaDB may ask for beside the defaults: each change once, parts, cursors.

Tables are compared with what the server says of itself (`tests.oracle_mysql`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Pipeline, failpoints
from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog.warming import warm_up
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.mysql_workload import APPEND, UPSERT, MysqlWorkload
from tests.oracle_mysql import assert_history, assert_same
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of

pytestmark = pytest.mark.integration

ROWS = 600


@pytest.fixture(
    scope="module",
    params=[MYSQL, pytest.param(MARIADB, marks=pytest.mark.slow)],
    ids=lambda kind: str(kind.name),
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        yield started


@pytest.fixture
def workload(server: MysqlServer) -> MysqlWorkload:
    server.execute("DROP DATABASE IF EXISTS oracle")
    return MysqlWorkload(server, seed=7).setup(ROWS)


def pipeline(
    server: MysqlServer, directory: Path, streams: list[Any], destination: str = "parquet"
) -> PipelineUnderTest:
    url = f"mysql://root@127.0.0.1:{server.port}/shop"
    settings = {
        "source": {"type": "mysql", "url": url, "name": directory.name},
        "destination": DESTINATIONS[destination],
        "load": {"rows_per_chunk": 200},
    }
    return PipelineUnderTest(directory / "pipeline", "", streams, settings)


def rows_of(synced: PipelineUnderTest, table: str) -> list[dict[str, Any]]:
    files = sorted(synced.path(table).glob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("destination", ["parquet", "iceberg"])
def test_append_tables_have_the_rows_of_one_moment_and_each_change_since_once(
    server: MysqlServer, workload: MysqlWorkload, tmp_path: Path, destination: str
) -> None:
    synced = pipeline(server, tmp_path, streams_of(UPSERT, APPEND), destination)
    with workload.start():
        loaded = {report.stream: report.rows_loaded for report in synced.sync().streams}
        assert all(loaded[table] > 0 for table in APPEND)
        synced.sync()
    synced.sync()
    for table in UPSERT:
        assert_same(server, table, synced.path(table))
    for table in APPEND:
        assert_history(server, table, synced.path(table))


@pytest.mark.slow
def test_a_table_without_a_key_is_appended_to(server: MysqlServer, tmp_path: Path) -> None:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.notes (n INT)",
        "INSERT INTO shop.notes VALUES (1), (1), (2)",
    )
    synced = pipeline(server, tmp_path, [{"table": "shop.notes", "write": "append"}])
    synced.sync()
    server.execute(
        "INSERT INTO shop.notes VALUES (3)", "DELETE FROM shop.notes WHERE n = 1", "TRUNCATE TABLE shop.notes"
    )
    synced.sync()
    found = sorted((row["_op"], row["n"] or 0) for row in rows_of(synced, "shop.notes"))
    assert found == [("d", 1), ("d", 1), ("i", 3), ("r", 1), ("r", 1), ("r", 2), ("t", 0)]


@pytest.mark.slow
def test_rows_that_are_deleted_while_the_table_is_loaded_stay_with_their_last_values(
    server: MysqlServer, workload: MysqlWorkload, tmp_path: Path
) -> None:
    synced = pipeline(server, tmp_path, [{"table": "shop.orders", "deletes": "soft"}])
    with workload.start():
        synced.sync()
        synced.sync()
    server.execute(
        "UPDATE shop.orders SET note = 'last' WHERE id = 3", "DELETE FROM shop.orders WHERE id = 3"
    )
    synced.sync()
    found = rows_of(synced, "shop.orders")
    keys = [int(row["id"]) for row in found]
    assert len(keys) == len(set(keys))
    there = {int(row["id"]): row["version"] for row in found if row["_deleted_at"] is None}
    assert there == dict(server.rows("SELECT id, version FROM shop.orders"))
    gone = {int(row["id"]): row for row in found if row["_deleted_at"] is not None}
    assert gone
    assert gone.get(3, {"note": "last"})["note"] == "last"


@pytest.mark.slow
def test_a_table_holds_the_rows_and_columns_that_were_asked_for(
    server: MysqlServer, workload: MysqlWorkload, tmp_path: Path
) -> None:
    where = "paid = 1 OR (amount > 300.5 AND placed_at >= '2020-01-01 00:00:00') OR note LIKE 'order 1%'"
    part = {"table": "shop.orders", "columns": ["id", "note", "version"], "where": where}
    synced = pipeline(server, tmp_path, [part])
    with workload.start():
        synced.sync()
        synced.sync()
    synced.sync()
    found = {(int(row["id"]), row["note"], row["version"]) for row in rows_of(synced, "shop.orders")}
    said = where.replace("LIKE", "COLLATE utf8mb4_bin LIKE")
    assert found == set(server.rows(f"SELECT id, note, version FROM shop.orders WHERE {said}"))
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_an_update_without_what_the_filter_reads_concerns_its_table_alone(
    server: MysqlServer, tmp_path: Path, image: str
) -> None:
    names = ("parts", "keyed", "history")
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        *(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v TEXT, n INT)" for name in names),
        *(f"INSERT INTO shop.{name} VALUES (1, 'a', 0), (2, 'b', 0), (3, 'a', 0)" for name in names),
    )
    streams = [
        {"table": "shop.parts", "where": "v = 'a'"},
        {"table": "shop.keyed", "where": "id >= 2"},
        {"table": "shop.history", "where": "v = 'a'", "write": "append"},
    ]
    synced = pipeline(server, tmp_path, streams)
    synced.sync()

    def update(*tables: str) -> None:
        with server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            for table in tables:
                cursor.execute(f"UPDATE {table} SET n = n + 1")
            connection.commit()

    def held(table: str) -> list[tuple[Any, ...]]:
        return sorted((row["id"], row["v"], row["n"]) for row in rows_of(synced, table))

    def history() -> list[tuple[Any, ...]]:
        return sorted((row["_op"], row["id"], row["n"]) for row in rows_of(synced, "shop.history"))

    update("parts", "keyed")
    server.execute("INSERT INTO shop.history VALUES (4, 'a', 0)")
    again = [report.stream for report in synced.sync().streams if report.rows_loaded]
    assert again == ["shop.parts"]
    assert any("did not carry values that its filter reads" in note for note in synced.notes), synced.notes
    assert held("shop.parts") == [(1, "a", 1), (3, "a", 1)]
    assert held("shop.keyed") == [(2, "b", 1), (3, "a", 1)]
    assert [row["id"] for row in rows_of(synced, "shop.history") if row["_op"] == "i"] == [4]

    update("history")
    server.execute("UPDATE shop.parts SET v = 'b' WHERE id = 3")
    assert not any(report.rows_loaded for report in synced.sync().streams)
    assert any(
        note.startswith("shop.history is paused: updates did not carry values") for note in synced.notes
    ), synced.notes
    assert held("shop.parts") == [(1, "a", 1)]
    first = [("i", 4, 0), ("r", 1, 0), ("r", 3, 0)]
    assert history() == first
    update("history")
    server.execute("UPDATE shop.parts SET n = 7 WHERE id = 1")
    synced.sync()
    assert history() == first, "it stands still"
    assert held("shop.parts") == [(1, "a", 7)]

    Pipeline.from_yaml(synced.file).resume(["shop.history"])
    again = [report.stream for report in synced.sync().streams if report.rows_loaded]
    assert again == ["shop.history"]
    assert history() == sorted([*first, ("r", 1, 2), ("r", 3, 2), ("r", 4, 2)])
    server.execute("UPDATE shop.history SET n = 9 WHERE id = 3")
    synced.sync()
    assert ("u", 3, 9) in history()


@pytest.mark.slow
def test_a_sync_that_loads_a_table_too_often_says_why(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.parts (id INT PRIMARY KEY, n INT, v INT)",
        "INSERT INTO shop.parts VALUES (1, 2, 0)",
    )
    synced = pipeline(server, tmp_path, [{"table": "shop.parts", "where": "n > 1"}])
    reach = failpoints.reach

    def update(name: str) -> None:
        if name == "load.preparing":
            with server.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_row_image = MINIMAL")
                cursor.execute("UPDATE parts SET v = v + 1")
                connection.commit()
        reach(name)

    monkeypatch.setattr(failpoints, "reach", update)
    monkeypatch.setattr("penstock.sync.TURNS_MAX", 2)
    with pytest.raises(SourceError, match="kept changing these tables") as ended:
        synced.sync()
    assert ended.value.detail == (
        "shop.parts: updates did not carry values that its filter reads (binlog_row_image)."
    )
    assert "binlog_row_image" in ended.value.remedy
    monkeypatch.setattr(failpoints, "reach", reach)
    synced.sync()
    assert [row["v"] for row in rows_of(synced, "shop.parts")] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("write", ["upsert", "append"])
def test_a_server_that_leaves_out_what_a_filter_reads_stops_no_sync(
    server: MysqlServer, tmp_path: Path, write: str
) -> None:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.parts (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE shop.others (id INT PRIMARY KEY, n INT)",
    )
    synced = pipeline(
        server, tmp_path, [{"table": "shop.parts", "where": "n > 1", "write": write}, "shop.others"]
    )
    synced.sync()
    server.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        with server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3)")
            cursor.execute("INSERT INTO others VALUES (1, 1)")
            connection.commit()
        assert not any(report.rows_loaded for report in synced.sync().streams)
    finally:
        server.execute("SET GLOBAL binlog_row_image = 'FULL'")
    assert sorted(row["id"] for row in rows_of(synced, "shop.parts")) == [2, 3]
    assert [row["id"] for row in rows_of(synced, "shop.others")] == [1]


@pytest.mark.slow
def test_dates_that_are_in_no_calendar_are_outside_of_a_filter(server: MysqlServer, tmp_path: Path) -> None:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.days (id INT PRIMARY KEY, day DATE)",
        "SET SESSION sql_mode = ''",
        "INSERT INTO shop.days VALUES (1, '2026-01-01'), (2, '0000-00-00'), (3, NULL), (4, '2025-01-01')",
    )
    synced = pipeline(server, tmp_path, [{"table": "shop.days", "where": "day >= '2026-01-01'"}])
    synced.sync()
    server.execute("INSERT INTO shop.days VALUES (5, '2026-05-05'), (6, '2020-01-01')")
    synced.sync()
    assert sorted(row["id"] for row in rows_of(synced, "shop.days")) == [1, 5]


@pytest.mark.slow
@pytest.mark.parametrize("cursor", ["changed_at", "number", "word", "changed_at:id"])
def test_a_table_is_read_on_by_a_cursor(server: MysqlServer, tmp_path: Path, cursor: str) -> None:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.items (id BIGINT UNSIGNED PRIMARY KEY, changed_at DATETIME(6), "
        "number DECIMAL(20,4), word VARCHAR(20), note TEXT)",
        "INSERT INTO shop.items VALUES (1, '2026-01-01 00:00:00.000001', 1.5, 'a', 'x'), "
        "(2, '2026-01-01 00:00:00.000002', 2.5, 'B', 'y')",
    )
    synced = pipeline(server, tmp_path, [{"table": "shop.items", "mode": "incremental", "cursor": cursor}])
    synced.sync()
    assert_same(server, "shop.items", synced.path("shop.items"))
    server.execute(
        "INSERT INTO shop.items VALUES (3, '2026-02-01 00:00:00', 3, 'ä', NULL)",
        "UPDATE shop.items SET note = 'z', changed_at = '2026-02-02 01:00:00', number = 4, word = 'äb' "
        "WHERE id = 1",
    )
    synced.sync()
    assert_same(server, "shop.items", synced.path("shop.items"))
    if cursor == "changed_at:id":
        server.execute("INSERT INTO shop.items VALUES (9, NULL, 0, '', 'without a time')")
        synced.sync()
        assert_same(server, "shop.items", synced.path("shop.items"))
    assert synced.sync().streams[0].rows_loaded <= 3


@pytest.mark.slow
def test_a_strict_table_begins_empty_and_has_every_change_since(
    server: MysqlServer, workload: MysqlWorkload, tmp_path: Path
) -> None:
    stream = {"table": "shop.orders", "mode": "strict_cdc", "write": "append"}
    synced = pipeline(server, tmp_path, [stream])
    synced.sync()
    assert rows_of(synced, "shop.orders") == []
    server.execute(
        "UPDATE shop.orders SET note = 'one' WHERE id = 1",
        "INSERT INTO shop.orders (id, customer, version) VALUES (999999, 1, 1)",
        "DELETE FROM shop.orders WHERE id = 2",
    )
    synced.sync()
    found = sorted((row["_op"], int(row["id"])) for row in rows_of(synced, "shop.orders"))
    assert found == [("d", 2), ("i", 999999), ("u", 1)]

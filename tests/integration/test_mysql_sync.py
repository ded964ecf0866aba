"""`penstock sync` from real MySQL and MariaDB servers to Parquet: the tables equal the source, row by row.

The oracle asks the server by its driver and reads the files by PyArrow; neither is Penstock's.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.core.errors import AnotherSourceError, PositionGoneError
from penstock.log.manifest import newest_manifest
from penstock.sources.mysql.binlog.warming import warm_up
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.pipelines import PipelineUnderTest

pytestmark = pytest.mark.integration

ROWS = 1500
ORDERS = (
    "CREATE TABLE shop.orders (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40), paid DECIMAL(12,2), "
    "at DATETIME(6), day DATE, raw VARBINARY(20), rate DOUBLE, twice INT AS (1) STORED)"
)


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
def shop(server: MysqlServer) -> MysqlServer:
    orders = ", ".join(
        f"({n}, {'NULL' if n % 7 == 0 else repr(f'name {n}')}, {n}.37, "
        f"'2026-01-01 00:00:{n % 60:02d}.000123', '2026-02-{n % 28 + 1:02d}', x'{n:06X}', {n} / 7)"
        for n in range(ROWS)
    )
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        ORDERS,
        f"INSERT INTO shop.orders (id, name, paid, at, day, raw, rate) VALUES {orders}",
        "CREATE TABLE shop.words (word VARCHAR(20) COLLATE utf8mb4_bin, part INT, n INT, "
        "PRIMARY KEY (word, part))",
        "INSERT INTO shop.words VALUES " + ", ".join(f"('wörd {n // 3}', {n % 3}, {n})" for n in range(ROWS)),
        "CREATE TABLE shop.notes (body TEXT)",
        "INSERT INTO shop.notes VALUES ('a'), ('a'), (NULL)",
    )
    return server


def pipeline(server: MysqlServer, directory: Path, **settings: Any) -> PipelineUnderTest:
    source = {"type": "mysql", "url": f"mysql://root@127.0.0.1:{server.port}/shop", "name": directory.name}
    streams: list[Any] = ["shop.orders", "shop.words", {"table": "shop.notes", "mode": "full_refresh"}]
    return PipelineUnderTest(
        directory,
        "",
        streams,
        {"source": source, "destination": {"type": "parquet", "path": "./lake"},
         "load": {"rows_per_chunk": 200}, **settings},
    )  # fmt: skip


def assert_same(server: MysqlServer, synced: PipelineUnderTest, *tables: str) -> None:
    for table in tables:
        files = sorted(synced.path(f"shop.{table}").glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        names = list(pq.read_schema(files[0]).names)
        assert "twice" not in names
        columns = ", ".join(f"`{name}`" for name in names)
        expected = server.rows(f"SELECT {columns} FROM shop.{table}")
        found = [tuple(row[name] for name in names) for row in rows]
        assert sorted(map(_plain, found), key=repr) == sorted(map(_plain, expected), key=repr), table


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Unsigned numbers of 64 bits are decimals in the table."""
    return tuple(
        int(value) if number == 0 and isinstance(value, Decimal) else value
        for number, value in enumerate(row)
    )


@contextmanager
def writing(server: MysqlServer) -> Iterator[None]:
    """Changes of all kinds, in transactions of several, until the block ends."""
    ended, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        chance = random.Random(7)
        try:
            with server.connect("shop") as connection, connection.cursor() as cursor:
                number = 10 * ROWS
                while not ended.is_set():
                    number += 1
                    some = chance.randrange(ROWS)
                    cursor.execute("BEGIN")
                    cursor.execute(f"INSERT INTO orders (id, name) VALUES ({number}, 'new')")
                    cursor.execute(f"UPDATE orders SET paid = paid + 1 WHERE id IN ({some}, {number - 5})")
                    cursor.execute(f"UPDATE orders SET id = {number + 100_000} WHERE id = {some // 2}")
                    cursor.execute(f"DELETE FROM orders WHERE id = {number - 9}")
                    cursor.execute(f"UPDATE words SET n = n + 1 WHERE word = 'wörd {some // 3}'")
                    cursor.execute(f"DELETE FROM words WHERE word = 'wörd {some // 5}' AND part = 1")
                    cursor.execute("COMMIT" if number % 5 else "ROLLBACK")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert failures == []


def test_tables_that_are_written_to_while_they_are_loaded_and_followed_equal_the_source(
    shop: MysqlServer, tmp_path: Path
) -> None:
    synced = pipeline(shop, tmp_path / "pipeline")
    with writing(shop):
        loaded = {report.stream: report.rows_loaded for report in synced.sync().streams}
        assert loaded["shop.notes"] == 3
        assert loaded["shop.words"] > 0
        synced.sync()
    synced.sync()
    assert_same(shop, synced, "orders", "words", "notes")

    shop.execute(
        "UPDATE shop.orders SET name = 'x' WHERE id % 10 = 3",
        "DELETE FROM shop.orders WHERE id % 10 = 4",
        "TRUNCATE TABLE shop.words",
        "INSERT INTO shop.words VALUES ('after', 1, 1)",
        "DELETE FROM shop.notes",
    )
    synced.sync()
    assert_same(shop, synced, "orders", "words", "notes")
    _require_state_names_the_place(synced, shop)


def _require_state_names_the_place(synced: PipelineUnderTest, server: MysqlServer) -> None:
    """As the contract has it: file and byte, which the server has, and the set of transactions."""
    state = json.loads((synced.state / "state.json").read_text())
    place = state["global"]["state"]["state"]
    newest = newest_manifest(synced.state / "log")
    assert newest is not None
    assert newest.place is not None
    assert f"{place['name']}:{place['pos']}" == newest.place.text
    assert (place["name"], place["pos"]) <= server.position()
    assert state["global"]["state"]["gtid_set"] == newest.place.gtid_set
    assert sorted(state["global"]["streams"]) == ["shop.orders", "shop.words"]
    assert state["global"]["state"]["server_id"] > 2**31


@pytest.mark.slow
def test_a_table_that_is_altered_in_a_way_that_is_not_certain_is_loaded_again(
    shop: MysqlServer, tmp_path: Path
) -> None:
    synced = pipeline(shop, tmp_path / "pipeline")
    synced.sync()
    shop.execute(
        "ALTER TABLE shop.words MODIFY n BIGINT",
        "ALTER TABLE shop.orders DROP COLUMN name, ADD COLUMN name VARCHAR(40) DEFAULT 'new'",
        "INSERT INTO shop.words VALUES ('last', 1, 1)",
    )
    synced.sync()
    assert_same(shop, synced, "orders", "words")
    assert any("shop.words" in note for note in synced.notes)


@pytest.mark.slow
def test_a_table_whose_rows_the_log_does_not_tell_is_loaded_again_and_no_other(
    shop: MysqlServer, tmp_path: Path
) -> None:
    synced = pipeline(shop, tmp_path / "pipeline")
    synced.sync()
    with shop.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("UPDATE shop.words SET n = -n WHERE part = 1")
        cursor.execute("DELETE FROM shop.words WHERE part = 2")
    shop.execute("UPDATE shop.orders SET name = 'changed' WHERE id < 10")
    synced.sync()
    assert_same(shop, synced, "orders", "words")
    assert any("shop.words" in note for note in synced.notes)
    assert not any("shop.orders" in note for note in synced.notes)


@pytest.mark.slow
def test_a_versioned_table_equals_what_is_there_without_its_history(
    server: MysqlServer, shop: MysqlServer, tmp_path: Path
) -> None:
    if server.kind is MYSQL:
        pytest.skip("MySQL has no versioned tables")
    shop.execute(
        "ALTER TABLE shop.words ADD SYSTEM VERSIONING",
        "UPDATE shop.words SET n = n + 1 WHERE part = 0",
        "DELETE FROM shop.words WHERE word = 'wörd 1'",
    )
    synced = pipeline(shop, tmp_path / "pipeline")
    synced.sync()
    assert_same(shop, synced, "words")
    shop.execute(
        "UPDATE shop.words SET n = -n WHERE part = 1",
        "DELETE FROM shop.words WHERE word = 'wörd 2'",
        "INSERT INTO shop.words VALUES ('wörd 2', 0, 1), ('last', 1, 1)",
        "DELETE HISTORY FROM shop.words",
    )
    synced.sync()
    assert_same(shop, synced, "words")


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "capture.slot_created=kill",
        "load.preparing=kill",
        "load.committed=kill",
        "load.swapped=kill",
        "cdc.committed=kill",
    ],
)
def test_a_sync_that_is_killed_goes_on(shop: MysqlServer, tmp_path: Path, failpoint: str) -> None:
    if shop.kind is MARIADB and failpoint != "cdc.committed=kill":
        pytest.skip("the same for both servers")
    synced = pipeline(shop, tmp_path / "pipeline")
    if failpoint.startswith("cdc"):
        synced.sync()
    shop.execute("UPDATE shop.orders SET name = 'before' WHERE id % 2 = 0")
    ended = synced.sync_apart(failpoint)
    assert ended.struck == (failpoint,), str(ended)
    assert ended.killed or failpoint.startswith("capture")
    shop.execute("DELETE FROM shop.orders WHERE id % 3 = 0", "UPDATE shop.words SET n = -n")
    synced.sync()
    assert_same(shop, synced, "orders", "words", "notes")


@pytest.mark.slow
def test_a_table_that_is_emptied_while_it_is_loaded_need_not_be_loaded_again(
    shop: MysqlServer, tmp_path: Path
) -> None:
    synced = pipeline(shop, tmp_path / "pipeline")
    running = synced.start_sync("load.written=pause")
    running.wait_until_paused("load.written")
    shop.execute(
        "TRUNCATE TABLE shop.orders",
        "INSERT INTO shop.orders (id, name) VALUES (1, 'after'), (9, 'new')",
        "TRUNCATE TABLE shop.words",
    )
    running.go_on()
    ended = running.wait()
    assert ended.status == 0, str(ended)
    assert "loaded again" not in ended.out + ended.err
    assert_same(shop, synced, "orders", "words", "notes")


@pytest.mark.slow
def test_a_log_that_was_purged_between_two_syncs_is_an_error(shop: MysqlServer, tmp_path: Path) -> None:
    synced = pipeline(shop, tmp_path / "pipeline")
    synced.sync()
    shop.execute("DELETE FROM shop.orders WHERE id = 1", "FLUSH BINARY LOGS")
    shop.purge()
    with pytest.raises(PositionGoneError, match="gone"):
        synced.sync()


def _follow(replica: MysqlServer, primary: MysqlServer) -> None:
    replica.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {primary.port}, "
        "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )


def _take_over(replica: MysqlServer, primary: MysqlServer) -> None:
    """Everything that the primary has, and then no more of it."""
    [(executed,)] = primary.rows("SELECT @@global.gtid_executed")
    caught_up = f"SELECT GTID_SUBSET('{executed}', @@global.gtid_executed)".replace("\n", "")
    wait_until(lambda: replica.rows(caught_up) == [(1,)], "the replica to have everything", timeout_s=60)
    replica.execute("STOP REPLICA")
    primary.kill()


def _reading_from(synced: PipelineUnderTest, server: MysqlServer) -> PipelineUnderTest:
    url = f"mysql://root@127.0.0.1:{server.port}/shop"
    synced.settings = {**synced.settings, "source": {**synced.settings["source"], "url": url}}
    synced.write_file()
    return synced


def _make_words(server: MysqlServer) -> None:
    server.execute(
        "RESET MASTER" if server.kind is MARIADB else "RESET BINARY LOGS AND GTIDS",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.words (word VARCHAR(20) PRIMARY KEY, n INT)",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT)",
        "INSERT INTO shop.words VALUES ('one', 1), ('two', 2)",
        "INSERT INTO shop.orders VALUES (1, 1), (2, 2)",
    )


@pytest.mark.slow
def test_a_table_that_was_loaded_beyond_the_log_is_loaded_again_at_another_server(tmp_path: Path) -> None:
    with (
        MysqlServer(tmp_path / "one") as one,
        MysqlServer(tmp_path / "two", settings=["--server-id=8"]) as two,
    ):
        two.execute("RESET BINARY LOGS AND GTIDS")
        _make_words(one)
        _follow(two, one)
        synced = pipeline(one, tmp_path / "pipeline")
        synced.streams[:] = ["shop.orders"]
        synced.write_file()
        synced.sync()
        # In the next file, numbers are far beyond all that the other server will come to.
        one.execute("FLUSH BINARY LOGS", "UPDATE shop.words SET n = n + 10")
        log = set((synced.state / "log").rglob("*"))
        synced.streams.append("shop.words")
        synced.write_file()
        ended = synced.sync_apart("load.done=kill")
        assert ended.struck == ("load.done=kill",), str(ended)
        for path in filter(Path.is_file, set((synced.state / "log").rglob("*")) - log):
            path.unlink()  # as if capture had been killed a moment earlier
        _take_over(two, one)
        two.execute("UPDATE shop.words SET n = -n", "DELETE FROM shop.orders WHERE id = 1")
        _reading_from(synced, two).sync()
        assert_same(two, synced, "words", "orders")
        assert any(note.startswith("shop.words is loaded again: another server") for note in synced.notes)


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[tuple[MysqlServer, MysqlServer, PipelineUnderTest]]:
    """MariaDB, a replica of it, and a pipeline from the former that has been synced once."""
    with (
        MysqlServer(tmp_path / "one", MARIADB) as one,
        MysqlServer(tmp_path / "two", MARIADB, ["--server-id=8", "--log-slave-updates"]) as two,
    ):
        _make_words(one)
        two.execute(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {one.port}, MASTER_USER = 'root', "
            "MASTER_USE_GTID = slave_pos, MASTER_SSL_VERIFY_SERVER_CERT = 0",
            "START SLAVE",
        )
        synced = pipeline(one, tmp_path / "pipeline")
        synced.streams[:] = ["shop.words", {"table": "shop.orders", "write": "append"}]
        synced.write_file()
        synced.sync()
        yield one, two, synced


def _let_apply(replica: MysqlServer, primary: MysqlServer) -> None:
    """All that the primary has logged, and then no more of it."""
    [(logged,)] = primary.rows("SELECT @@global.gtid_binlog_pos")
    assert replica.rows(f"SELECT MASTER_GTID_WAIT('{logged}', 60)") == [(0,)]
    replica.execute("STOP SLAVE")


@pytest.mark.slow
def test_capture_goes_on_at_a_replica_of_mariadb_that_took_over(
    replicated: tuple[MysqlServer, MysqlServer, PipelineUnderTest],
) -> None:
    one, two, synced = replicated
    one.execute("UPDATE shop.words SET n = n + 10", "INSERT INTO shop.orders VALUES (3, 3)")
    synced.sync()
    one.execute("INSERT INTO shop.words VALUES ('not delivered', 3)", "INSERT INTO shop.orders VALUES (4, 4)")
    _let_apply(two, one)
    one.kill()
    two.execute("UPDATE shop.words SET n = -n WHERE n > 10", "INSERT INTO shop.orders VALUES (5, 5)")
    _reading_from(synced, two).sync()
    two.execute("DELETE FROM shop.words WHERE word = 'one'", "INSERT INTO shop.orders VALUES (6, 6)")
    synced.sync()
    assert_same(two, synced, "words")
    files = synced.path("shop.orders").glob("*.parquet")
    appended = [row["id"] for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(appended) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_replica_of_mariadb_that_lacks_what_was_delivered_is_refused(
    replicated: tuple[MysqlServer, MysqlServer, PipelineUnderTest],
) -> None:
    """Also when its own transactions have numbers beyond those of the former server."""
    one, two, synced = replicated
    _let_apply(two, one)
    one.execute("UPDATE shop.words SET n = 100 WHERE word = 'one'")
    synced.sync()
    [(delivered,)] = one.rows("SELECT @@global.gtid_binlog_pos")
    one.kill()
    two.execute(*(f"INSERT INTO shop.orders VALUES ({number}, 0)" for number in (7, 8, 9)))
    with pytest.raises(AnotherSourceError, match="another history") as refused:
        _reading_from(synced, two).sync()
    assert str(delivered) in str(refused.value)


@pytest.mark.slow
def test_tables_that_need_no_log_are_read_from_whichever_server_answers(tmp_path: Path) -> None:
    with MysqlServer(tmp_path / "one") as one, MysqlServer(tmp_path / "two") as two:
        for server in (one, two):
            _make_words(server)
        synced = pipeline(one, tmp_path / "pipeline")
        synced.streams[:] = [
            {"table": "shop.words", "mode": "full_refresh"},
            {"table": "shop.orders", "mode": "incremental", "cursor": "id"},
        ]
        synced.write_file()
        synced.sync()
        one.kill()
        two.execute("UPDATE shop.words SET n = -n", "INSERT INTO shop.orders VALUES (3, 3)")
        _reading_from(synced, two).sync()
        assert_same(two, synced, "words", "orders")
        synced.streams[0] = "shop.words"  # and from now on by the log of that one
        synced.write_file()
        synced.sync()
        two.execute("DELETE FROM shop.words WHERE word = 'one'")
        synced.sync()
        assert_same(two, synced, "words", "orders")

"""The binary log of real servers, decoded: every value as the server itself shows it, none missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.errors import PositionGoneError
from penstock.core.gtid import GtidSet
from penstock.sources.mysql.binlog.event_kernels import HEARTBEAT
from penstock.sources.mysql.binlog.events import Ending, Prepared, Rotation, Statement, UnreadRows
from penstock.sources.mysql.binlog.packet_kernels import TYPE_AT
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition, GtidPosition
from penstock.sources.mysql.binlog.warming import warm_up
from tests.binlog_reading import SERVER_ID, Read, read_all
from tests.binlog_types import COLUMNS, ROWS, TypedColumn, create_statement, insert_statement, shown_as
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MYSQL, MysqlServer


@pytest.fixture(scope="module", params=[MYSQL, MARIADB], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    kind = request.param
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp(kind.name), kind, ["--max-allowed-packet=256M"]) as started:
        yield started


@pytest.fixture
def shop(server: MysqlServer) -> Iterator[MysqlServer]:
    """The server with an empty database `shop`."""
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    yield server
    server.execute("DROP DATABASE IF EXISTS shop")


_GENERATED = ("gc", "gv")


def _here(server: MysqlServer) -> FilePosition:
    return FilePosition(*server.position())


def _run(server: MysqlServer, *statements: str) -> Read:
    """What the log has of these statements, on one connection."""
    start = _here(server)
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return read_all(server, start)


def test_every_type_has_the_text_that_the_server_shows(shop: MysqlServer) -> None:
    columns = [column for column in COLUMNS if column.exists_in(shop.kind)]
    inserts = [insert_statement(columns, row) for row in range(ROWS)]
    read = _run(
        shop, create_statement(columns), "SET sql_mode = ''", *inserts, "UPDATE typed SET k_ = id_ + 100"
    )
    shown = shop.rows(
        f"SELECT {', '.join(shown_as(column) for column in columns)} FROM shop.typed ORDER BY id_"
    )
    updates = read.of("shop.typed")[ROWS:]
    assert len(shown) == len(updates) == ROWS
    for row, update in zip(shown, updates, strict=True):
        for column, expected in zip(columns, row, strict=True):
            is_changed = column.name in ("k_", *_GENERATED)
            if column.name in _GENERATED and shop.kind is MARIADB:
                assert column.name not in update.new  # left out of updates, changed or not
                continue
            for image in (update.new,) if is_changed else (update.new, update.old):
                assert _same(column, image[column.name], expected), (
                    column.name,
                    image[column.name],
                    expected,
                )


def _same(column: TypedColumn, found: str | None, expected: Any) -> bool:
    if found is None or expected is None:
        return found is None and expected is None
    if column.compared == "float":
        return bool(np.float32(found) == np.float32(expected))
    if column.compared == "double":
        return float(found) == float(expected)
    if column.compared == "json":
        return json.loads(found) == json.loads(expected) and (
            "e" in expected or "." in expected or found == expected
        )
    if column.compared == "vector":
        return np.array(json.loads(found), np.float32).tobytes() == bytes.fromhex(expected)
    return found == (expected.decode() if isinstance(expected, bytes) else str(expected))


def test_a_transaction_over_two_tables_keeps_its_order_and_its_old_rows(shop: MysqlServer) -> None:
    read = _run(
        shop,
        "CREATE TABLE one (id INT PRIMARY KEY, name VARCHAR(20))",
        "CREATE TABLE two (id INT PRIMARY KEY, name VARCHAR(20))",
        "BEGIN",
        "INSERT INTO one VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO two VALUES (1, NULL)",
        "UPDATE one SET name = 'c' WHERE id = 2",
        "SAVEPOINT here",
        "DELETE FROM two",
        "ROLLBACK TO here",
        "DELETE FROM one WHERE id = 1",
        "COMMIT",
        "INSERT INTO two VALUES (9, 'z')",
    )
    seen = [(change.stream, change.kind, change.ordinal, change.new, change.old) for change in read.changes]
    assert [entry[:3] for entry in seen] == [
        ("shop.one", "i", 0),
        ("shop.one", "i", 1),
        ("shop.two", "i", 2),
        ("shop.one", "u", 3),
        ("shop.one", "d", 4),
        ("shop.two", "i", 0),
    ]
    assert seen[3][3:] == ({"id": "2", "name": "c"}, {"id": "2", "name": "b"})
    assert seen[-2][4] == {"id": "1", "name": "a"}
    assert len({change.gtid for change in read.changes}) == 2
    assert read.endings == [Ending.STATEMENT, Ending.STATEMENT, Ending.COMMITTED, Ending.COMMITTED]
    assert [rare.text.split()[0] for rare in read.rare if isinstance(rare, Statement)][:2] == [
        "CREATE",
        "CREATE",
    ]
    assert all(change.commit_ts_us > 1_600_000_000_000_000 for change in read.changes)


def test_columns_that_minimal_images_leave_out_are_marked(shop: MysqlServer) -> None:
    read = _run(
        shop,
        "CREATE TABLE wide (id INT PRIMARY KEY, a INT DEFAULT 7, b TEXT, c INT)",
        "SET binlog_row_image = MINIMAL",
        "INSERT INTO wide (id, c) VALUES (1, NULL)",
        "UPDATE wide SET a = 8 WHERE id = 1",
        "UPDATE wide SET id = 2 WHERE id = 1",
        "DELETE FROM wide",
        "SET binlog_row_image = NOBLOB",
        "INSERT INTO wide VALUES (3, 1, 'text', 2)",
        "UPDATE wide SET a = 5",
    )
    insert, update, moved, delete, _, without_text = read.of("shop.wide")
    assert insert.new == {"id": "1", "c": None}
    assert (update.new, update.old, update.old_kind) == ({"id": "1", "a": "8"}, {"id": "1"}, "k")
    assert (moved.new, moved.old) == ({"id": "2"}, {"id": "1"})
    assert (delete.old, delete.old_kind) == ({"id": "2"}, "k")
    assert without_text.new == {"id": "3", "a": "5", "c": "2"}


def test_no_row_of_a_compressed_transaction_is_missing(shop: MysqlServer) -> None:
    rows = 60_000
    switch = (
        ("SET binlog_transaction_compression = ON", "SET binlog_transaction_compression = OFF")
        if shop.kind is MYSQL
        else ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress = OFF")
    )
    series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT {} FROM n"
    read = _run(
        shop,
        "CREATE TABLE packed (id INT PRIMARY KEY, text VARCHAR(200))",
        "SET SESSION cte_max_recursion_depth = 1000000"
        if shop.kind is MYSQL
        else "SET max_recursive_iterations = 1000000",
        switch[0],
        f"INSERT INTO packed {series.format(rows, 'i, REPEAT(SHA2(i, 256), 3)')}",
        "INSERT INTO packed VALUES (0, 'single')",
        f"UPDATE packed SET text = 'short' WHERE id > {rows - 10}",
        switch[1],
        "DELETE FROM packed WHERE id = 0",
    )
    changes = read.of("shop.packed")
    assert [int(change.new["id"] or -1) for change in changes[:rows]] == list(range(1, rows + 1))
    assert [change.ordinal for change in changes[:rows]] == list(range(rows))
    assert [change.kind for change in changes[rows:]] == ["i", *"u" * 10, "d"]
    assert {len(change.new["text"] or "") for change in changes[:rows]} == {192}


def test_a_table_that_is_altered_is_read_by_its_new_description(shop: MysqlServer) -> None:
    read = _run(
        shop,
        "CREATE TABLE moving (id INT PRIMARY KEY, a INT UNSIGNED)",
        "INSERT INTO moving VALUES (1, 5)",
        "ALTER TABLE moving ADD COLUMN b VARCHAR(10) FIRST, MODIFY a BIGINT",
        "INSERT INTO moving VALUES ('x', 2, -1)",
    )
    assert [change.new for change in read.of("shop.moving")] == [
        {"id": "1", "a": "5"},
        {"b": "x", "id": "2", "a": "-1"},
    ]
    assert (
        Statement(
            "shop", "ALTER TABLE moving ADD COLUMN b VARCHAR(10) FIRST, MODIFY a BIGINT", is_strict=True
        )
        in read.rare
    )


def test_reading_goes_on_over_files_and_restarts_of_the_server(shop: MysqlServer) -> None:
    start = _here(shop)
    shop.execute(
        "CREATE TABLE shop.before_it (id INT PRIMARY KEY)",
        "CREATE TABLE shop.kept (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO shop.kept VALUES (1, 'a')",
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.kept VALUES (2, 'b')",
    )
    shop.restart()
    shop.execute("INSERT INTO shop.before_it VALUES (7)", "INSERT INTO shop.kept VALUES (3, 'c')")
    read = read_all(shop, start)
    assert [change.new["name"] for change in read.of("shop.kept")] == ["a", "b", "c"]
    assert len({rare.file for rare in read.rare if isinstance(rare, Rotation)}) == 3


def test_reading_goes_on_from_global_ids(shop: MysqlServer) -> None:
    shop.execute("CREATE TABLE shop.ids (id INT PRIMARY KEY)", "INSERT INTO shop.ids VALUES (1)")
    query = "SELECT @@gtid_executed" if shop.kind is MYSQL else "SELECT @@gtid_binlog_pos"
    [[executed]] = shop.rows(query)
    with shop.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO ids VALUES (2)")
        if shop.kind is MYSQL:
            cursor.execute("SET gtid_next = 'AUTOMATIC:tagged'")
            cursor.execute("INSERT INTO ids VALUES (3)")
            cursor.execute("SET gtid_next = 'AUTOMATIC'")
    read = read_all(shop, GtidPosition(executed))
    assert [change.new["id"] for change in read.of("shop.ids")] == (
        ["2", "3"] if shop.kind is MYSQL else ["2"]
    )
    if shop.kind is MYSQL:
        [[now]] = shop.rows(query)
        for gtid in read.gtids:
            executed = str(GtidSet.parse(executed) | GtidSet.parse(gtid))
        assert executed == str(GtidSet.parse(now))
        shop.execute("INSERT INTO shop.ids VALUES (4)")
        assert [change.new["id"] for change in read_all(shop, GtidPosition(now)).changes] == ["4"]


def test_a_position_that_was_purged_is_gone(shop: MysqlServer) -> None:
    start = _here(shop)
    shop.execute("CREATE TABLE shop.purged (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
    shop.execute("INSERT INTO shop.purged VALUES (1)")
    shop.purge()
    starts: list[FilePosition | GtidPosition] = [start]
    starts.append(GtidPosition("" if shop.kind is MYSQL else "3-7-1"))
    for gone in starts:
        with closing(BinlogStream(shop.connect(), gone, SERVER_ID)) as stream:
            _expect_position_gone(stream)


def _expect_position_gone(stream: BinlogStream) -> None:
    def ended() -> bool:
        stream.read(0.2)
        return False

    with pytest.raises(PositionGoneError):
        wait_until(ended, "an error")


def test_an_event_of_several_packets_is_put_together(shop: MysqlServer) -> None:
    size = 17_000_001
    read = _run(
        shop,
        "CREATE TABLE huge (id INT PRIMARY KEY, data LONGBLOB)",
        f"INSERT INTO huge VALUES (1, REPEAT('x', {size})), (2, 'y')",
    )
    first, second = read.of("shop.huge")
    assert first.new["data"] == "78" * size
    assert second.new == {"id": "2", "data": "79"}


def test_the_log_is_read_over_tls(shop: MysqlServer) -> None:
    if shop.kind is MARIADB:
        pytest.skip("the server of the tests makes no certificate")
    start = _here(shop)
    shop.execute("CREATE TABLE shop.t (id INT, x TEXT)", "INSERT INTO shop.t VALUES (1, REPEAT('x', 60000))")
    [change] = read_all(shop, start, tls=True).changes
    assert change.new == {"id": "1", "x": "x" * 60_000}


def test_an_xa_transaction_ends_prepared_and_is_committed_by_a_statement(shop: MysqlServer) -> None:
    read = _run(
        shop,
        "CREATE TABLE two_phase (id INT PRIMARY KEY)",
        "XA START 'g', 'b', 5",
        "INSERT INTO two_phase VALUES (1)",
        "XA END 'g', 'b', 5",
        "XA PREPARE 'g', 'b', 5",
        "XA COMMIT 'g', 'b', 5",
    )
    assert read.endings == [Ending.STATEMENT, Ending.PREPARED, Ending.STATEMENT]
    [prepared] = [rare for rare in read.rare if isinstance(rare, Prepared)]
    assert prepared.xid == "X'67',X'62',5"
    last = read.rare[-1]
    assert isinstance(last, Statement)
    assert last.text.upper().replace(" ", "").startswith("XACOMMIT" + prepared.xid.upper())


def test_parts_of_json_values_are_told_of_their_table(shop: MysqlServer) -> None:
    if shop.kind is MARIADB:
        pytest.skip("MariaDB always logs whole values")
    read = _run(
        shop,
        "CREATE TABLE partly (id INT PRIMARY KEY, document JSON)",
        "INSERT INTO partly VALUES (1, JSON_OBJECT('a', REPEAT('x', 1000), 'b', 1))",
        "SET binlog_row_value_options = PARTIAL_JSON",
        "UPDATE partly SET document = JSON_SET(document, '$.b', 2)",
        "INSERT INTO partly VALUES (2, NULL)",
    )
    assert [event for event in read.rare if isinstance(event, UnreadRows)] == [UnreadRows("shop", "partly")]
    assert read.endings[-3:] == [Ending.COMMITTED] * 3


def test_heartbeats_come_while_nothing_else_does(shop: MysqlServer) -> None:
    kinds: list[int] = []

    def heard() -> bool:
        batch = stream.read(1.0)
        if batch is not None:
            events = [batch.event(number) for number in range(len(batch))]
            kinds.extend(event[TYPE_AT] for event in events)
        return kinds.count(HEARTBEAT) >= 2

    with closing(BinlogStream(shop.connect(), _here(shop), SERVER_ID, heartbeat_s=0.1)) as stream:
        wait_until(heard, "two heartbeats")


def test_a_log_without_checksums_is_read_as_well(tmp_path: Path) -> None:
    with MysqlServer(tmp_path, MARIADB, ["--binlog-checksum=NONE"]) as plain:
        plain.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT)", "INSERT INTO shop.t VALUES (1)")
        read = read_all(plain, FilePosition("binlog.000001", 4))
    assert [change.new for change in read.changes] == [{"id": "1"}]

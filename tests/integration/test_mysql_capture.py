"""Capture of real MySQL and MariaDB servers: what is in the change log is what was changed, once."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.capture import leadership
from penstock.capture.client import CaptureProcess
from penstock.capture.mysql.lock import NamedLock
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import newest_manifest
from penstock.log.reader import ChangeLog
from penstock.sources.mysql.binlog.warming import warm_up
from tests import captured
from tests.captured import brief, read_now
from tests.conftest import WAIT_S
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.silent_network import SilentNetwork

pytestmark = pytest.mark.integration

#: What does not depend on the kind of server is shown of both by `make slow`.
MOSTLY_MYSQL = pytest.mark.parametrize(
    "server",
    [MYSQL, pytest.param(MARIADB, marks=pytest.mark.slow)],
    ids=lambda kind: str(kind.name),
    indirect=True,
)

MEMORY_MAX_KIB = 512 * 1024


@pytest.fixture(scope="module", params=[MYSQL, MARIADB], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        yield started


@pytest.fixture
def shop(server: MysqlServer) -> MysqlServer:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT, twice INT AS (id * 2) STORED)",
        "CREATE TABLE shop.items (id INT PRIMARY KEY)",
        "CREATE TABLE shop.others (id INT PRIMARY KEY)",
    )
    return server


def spec(
    server: MysqlServer, directory: Path, *streams: str, name: str = "penstock", user: str = "root"
) -> CaptureSpec:
    return CaptureSpec(
        source=MysqlSpec(f"mysql://{user}@127.0.0.1:{server.port}", name, 4711),
        log_directory=directory / "log",
        checkpoint_path=directory / "checkpoint.json",
        streams=tuple(map(StreamId.parse, streams or ("shop.orders", "shop.items"))),
        lanes={"lake": None},
    )


def log_rows(directory: Path, stream: str = "shop.orders") -> list[dict[str, Any]]:
    return captured.log_rows(directory, stream)


def folded(rows: list[dict[str, Any]]) -> dict[int, str | None]:
    """The table that these changes make, by a way of its own."""
    table: dict[int, str | None] = {}
    for row in sorted(rows, key=lambda row: (row["_tx"], row["_op_index"])):
        if row["_op"] == "t":
            table.clear()
        if row["_op"] in "ud":
            table.pop(int(row["_old"]["id"]))
        if row["_op"] in "iu":
            table[int(row["id"])] = row["note"]
    return table


def source_table(server: MysqlServer) -> dict[int, str | None]:
    return dict(server.rows("SELECT id, note FROM shop.orders"))


def run(server: MysqlServer, *statements: str) -> None:
    """One transaction."""
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for statement in ("BEGIN", *statements, "COMMIT"):
            cursor.execute(statement)


def test_every_change_is_in_the_log_as_the_source_sent_it(shop: MysqlServer, tmp_path: Path) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        started = capture.start()
        assert started.slot_created
        shop.execute("INSERT INTO shop.orders (id, note) VALUES (1, 'one'), (2, NULL)")
        run(
            shop,
            "UPDATE orders SET note = 'ünö' WHERE id = 1",
            "INSERT INTO others VALUES (1), (2)",
            "UPDATE orders SET id = 3 WHERE id = 2",
            "INSERT INTO items VALUES (7)",
        )
        shop.execute("DELETE FROM shop.orders WHERE id = 1", "TRUNCATE TABLE shop.orders")
        end = read_now(capture)
    rows = log_rows(tmp_path)
    assert brief(rows, "id", "note", "_old_kind", "_op_index") == [
        ("i", "1", "one", "n", 0),
        ("i", "2", None, "n", 2),
        ("u", "1", "ünö", "f", 0),
        ("u", "3", None, "f", 6),
        ("d", None, None, "f", 0),
        ("t", None, None, "n", 0),
    ]
    assert [row["_old"] for row in rows[2:5]] == [
        {"id": "1", "note": "one"},
        {"id": "2", "note": None},
        {"id": "1", "note": "ünö"},
    ]
    assert brief(log_rows(tmp_path, "shop.items"), "id", "_op_index") == [("i", "7", 8)]
    assert len({row["_tx"] for row in rows}) == 4
    assert all(started.slot_position <= row["_tx"] < end for row in rows)
    manifest = newest_manifest(tmp_path / "log")
    assert manifest is not None
    assert manifest.place is not None
    assert BinlogPlace.parse(manifest.place.text).number == int(end)
    assert manifest.place.gtid_set
    assert (manifest.system_id, manifest.place.server) == (started.system_id, started.system_id)
    assert manifest.epoch == started.epoch


@MOSTLY_MYSQL
def test_a_log_that_is_read_in_pieces_has_each_change_once(shop: MysqlServer, tmp_path: Path) -> None:
    epochs = []
    for number in range(4):
        with CaptureProcess(spec(shop, tmp_path)) as capture:
            epochs.append(capture.start().epoch)
            shop.execute(f"INSERT INTO shop.orders (id, note) VALUES ({number}, 'n{number}')")
            read_now(capture)
            shop.execute(f"UPDATE shop.orders SET note = CONCAT(note, '!') WHERE id <= {number}")
        shop.execute("FLUSH BINARY LOGS", f"DELETE FROM shop.orders WHERE id = {number - 1}")
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        read_now(capture)
    rows = log_rows(tmp_path)
    offsets = [(row["_tx"], row["_op_index"]) for row in rows]
    assert offsets == sorted(set(offsets))
    assert folded(rows) == source_table(shop)
    assert epochs == sorted(set(epochs))


@MOSTLY_MYSQL
def test_a_process_that_is_killed_in_the_midst_leaves_no_gap(shop: MysqlServer, tmp_path: Path) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        for number in range(50):
            shop.execute(f"INSERT INTO shop.orders (id, note) VALUES ({number}, 'x')")
            if number == 20:
                read_now(capture)
            if number == 30:
                capture.read_to(capture.note_target())
                assert capture.pid is not None
                psutil.Process(capture.pid).kill()
    with CaptureProcess(spec(shop, tmp_path)) as again:
        again.start()
        read_now(again)
    assert [int(row["id"]) for row in log_rows(tmp_path)] == list(range(50))
    assert folded(log_rows(tmp_path)) == source_table(shop)


def test_a_large_transaction_takes_no_more_memory_than_a_small_one(shop: MysqlServer, tmp_path: Path) -> None:
    compressed = {"mysql": "binlog_transaction_compression", "mariadb": "log_bin_compress"}[shop.kind.name]
    depth = {"mysql": "cte_max_recursion_depth", "mariadb": "max_recursive_iterations"}[shop.kind.name]
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            for statement in (
                f"SET {'SESSION' if shop.kind is MYSQL else 'GLOBAL'} {compressed} = ON",
                f"SET SESSION {depth} = 100000",
                "INSERT INTO orders (id, note) WITH RECURSIVE n AS (SELECT 1 AS id UNION ALL "
                "SELECT id + 1 FROM n WHERE id < 60000) SELECT id, REPEAT('ab', 100) FROM n",
            ):
                cursor.execute(statement)
        read_now(capture)
        assert capture.pid is not None
        assert psutil.Process(capture.pid).memory_info().rss < MEMORY_MAX_KIB * 1024
    if shop.kind is MARIADB:
        shop.execute(f"SET GLOBAL {compressed} = OFF")
    rows = log_rows(tmp_path)
    assert len({row["_tx"] for row in rows}) == 1
    assert [row["_op_index"] for row in rows] == list(range(0, 120_000, 2))
    assert folded(rows) == source_table(shop)


@MOSTLY_MYSQL
def test_a_log_that_was_purged_is_an_error_and_no_gap(shop: MysqlServer, tmp_path: Path) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        shop.execute("INSERT INTO shop.orders (id) VALUES (1)")
        read_now(capture)
    shop.execute("INSERT INTO shop.orders (id) VALUES (2)", "FLUSH BINARY LOGS")
    shop.purge()
    with pytest.raises(PositionGoneError, match="gone"), CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()


@MOSTLY_MYSQL
def test_a_pipeline_is_read_by_one_at_a_time(
    shop: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(leadership.PATIENCE_VARIABLE, "0.2")
    with CaptureProcess(spec(shop, tmp_path / "one")) as first:
        first.start()
        with (
            pytest.raises(SourceBusyError, match="held by session"),
            CaptureProcess(spec(shop, tmp_path / "two")) as second,
        ):
            second.start()
        with CaptureProcess(spec(shop, tmp_path / "three", name="another")) as third:
            third.start()


@MOSTLY_MYSQL
def test_a_table_that_is_altered_goes_on_as_it_is_logged(shop: MysqlServer, tmp_path: Path) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        shop.execute(
            "INSERT INTO shop.items VALUES (1)",
            "ALTER TABLE shop.items ADD COLUMN size INT NOT NULL DEFAULT 5",
            "INSERT INTO shop.items VALUES (2, 6)",
            "ALTER TABLE shop.items DROP COLUMN size",
            "INSERT INTO shop.items VALUES (3)",
        )
        read_now(capture)
    rows = log_rows(tmp_path, "shop.items")
    assert [(row["id"], row.get("size")) for row in rows] == [("1", None), ("2", "6"), ("3", None)]


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            ("XA START 'x'", "INSERT INTO orders (id) VALUES (1)", "XA END 'x'", "XA PREPARE 'x'",
             "XA ROLLBACK 'x'"),
            "prepared before it was committed",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_told_exactly_ends_the_reading(
    shop: MysqlServer, tmp_path: Path, statements: tuple[str, ...], said: str
) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        with pytest.raises(SourceError, match=said):
            read_now(capture)
    assert log_rows_or_none(tmp_path) == []


def test_an_insert_without_its_defaults_has_its_table_loaded_again(shop: MysqlServer, tmp_path: Path) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        began = capture.start().slot_position
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = MINIMAL")
            cursor.execute("INSERT INTO orders (id) VALUES (1)")
        shop.execute("INSERT INTO shop.items VALUES (1)")
        end = read_now(capture)
    assert _untold(tmp_path, began, end) == {"orders"}
    assert brief(log_rows(tmp_path, "shop.items"), "id") == [("i", "1")]


def _untold(directory: Path, began: Lsn, end: Lsn) -> set[str]:
    """Tables that lack changes; each of them is loaded again."""
    log = ChangeLog(directory / "log")
    found = log.untold(began, end)
    for stream, txs in found.items():
        assert {at for at, _ in log.files(stream, began, end).altered}.issuperset(txs)
    return {stream.name for stream in found}


def test_parts_of_json_values_have_their_table_loaded_again_and_no_other(
    shop: MysqlServer, tmp_path: Path
) -> None:
    if shop.kind is MARIADB:
        pytest.skip("MariaDB always logs whole values")
    shop.execute(
        "CREATE TABLE shop.partly (id INT PRIMARY KEY, document JSON)",
        "INSERT INTO shop.partly VALUES (1, JSON_OBJECT('a', REPEAT('x', 1000), 'b', 1))",
    )
    with CaptureProcess(spec(shop, tmp_path, "shop.partly", "shop.items")) as capture:
        began = capture.start().slot_position
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
            cursor.execute("UPDATE partly SET document = JSON_SET(document, '$.b', 2)")
        shop.execute("INSERT INTO shop.partly VALUES (2, NULL)", "INSERT INTO shop.items VALUES (1)")
        end = read_now(capture)
    assert _untold(tmp_path, began, end) == {"partly"}
    assert brief(log_rows(tmp_path, "shop.partly"), "id") == [("i", "2")]
    assert brief(log_rows(tmp_path, "shop.items"), "id") == [("i", "1")]


def test_rows_whose_columns_the_log_does_not_name_have_their_table_loaded_again_and_no_other(
    shop: MysqlServer, tmp_path: Path
) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        began = capture.start().slot_position
        shop.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        try:
            shop.execute("INSERT INTO shop.orders (id) VALUES (1)", "INSERT INTO shop.others VALUES (1)")
        finally:
            shop.execute("SET GLOBAL binlog_row_metadata = FULL")
        shop.execute("INSERT INTO shop.items VALUES (1)")
        end = read_now(capture)
    assert _untold(tmp_path, began, end) == {"orders"}
    assert brief(log_rows(tmp_path, "shop.items"), "id") == [("i", "1")]


@pytest.mark.slow
def test_another_server_of_mariadb_with_the_same_id_is_not_taken_for_ours(
    shop: MysqlServer, tmp_path: Path
) -> None:
    if shop.kind is MYSQL:
        pytest.skip("servers of MySQL have names that nobody else has")
    shop.execute("RESET MASTER")
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        shop.execute("INSERT INTO shop.orders (id, note) VALUES (1, REPEAT('x', 20000))")
        read_now(capture)
    newest = newest_manifest(tmp_path / "log")
    assert newest is not None
    assert newest.place is not None
    read = BinlogPlace.parse(newest.place.text)
    shop.execute("RESET MASTER")  # as on a server of the same server_id: other transactions by the same ids
    for number in itertools.count():
        shop.execute(f"INSERT INTO shop.others VALUES ({number})")
        [(name, offset, *_)] = shop.rows("SHOW MASTER STATUS")
        if BinlogPlace(name, offset).number > read.number:
            break
    with (
        CaptureProcess(spec(shop, tmp_path)) as capture,
        pytest.raises(AnotherSourceError, match="other transactions before it"),
    ):
        capture.start()


def test_of_a_versioned_table_only_what_is_there_is_followed(server: MysqlServer, tmp_path: Path) -> None:
    if server.kind is MYSQL:
        pytest.skip("MySQL has no versioned tables")
    tables = {
        "hidden": "id INT PRIMARY KEY, note TEXT",
        "named": "id INT PRIMARY KEY, note TEXT, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)",
    }
    server.execute("DROP DATABASE IF EXISTS past", "CREATE DATABASE past")
    for name, columns in tables.items():
        server.execute(f"CREATE TABLE past.{name} ({columns}) WITH SYSTEM VERSIONING")
    with CaptureProcess(spec(server, tmp_path, "past.hidden", "past.named")) as capture:
        capture.start()
        for name in tables:
            server.execute(
                f"INSERT INTO past.{name} (id, note) VALUES (1, 'one'), (2, 'two')",
                f"UPDATE past.{name} SET note = 'uno' WHERE id = 1",
                f"UPDATE past.{name} SET id = 5 WHERE id = 1",
                f"REPLACE INTO past.{name} (id, note) VALUES (2, 'zwei')",
                f"DELETE FROM past.{name} WHERE id = 2",
                f"DELETE HISTORY FROM past.{name}",
                f"INSERT INTO past.{name} (id, note) VALUES (3, 'three')",
            )
        read_now(capture)
    for name in tables:
        rows = log_rows(tmp_path, f"past.{name}")
        assert brief(rows, "id", "note") == [
            ("i", "1", "one"),
            ("i", "2", "two"),
            ("u", "1", "uno"),
            ("u", "5", "uno"),
            ("u", "2", "zwei"),
            ("d", None, None),
            ("i", "3", "three"),
        ]
        assert rows[5]["_old"] == {"id": "2", "note": "zwei"}
        assert folded(rows) == dict(server.rows(f"SELECT id, note FROM past.{name}"))


def test_a_table_that_is_versioned_by_transactions_is_loaded_again_when_it_is_changed(
    server: MysqlServer, tmp_path: Path
) -> None:
    if server.kind is MYSQL:
        pytest.skip("MySQL has no versioned tables")
    server.execute(
        "DROP DATABASE IF EXISTS past",
        "CREATE DATABASE past",
        "CREATE TABLE past.numbered (id INT PRIMARY KEY, a BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, "
        "b BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) "
        "WITH SYSTEM VERSIONING ENGINE = InnoDB",
    )
    with CaptureProcess(spec(server, tmp_path, "past.numbered")) as capture:
        began = capture.start().slot_position
        server.execute("INSERT INTO past.numbered (id) VALUES (1)")
        end = read_now(capture)
    assert _untold(tmp_path, began, end) == {"numbered"}


def log_rows_or_none(directory: Path) -> list[dict[str, Any]]:
    return log_rows(directory) if newest_manifest(directory / "log") is not None else []


def test_rows_that_are_taken_back_to_a_savepoint_never_count(shop: MysqlServer, tmp_path: Path) -> None:
    """MariaDB logs them, and that they are taken back, once a table without transactions was changed."""
    shop.execute("CREATE TABLE shop.plain (id INT) ENGINE = MyISAM")
    begins = ("BEGIN", "INSERT INTO plain VALUES (1)", "INSERT INTO orders (id) VALUES (1)", "SAVEPOINT s")
    ends = ("INSERT INTO orders (id) VALUES (2)", "ROLLBACK TO s", "COMMIT")
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            for statement in (*begins, *ends):
                cursor.execute(statement)
        if shop.kind is MYSQL:
            read_now(capture)
        else:
            with pytest.raises(SourceError, match="rolled back"):
                read_now(capture)
    kept = [("i", "1")] if shop.kind is MYSQL else []
    assert brief(log_rows_or_none(tmp_path), "id") == kept


def test_both_tables_of_an_exchanged_partition_are_altered(shop: MysqlServer, tmp_path: Path) -> None:
    shop.execute(
        "CREATE TABLE shop.parts (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN MAXVALUE)"
    )
    with CaptureProcess(spec(shop, tmp_path, "shop.parts", "shop.items")) as capture:
        began = capture.start().slot_position
        shop.execute("ALTER TABLE shop.parts EXCHANGE PARTITION a WITH TABLE shop.items")
        end = read_now(capture)
    log = ChangeLog(tmp_path / "log")
    assert [
        len(log.files(StreamId("shop", name), began, end).altered) for name in ("parts", "items", "orders")
    ] == [1, 1, 0]
    assert _untold(tmp_path, began, end) == {"parts", "items"}


def test_a_change_that_is_logged_as_a_statement_concerns_its_table_alone(
    shop: MysqlServer, tmp_path: Path
) -> None:
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        began = capture.start().slot_position
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            for statement in (
                "SET SESSION binlog_format = STATEMENT",
                "REPLACE INTO others VALUES (1)",
                "INSERT INTO items VALUES (1)",
                "UPDATE mysql.db SET Host = Host WHERE Host = 'nowhere'",
            ):
                cursor.execute(statement)
            shop.execute("INSERT INTO shop.orders (id, note) VALUES (1, 'one')")
            end = read_now(capture)
            log = ChangeLog(tmp_path / "log")
            altered = {
                name: len(log.files(StreamId("shop", name), began, end).altered)
                for name in ("orders", "items", "others")
            }
            assert altered == {"orders": 0, "items": 1, "others": 0}
            assert _untold(tmp_path, began, end) == {"items"}
            assert brief(log_rows(tmp_path), "id", "note") == [("i", "1", "one")]
            cursor.execute("CREATE TRIGGER t BEFORE INSERT ON others FOR EACH ROW DELETE FROM orders")
            cursor.execute("INSERT INTO others VALUES (2)")
        with pytest.raises(SourceError, match="table has triggers"):
            read_now(capture)


@pytest.mark.parametrize("sees_triggers", [False, True])
def test_a_user_who_does_not_see_triggers_takes_no_table_to_have_none(
    shop: MysqlServer, tmp_path: Path, sees_triggers: bool
) -> None:
    guide = Path("docs/guides/mysql.md").read_text(encoding="utf-8")
    said = re.findall(r"^(?:CREATE USER|GRANT) [^;]*", guide, re.MULTILINE)
    wanted = [each for each in said if sees_triggers or "TRIGGER" not in each]
    assert len(said) == 4, "the user is the one of the guide"
    shop.execute("DROP USER IF EXISTS penstock", *(each.replace("…", "") for each in wanted))
    with CaptureProcess(spec(shop, tmp_path, user="penstock")) as capture:
        began = capture.start().slot_position
        _by_statement(shop, "INSERT INTO others SELECT id FROM items", "INSERT INTO items VALUES (1)")
        if not sees_triggers:
            with pytest.raises(SourceError, match="does not see whether the table has triggers"):
                read_now(capture)
            return
        assert _untold(tmp_path, began, read_now(capture)) == {"items"}
        shop.execute("CREATE TRIGGER shop.t BEFORE INSERT ON shop.others FOR EACH ROW DELETE FROM orders")
        _by_statement(shop, "INSERT INTO others VALUES (2)")
        with pytest.raises(SourceError, match="table has triggers"):
            read_now(capture)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE seen SET id = 2",
        "UPDATE others SET id = forget()",
        pytest.param("INSERT INTO others SELECT id FROM calling", marks=pytest.mark.slow),
        "DELETE FROM parents",
    ],
)
def test_a_statement_that_changes_another_table_than_the_one_it_names_ends_the_reading(
    shop: MysqlServer, tmp_path: Path, statement: str
) -> None:
    shop.execute(
        "INSERT INTO shop.items VALUES (1)",
        "INSERT INTO shop.others VALUES (1)",
        "CREATE VIEW shop.seen AS SELECT id FROM shop.items",
        "SET GLOBAL log_bin_trust_function_creators = ON",
        "CREATE FUNCTION shop.forget() RETURNS INT BEGIN DELETE FROM shop.items; RETURN 5; END",
        "CREATE VIEW shop.calling AS SELECT shop.forget() AS id",
        "CREATE TABLE shop.parents (id INT PRIMARY KEY)",
        "INSERT INTO shop.parents VALUES (1), (2)",
        "ALTER TABLE shop.items ADD FOREIGN KEY (id) REFERENCES shop.parents (id) ON DELETE CASCADE",
    )
    before = shop.rows("SELECT id FROM shop.items")
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        _by_statement(shop, statement)
        assert shop.rows("SELECT id FROM shop.items") != before
        with pytest.raises(SourceError, match="as the statement that made it"):
            read_now(capture)


def _by_statement(shop: MysqlServer, *statements: str) -> None:
    with shop.connect("shop") as connection, connection.cursor() as cursor:
        for statement in ("SET SESSION binlog_format = STATEMENT", *statements):
            cursor.execute(statement)


@pytest.mark.slow
def test_transactions_of_lower_numbers_that_come_later_are_read(shop: MysqlServer, tmp_path: Path) -> None:
    if shop.kind is MYSQL:
        pytest.skip("MySQL says which transactions were read, not the last of them")
    with CaptureProcess(spec(shop, tmp_path)) as capture:
        capture.start()
        shop.execute("INSERT INTO shop.orders (id) VALUES (1)")
        read_now(capture)
    shop.execute(
        "SET SESSION server_id = 9, gtid_seq_no = 2",  # as one writes that has not heard of the others yet
        "INSERT INTO shop.orders (id) VALUES (2)",
        "SET SESSION gtid_seq_no = 3",
        "INSERT INTO shop.orders (id) VALUES (3)",
    )
    for last in ("4", "5"):
        with CaptureProcess(spec(shop, tmp_path)) as capture:
            capture.start()
            read_now(capture)
        shop.execute(f"INSERT INTO shop.orders (id) VALUES ({last})")
    assert brief(log_rows(tmp_path), "id") == [("i", number) for number in "1234"]


@pytest.mark.slow
def test_a_position_for_a_load_does_not_wait_for_a_long_transaction_of_another_server(tmp_path: Path) -> None:
    """What a replica applies has its id from its beginning on, and is in the log when it ends."""
    warm_up()
    with MysqlServer(tmp_path / "server") as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)")
        with CaptureProcess(spec(server, tmp_path, "shop.orders")) as capture:
            capture.start()
            server.execute("INSERT INTO shop.orders VALUES (1, 'one')")
            read_now(capture)
            with server.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION gtid_next = '3e11fa47-71ca-11e1-9e33-c80aa9429562:1'")
                for statement in ("BEGIN", "INSERT INTO orders VALUES (2, 'two')"):
                    cursor.execute(statement)
                server.execute("INSERT INTO shop.orders VALUES (3, 'three')")
                taken = capture.snapshot()
                assert taken.place is not None
                assert BinlogPlace.parse(taken.place.text) == BinlogPlace(*server.position())
                cursor.execute("COMMIT")
            read_now(capture)
        rows = log_rows(tmp_path)
        assert brief(rows, "id") == [("i", "1"), ("i", "3"), ("i", "2")]
        assert [row["_tx"] >= taken.consistent_point for row in rows] == [False, False, True]


@pytest.mark.slow
def test_a_table_is_emptied_in_letters_of_either_case_where_the_server_takes_them_for_the_same(
    tmp_path: Path,
) -> None:
    with MysqlServer(tmp_path / "server", MARIADB, ["--lower-case-table-names=1"]) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.Orders (id INT PRIMARY KEY, note TEXT)")
        with CaptureProcess(spec(server, tmp_path)) as capture:
            capture.start()
            server.execute("INSERT INTO SHOP.ORDERS VALUES (1, 'one')", "TRUNCATE TABLE Shop.ORDERS")
            read_now(capture)
    assert brief(log_rows(tmp_path), "id") == [("i", "1"), ("t", None)]


def test_another_server_goes_on_by_what_its_set_says(tmp_path: Path) -> None:
    with MysqlServer(tmp_path / "one") as one, MysqlServer(tmp_path / "two") as two:
        for server in (one, two):
            server.execute("RESET BINARY LOGS AND GTIDS")
        make = ("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)")
        one.execute(*make)
        with CaptureProcess(spec(one, tmp_path, "shop.orders")) as capture:
            before = capture.start()
            one.execute("INSERT INTO shop.orders VALUES (1, 'one')")
            end = read_now(capture)
        with pytest.raises(AnotherSourceError), CaptureProcess(spec(two, tmp_path)) as capture:
            capture.start()
        _replay(one, two)
        with CaptureProcess(spec(two, tmp_path, "shop.orders")) as capture:
            first = capture.start()
            told = capture.note_target()  # of the new server, and nothing of it is read yet
        two.execute("FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (2, 'two')")
        with CaptureProcess(spec(two, tmp_path, "shop.orders")) as capture:
            after = capture.start()
            read_now(capture)
            two.execute("INSERT INTO shop.orders VALUES (3, 'three')")
            read_now(capture)
        for started in (first, after):
            assert (started.system_id, started.timeline) == (before.system_id, before.timeline + 1)
        assert first.log_end == end
        rows = log_rows(tmp_path)
        assert brief(rows, "id", "note") == [("i", "1", "one"), ("i", "2", "two"), ("i", "3", "three")]
        assert end < told <= rows[1]["_tx"], "what was told of its places holds when it is in another file"
        assert folded(rows) == source_table(two)


def _replay(one: MysqlServer, two: MysqlServer) -> None:
    """As a replica would: the same transactions under the same ids."""
    [(gtids,)] = one.rows("SELECT @@global.gtid_executed")
    uuid, _, last = str(gtids).partition(":1-")
    statements = (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO shop.orders VALUES (1, 'one')",
    )
    assert int(last) == len(statements)
    with two.connect() as connection, connection.cursor() as cursor:
        for number, statement in enumerate(statements, 1):
            cursor.execute(f"SET SESSION gtid_next = '{uuid}:{number}'")
            cursor.execute(statement)
        cursor.execute("SET SESSION gtid_next = AUTOMATIC")


@MOSTLY_MYSQL
def test_a_lock_in_a_silent_network_is_given_up_with_its_lease(server: MysqlServer) -> None:
    """And its session with it: nobody waits in it for an hour."""
    held: list[bool] = []
    with SilentNetwork(server.port) as network:
        lock = NamedLock(f"mysql://root@127.0.0.1:{network.port}", "silent", lease_s=1.0)
        assert lock.take()
        network.fall_silent()
        asking = threading.Thread(target=lambda: held.append(lock.is_held()), daemon=True)
        asking.start()
        asking.join(WAIT_S)
        assert held == [False]
        assert not lock._connection.open

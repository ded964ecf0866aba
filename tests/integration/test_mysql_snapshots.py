"""A snapshot and its place in the log: what it shows is exactly what was logged before the place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.chunk import PlannedChunk, TableRewrittenError
from penstock.sources.mysql import snapshots
from penstock.sources.mysql.connection import connect, rows
from penstock.sources.mysql.table_reading import MysqlReading
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MYSQL, MysqlServer

pytestmark = pytest.mark.integration

TABLE = StreamId("shop", "t")
SNAPSHOTS = 25


@pytest.fixture(
    scope="module",
    params=[MYSQL, pytest.param(MARIADB, marks=pytest.mark.slow)],
    ids=lambda kind: str(kind.name),
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        yield started


@pytest.fixture
def shop(server: MysqlServer) -> MysqlServer:
    server.execute(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, n INT)",
        "CREATE TABLE shop.other (id BIGINT AUTO_INCREMENT PRIMARY KEY, n INT)",
        "CREATE TABLE shop.plain (id INT PRIMARY KEY) ENGINE = MyISAM",
    )
    return server


def url(server: MysqlServer) -> str:
    return f"mysql://root@127.0.0.1:{server.port}/shop"


@contextmanager
def writing(server: MysqlServer) -> Iterator[None]:
    """Three sessions without a pause, each transaction a row of the table, and of another one."""
    ended, failures, written = threading.Event(), list[BaseException](), list[int]()

    def write() -> None:
        try:
            with server.connect("shop") as connection, connection.cursor() as cursor:
                while not ended.is_set():
                    cursor.execute("BEGIN")
                    cursor.execute("INSERT INTO t (n) VALUES (1)")
                    cursor.execute("INSERT INTO other (n) VALUES (1)")
                    cursor.execute("COMMIT")
                    written.append(1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(written) > 30 or bool(failures), "the writers to begin")
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(0, id="by a lock", marks=pytest.mark.slow),
        pytest.param(20, id="by looking twice or a lock"),
    ],
)
def test_a_snapshot_shows_what_was_logged_before_its_place(
    shop: MysqlServer, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    if shop.kind is MARIADB and not looks:
        pytest.skip("MariaDB says the place by itself")
    monkeypatch.setattr(snapshots, "_LOOKS", looks)
    seen: list[tuple[BinlogPlace, int]] = []
    begun = BinlogPlace(*shop.position())
    with writing(shop):
        for _ in range(SNAPSHOTS):
            with closing(connect(url(shop))) as connection:
                place = snapshots.begin_snapshot(connection, url(shop), TABLE)
                [(count,)] = rows(connection, "SELECT COUNT(*) FROM t", doing="counting")
                seen.append((BinlogPlace.parse(place.text), int(count)))
    assert seen[-1][1] > seen[0][1] > 0
    logged = _logged(shop, begun)
    for at, count in seen:
        assert at.name == begun.name
        before = sum(offset < at.pos for offset in logged)
        assert count == before, "rows of the snapshot, and rows in the log before it"


def _logged(server: MysqlServer, begun: BinlogPlace) -> list[int]:
    """Where the server itself says that it logged rows of the table, each an event of its own."""
    events = server.rows(f"SHOW BINLOG EVENTS IN '{begun.name}' FROM {begun.pos}")
    return [int(event[1]) for event in events if event[2] == "Table_map" and "(shop.t)" in str(event[5])]


def test_writers_do_not_wait_for_a_load_longer_than_for_its_snapshot(
    shop: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LOOKS", 0)
    with closing(connect(url(shop))) as connection:
        snapshots.begin_snapshot(connection, url(shop), TABLE)
        shop.execute("INSERT INTO shop.t (n) VALUES (1)")
        assert rows(connection, "SELECT COUNT(*) FROM t", doing="counting") == [(0,)]
    assert shop.rows("SELECT COUNT(*) FROM shop.t") == [(1,)]


_REWRITTEN = "ALTER TABLE shop.t MODIFY n BIGINT"
_RENAMED = "ALTER TABLE shop.t RENAME COLUMN n TO m, ADD COLUMN n INT DEFAULT 7"


@pytest.mark.parametrize("change", [_REWRITTEN, _RENAMED], ids=["rewritten", "a name for another column"])
def test_a_table_that_is_loaded_may_be_altered_between_chunks_and_its_load_knows(
    shop: MysqlServer, change: str
) -> None:
    shop.execute("INSERT INTO shop.t (n) VALUES (1), (2), (3), (4)")
    reading = MysqlReading(url(shop))
    [table] = reading.tables([TABLE])
    with reading.session() as planning:
        first, second = planning.plan_chunks(table, "key", rows_per_chunk=2)
    with closing(reading.text_session()) as session:

        def read(chunk: PlannedChunk) -> list[list[list[str]]]:
            blocks = session.columns(chunk, table, table.schema.columns, "key", None, "", block_bytes=1 << 20)
            return [[column.to_pylist() for column in columns] for _, columns in blocks]

        session.hold(table)
        assert read(first) == [[["1", "2"], ["1", "2"]]]
        shop.execute("UPDATE shop.t SET n = n + 10", "INSERT INTO shop.t (n) VALUES (5)")
        assert read(second) == [[["3", "4"], ["3", "4"]]], "it is still as it was when it was held"
        shop.execute("SET SESSION lock_wait_timeout = 5", change)
        with pytest.raises(TableRewrittenError):
            read(second)


def test_a_user_who_may_not_lock_is_told_so(shop: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    if shop.kind is MARIADB:
        pytest.skip("MariaDB needs no lock")
    monkeypatch.setattr(snapshots, "_LOOKS", 0)
    shop.execute(
        "DROP USER IF EXISTS reader",
        "CREATE USER reader",
        "GRANT SELECT ON shop.* TO reader",
        "GRANT REPLICATION CLIENT ON *.* TO reader",
    )
    theirs = url(shop).replace("root@", "reader@")
    with closing(connect(theirs)) as connection, pytest.raises(SourceError, match="may not lock") as error:
        snapshots.begin_snapshot(connection, theirs, TABLE)
    assert "GRANT LOCK TABLES" in error.value.remedy


def test_a_table_without_transactions_has_no_snapshots(shop: MysqlServer) -> None:
    with closing(connect(url(shop))) as connection, pytest.raises(SourceError, match="MyISAM"):
        snapshots.begin_snapshot(connection, url(shop), StreamId("shop", "plain"))

"""What `check` says of real MySQL and MariaDB servers, set up well and badly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.core.stream import StreamId
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition
from penstock.sources.mysql.check import check
from tests.mysql_server import MARIADB, MYSQL, MysqlServer

_SERVER_ID = 4711


@pytest.fixture(scope="module", params=[MYSQL, MARIADB], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        started.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "CREATE TABLE shop.lines (id INT PRIMARY KEY, o INT, "
            "FOREIGN KEY (o) REFERENCES shop.orders (id) ON DELETE CASCADE)",
            "CREATE TABLE shop._orders_gho (id INT PRIMARY KEY)",
            "CREATE VIEW shop.seen AS SELECT * FROM shop.orders",
            "CREATE USER poor IDENTIFIED BY 'secret'",
            "GRANT SELECT ON shop.orders TO poor",
        )
        yield started


def _check(
    server: MysqlServer,
    *streams: str,
    user: str = "root",
    server_id: int = _SERVER_ID,
    pipeline: str = "shop",
) -> list[Finding]:
    needs = [StreamNeed(StreamId.parse(stream)) for stream in streams or ("shop.orders",)]
    url = f"mysql://{user}@127.0.0.1:{server.port}/shop"
    findings = check(url, needs, server_id=server_id, pipeline=pipeline)
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    assert "secret" not in repr(findings)
    return findings


def _not_ok(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.name, finding.level) for finding in findings if finding.level != "ok"}


def test_a_server_set_up_well_has_nothing_to_mend(server: MysqlServer) -> None:
    findings = _check(server)
    assert _not_ok(findings) == set()
    assert {"log_bin", "binlog_format", "binlog_row_metadata", "log retention", "server id", "table"} <= {
        finding.name for finding in findings
    }


def test_each_setting_has_its_own_finding(server: MysqlServer) -> None:
    settings = {
        "binlog_format": ("STATEMENT", "ROW", "error"),
        "binlog_row_image": ("MINIMAL", "FULL", "warning"),
        "binlog_row_metadata": ("MINIMAL", "FULL", "error"),
    }
    if server.kind is MYSQL:
        settings["binlog_row_value_options"] = ("PARTIAL_JSON", "", "error")
    server.execute(*(f"SET GLOBAL {name} = '{value[0]}'" for name, value in settings.items()))
    before = server.rows("SELECT @@global.binlog_expire_logs_seconds")[0][0]
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        found = _not_ok(_check(server))
    finally:
        server.execute(
            *(f"SET GLOBAL {name} = '{value[1]}'" for name, value in settings.items()),
            f"SET GLOBAL binlog_expire_logs_seconds = {before}",
        )
    assert found == {
        *((name, value[2]) for name, value in settings.items()),
        ("log retention", "warning"),
    }


def test_a_filter_that_reads_what_the_server_leaves_out_of_its_log_is_told_of(server: MysqlServer) -> None:
    url = f"mysql://root@127.0.0.1:{server.port}/shop"
    needs = [StreamNeed(StreamId("shop", "lines"), where="o > 1")]

    def found() -> set[tuple[str, str]]:
        findings = check(url, needs, server_id=_SERVER_ID, pipeline="shop")
        return {(each.name, each.level) for each in findings if each.name == "selection"}

    assert found() == set()
    server.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        assert found() == {("selection", "warning")}
    finally:
        server.execute("SET GLOBAL binlog_row_image = 'FULL'")


@pytest.mark.parametrize(
    ("hours", "found"),
    [(None, {("log retention", "error")}), ("2", {("log retention", "warning")}), ("168", set())],
)
def test_how_long_a_managed_service_keeps_logs_is_what_its_own_setting_says(
    server: MysqlServer, hours: str | None, found: set[tuple[str, str]]
) -> None:
    """The variable says nothing there."""
    server.execute(
        "CREATE TABLE mysql.rds_configuration (name VARCHAR(64), value VARCHAR(64))",
        "INSERT INTO mysql.rds_configuration VALUES "
        f"('binlog retention hours', {'NULL' if hours is None else hours}), ('source delay', '0')",
    )
    try:
        findings = _check(server)
    finally:
        server.execute("DROP TABLE mysql.rds_configuration")
    assert _not_ok(findings) == found
    [retention] = [each for each in findings if each.name == "log retention"]
    assert hours is None or f"kept for {float(hours):.1f} hours" in retention.message
    assert not found or "mysql.rds_set_configuration" in retention.remedy


def test_without_global_transaction_ids_a_server_of_mysql_cannot_be_followed(server: MysqlServer) -> None:
    steps = ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF") if server.kind is MYSQL else ()
    try:
        for mode in steps:
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
            findings = _check(server)
            assert _not_ok(findings) == {("global transaction ids", "error")}
            [told] = [each for each in findings if each.name == "global transaction ids"]
            assert f"gtid_mode is {mode}:" in told.message
    finally:
        for mode in (*reversed(steps[:-1]), "ON") if steps else ():
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
    assert _not_ok(_check(server)) == set()  # MariaDB has them always


def test_rights_that_are_missing_are_named(server: MysqlServer) -> None:
    found = _not_ok(_check(server, user="poor:secret"))
    assert found == {("replication client privilege", "error"), ("replication privilege", "error")}
    [unseen] = [each for each in _check(server, "shop.lines", user="poor:secret") if each.name == "table"]
    assert unseen.level == "error"  # a table without any right on it is not there


def test_a_server_id_that_is_taken_is_an_error(server: MysqlServer) -> None:
    assert _not_ok(_check(server, server_id=7)) == {("server id", "error")}


@pytest.mark.parametrize(("name", "server_id"), [("shop", 4712), ("s" * 63, 4713)], ids=["short", "long"])
def test_another_pipeline_with_the_same_server_id_is_an_error(
    server: MysqlServer, name: str, server_id: int
) -> None:
    """Only what the pipeline itself has at the server is no clash: it may be at work."""
    start = FilePosition(*server.position())
    with closing(BinlogStream(server.connect(), start, server_id, pipeline=name)):
        assert _not_ok(_check(server, server_id=server_id, pipeline=name)) == set()
        clash = _not_ok(_check(server, server_id=server_id, pipeline=f"{name[:-1]}t"))
        assert clash == {("server id", "error")}


def test_streams_are_checked_with_their_tables(server: MysqlServer) -> None:
    cascades = {("foreign key cascades", "warning")} if server.kind is MARIADB else set()
    assert _not_ok(_check(server, "shop.lines")) == cascades
    assert _not_ok(_check(server, "shop.seen")) == {("table kind", "error")}
    assert _not_ok(_check(server, "shop.*")) == {("table", "warning"), *cascades}
    assert _not_ok(_check(server, "shop.order")) == {("table", "error")}


def test_prepared_transactions_are_warned_of(server: MysqlServer) -> None:
    server.execute("XA START 'x'", "INSERT INTO shop.orders VALUES (99)", "XA END 'x'", "XA PREPARE 'x'")
    try:
        assert _not_ok(_check(server)) == {("prepared transactions", "warning")}
    finally:
        server.execute("XA ROLLBACK 'x'")


def test_a_server_that_does_not_answer_is_one_finding(server: MysqlServer) -> None:
    [finding] = check("mysql://root:secret@127.0.0.1:1/shop", [StreamNeed(StreamId("shop", "orders"))])
    assert (finding.name, finding.level) == ("connection", "error")
    assert "secret" not in repr(finding)

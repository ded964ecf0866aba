"""Connections: the same text everywhere, and errors that say what to do without showing a password."""

from __future__ import annotations

import socket

import pytest

from penstock.core.errors import ConfigError, SourceError
from penstock.sources.postgres.connection import (
    SESSION_SETTINGS,
    connect,
    load_connection_settings,
    query_errors,
    redact,
    safe_url,
)
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, with_password

pytestmark = pytest.mark.integration

SECRET = "s3cret/&pass"


def refused(url: str, *, replication: bool = False) -> SourceError:
    with pytest.raises(SourceError) as raised:
        connect(url, replication=replication)
    error = raised.value
    assert error.remedy
    assert error.__cause__ is not None
    for spelling in (SECRET, "s3cret%2F%26pass"):
        assert spelling not in str(error)
    return error


@pytest.mark.parametrize("replication", [False, True])
def test_every_connection_prints_values_with_the_same_settings(database: Database, replication: bool) -> None:
    database.execute(
        f"ALTER DATABASE {database.name} SET DateStyle = 'SQL, MDY';"
        f"ALTER DATABASE {database.name} SET TimeZone = 'Asia/Kathmandu';"
        f"ALTER DATABASE {database.name} SET bytea_output = 'escape'"
    )
    with connect(database.url, replication=replication) as connection:
        for name, expected in SESSION_SETTINGS.items():
            row = connection.execute(f"SELECT current_setting('{name}')".encode()).fetchone()
            assert row == (expected,)
        connection.execute("RESET ALL")
        assert connection.execute("SHOW DateStyle").fetchone() == ("ISO, DMY",)


def test_options_of_the_url_are_kept_and_ours_are_added(database: Database) -> None:
    url = f"{database.url}?options=-c%20work_mem%3D5MB&application_name=mine"
    with connect(url, application_name="penstock test", settings={"statement_timeout": "7s"}) as connection:
        row = connection.execute(
            "SELECT current_setting('work_mem'), current_setting('statement_timeout'), "
            "current_setting('DateStyle'), current_setting('application_name')"
        ).fetchone()
    assert row == ("5MB", "7s", "ISO, DMY", "penstock test")


def test_a_load_turns_silent_row_security_into_an_error(database: Database) -> None:
    role, url = database.create_role()
    database.execute(
        "CREATE TABLE t AS SELECT 1 AS id; ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        f"GRANT SELECT ON t TO {role}"
    )
    with connect(url) as plain:
        assert plain.execute("SELECT count(*) FROM t").fetchone() == (0,)
        settings = load_connection_settings(plain.info.server_version)
    with (
        connect(url, settings=settings) as load,
        pytest.raises(SourceError),
        query_errors("reading", stream="public.t"),
    ):
        load.execute("SELECT count(*) FROM t")


def test_a_wrong_password_is_named(database: Database) -> None:
    assert "password is wrong" in refused(with_password(database.url, SECRET)).message


def test_an_unknown_database_is_named(server: EmbeddedPostgres) -> None:
    assert "no such database" in refused(server.url("nowhere")).message


def test_a_host_that_does_not_answer_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nothing else can answer there
        port = closed.getsockname()[1]
        error = refused(f"postgresql://app:s3cret%2F%26pass@127.0.0.1:{port}/shop")
    assert "cannot be reached" in error.message
    assert f"postgresql://app:***@127.0.0.1:{port}/shop" in error.message


def test_an_unknown_host_is_named() -> None:
    assert "host name is not known" in refused("postgresql://app@no-such-host.invalid/shop").message


def test_tls_that_the_server_does_not_offer_is_named(database: Database) -> None:
    assert "TLS" in refused(f"{database.url}?sslmode=require").message


def test_a_role_without_replication_is_named(database: Database) -> None:
    _, url = database.create_role()
    assert "may not replicate" in refused(url, replication=True).message


def test_too_many_connections_are_named(database: Database) -> None:
    _, url = database.create_role("LOGIN CONNECTION LIMIT 1")
    with connect(url):
        assert "no connection left" in refused(url).message


@pytest.mark.parametrize(
    "url", ["postgresql://app:s3cret@[::1/x", "no url at all", "postgresql://h/d?nothing=1"]
)
def test_an_unreadable_url_is_an_error_that_does_not_quote_it(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(url)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:s3cret@db:5432/shop?sslmode=require", "postgresql://app:***@db:5432/shop"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("host=a,b port=1,2 user=x password=s3cret dbname=y", "postgresql://x:***@a:1,b:2/y"),
        ("postgresql:///shop?password=s3cret&user=u", "postgresql://u:***@localhost/shop"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert safe_url(url) == shown
    assert "s3cret" not in redact(f"failed: {url}", url)

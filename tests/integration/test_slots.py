"""Slots: created with a snapshot, read, refused for the right reason, dropped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.errors import ConfigError, PositionGoneError, SourceBusyError, SourceError
from penstock.sources.postgres import slots
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.sources.postgres.slots import create_slot, drop_slot, read_slot, require_usable
from tests.conftest import Database, wait_until

pytestmark = pytest.mark.integration


def slot_name(database: Database) -> str:
    return f"slot_{database.name}"


def test_the_exported_snapshot_shows_what_was_committed_before_and_nothing_later(database: Database) -> None:
    database.execute("CREATE TABLE t AS SELECT 1 AS id")
    with (
        connect(database.url, replication=True) as replication,
        connect(database.url, autocommit=False) as load,
    ):
        created = create_slot(replication, slot_name(database), temporary=True)
        database.execute("INSERT INTO t VALUES (2)")
        load.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        load.execute(f"SET TRANSACTION SNAPSHOT '{created.snapshot_name}'".encode())
        assert load.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_a_slot_is_described_and_dropped(database: Database) -> None:
    name = slot_name(database)
    with connect(database.url) as connection:
        assert read_slot(connection, name) is None
        with connect(database.url, replication=True) as replication:
            created = create_slot(replication, name)
        slot = require_usable(read_slot(connection, name), name, database.name)
        assert slot.confirmed_flush == created.consistent_point
        assert (slot.plugin, slot.database, slot.temporary, slot.two_phase) == (
            "pgoutput",
            database.name,
            False,
            False,
        )
        assert slot.retained_bytes is not None
        assert slot.retained_bytes >= 0
        assert drop_slot(connection, name) is True
        assert drop_slot(connection, name) is False


def test_a_missing_slot_means_the_position_is_gone(database: Database) -> None:
    with pytest.raises(PositionGoneError, match="does not exist any more") as raised:
        require_usable(None, "penstock", database.name)
    assert "resync" in raised.value.remedy


def test_a_slot_whose_reader_is_just_ending_is_dropped_once_it_has_ended(database: Database) -> None:
    name = slot_name(database)
    reader = connect(database.url, replication=True)
    create_slot(reader, name, temporary=True)
    with connect(database.url) as connection, ThreadPoolExecutor(1) as thread:
        dropping = thread.submit(drop_slot, connection, name)
        wait_until(lambda: dropping.done() or len(asked(database)) > 0, "the slot to be asked for")
        reader.close()
        assert dropping.result() is False  # a temporary one goes with its reader


def asked(database: Database) -> list[tuple[object, ...]]:
    """Sessions whose last statement was to drop it."""
    return database.query(
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_drop_replication_slot(%%' "
        "AND datname = %s",
        (database.name,),
    )


def test_a_slot_in_use_is_refused_with_the_process_that_holds_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RELEASE_S", 0.0)
    name = slot_name(database)
    with connect(database.url) as connection, connect(database.url, replication=True) as replication:
        create_slot(replication, name, temporary=True)  # a temporary slot is active while its owner lives
        pid = replication.info.backend_pid
        with pytest.raises(SourceBusyError, match=f"process {pid}"):
            require_usable(read_slot(connection, name), name, database.name)
        with pytest.raises(SourceBusyError, match=f"process {pid}"):
            drop_slot(connection, name)


def test_a_slot_of_another_kind_is_refused(database: Database) -> None:
    name = slot_name(database)
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    with connect(database.url) as connection, pytest.raises(SourceError, match="test_decoding"):
        require_usable(read_slot(connection, name), name, database.name)


def test_a_name_that_exists_is_refused(database: Database) -> None:
    name = slot_name(database)
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    with (
        connect(database.url, replication=True) as replication,
        pytest.raises(SourceBusyError, match="exists"),
    ):
        create_slot(replication, name)


@pytest.mark.parametrize("name", ["Upper", "with space", 'quo"te', "", "x" * 64, "semi;colon"])
def test_a_name_postgres_would_not_take_never_reaches_it(database: Database, name: str) -> None:
    with connect(database.url, replication=True) as replication, pytest.raises(ConfigError):
        create_slot(replication, name)


def test_a_log_too_thin_and_slots_used_up_are_told_apart() -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        with (
            connect(server.url(), replication=True) as replication,
            pytest.raises(SourceError, match="wal_level"),
        ):
            create_slot(replication, "one")
        server.restart({"wal_level": "logical", "max_replication_slots": "1"})
        with connect(server.url(), replication=True) as replication:
            create_slot(replication, "one")
            with pytest.raises(SourceError, match="in use"):
                create_slot(replication, "two")


def test_a_slot_whose_log_was_removed_is_lost() -> None:
    small = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(settings=small) as server, connect(server.url()) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('behind', 'pgoutput')")
        connection.execute("CREATE TABLE t (id int)")
        for _ in range(6):
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        with pytest.raises(PositionGoneError, match="lost") as raised:
            require_usable(read_slot(connection, "behind"), "behind", "postgres")
        assert "max_slot_wal_keep_size" in raised.value.remedy

"""The state directory is deleted; what the tables' own markers say is enough to go on exactly."""

from __future__ import annotations

import shutil

import pytest

from penstock.ledger.store import StateStore
from tests.conftest import Database
from tests.oracle_history import install_audit
from tests.traps import MakePipeline

STREAMS = ["public.state", "public.quiet", {"table": "public.history", "write": "append"}]


@pytest.fixture
def tables(database: Database) -> Database:
    for name in ("state", "quiet", "history"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    install_audit(database.url, ["public.history"])
    for name in ("state", "quiet", "history"):
        database.execute(f"INSERT INTO {name} SELECT i, 'loaded' FROM generate_series(1, 50) AS i")
    return database


def test_without_its_state_a_pipeline_goes_on_from_the_markers(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'one'; UPDATE history SET v = 'one'")
    pipeline.sync()
    shutil.rmtree(pipeline.state)
    tables.execute("UPDATE state SET v = 'two' WHERE id < 10; DELETE FROM history WHERE id = 3")
    tables.execute("INSERT INTO quiet VALUES (100, 'woken')")
    report = pipeline.sync()
    assert sum(stream.rows_loaded for stream in report.streams) == 0, "nothing is loaded again"
    assert sum(stream.changes for stream in report.streams) == 11
    pipeline.assert_same("public.state")
    pipeline.assert_same("public.quiet")
    pipeline.assert_history("public.history")


def test_a_table_ahead_of_the_slot_takes_no_change_twice(
    tables: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the commit and the acknowledgement, and then the state is lost as well."""
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'one'; UPDATE history SET v = 'one'")

    def unheard(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.capture.client.CaptureProcess.acknowledge", unheard)
        with pytest.raises(ConnectionError):
            pipeline.sync()
    shutil.rmtree(pipeline.state)
    tables.execute("UPDATE history SET v = 'two' WHERE id = 1")
    pipeline.sync()
    pipeline.assert_same("public.state")
    pipeline.assert_history("public.history")


def test_tables_of_another_slot_are_not_taken_up(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("DELETE FROM state WHERE id = 1")
    tables.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    shutil.rmtree(pipeline.state)
    report = pipeline.sync()
    assert all(stream.rows_loaded for stream in report.streams)
    pipeline.assert_same("public.state")


@pytest.mark.slow
def test_a_slot_that_we_made_ourselves_has_not_seen_what_came_before(
    tables: Database, make: MakePipeline
) -> None:
    """State and slot are gone; the next start is killed as soon as it has made a slot."""
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("DELETE FROM state WHERE id = 1")
    tables.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    shutil.rmtree(pipeline.state)
    ended = pipeline.sync_apart("capture.slot_created=kill")
    assert ended.struck == ("capture.slot_created=kill",)
    report = pipeline.sync()
    assert all(stream.rows_loaded for stream in report.streams)
    pipeline.assert_same("public.state", "public.quiet")


@pytest.mark.slow
def test_a_state_put_back_into_an_open_round_goes_on_from_the_tables(
    tables: Database, make: MakePipeline
) -> None:
    """The round that the old state has open was finished long ago; more came since."""
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'one'; UPDATE history SET v = 'one'")
    assert pipeline.sync_apart("cdc.prepared=kill").killed
    in_the_round = StateStore(pipeline.state).history()[0].version
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'two'; DELETE FROM history WHERE id = 3")
    pipeline.sync()
    StateStore(pipeline.state).restore(in_the_round)
    tables.execute("INSERT INTO state VALUES (70, 'three'); INSERT INTO history VALUES (70, 'three')")
    pipeline.sync()
    pipeline.assert_same("public.state", "public.quiet")
    pipeline.assert_history("public.history")

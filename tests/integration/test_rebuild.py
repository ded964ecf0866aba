"""The state directory is deleted; what the tables' own markers say is enough to go on exactly."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest

from penstock.ledger.store import StateStore
from tests.conftest import Database
from tests.oracle_history import install_audit
from tests.traps import MakePipeline

STREAMS = [
    "public.state",
    "public.quiet",
    {"table": "public.history", "write": "append"},
    {"table": "public.parts", "write": "append"},
]
HISTORIES = ("public.history", "public.parts")


@pytest.fixture
def tables(database: Database) -> Database:
    for name in ("state", "quiet", "history"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (25)")
    database.execute("CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (25) TO (100)")
    install_audit(database.url, HISTORIES)
    for name in ("state", "quiet", "history", "parts"):
        database.execute(f"INSERT INTO {name} SELECT i, 'loaded' FROM generate_series(1, 50) AS i")
    return database


def test_without_its_state_a_pipeline_goes_on_from_the_markers(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'one'; UPDATE history SET v = 'one'; UPDATE parts SET v = 'one'")
    pipeline.sync()
    shutil.rmtree(pipeline.state)
    tables.execute("UPDATE state SET v = 'two' WHERE id < 10; DELETE FROM history WHERE id = 3")
    tables.execute("INSERT INTO quiet VALUES (100, 'woken'); DELETE FROM parts WHERE id IN (3, 30)")
    report = pipeline.sync()
    assert sum(stream.rows_loaded for stream in report.streams) == 0, "nothing is loaded again"
    assert sum(stream.changes for stream in report.streams) == 13
    pipeline.assert_same("public.state")
    pipeline.assert_same("public.quiet")
    pipeline.assert_history(*HISTORIES)


@pytest.mark.slow
def test_partitions_that_came_or_went_are_seen_without_the_state(
    tables: Database, make: MakePipeline
) -> None:
    """One that was made as a partition is in the log; one that went takes rows with it that are not."""
    streams = [*STREAMS[:3], "public.parts"]
    pipeline = make(streams)
    pipeline.sync()
    shutil.rmtree(pipeline.state)
    tables.execute("CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (100) TO (200)")
    tables.execute("INSERT INTO parts VALUES (150, 'of a new one')")
    report = pipeline.sync()
    assert sum(stream.rows_loaded for stream in report.streams) == 0, "nothing is loaded again"
    pipeline.assert_same("public.parts")
    shutil.rmtree(pipeline.state)
    tables.execute("ALTER TABLE parts DETACH PARTITION parts_1")
    assert sum(stream.rows_loaded for stream in pipeline.sync().streams) == 27
    pipeline.assert_same("public.parts")


@pytest.mark.slow
def test_a_history_that_nobody_can_vouch_for_is_replaced_and_not_added_to(
    tables: Database, make: MakePipeline
) -> None:
    """The source may have been acknowledged by the log, which is lost: changes in between are nowhere."""
    pipeline = make(STREAMS, wal={"acknowledge": "log"})
    pipeline.sync()
    tables.execute("UPDATE history SET v = 'one'; UPDATE parts SET v = 'one'")
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'two'")  # the slot goes on, past the markers of the histories
    pipeline.sync()
    shutil.rmtree(pipeline.state)
    pipeline.sync()
    for name in ("history", "parts"):
        rows = pq.read_table(pipeline.path(f"public.{name}"), columns=["_op"])
        assert rows.column("_op").to_pylist() == ["r"] * 50
    assert any("history that its table has is not kept" in note for note in pipeline.notes)
    pipeline.assert_same("public.state", "public.quiet")


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

"""Loads hold up nobody: tables that are loaded go on, and each joins them when its own load is done."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from penstock import Pipeline
from penstock.core.errors import PenstockError
from penstock.core.report import SyncReport
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline, PauseAt, assert_exact, syncing, write

ADDED = ["public.state", {"table": "public.history", "write": "append"}]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sync.ROUND_EVERY_S", 0.2)


def shows(pipeline: PipelineUnderTest, stream: str, key: int, running: Future[SyncReport]) -> bool:
    rows = Pipeline.from_yaml(pipeline.file).table(stream).to_arrow()
    return running.done() or key in rows.column("id").to_pylist()


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_table_that_is_followed_goes_on_while_another_is_loaded(
    tables: Database, make: MakePipeline, pause_at: PauseAt
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    pipeline.streams = ADDED
    pipeline.write_file()
    write_both(tables, 100)
    pause = pause_at("load.preparing=pause")
    with syncing(pipeline) as running, pause:
        pause.wait(running)
        for key in (100, 101, 102):  # the first was there before; the others come while the load stands still
            if key > 100:
                write_both(tables, key)
            wait_until(partial(shows, pipeline, "public.state", key, running), f"row {key}", timeout_s=120)
            assert not running.done(), "the load should still be standing"
        with pytest.raises(PenstockError, match="no table yet"):
            pipeline.path("public.history")
    assert_exact(pipeline)
    write_both(tables, 103)
    pipeline.sync()
    assert_exact(pipeline)


def write_both(database: Database, key: int) -> None:
    with database.connect() as connection:
        write(connection, key, key)


@pytest.mark.usefixtures("soon")
def test_each_table_is_followed_from_when_its_own_load_is_done(
    tables: Database, make: MakePipeline, pause_at: PauseAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables are added at once; the second group of chunks stands still, the first table goes on."""
    monkeypatch.setattr("penstock.lake.load.CHUNKS_PER_COMMIT_MAX", 1)
    monkeypatch.setattr("penstock.lake.load.SMALL_TABLES_PER_CHUNK", 1)
    monkeypatch.setattr("penstock.lake.load.JOBS_AT_ONCE", 1)
    tables.execute("CREATE TABLE first (id int PRIMARY KEY)")
    pipeline = make(["public.first"])
    pipeline.sync()
    pipeline.streams = ["public.first", ADDED[1], ADDED[0]]
    pipeline.write_file()
    pause = pause_at("load.preparing=pause@2")
    with syncing(pipeline) as running, pause:
        pause.wait(running)
        loaded, waiting = sorted(
            ("public.history", "public.state"), key=lambda stream: not has_table(pipeline, stream)
        )
        assert has_table(pipeline, loaded)
        assert not has_table(pipeline, waiting)
        write_both(tables, 100)
        wait_until(lambda: shows(pipeline, loaded, 100, running), "its change to be visible", timeout_s=120)
        assert not running.done()
    assert_exact(pipeline)


def has_table(pipeline: PipelineUnderTest, stream: str) -> bool:
    try:
        return bool(pipeline.path(stream))
    except PenstockError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("place", ["cdc.committed", "cdc.prepared", "cdc.moved", "cdc.acknowledged"])
def test_a_kill_in_a_round_beside_a_load_loses_nothing(
    tables: Database, make: MakePipeline, place: str
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    pipeline.streams = ADDED
    pipeline.write_file()
    write_both(tables, 100)
    ended = pipeline.sync_apart(f"load.preparing=pause,{place}=kill")
    assert ended.killed, str(ended)
    write_both(tables, 101)
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.usefixtures("soon")
def test_a_load_that_fails_ends_the_sync_with_its_own_error_and_the_rounds_stand(
    tables: Database, make: MakePipeline, pause_at: PauseAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    pipeline.streams = ADDED
    pipeline.write_file()
    write_both(tables, 100)
    pause = pause_at("load.preparing=pause")

    def fails(*_: object) -> None:
        raise PenstockError("The load failed on purpose.")

    def sync_while_the_load_fails() -> None:
        with syncing(pipeline) as running, pause:
            pause.wait(running)
            wait_until(lambda: shows(pipeline, "public.state", 100, running), "the round", timeout_s=120)
            monkeypatch.setattr("penstock.lake.load.Loader._commit", fails)

    with pytest.raises(PenstockError, match="on purpose"):
        sync_while_the_load_fails()
    monkeypatch.undo()
    pipeline.assert_same("public.state")
    pipeline.sync()
    assert_exact(pipeline)


class StruckError(Exception):
    pass


@pytest.mark.usefixtures("soon")
def test_an_error_in_a_round_does_not_wait_for_a_load_that_waits_for_a_lock(
    tables: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.execute("CREATE TABLE first (id int PRIMARY KEY)")
    pipeline = make(["public.first"])
    pipeline.sync()
    tables.execute("INSERT INTO first VALUES (1)")
    pipeline.streams = ["public.first", *ADDED]
    pipeline.write_file()
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database() AND application_name LIKE 'penstock%'"
    )
    with tables.connect(autocommit=False) as owner:

        def strike(name: str) -> None:
            if name == "load.recorded":  # of one of the two; the other is to be planned next
                owner.execute("LOCK TABLE state, history IN ACCESS EXCLUSIVE MODE")
            if name == "cdc.written":
                wait_until(lambda: tables.query(waits) != [(0,)], "the load to wait for the lock")
                raise StruckError

        with monkeypatch.context() as patched, ThreadPoolExecutor(1) as thread:
            patched.setattr("penstock.failpoints.reach", strike)
            running = thread.submit(pipeline.sync)
            try:
                wait_until(running.done, "the sync to end while the lock is held", timeout_s=120)
            finally:
                owner.rollback()
            assert isinstance(running.exception(), StruckError)
    pipeline.sync()
    assert_exact(pipeline)

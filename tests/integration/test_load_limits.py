"""Limits on what loads take from the source: they slow a load down, and never make it wrong."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Database, wait_until
from tests.traps import STREAMS, MakePipeline, make_tables, syncing
from tests.workload import Workload


def snapshots(notes: list[str]) -> int:
    return sum("going on under a new one" in note for note in notes)


@pytest.fixture
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lake.load.CHUNKS_PER_COMMIT_MAX", 1)
    monkeypatch.setattr("penstock.lake.load.SMALL_TABLES_PER_CHUNK", 1)


@pytest.mark.usefixtures("chunk_by_chunk", "loads_by_spark")
@pytest.mark.parametrize("method", ["key", pytest.param("ctid", marks=pytest.mark.slow)])
def test_a_load_goes_on_under_new_snapshots_when_one_gets_too_old(
    database: Database, make: MakePipeline, method: str
) -> None:
    """With writers at work: every snapshot shows other rows, in other places."""
    with Workload(database.url, pause_s=0.1).setup(200).start(2):
        streams = ["public.orders", {"table": "public.events", "write": "append"}]
        load = {"rows_per_chunk": 40, "method": method, "snapshot_age_max": "1ms"}
        pipeline = make(streams, load=load)
        pipeline.sync()
        assert snapshots(pipeline.notes) >= 2, pipeline.notes
        assert not list(pipeline.state.glob("load/*.json")), "the loads are over"
    pipeline.sync()
    pipeline.assert_same("public.orders")
    pipeline.assert_history("public.events", one_moment=method == "ctid")


@pytest.mark.usefixtures("chunk_by_chunk", "loads_by_spark")
def test_a_load_that_could_not_go_on_exactly_keeps_its_snapshot(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE history (id int PRIMARY KEY, v text)")
    database.execute(
        "INSERT INTO history SELECT n, repeat('v', 1000) FROM generate_series(1, 100) n; ANALYZE"
    )
    stream = {"table": "public.history", "write": "append"}
    pipeline = make([stream], load={"rows_per_chunk": 20, "snapshot_age_max": "1ms"})
    assert pipeline.sync().streams[0].rows_loaded == 100
    assert snapshots(pipeline.notes) == 0


@pytest.mark.usefixtures("chunk_by_chunk", "loads_by_spark")
@pytest.mark.parametrize("resume", ["exact", "per_chunk"])
def test_a_full_refresh_goes_on_under_new_snapshots_only_by_choice(
    database: Database, make: MakePipeline, resume: str
) -> None:
    database.execute("CREATE TABLE state (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO state SELECT n, md5(n::text) FROM generate_series(1, 100) n; ANALYZE")
    stream = {"table": "public.state", "mode": "full_refresh", "resume": resume}
    pipeline = make([stream], load={"rows_per_chunk": 20, "snapshot_age_max": "1ms", "method": "key"})
    pipeline.sync()
    assert (snapshots(pipeline.notes) > 0) == (resume == "per_chunk")
    pipeline.assert_same("public.state")


def test_no_more_rows_are_read_in_a_second_than_the_limit(database: Database, make: MakePipeline) -> None:
    make_tables(database.url)  # 20 rows each
    make(STREAMS).sync()  # starts Spark, if no test did
    unlimited = make(STREAMS).sync().seconds
    at_least_s = max(4.0, 2 * unlimited)
    limited = make(STREAMS, load={"rows_per_second": max(1, int(2 * 20 / at_least_s)), "parallel": 1})
    assert limited.sync().seconds >= at_least_s > unlimited, "the limit makes the difference, not the machine"
    limited.assert_same("public.state")


@pytest.mark.slow
@pytest.mark.usefixtures("chunk_by_chunk", "loads_by_spark")
@pytest.mark.parametrize("parallel", [1, 2])
def test_no_more_connections_read_tables_at_once_than_the_limit(
    database: Database, make: MakePipeline, parallel: int
) -> None:
    database.execute("CREATE TABLE state (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO state SELECT n, md5(n::text) FROM generate_series(1, 400000) n; ANALYZE")
    pipeline = make(["public.state"], load={"rows_per_chunk": 20_000, "parallel": parallel})
    seen: list[int] = []
    with syncing(pipeline) as running, database.connect() as watching:
        while not running.done():
            [(reading,)] = watching.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'penstock load %' AND state = 'active'"
            ).fetchall()
            seen.append(reading)
    assert 1 <= max(seen) <= parallel, f"{len(seen)} looks"
    pipeline.assert_same("public.state")


def test_a_load_that_waits_for_a_lock_at_the_source_can_be_interrupted(
    database: Database, make: MakePipeline
) -> None:
    """A small table is read by the sync's own process, which must not sit in a query that nobody ends."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make([{"table": "public.t", "mode": "full_refresh"}])
    sync = pipeline.start_sync("load.preparing=pause")
    sync.wait_until_paused("load.preparing")
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        sync.go_on()
        wait_until(lambda: bool(database.query(waits)), "the load to wait for the lock")
        sync.process.send_signal(signal.SIGINT)
        ended = sync.wait()
    assert ended.status == 130, str(ended)
    assert ended.answer["error"]["code"] == "interrupted", str(ended)

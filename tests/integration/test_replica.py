"""Tables that are read at a standby of the source: each change is in the load or in the log, not in both."""

from __future__ import annotations

import os
import signal
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import accumulate
from typing import Any

import psutil
import psycopg
import pytest

from penstock import Pipeline
from penstock.capture.postgres.marks import mark_position
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.sources.finding import Finding
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.sources.postgres.replica import QUIET, Replica
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest, streams_of
from tests.traps import STREAMS, MakePipeline, PauseAt, assert_exact, syncing, write
from tests.workload import APPEND, UPSERT, Workload

_BEGIN_BYTES = 21  # of a Begin message: its kind, the commit record's position, a time, the transaction id


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as primary:
        yield primary


@pytest.fixture(scope="module")
def standby(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """One that keeps the source from removing rows that it reads, and else lets nobody hold up replay."""
    settings = {"hot_standby_feedback": "on", "max_standby_streaming_delay": "0"}
    with EmbeddedPostgres.standby_of(server, settings=settings) as running:
        yield running


@pytest.fixture
def replica(database: Database, standby: EmbeddedPostgres) -> Iterator[Database]:
    """The test's own database, as the standby has it."""
    catch_up(standby, database)
    yield Database(database.name, standby)
    assert pause_state(standby) == "not paused"


@pytest.fixture
def at_replica(make: MakePipeline, replica: Database) -> MakePipeline:
    def make_pipeline(streams: list[Any], **settings: Any) -> PipelineUnderTest:
        return make(streams, source={"replica_url": replica.url}, **settings)

    return make_pipeline


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row is not None else None


def catch_up(standby: EmbeddedPostgres, database: Database) -> None:
    with connect(database.url) as connection:
        logged = mark_position(connection)
    query = "SELECT pg_last_wal_replay_lsn()::text"
    wait_until(lambda: Lsn.parse(ask(standby.url(), query)) >= logged, "the standby to catch up")


def pause_state(standby: EmbeddedPostgres) -> str:
    return str(ask(standby.url(), "SELECT pg_get_wal_replay_pause_state()"))


def waits_for(standby: EmbeddedPostgres) -> bool:
    """Whether a sync has noted how far the standby must come, and has connected there."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock-snapshot'"
    return bool(ask(standby.url(), query))


@contextmanager
def replay_paused(standby: EmbeddedPostgres) -> Iterator[None]:
    """As an operator would pause it."""
    ask(standby.url(), "SELECT pg_wal_replay_pause()")
    wait_until(lambda: pause_state(standby) == "paused", "replay to pause")
    try:
        yield
    finally:
        ask(standby.url(), "SELECT pg_wal_replay_resume()")


@contextmanager
def settings(standby: EmbeddedPostgres, **changed: str) -> Iterator[None]:
    def reload(*statements: str) -> None:
        with psycopg.connect(standby.url(), autocommit=True) as connection:
            for statement in (*statements, "SELECT pg_reload_conf()"):
                connection.execute(statement.encode())

    reload(*(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in changed.items()))
    try:
        yield
    finally:
        reload(*(f"ALTER SYSTEM RESET {name}" for name in changed))


def commits_in_order(database: Database, slot: str) -> list[tuple[Lsn, int]]:
    """Every transaction since the slot was made: where its commit record begins, and its id."""
    rows = database.query(
        f"SELECT data FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'all_of_it')"
    )
    begins = [data for (data,) in rows if data[:1] == b"B" and len(data) == _BEGIN_BYTES]
    return sorted((Lsn(int.from_bytes(data[1:9])), int.from_bytes(data[17:21])) for data in begins)


COMMITS = 150_000


def snapshot_and_what_it_shows(database: Database, replica: Database) -> tuple[Lsn, tuple[int, int]]:
    with connect(replica.url, settings=QUIET) as keeper, replica.connect() as reader:
        snapshot = Replica(database.url, replica.url, 30.0).snapshot(keeper, Lsn(0))
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'".encode())
        [shown] = reader.execute("SELECT count(*), coalesce(sum(xid), 0) FROM t")
        return snapshot.position, shown


def test_a_snapshot_of_a_replica_shows_exactly_what_commits_before_its_position(
    database: Database, replica: Database, standby: EmbeddedPostgres
) -> None:
    database.execute("CREATE TABLE t (xid bigint DEFAULT pg_current_xact_id()::text::bigint)")
    database.execute("CREATE PUBLICATION all_of_it FOR TABLE t")
    slot = f"positions_{database.name}"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    loop = f"DO $$ BEGIN FOR i IN 1..{COMMITS} LOOP INSERT INTO t DEFAULT VALUES; COMMIT; END LOOP; END $$"
    taken: list[tuple[Lsn, tuple[int, int]]] = []
    for total in range(COMMITS, 20 * COMMITS, COMMITS):
        with replay_paused(standby):
            database.execute(loop)  # so that there is much to replay, as fast as the standby can
        while not taken or taken[-1][1][0] < total:
            taken.append(snapshot_and_what_it_shows(database, replica))
        if any(count % COMMITS for _, (count, _) in taken):
            break
    else:
        raise AssertionError("no snapshot was taken in the midst")
    commits = commits_in_order(database, slot)
    sums = [0, *accumulate(xid for _, xid in commits)]
    for position, shown in taken:
        before = bisect_left(commits, (position, 0))
        assert shown == (before, sums[before])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ctid", "key"])
def test_tables_loaded_from_a_lagging_replica_equal_the_source_while_everybody_writes(
    database: Database, standby: EmbeddedPostgres, at_replica: MakePipeline, method: str
) -> None:
    workload = Workload(database.url, pause_s=0.05).setup(400)
    load = {"rows_per_chunk": 40, "method": method}
    pipeline = at_replica(streams_of(UPSERT[:-1], APPEND[:-1]), load=load)
    with workload.start(4):
        with replay_paused(standby), syncing_until_it_waits(pipeline, standby):
            before = workload.transactions
            wait_until(lambda: workload.transactions > before + 50, "the source to go on")
        pipeline.streams = streams_of(UPSERT, APPEND)  # two more tables, beside those that are followed
        pipeline.write_file()
        pipeline.sync()
    pipeline.sync()
    pipeline.assert_same(*UPSERT)
    pipeline.assert_history(*APPEND)


@contextmanager
def syncing_until_it_waits(pipeline: PipelineUnderTest, standby: EmbeddedPostgres) -> Iterator[None]:
    """A sync that waits for the standby while the block runs, is let go with it, and is waited for."""
    with syncing(pipeline) as running:
        wait_until(lambda: waits_for(standby) or running.done(), "the sync to wait", timeout_s=120)
        assert not running.done(), running.exception()
        yield
        assert not running.done(), "it needs what was not replayed"
        ask(standby.url(), "SELECT pg_wal_replay_resume()")


def test_the_source_is_left_alone_by_loads_of_every_kind(
    tables: Database, replica: Database, at_replica: MakePipeline
) -> None:
    tables.execute("CREATE TABLE refreshed AS SELECT * FROM state; CREATE TABLE read_on (LIKE state)")
    tables.execute("ALTER TABLE read_on ADD PRIMARY KEY (id); INSERT INTO read_on SELECT * FROM state")
    others = {"table": "public.refreshed", "mode": "full_refresh"}, {
        "table": "public.read_on", "mode": "incremental", "cursor": "id",
    }  # fmt: skip
    tables.execute("SELECT pg_stat_force_next_flush()")
    tables.execute("SELECT pg_stat_reset()")
    pipeline = at_replica([*STREAMS, *others])
    pipeline.sync()
    with tables.connect() as connection:
        write(connection, 21, 30)
        connection.execute("INSERT INTO refreshed VALUES (21); INSERT INTO read_on VALUES (21, 'v')")
    pipeline.sync()
    read = tables.query("SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_user_tables")
    assert read == [(0, 0)]
    assert_exact(pipeline)
    pipeline.assert_same("public.refreshed", "public.read_on")


@pytest.mark.slow
def test_a_transaction_that_began_before_its_table_was_published_is_whole(
    tables: Database, standby: EmbeddedPostgres, at_replica: MakePipeline
) -> None:
    pipeline = at_replica([STREAMS[0]])
    pipeline.sync()
    pipeline.streams = STREAMS
    pipeline.write_file()
    with tables.connect(autocommit=False) as straggler:
        straggler.execute("SELECT 1")  # opens the transaction
        write(straggler, 21, 30)
        with syncing(pipeline):
            query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND "
            query += "wait_event = 'transactionid'"
            wait_until(lambda: bool(ask(tables.url, query)), "slot creation to wait for the transaction")
            write(straggler, 31, 40)
            straggler.commit()
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
def test_a_table_rewritten_at_the_source_between_chunks_is_loaded_again(
    tables: Database, standby: EmbeddedPostgres, at_replica: MakePipeline, pause_at: PauseAt
) -> None:
    pipeline = at_replica(STREAMS)
    with pause_at("load.preparing=pause") as pause, syncing(pipeline) as running:
        pause.wait(running)
        tables.execute("DELETE FROM state WHERE id < 10")
        tables.execute("VACUUM FULL state")
        catch_up(standby, tables)
        (pause.directory / "gate").touch()
    assert any("rewritten" in note for note in pipeline.notes), pipeline.notes
    assert_exact(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"rows_per_chunk": 5, "method": "key"}, {}], ids=["goes on", "again"])
def test_a_load_whose_snapshot_was_in_the_way_of_replay_is_done_under_another(
    tables: Database,
    standby: EmbeddedPostgres,
    at_replica: MakePipeline,
    pause_at: PauseAt,
    load: dict[str, Any],
) -> None:
    pipeline = at_replica(STREAMS, load=load)
    with (
        settings(standby, hot_standby_feedback="off"),
        pause_at("load.preparing=pause") as pause,
        syncing(pipeline) as running,
    ):
        pause.wait(running)
        assert waits_for(standby), "the snapshot is held"
        query = "SELECT count(backend_xmin) FROM pg_stat_replication"
        wait_until(lambda: ask(tables.url, query) == 0, "the source to hear of no snapshot")
        tables.execute("UPDATE state SET v = 'other'")
        tables.execute("VACUUM state")
        wait_until(lambda: not waits_for(standby), "replay to end the session that holds the snapshot")
        (pause.directory / "gate").touch()
    assert any("snapshot of the load was lost" in note for note in pipeline.notes), pipeline.notes
    assert_exact(pipeline)


def test_a_replica_that_does_not_come_far_enough_in_time_is_an_error_and_stays_as_it_is(
    tables: Database, standby: EmbeddedPostgres, at_replica: MakePipeline
) -> None:
    pipeline = at_replica(STREAMS, load={"replica_wait": "1s"})
    with replay_paused(standby):
        with pytest.raises(SourceError, match=r"lags: replay is paused at .*") as caught:
            pipeline.sync()
        assert "pg_wal_replay_resume" in caught.value.remedy
        assert pause_state(standby) == "paused", "the operator's pause is the operator's"
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
def test_a_sync_that_is_killed_while_it_pauses_replay_leaves_it_running(
    tables: Database, standby: EmbeddedPostgres, replica: Database, at_replica: MakePipeline
) -> None:
    """Replay is stopped by a lock right behind where the sync needs it, so that it cannot pause."""
    tables.execute("CREATE TABLE locked ()")
    pipeline = at_replica(STREAMS)
    with settings(standby, max_standby_streaming_delay="-1"):
        with closing(replica.connect(autocommit=False)) as reader, replay_paused(standby):
            running = pipeline.start_sync()
            wait_until(lambda: waits_for(standby), "the sync to wait", timeout_s=120)
            reader.execute("SELECT FROM locked")
            tables.execute("TRUNCATE locked")
            paused_before = standby.log.read_text().count("recovery has paused")
            ask(standby.url(), "SELECT pg_wal_replay_resume()")
            wait_until(lambda: pause_state(standby) == "pause requested", "the sync to ask for the pause")
            kill(running.process.pid)
            running.wait()
            pipeline.wait_until_nothing_runs()
            assert pause_state(standby) == "pause requested"
            reader.rollback()
            wait_until(lambda: not waits_for(standby), "the server to carry out the rest")
            assert standby.log.read_text().count("recovery has paused") == paused_before + 1
            assert pause_state(standby) == "not paused"
        pipeline.sync()
    assert_exact(pipeline)


def kill(pid: int) -> None:
    """A process and all that it started, at once."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        os.kill(each.pid, signal.SIGKILL)


def replica_findings(pipeline: PipelineUnderTest) -> dict[str, Finding]:
    found = Pipeline.from_yaml(pipeline.file).check()
    return {finding.name: finding for finding in found if finding.name.split()[0] == "replica"}


def test_a_server_that_is_no_standby_of_the_source_is_refused(tables: Database, make: MakePipeline) -> None:
    itself = make(STREAMS, source={"replica_url": tables.url})
    with EmbeddedPostgres() as foreign:
        other = make(STREAMS, source={"replica_url": foreign.url()})
        for pipeline, message in ((itself, "is not a standby"), (other, "belongs to another cluster")):
            with pytest.raises(SourceError, match=message):
                pipeline.sync()
            assert message in replica_findings(pipeline)["replica"].message


def test_a_standby_that_stayed_on_another_timeline_is_refused() -> None:
    with (
        EmbeddedPostgres() as primary,
        EmbeddedPostgres.standby_of(primary, "promoted") as promoted,
        EmbeddedPostgres.standby_of(primary, "left_behind") as left_behind,
    ):
        ask(promoted.url(), "SELECT pg_promote()")
        with pytest.raises(SourceError, match="replays timeline 1, the source writes timeline 2"):
            Replica(promoted.url(), left_behind.url(), 0).require_standby()
        Replica(primary.url(), left_behind.url(), 0).require_standby()


def test_check_says_what_reading_at_a_replica_needs(
    tables: Database, standby: EmbeddedPostgres, make: MakePipeline
) -> None:
    tables.execute("CREATE UNLOGGED TABLE scratch (id int)")
    role, url = tables.create_role("LOGIN REPLICATION")
    tables.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    tables.execute(f"GRANT CREATE ON DATABASE {tables.name} TO {role}")
    tables.execute(f"ALTER TABLE state OWNER TO {role}; ALTER TABLE history OWNER TO {role}")
    catch_up(standby, tables)
    replica_url = url.replace(str(tables.server.port), str(standby.port))
    pipeline = make(STREAMS, url=url, source={"replica_url": replica_url})
    with settings(standby, hot_standby_feedback="off"):
        found = replica_findings(pipeline)
        assert found["replica"].level == "ok"
        assert found["replica conflicts"].level == "warning"
        assert "hot_standby_feedback" in found["replica conflicts"].remedy
    with pytest.raises(SourceError, match="Permission is missing for taking a snapshot at the replica"):
        pipeline.sync()
    tables.execute(found["replica rights"].remedy.partition(": ")[2].rstrip("."))
    catch_up(standby, tables)
    assert "replica rights" not in replica_findings(pipeline)
    pipeline.sync()
    pipeline.assert_same("public.state")
    pipeline.streams = [{"table": "public.scratch", "mode": "full_refresh"}]
    pipeline.write_file()
    with pytest.raises(SourceError, match="no rows at a replica"):
        pipeline.sync()

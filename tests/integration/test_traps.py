"""Ways to lose or double rows that were seen on a real Postgres, each of them sprung on a sync.

Every test here ends with the oracle: all values of upsert tables, every change of append tables once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from penstock import failpoints
from penstock.core.errors import PenstockError, SourceError
from penstock.core.report import SyncReport
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, wait_until
from tests.oracle_history import install_audit
from tests.pipelines import PipelineUnderTest
from tests.traps import STREAMS, TABLES, MakePipeline, PauseAt, assert_exact, make_tables, syncing, write


def waits_for_a_transaction(url: str, running: Future[SyncReport]) -> Callable[[], bool]:
    """Whether a walsender waits for somebody's transaction to end, or the sync did without."""

    def waits() -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' "
                "AND wait_event_type = 'Lock' AND wait_event = 'transactionid'"
            ).fetchone()
        return running.done() or (row is not None and row[0] > 0)

    return waits


# -- from snapshot to stream --------------------------------------------------------------------------


@pytest.fixture
def synchronous(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that waits for a standby that never comes, but only in sessions that ask for it."""
    with EmbeddedPostgres() as server, psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        yield server


@contextmanager
def committed_but_not_visible(
    server: EmbeddedPostgres, first: int, last: int
) -> Iterator[Callable[[], None]]:
    """The rows' commit is in the log while no snapshot shows them, until the value is called."""

    def commit() -> None:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = 'on'")
            write(connection, first, last)

    with psycopg.connect(server.url(), autocommit=True) as observer:

        def waits_for_the_standby() -> bool:
            row = observer.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone()
            return row is not None

        thread = threading.Thread(target=commit)
        thread.start()
        wait_until(waits_for_the_standby, "the commit to wait for its standby")
        seen = observer.execute("SELECT count(*) FROM state WHERE id >= %s", (first,)).fetchone()
        assert seen == (0,), "the rows should not be visible yet"

        def release() -> None:
            observer.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            observer.execute("SELECT pg_reload_conf()")

        try:
            yield release
        finally:
            release()
            thread.join()


def test_a_commit_that_becomes_visible_late_is_not_lost_by_the_first_load(
    synchronous: EmbeddedPostgres, tmp_path: Path
) -> None:
    make_tables(synchronous.url())
    pipeline = PipelineUnderTest(tmp_path / "p", synchronous.url(), STREAMS)
    with committed_but_not_visible(synchronous, 100, 110) as release, syncing(pipeline) as running:
        waits = waits_for_a_transaction(synchronous.url(), running)
        wait_until(waits, "slot creation to wait for the commit", timeout_s=120)
        release()
    assert_exact(pipeline)


def test_a_commit_that_becomes_visible_late_is_not_lost_by_a_load_added_later(
    synchronous: EmbeddedPostgres, tmp_path: Path
) -> None:
    make_tables(synchronous.url())
    pipeline = PipelineUnderTest(tmp_path / "p", synchronous.url(), ["public.state"])
    pipeline.sync()
    pipeline.streams = STREAMS
    pipeline.write_file()
    with committed_but_not_visible(synchronous, 100, 110) as release, syncing(pipeline) as running:
        waits = waits_for_a_transaction(synchronous.url(), running)
        wait_until(waits, "slot creation to wait for the commit", timeout_s=120)
        release()
    assert_exact(pipeline)


def test_rows_written_before_their_table_was_published_are_not_lost(
    tables: Database, make: MakePipeline
) -> None:
    """A transaction that wrote before ALTER PUBLICATION publishes only what it writes after it."""
    tables.execute("CREATE TABLE first (id int PRIMARY KEY)")
    pipeline = make(["public.first"])
    pipeline.sync()
    pipeline.streams = ["public.first", *STREAMS]
    pipeline.write_file()

    def is_published() -> bool:
        found = tables.query(
            "SELECT count(*) FROM pg_publication_tables WHERE pubname = %s", (pipeline.name,)
        )
        return found == [(3,)]

    with tables.connect(autocommit=False) as writer:
        write(writer, 100, 104)
        with syncing(pipeline) as running:
            wait_until(lambda: is_published() or running.done(), "the tables to be published")
            write(writer, 105, 109)
            writer.commit()
    assert_exact(pipeline)
    tables.execute("UPDATE state SET v = 'later'; UPDATE history SET v = 'later'")
    pipeline.sync()
    assert_exact(pipeline)


def test_transactions_that_commit_out_of_the_order_of_their_ids_come_once(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    with tables.connect(autocommit=False) as early, tables.connect(autocommit=False) as late:
        write(early, 100, 101)  # takes the lower id
        write(late, 200, 201)
        late.commit()
        pipeline.sync()
        assert_exact(pipeline)
        write(early, 102, 103)
        early.commit()
    pipeline.sync()
    assert_exact(pipeline)


def test_the_last_transaction_is_not_sent_again(tables: Database, make: MakePipeline) -> None:
    """Acknowledging where a commit record begins makes Postgres send its transaction once more."""
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'last'; UPDATE history SET v = 'last'")
    assert sum(stream.changes for stream in pipeline.sync().streams) == 40
    options = f"'proto_version', '1', 'publication_names', '{pipeline.name}'"
    peeked = tables.query(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{pipeline.name}', NULL, NULL, {options})"
    )
    assert [bytes(data) for (data,) in peeked if bytes(data)[:1] in b"IUD"] == []
    assert sum(stream.changes for stream in pipeline.sync().streams) == 0
    assert_exact(pipeline)


def test_a_step_ends_where_its_last_commit_ends(database: Database, make: MakePipeline) -> None:
    """Where the commit record begins is not behind the transaction: it would belong to no step, or to two."""
    database.execute("CREATE TABLE state (id int PRIMARY KEY, v text)")
    pipeline = make(["public.state"], log={"step_bytes_max": "1MiB"})
    pipeline.sync()
    noise = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 20000))"
    for n in range(60):
        database.execute(f"INSERT INTO state VALUES ({n}, {noise})")
    pipeline.sync()
    pipeline.assert_same("public.state")
    steps = [json.loads(file.read_text()) for file in sorted((pipeline.state / "log").glob("*.json"))]
    assert len(steps) > 3, "the test needs steps that were sealed by size"
    for step, following in pairwise(steps):
        assert step["to"] == following["from"]
    for step in steps:
        begin, end = (as_number(step[name]) for name in ("from", "to"))
        for file in (file for table in step["tables"] for file in table["files"]):
            assert begin <= file["first_tx"] <= file["last_tx"] < end


def as_number(position: str) -> int:
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


def test_nothing_is_acknowledged_before_the_state_says_it_is_committed(
    tables: Database, make: MakePipeline, pause_at: PauseAt
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'new'; UPDATE history SET v = 'new'")
    pause = pause_at("cdc.all_processed=pause")
    with syncing(pipeline) as running, pause:
        pause.wait(running)  # every table is committed, the state does not say so yet
        state = json.loads((pipeline.state / "state.json").read_text())["global"]["state"]
        assert state["lsn"] != state["next_cdc_pos"]
        confirmed = tables.query(
            "SELECT confirmed_flush_lsn <= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (state["lsn"], pipeline.name),
        )
        assert confirmed == [(True,)]
    assert_exact(pipeline)


def test_a_prepared_transaction_comes_whole_when_it_is_committed(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    name = f"two_phase_{tables.name}"
    tables.execute(f"BEGIN; INSERT INTO state VALUES (100, 'p'); INSERT INTO history VALUES (100, 'p'); "
                   f"PREPARE TRANSACTION '{name}'")  # fmt: skip
    pipeline.sync()
    assert_exact(pipeline)
    tables.execute(f"COMMIT PREPARED '{name}'")
    pipeline.sync()
    assert_exact(pipeline)


# -- while a load is under way ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rewrite",
    [
        "VACUUM FULL state; VACUUM FULL history",
        pytest.param(
            "CLUSTER state USING state_pkey; CLUSTER history USING history_pkey", marks=pytest.mark.slow
        ),
        "ALTER TABLE state ALTER v TYPE varchar(2000); ALTER TABLE state ALTER id TYPE bigint",
        "TRUNCATE state, history",
    ],
)
def test_a_table_rewritten_between_chunks_is_loaded_again(
    database: Database,
    make: MakePipeline,
    pause_at: PauseAt,
    rewrite: str,
) -> None:
    """Rows move to other pages, and chunks that are read by page miss them without an error."""
    database.execute(TABLES)
    install_audit(database.url, ["public.history"])
    for table in ("state", "history"):
        database.execute(f"INSERT INTO {table} SELECT n, repeat('v', 1000) FROM generate_series(1, 1500) n")
        database.execute(f"DELETE FROM {table} WHERE id % 2 = 0")
        database.execute(f"ANALYZE {table}")
    pipeline = make(STREAMS, load={"rows_per_chunk": 40})
    # The first group of chunks has been picked up, perhaps read; the second has not.
    pause = pause_at("load.preparing=pause@2")
    with syncing(pipeline) as running, pause:
        pause.wait(running)
        for statement in rewrite.split("; "):
            database.execute(statement)
        database.execute(
            "INSERT INTO state VALUES (9000, 'after'); INSERT INTO history VALUES (9000, 'after')"
        )
    assert_exact(pipeline)
    database.execute(
        "UPDATE state SET v = 'later' WHERE id < 50; UPDATE history SET v = 'later' WHERE id < 50"
    )
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.parametrize("mode", ["cdc", pytest.param("full_refresh", marks=pytest.mark.slow)])
def test_a_table_that_is_emptied_again_and_again_is_read_in_the_end(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Each time its chunks are about to be read."""
    make_tables(database.url)
    left = 6
    reach = failpoints.reach

    def empty(name: str) -> None:
        nonlocal left
        if name == "load.preparing" and left:
            left -= 1
            database.execute("TRUNCATE state; INSERT INTO state VALUES (1, 'again')")
        reach(name)

    monkeypatch.setattr(failpoints, "reach", empty)
    pipeline = make([{"table": "public.state", "mode": mode}])
    pipeline.sync()
    assert not left
    pipeline.assert_same("public.state")
    left = 1000
    database.execute("DROP TABLE state; CREATE TABLE state (id int PRIMARY KEY, v text)")
    with pytest.raises(SourceError, match="kept changing these tables while they were read"):
        pipeline.sync()


def test_row_level_security_is_an_error_and_never_a_filter(database: Database, make: MakePipeline) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute("CREATE TABLE secrets (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO secrets SELECT n, 'v' FROM generate_series(1, 100) n")
    database.execute(
        f"ALTER TABLE secrets OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    database.execute(
        "ALTER TABLE secrets ENABLE ROW LEVEL SECURITY; ALTER TABLE secrets FORCE ROW LEVEL SECURITY"
    )
    database.execute("CREATE POLICY half ON secrets USING (id % 2 = 0)")
    pipeline = make(["public.secrets"], url=url)
    with pytest.raises(PenstockError) as caught:
        pipeline.sync()
    assert "row-level security" in str(caught.value).lower() or "row_security" in str(caught.value)
    assert caught.value.remedy
    with pytest.raises(PenstockError):
        pipeline.path("public.secrets")

    database.execute(f"ALTER ROLE {role} BYPASSRLS")
    pipeline.sync()
    pipeline.url = database.url  # the oracle must see every row
    pipeline.assert_same("public.secrets")
    pipeline.drop()
    database.execute(
        f"ALTER TABLE secrets OWNER TO postgres; REVOKE ALL ON DATABASE {database.name} FROM {role}"
    )

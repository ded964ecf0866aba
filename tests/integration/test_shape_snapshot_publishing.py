"""New tables of shapes: published by a real capture, and no snapshot before it can be complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from penstock.core.stream import StreamId
from penstock.shapes.shape import Shape, SnapshotProblem
from penstock.shapes.source.catalog import Catalog
from penstock.shapes.source.connection_pool import ConnectionPool
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.moving import MoveIns
from penstock.shapes.source.publishing import TablePublisher, wait_for_writers
from penstock.shapes.source.reconciler import SchemaReconciler, Verdict
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.always import AlwaysOn, always_spec
from tests.conftest import WAIT_S, Database, wait_until
from tests.live_lane import LiveLane, is_complete, rows_of, shapes_capture
from tests.shape_source import definition_of, snapshots

T = StreamId("public", "t")


@pytest.fixture
def connections(database: Database) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(lambda: connect(database.url), 3, WAIT_S)
    yield pool
    pool.close()


def test_those_who_write_now_are_waited_for_and_nobody_else(
    database: Database, parted: Database, connections: ConnectionPool
) -> None:
    database.execute("CREATE TABLE other (id int)")
    root = StreamId("public", "m")
    with (
        database.connect(autocommit=False) as writing,
        database.connect(autocommit=False) as reading,
        database.connect(autocommit=False) as elsewhere,
        connections.connection() as looking,
    ):
        reading.execute("SELECT count(*) FROM m")
        elsewhere.execute("INSERT INTO other VALUES (1)")
        wait_for_writers(looking, root, 0.0)
        writing.execute("INSERT INTO m1 VALUES (1000, '2026-01-05')")  # to the leaf itself
        with pytest.raises(SnapshotProblem, match="table lock"):
            wait_for_writers(looking, root, 0.1)
        writing.execute("PREPARE TRANSACTION 'held'")
        with pytest.raises(SnapshotProblem, match="table lock"):
            wait_for_writers(looking, root, 0.1)
        database.execute("COMMIT PREPARED 'held'")
        wait_for_writers(looking, root, 0.0)


def test_a_transaction_that_wrote_before_its_table_was_published_is_in_the_shape_whole(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")  # so that publishing locks nobody out
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("CREATE TABLE v (id int PRIMARY KEY)")
    database.execute("ALTER TABLE v REPLICA IDENTITY FULL")
    published = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'penstock'"

    def unheard() -> list[list[str]]:
        lanes = json.loads((tmp_path / "lanes.json").read_bytes())["lanes"]
        found: list[list[str]] = lanes["shapes"]["published"]
        return found

    with (
        shapes_capture(database, tmp_path) as always,
        LiveLane(database, tmp_path, always.capture.address) as live,
        database.connect(autocommit=False) as writing,
    ):
        live.wait_until_following()
        writing.execute("INSERT INTO t VALUES (1)")
        shape = live.create("t")
        wait_until(lambda: ("t",) in database.query(published), "the table to be published")
        writing.execute("INSERT INTO t VALUES (2)")  # the log has this one, and not the one before
        live.ready("u")  # another table does not wait
        assert shape.storage.snapshot_state == "none"
        wait_until(lambda: unheard() == [["public", "t"]], "capture to know of the other table")
        writing.commit()
        wait_until(lambda: is_complete(shape), "the snapshot to be complete")
        database.execute("INSERT INTO t VALUES (3)")
        wait_until(lambda: len(rows_of(shape)) == 3, "all rows to be there")
        wait_until(lambda: unheard() == [], "capture to know that it was heard")
        # A fresh table whose own writer makes it anew: what is there then must be published as well.
        writing.execute("INSERT INTO v VALUES (1)")
        lost = live.create("v")
        wait_until(lambda: ("v",) in database.query(published), "the table to be published")
        writing.execute("DROP TABLE v")
        writing.execute("CREATE TABLE v (id int PRIMARY KEY)")
        writing.commit()
        wait_until(lambda: lost.state == "gone", "the table to be missed")
        made_anew = live.ready("v")
        database.execute("INSERT INTO v VALUES (2)")
        wait_until(lambda: len(rows_of(made_anew)) == 1, "the row to come")
    full = "SELECT relname FROM pg_class WHERE relreplident = 'f' AND relname IN ('t', 'u') ORDER BY 1"
    assert database.query(full) == [("t",), ("u",)]


def test_a_table_that_somebody_else_owns_is_refused_with_what_to_do(
    database: Database, connections: ConnectionPool, tmp_path: Path
) -> None:
    role, url = database.create_role("LOGIN REPLICATION")
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"CREATE TABLE own (id int PRIMARY KEY); ALTER TABLE own OWNER TO {role}")
    database.execute(f"GRANT SELECT ON t TO {role}")
    own = StreamId("public", "own")
    with AlwaysOn(always_spec(database, tmp_path, lanes={"shapes": None}, url=url), "shapes") as always:
        wait_until(always.leads, "capture to lead")
        publisher = TablePublisher(always.capture, connections, lambda _started, _tables: None)
        joined = publisher.join([T, own])
        assert set(joined.refused) == {T}
        assert "ALTER PUBLICATION" in joined.refused[T].message
        publisher.ensure(own).result(WAIT_S)
        with pytest.raises(SnapshotProblem, match="ALTER PUBLICATION"):
            publisher.ensure(T).result(WAIT_S)
        publisher.close()


def test_by_hand_the_statements_are_told_and_the_rest_goes_on(
    database: Database, connections: ConnectionPool, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE TABLE ready (id int PRIMARY KEY)")
    database.execute("ALTER TABLE ready REPLICA IDENTITY FULL")
    database.execute(
        "CREATE PUBLICATION penstock FOR TABLE ready "
        "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)"
    )
    spec = always_spec(database, tmp_path, lanes={"shapes": None}, publication_mode="manual")
    with AlwaysOn(spec, "shapes") as always:
        wait_until(always.leads, "capture to lead")
        publisher = TablePublisher(always.capture, connections, lambda _started, _tables: None, manual=True)
        publisher.join([])
        publisher.ensure(StreamId("public", "ready")).result(WAIT_S)
        with pytest.raises(SnapshotProblem) as caught:
            publisher.ensure(T).result(WAIT_S)
        for statement in ("ONLY", "REPLICA IDENTITY FULL", 'ADD TABLE ONLY "public"."t"'):
            assert statement in caught.value.message
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        database.execute("ALTER PUBLICATION penstock ADD TABLE t")
        publisher.ensure(T).result(WAIT_S)
        publisher.close()


def test_tables_are_compared_in_turn_and_at_once_when_something_is_said_of_one(
    database: Database, parted: Database, connections: ConnectionPool
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    shapes = [
        Shape(str(number), definition_of(database.url, name), number, None)  # type: ignore[arg-type]
        for number, name in enumerate(("t", "m"))
    ]
    verdicts: dict[str, Verdict] = {}
    catalog = Catalog(connections.connection)
    before = catalog.card(T)

    def compared(every_s: float) -> SchemaReconciler:
        made = SchemaReconciler(
            connections,
            catalog,
            lambda: shapes,
            lambda shape, verdict: verdicts.update({str(shape.definition.table): verdict}),
            every_s,
        )
        made.start()
        return made

    seldom = compared(3600.0)
    database.execute("ALTER TABLE t ADD COLUMN b int")
    seldom.look_at(T)
    wait_until(lambda: "public.t" in verdicts, "the table to be looked at")
    assert verdicts["public.t"].kind == "refresh"
    assert verdicts["public.t"].card == catalog.card(T) != before
    for change in ("SET NOT NULL", "SET DEFAULT 'x'", "DROP NOT NULL"):
        verdicts.clear()
        database.execute(f"ALTER TABLE t ALTER COLUMN a {change}")
        seldom.look_at(T)
        wait_until(lambda: "public.t" in verdicts, "the table to be looked at")
        assert verdicts["public.t"].kind == "refresh"
    seldom.stop()
    database.execute("ALTER TABLE m DETACH PARTITION m2")
    database.execute("DROP TABLE t")
    often = compared(0.05)
    wait_until(lambda: verdicts["public.t"].kind == "rotate", "the drop to be noticed")
    wait_until(lambda: "public.m" in verdicts, "the partition to be missed")
    assert verdicts["public.m"].kind == "rotate"
    assert catalog.card(T) is None
    often.stop()


def test_a_commit_that_waits_for_its_standby_is_waited_for(tmp_path: Path) -> None:
    """By all that queries a table: what was handed out of it before a restart is in the shapes that were kept
    (the inner sets of subqueries, the rows of a shape that holds values), and nobody remembers it."""
    settings = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with (
        EmbeddedPostgres(settings=settings) as server,
        connect(server.url(), application_name="test") as looking,
        connect(server.url(), application_name="test") as writing,
        snapshots(server.url(), tmp_path, snapshot_lock_timeout="200ms") as taking,
    ):
        looking.execute("CREATE TABLE t (id int PRIMARY KEY, p int)")
        looking.execute("CREATE TABLE inside (id int PRIMARY KEY)")
        looking.execute("INSERT INTO t VALUES (1, 7)")
        own = definition_of(server.url(), "t")
        nested = definition_of(server.url(), "t", where="p IN (SELECT id FROM inside)")
        moves = MoveIns(taking.pools.queries, taking.settings, taking.earlier)
        writing.execute("SET synchronous_commit = on")

        def move_in() -> int:
            asked = moves.read(nested, sql.SQL("p = 7"), [], lambda _: None, lambda _: None)
            return asked.result(WAIT_S)

        def begin_to_write(statement: bytes) -> None:
            writing.pgconn.send_query(statement)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: looking.execute(waits).fetchone() == (1,), "the commit to wait")

        def end_waiting() -> None:
            writing.cancel()  # it is committed here
            while writing.pgconn.get_result() is not None:
                pass

        begin_to_write(b"INSERT INTO inside VALUES (7)")
        assert "table lock" in taking.problem(nested).message
        assert taking.items(own), "only those who write to what is read are waited for"
        end_waiting()
        assert [item["value"] for item in taking.items(nested)] == [{"id": "1", "p": "7"}]

        taking.earlier.start_over()
        begin_to_write(b"INSERT INTO t VALUES (2, 7)")
        assert "table lock" in taking.problem(own).message
        with pytest.raises(SnapshotProblem, match="table lock") as caught:
            move_in()
        assert caught.value.status == 503, "it is asked again"
        end_waiting()
        assert move_in() == len(taking.items(own)) == 2


def test_before_the_first_snapshot_of_a_table_those_are_waited_for_that_may_have_committed(
    database: Database, parted: Database, connections: ConnectionPool
) -> None:
    root, earlier = StreamId("public", "m"), EarlierWriters()
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with (
        database.connect(autocommit=False) as idle,
        database.connect(autocommit=False) as busy,
        database.connect(autocommit=False) as late,
        connections.connection() as looking,
    ):
        idle.execute("INSERT INTO m VALUES (1000, '2026-01-05')")  # it has not committed
        earlier.wait(looking, root, 0.2)
        earlier.start_over()
        with database.connect(autocommit=False) as holding:
            holding.execute("SELECT pg_advisory_xact_lock(8)")
            busy.execute("INSERT INTO m VALUES (1001, '2026-01-05')")
            busy.pgconn.send_query(b"SELECT pg_advisory_xact_lock(8)")  # active, as one that waits to commit
            wait_until(lambda: database.query(waiting) == [(1,)], "it to be active")
            with pytest.raises(SnapshotProblem, match="table lock"):
                earlier.wait(looking, root, 0.2)
            late.execute("INSERT INTO m VALUES (1002, '2026-01-05')")
            late.pgconn.send_query(b"SELECT pg_advisory_xact_lock(8)")  # after the first look
            wait_until(lambda: database.query(waiting) == [(2,)], "it to be active")
            with pytest.raises(SnapshotProblem, match="table lock"):
                earlier.wait(looking, root, 0.2)
            busy.cancel()
            while busy.pgconn.get_result() is not None:
                pass
            busy.rollback()
            earlier.wait(looking, root, 0.2)
            holding.rollback()
        while late.pgconn.get_result() is not None:
            pass
        late.rollback()

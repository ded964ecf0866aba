"""Connections for shapes: never more than allowed, and nobody waits for one without end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source.connection_pool import ConnectionPool
from penstock.shapes.source.pool import split
from penstock.shapes.source.query_pool import QueryPool
from penstock.sources.postgres.connection import Connection, connect
from tests.conftest import WAIT_S, Database, wait_until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def sessions(database: Database) -> int:
    found = database.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pool under test'")
    return int(found[0][0])


def open_one(database: Database) -> Connection:
    return connect(database.url, application_name="pool under test")


def test_work_is_done_by_as_many_connections_as_there_are_and_in_order(database: Database) -> None:
    pool = QueryPool(lambda: open_one(database), 3, WAIT_S, "test")
    done = [pool.submit(lambda connection: connection.info.backend_pid) for _ in range(50)]
    assert 1 <= len({outcome.result(WAIT_S) for outcome in done}) <= 3
    assert sessions(database) <= 3
    pool.close()
    wait_until(lambda: sessions(database) == 0, "all connections to be closed")


def test_work_that_finds_no_free_connection_in_time_is_refused_while_the_others_go_on(
    database: Database, gate: threading.Event
) -> None:
    pool = QueryPool(lambda: open_one(database), 2, 0.2, "test")
    busy = [pool.submit(lambda _connection: gate.wait(WAIT_S)) for _ in range(2)]
    wait_until(lambda: pool.queued == 0, "both to be at work")
    late = [pool.submit(lambda _connection: True) for _ in range(3)]
    for outcome in late:
        with pytest.raises(SnapshotProblem, match="waiting for a database connection") as caught:
            outcome.result(WAIT_S)
        assert (caught.value.status, caught.value.known) == (503, True)
    gate.set()
    assert all(outcome.result(WAIT_S) for outcome in busy)
    assert pool.submit(lambda _connection: "again").result(WAIT_S) == "again"
    pool.close()


def test_a_queue_that_moves_is_waited_in_however_long_it_is(database: Database) -> None:
    pool = QueryPool(lambda: open_one(database), 1, 4.0, "test")
    done = [pool.submit(lambda connection: connection.execute("SELECT pg_sleep(0.25)")) for _ in range(20)]
    assert all(outcome.result(WAIT_S) for outcome in done)
    pool.close()


def test_work_of_a_kind_that_waits_is_done_together_in_order_and_not_with_other_work(
    database: Database, gate: threading.Event
) -> None:
    pool = QueryPool(lambda: open_one(database), 1, WAIT_S, "test")
    groups: list[list[int]] = []

    def work(_connection: Connection, items: Sequence[int]) -> Iterator[int]:
        groups.append([*items])
        yield from (item * item for item in items)

    busy = pool.submit(lambda _connection: gate.wait(WAIT_S))
    wait_until(lambda: pool.queued == 0, "it to be at work")
    first = [pool.submit_together(work, item, "one") for item in range(40)]
    other = pool.submit_together(work, 100, "other")
    alone = pool.submit(lambda _connection: "alone")
    last = pool.submit_together(work, 101, "one")
    gate.set()
    assert busy.result(WAIT_S)
    assert [outcome.result(WAIT_S) for outcome in first] == [item * item for item in range(40)]
    assert (other.result(WAIT_S), alone.result(WAIT_S), last.result(WAIT_S)) == (100**2, "alone", 101**2)
    assert [item for group in groups for item in group] == [*range(40), 100, 101]
    assert [len(group) for group in groups] == [16, 16, 8, 1, 1]
    pool.close()


def test_of_work_that_is_done_together_an_error_is_of_one_and_the_rest_may_be_left(
    database: Database, gate: threading.Event
) -> None:
    pool = QueryPool(lambda: open_one(database), 1, WAIT_S, "test")

    def work(connection: Connection, items: Sequence[int]) -> Iterator[int]:
        for item in items:
            if item % 5 == 0:
                connection.execute("SELECT 1 / 0")
            yield item
            if item % 7 == 0:
                return

    pool.submit(lambda _connection: gate.wait(WAIT_S))
    wait_until(lambda: pool.queued == 0, "it to be at work")
    outcomes = [pool.submit_together(work, item, "one") for item in range(1, 30)]
    unwanted = pool.submit_together(work, 30, "one")
    assert unwanted.cancel()
    gate.set()
    for item, outcome in enumerate(outcomes, 1):
        if item % 5 == 0:
            assert isinstance(outcome.exception(WAIT_S), psycopg.errors.DivisionByZero)
        else:
            assert outcome.result(WAIT_S) == item
    pool.close()


def test_a_connection_is_given_back_clean_whatever_its_user_did(database: Database) -> None:
    pool = ConnectionPool(lambda: open_one(database), 1, 0.2)
    with pool.connection() as connection:
        connection.execute("BEGIN")
    with pool.connection() as again:
        assert again is connection
        assert again.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
        again.pgconn.send_query(b"SELECT pg_sleep(600)")
        with pytest.raises(SnapshotProblem), pool.connection():
            pass
    with pool.connection() as another:
        assert another is not again
    pool.close()
    with pytest.raises(SnapshotProblem), pool.connection():
        pass


def test_closing_ends_what_runs_and_refuses_what_waits(database: Database) -> None:
    pool = QueryPool(lambda: open_one(database), 1, WAIT_S, "test")
    running = pool.submit(lambda connection: connection.execute("SELECT pg_sleep(600)"))
    asleep = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND datname = %s"
    wait_until(lambda: bool(database.query(asleep, (database.name,))), "the query to run")
    waiting = pool.submit(lambda _connection: True)
    pool.close()
    assert running.exception(WAIT_S) is not None
    assert isinstance(waiting.exception(WAIT_S), SnapshotProblem)
    assert isinstance(pool.submit(lambda _connection: True).exception(WAIT_S), SnapshotProblem)
    wait_until(lambda: sessions(database) == 0, "its connection to be closed")


@given(st.integers(3, 1000))
def test_the_parts_are_never_more_than_the_whole(size: int) -> None:
    parts = split(size)
    assert parts.admin + parts.snapshots + parts.queries == size
    assert min(parts.admin, parts.snapshots, parts.queries) >= 1

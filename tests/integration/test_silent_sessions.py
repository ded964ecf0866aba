"""A session in which a thread waits while the network is silent is not closed under it: libpq would go on in
memory that is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.capture.leadership import Leadership
from penstock.capture.postgres.lock import AdvisoryLock
from penstock.capture.postgres.source import PostgresCapture
from penstock.capture.source_spec import PostgresSpec
from penstock.core.errors import PenstockError, SourceError
from penstock.sources.postgres.connection import Connection, connect, end_session
from tests.capture_specs import capture_spec
from tests.conftest import WAIT_S, Database, wait_until
from tests.silent_network import SilentNetwork

pytestmark = pytest.mark.integration

HEARTBEAT_S = 0.05


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, who was inside comes back."""
    monkeypatch.setattr("penstock.sources.postgres.connection._COMES_BACK_S", WAIT_S)


@pytest.fixture
def network(database: Database) -> Iterator[SilentNetwork]:
    with SilentNetwork(database.server.port) as network:
        yield network


class Waiting:
    """Asks in a thread of its own; `error` is what came of it."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._ask()
        except Exception as error:
            self.error = error

    def join(self) -> Exception | None:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "it still waits"
        return self.error


def watch(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that it was closed: whether somebody was inside who had not closed it."""
    found: list[bool] = []
    inside: list[int] = []
    wait, close = connection.wait, connection.close

    def waited(*given: Any, **named: Any) -> Any:
        inside.append(threading.get_ident())
        try:
            return wait(*given, **named)
        finally:
            inside.remove(threading.get_ident())

    def closed() -> None:
        found.append(bool(inside))
        close()

    monkeypatch.setattr(connection, "wait", waited)
    monkeypatch.setattr(connection, "close", closed)
    return found


def wait_for_question(connection: Connection) -> None:
    wait_until(connection.lock.locked, "a question to be under way")


def test_a_session_that_waits_for_the_server_is_ended_once_nobody_is_in_it(
    database: Database, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(network.url(database.url))
    closed = watch(connection, monkeypatch)
    network.fall_silent()
    waiting = Waiting(lambda: connection.execute("SELECT 1"))
    wait_for_question(connection)
    end_session(connection)
    assert isinstance(waiting.join(), psycopg.OperationalError)
    assert connection.closed
    assert closed == [False]


def test_one_that_is_answered_in_time_has_its_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.postgres.connection._LAST_ANSWER_S", WAIT_S)
    connection = connect(database.url)
    answers: list[object] = []
    with connect(database.url) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        waiting = Waiting(
            lambda: answers.append(connection.execute("SELECT pg_advisory_lock(7), 7").fetchone())
        )
        wait_for_question(connection)
        ending = Waiting(lambda: end_session(connection))
        holder.execute("SELECT pg_advisory_unlock(7)")
        assert ending.join() is None
    assert waiting.join() is None
    assert answers == [("", 7)]
    assert connection.closed


def test_the_lead_is_given_away_while_a_heartbeat_waits(
    database: Database, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[PenstockError] = []
    locks: list[AdvisoryLock] = []

    def opened(_: float) -> AdvisoryLock:
        locks.append(AdvisoryLock(network.url(database.url), "s", 3600.0))
        return locks[0]

    leader = Leadership(opened, told.append, HEARTBEAT_S)
    leader.acquire()
    connection = locks[0]._connection
    closed = watch(connection, monkeypatch)
    network.fall_silent()
    wait_until(lambda: leader.is_lost, "the lease to be over")
    wait_for_question(connection)
    leader.release()
    leader._thread.join(WAIT_S)
    assert not leader._thread.is_alive(), "its thread still waits"
    assert told == [], "a release is no loss"
    assert connection.closed
    assert closed == [False]


def test_capture_lets_go_of_the_source_while_a_lane_joins(
    database: Database, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = capture_spec(
        url=network.url(database.url),
        slot="s",
        publication="p",
        log_directory=tmp_path / "log",
        checkpoint_path=tmp_path / "checkpoint",
    )
    assert isinstance(spec.source, PostgresSpec)
    capture = PostgresCapture(spec.source, spec)
    capture.position_now()
    connection = capture._connection
    assert connection is not None
    closed = watch(connection, monkeypatch)
    network.fall_silent()
    joining = Waiting(capture.position_now)
    wait_for_question(connection)
    capture.close()
    assert isinstance(joining.join(), SourceError)
    assert closed == [False]
    network.restore()
    with pytest.raises(SourceError, match="term is over"):
        capture.position_now()
    assert capture._connection is connection, "it opens no other one that nobody would close"

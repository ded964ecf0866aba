"""One real Postgres for the whole test run, and a fresh database in it for each test.

Nothing of a test outlives it: its slots, database and roles are dropped at its end, whether it
passed or not. A test that needs a server with settings of its own starts its own `EmbeddedPostgres`.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import hypothesis
import psycopg
import pytest
import structlog
from psycopg import sql

from penstock.sources.postgres.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.kafka_server import KafkaServer
    from tests.mongo_server import MongoServer

# A first call may compile for seconds, and the machine may be busy: time proves nothing here.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True)
hypothesis.settings.load_profile("penstock")

# Only failures take that long: the machine may stand still for half a minute.
WAIT_S = float(os.environ.get("PENSTOCK_TEST_WAIT_S", "120"))


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition; fail with its name if it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:.0f} s for: {what}")
        time.sleep(0.02)


@dataclass
class Database:
    """A database of the shared server. `execute` runs as the superuser, each call committed."""

    name: str
    server: EmbeddedPostgres
    roles: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def connect(self, **arguments: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, **{"autocommit": True, **arguments})

    def execute(self, statement: str, parameters: tuple[Any, ...] | None = None) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode(), parameters)

    def query(self, statement: str, parameters: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(statement.encode(), parameters).fetchall()

    def create_role(self, options: str = "LOGIN") -> tuple[str, str]:
        """A role of this test's own: its name, and the URL to connect as it."""
        name, password = f"role_{secrets.token_hex(4)}", secrets.token_hex(8)
        self.execute(f"CREATE ROLE {name} {options} PASSWORD '{password}'")
        self.roles.append(name)
        return name, self.server.url(self.name, user=name, password=password)

    def drop_slot(self, name: str) -> None:
        """A server has few: in a database that lasts, what has ended leaves none."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            _drop_slots(connection, "slot_name", name)

    def drop(self) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            _drop_slots(connection, "database", self.name)
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))
            for role in self.roles:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], column: str, value: str) -> None:
    query = sql.SQL("SELECT slot_name, active_pid, temporary FROM pg_replication_slots WHERE {} = %s")

    def gone() -> bool:
        rows = connection.execute(query.format(sql.Identifier(column)), (value,)).fetchall()
        for name, pid, temporary in rows:
            if pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            elif not temporary:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        return not rows

    wait_until(gone, f"the slots of {value} to be dropped")


@pytest.fixture(autouse=True)
def heeds_interrupts() -> Iterator[None]:
    """Background jobs of a shell without job control ignore SIGINT, and hand that on to what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """What a test has set up for logs ends with it: its stderr is closed by then."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def captures_are_forked() -> Iterator[None]:
    """Of syncs in this process, for a whole run: half a CPU-second for each of them."""
    from tests.forked_capture import forked_captures

    with forked_captures():
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for the tests of a worker: each names topics and lanes of its own."""
    from tests.kafka_server import KafkaServer

    with KafkaServer(tmp_path_factory.mktemp("kafka"), secured=True) as running:
        yield running


@pytest.fixture(scope="session")
def mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """One replica set for the tests of a worker: each names a database of its own."""
    from tests.mongo_server import MongoServer

    with MongoServer(tmp_path_factory.mktemp("mongo")) as running:
        yield running


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(server) as created:
        yield created


@contextmanager
def new_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """For fixtures of several tests."""
    name = f"test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    created = Database(name, server)
    try:
        yield created
    finally:
        created.drop()


@pytest.fixture
def database_url(database: Database) -> str:
    return database.url


def with_password(url: str, password: str) -> str:
    """The same URL with another password."""
    head, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    return f"{head}://{login.partition(':')[0]}:{quote(password, safe='')}@{place}"

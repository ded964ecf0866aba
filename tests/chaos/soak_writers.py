"""2,000 row changes a second over twenty tables, by writers that outlive restarts of their server.

Six tables and their writers are those of `tests.workload`, with all that applications do to single rows. The
other fourteen are changed by sets of rows, a few statements to a transaction: inserts, updates, deletes, key
changes, keys deleted and inserted again, rollbacks, and rarely a TRUNCATE. Every change of a row gives it a
fresh version, as there. A connection that is cut is made again; whether its last transaction was committed
does not matter, since the judge asks the database.

All of them count what they commit. Those of sets keep the pace: they write whenever fewer changes are there
than 2,000 for each second so far, those included in which the server was away; so they catch up, but at no
more than `_CATCH_UP` times the pace. A statement is one round trip and changes up to 40 rows, about ten
on average, so that Python is not what bounds them.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from tests.chaos.counting_connection import CountingConnection
from tests.oracle import OPTIONS
from tests.oracle_history import install_audit
from tests.workload import APPEND as APPLICATION_APPEND
from tests.workload import UPSERT as APPLICATION_UPSERT
from tests.workload import Workload
from tests.workload_writer import Writer

_SETS = tuple(f"set_{number:02}" for number in range(14))
_SET_APPEND = _SETS[-3:]
UPSERT = (*APPLICATION_UPSERT, *(f"public.{table}" for table in _SETS[:-3]))
APPEND = (*APPLICATION_APPEND, *(f"public.{table}" for table in _SET_APPEND))

_SCHEMA = """
    CREATE TABLE {table} (id bigint PRIMARY KEY, amount numeric(14,2), note text, at timestamptz,
        share float8, body text, version bigint NOT NULL);
    ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL
"""
_FIRST_ROWS = """
    INSERT INTO {table} SELECT nextval('ids'), n, 'first ' || n, now(), n / 7.0, repeat('b', n % 90 * 30),
        nextval('versions') FROM generate_series(1, 300) n
"""
_CHOSEN = (
    "SELECT id FROM {table} WHERE id >= (SELECT (last_value * %(from)s)::bigint FROM ids) "
    "ORDER BY id LIMIT %(rows)s FOR UPDATE SKIP LOCKED"
)
_INSERT = (
    "INSERT INTO {table} SELECT nextval('ids'), %(number)s, %(text)s || n, clock_timestamp(), "
    "n / %(number)s::float8, repeat(%(text)s, n), nextval('versions') FROM generate_series(1, %(rows)s) n"
)
_UPDATE = (
    "UPDATE {table} SET amount = amount + %(number)s, note = %(text)s, version = nextval('versions') "
    f"WHERE id IN ({_CHOSEN})"
)
_CHANGE_KEY = (
    f"UPDATE {{table}} SET id = nextval('ids'), version = nextval('versions') WHERE id IN ({_CHOSEN})"
)
_DELETE = f"DELETE FROM {{table}} WHERE id IN ({_CHOSEN})"
_DELETE_AND_INSERT = f"{_DELETE} RETURNING id"
_INSERT_AGAIN = (
    "INSERT INTO {table} (id, note, version) "
    "SELECT id, 'again', nextval('versions') FROM unnest(%s::bigint[]) id"
)
_TRUNCATE = "TRUNCATE {table}"
#: Statement: how often, of a thousand. Inserts and deletes balance, so that tables stay small.
_STATEMENTS = {
    _INSERT: 350,
    _UPDATE: 350,
    _DELETE: 200,
    _CHANGE_KEY: 70,
    _DELETE_AND_INSERT: 28,
    _TRUNCATE: 2,
}
_RECONNECT_S = 0.2
_CATCH_UP = 2.0
#: A load begins anew when a table is truncated under it: that should happen, but not every second.
_APPLICATION_PAUSE_S = 0.1
_APPLICATIONS = 2
_SET_WRITERS = 2


class SoakWriters:
    """`setup`, `start`, then `stop`, which raises what went wrong in a writer.

    `changes`: row changes that were committed. `away_s`: how long none of them was `connected`.
    """

    def __init__(self, url: str, seed: int, changes_per_s: float = 2000) -> None:
        self._url = url
        self._seed = seed
        self._changes_per_s = changes_per_s
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._counting = threading.Lock()
        self._began_at = self._ended_at = 0.0
        self._alone_since = 0.0  # when the last of those that were connected had to go
        self.connected = 0
        self.changes = 0
        self.away_s = 0.0
        self.reconnects = 0

    @property
    def rate(self) -> float:
        """Changes a second while the server was there, once they have stopped."""
        return self.changes / (self._ended_at - self._began_at - self.away_s)

    def setup(self) -> None:
        Workload(self._url, self._seed).setup(1000)
        with psycopg.connect(self._url, options=OPTIONS, autocommit=True) as connection:
            connection.execute("CREATE SEQUENCE ids; CREATE SEQUENCE versions")
            for table in _SETS:
                connection.execute(_SCHEMA.format(table=table).encode())
            install_audit(self._url, [f"public.{table}" for table in _SET_APPEND])
            for table in _SETS:
                connection.execute(_FIRST_ROWS.format(table=table).encode())

    def start(self) -> None:
        self._began_at = self._alone_since = time.monotonic()
        for number in range(_APPLICATIONS):
            self._begin(self._apply, Writer(self._seed, number, append_heavy=False))
        for number in range(_SET_WRITERS):
            self._begin(self._change_sets, random.Random(f"{self._seed}/sets/{number}"))

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._ended_at = time.monotonic()
        for error in self._errors:
            raise error

    def _begin(self, write: Callable[[Any, CountingConnection], None], who: Any) -> None:
        thread = threading.Thread(target=self._write_on, args=(write, who), name=f"soak writer {who}")
        self._threads.append(thread)
        thread.start()

    def _write_on(self, write: Callable[[Any, CountingConnection], None], who: Any) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with self._connection() as connection:
                        while not self._stopping.is_set():
                            write(who, connection)
                            self._count(connection)
                except psycopg.OperationalError:  # the server is stopping, starting, or cut us off
                    self.reconnects += 1
                    self._stopping.wait(_RECONNECT_S)
        except BaseException as error:  # raised by `stop`, in the soak's own thread
            self._errors.append(error)

    @contextmanager
    def _connection(self) -> Iterator[CountingConnection]:
        with CountingConnection.connect(self._url, options=OPTIONS, autocommit=True) as connection:
            with self._counting:
                self.away_s += 0 if self.connected else time.monotonic() - self._alone_since
                self.connected += 1
            try:
                yield connection
            finally:
                with self._counting:
                    self.connected -= 1
                    self._alone_since = time.monotonic()

    def _count(self, connection: CountingConnection) -> None:
        with self._counting:
            self.changes += connection.changed
        connection.changed = 0

    def _apply(self, writer: Writer, connection: CountingConnection) -> None:
        writer.transact(connection)
        self._stopping.wait(_APPLICATION_PAUSE_S)

    def _change_sets(self, chance: random.Random, connection: CountingConnection) -> None:
        """One transaction, and a pause if there are changes enough."""
        began = time.monotonic()
        try:
            with connection.transaction() as transaction:
                for _ in range(chance.choice((1, 1, 2, 4))):
                    _change(chance, connection)
                if chance.random() < 0.1:
                    with connection.transaction() as savepoint:
                        _change(chance, connection)
                        raise psycopg.Rollback(savepoint)
                if chance.random() < 0.05:
                    raise psycopg.Rollback(transaction)
        except (errors.DeadlockDetected, errors.UniqueViolation, psycopg.Rollback):
            pass  # a rollback gets here when its connection was cut
        due = began + connection.changed * _SET_WRITERS / (self._changes_per_s * _CATCH_UP)
        due = max(due, self._began_at + (self.changes + connection.changed) / self._changes_per_s)
        self._stopping.wait(max(due - time.monotonic(), 0))


def _change(chance: random.Random, connection: CountingConnection) -> None:
    """One statement on a set of rows of one table."""
    table = chance.choice(_SETS)
    (statement,) = chance.choices(list(_STATEMENTS), list(_STATEMENTS.values()))
    parameters = {
        "from": chance.random(),
        "rows": chance.choice((1, 3, 10, 40)),
        "number": chance.randrange(1, 10**6),
        "text": chance.choice(("plain", "späť €", "tab\tquote'\\", "line\nbreak", "x" * 60)),
    }
    cursor = connection.execute(statement.format(table=table).encode(), parameters)
    if statement is _DELETE_AND_INSERT:
        keys = [key for (key,) in cursor.fetchall()]
        connection.execute(_INSERT_AGAIN.format(table=table).encode(), (keys,))

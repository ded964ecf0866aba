"""One writer of the workload: its operations, each a few statements on the tables of `tests.workload`."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import errors

Connection = psycopg.Connection[tuple[Any, ...]]
Operation = Callable[["Writer", Connection], None]

_REGIONS = ("eu", "us", "ca", "jp", "br")
_HOT_KEYS = 8  # the first ids of `orders` and `events`: every writer changes them
_KEYS_OF_A_WRITER = 1_000_000
_BODY_BYTES = 9_000  # beyond the 8 kB of a page: always out of line


class _RolledBackError(Exception):
    """Thrown by an operation to undo its transaction or savepoint on purpose."""


class Writer:
    """One application: its own random numbers, its own keys, and what it remembers of them."""

    def __init__(self, seed: int, number: int, append_heavy: bool) -> None:
        self.number = number
        self.random = random.Random(f"{seed}/{number}")
        self.committed = 0
        self.error: BaseException | None = None
        self._versions = itertools.count((number + 1) * 10**9)
        self._ids = itertools.count((number + 1) * _KEYS_OF_A_WRITER)
        operations = {**_OPERATIONS, **(_APPEND_HEAVY if append_heavy else {})}
        self._operations = list(operations)
        self._weights = list(operations.values())

    def transact(self, connection: Connection) -> None:
        """One to four operations on any tables, in one transaction that is sometimes rolled back."""
        wanted = self.random.choices(self._operations, self._weights, k=self.random.choice((1, 1, 2, 4)))
        give_up, undo_last = self.random.random() < 0.05, self.random.random() < 0.1
        try:
            with connection.transaction():
                for operation in wanted:
                    operation(self, connection)
                if undo_last:
                    self._undone(connection, wanted[-1])
                if give_up:
                    raise _RolledBackError
        except (
            _RolledBackError,
            errors.UniqueViolation,
            errors.DeadlockDetected,
            errors.SerializationFailure,
        ):
            return
        self.committed += 1

    def _undone(self, connection: Connection, operation: Operation) -> None:
        """A savepoint that is rolled back: its changes reach the log, but must reach nobody."""
        try:
            with connection.transaction():
                operation(self, connection)
                raise _RolledBackError
        except (_RolledBackError, errors.UniqueViolation):
            pass

    @property
    def version(self) -> int:
        return next(self._versions)

    @property
    def new_id(self) -> int:
        return next(self._ids)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def text(self, length: int = 12) -> str:
        alphabet = "abcdefgh äöü€\\'\"\t,{}\n"
        return "".join(self.random.choices(alphabet, k=self.random.randint(0, length)))

    def body(self) -> str:
        return f"{self.random.getrandbits(64):016x}" * (_BODY_BYTES // 16)

    def pick(self, connection: Connection, table: str, key: str = "id") -> Any:
        """A key of that table: one in five times a hot one, else any that is there (None: it is empty)."""
        hot = self.random.random() < 0.2
        order = f"ORDER BY {key}" if hot else f"WHERE {key} >= %s ORDER BY {key}"
        from_here: Any = self.new_uuid() if table == "events" else self.random.randrange(self._upper_bound())
        parameters = () if hot else (from_here,)
        limit = f"LIMIT 1 OFFSET {self.random.randrange(_HOT_KEYS) if hot else 0}"
        row = connection.execute(f"SELECT {key} FROM {table} {order} {limit}".encode(), parameters).fetchone()
        return row[0] if row else None

    def _upper_bound(self) -> int:
        return self.random.choice((1000, (self.number + 1) * _KEYS_OF_A_WRITER + 200))


# -- operations ---------------------------------------------------------------------------------------


def _insert_orders(writer: Writer, connection: Connection) -> None:
    for _ in range(writer.random.choice((1, 1, 5))):
        amount = None if writer.random.random() < 0.1 else f"{writer.random.uniform(-1e6, 1e6):.2f}"
        detail = (
            None
            if writer.random.random() < 0.3
            else f'{{"b": {writer.random.randrange(100)}, "a": [1, null]}}'
        )
        connection.execute(
            "INSERT INTO orders (id, customer, amount, note, detail, paid, version) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (writer.new_id, writer.random.randrange(500), amount, writer.text(), detail,
             writer.random.choice((True, False, None)), writer.version),
        )  # fmt: skip


def _update_order(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE orders SET amount = amount * 2 %% 1000000, note = %s, paid = NOT paid, version = %s "
        "WHERE id = %s",
        (writer.text(), writer.version, writer.pick(connection, "orders")),
    )


def _update_many_orders(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE orders SET version = %s WHERE id IN "
        "(SELECT id FROM orders WHERE customer = %s ORDER BY id LIMIT 20 FOR UPDATE)",
        (writer.version, writer.random.randrange(500)),
    )


def _delete_order(writer: Writer, connection: Connection) -> None:
    connection.execute("DELETE FROM orders WHERE id = %s", (writer.pick(connection, "orders"),))


def _change_order_key(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE orders SET id = %s, version = %s WHERE id = %s",
        (writer.new_id, writer.version, writer.pick(connection, "orders")),
    )


def _reinsert_order(writer: Writer, connection: Connection) -> None:
    """The same key deleted and inserted in one transaction."""
    key = writer.pick(connection, "orders")
    if connection.execute("DELETE FROM orders WHERE id = %s", (key,)).rowcount:
        connection.execute(
            "INSERT INTO orders (id, customer, note, version) VALUES (%s, 0, 'again', %s)",
            (key, writer.version),
        )


def _insert_document(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO documents VALUES (%s, %s, %s, %s)",
        (writer.new_id, writer.text(), writer.body(), writer.version),
    )


def _update_title(writer: Writer, connection: Connection) -> None:
    """The body, kept out of line, is left as it is: replication does not send it."""
    for _ in range(writer.random.choice((1, 1, 3))):
        connection.execute(
            "UPDATE documents SET title = %s, version = %s WHERE id = %s",
            (writer.text(), writer.version, writer.pick(connection, "documents")),
        )


def _update_body(writer: Writer, connection: Connection) -> None:
    body = writer.random.choice((writer.body(), writer.text(), None))
    connection.execute(
        "UPDATE documents SET body = %s, version = %s WHERE id = %s",
        (body, writer.version, writer.pick(connection, "documents")),
    )


def _change_document_key(writer: Writer, connection: Connection) -> None:
    """A key change that does not send the body: its value must be found under the old key."""
    connection.execute(
        "UPDATE documents SET id = %s, version = %s WHERE id = %s",
        (writer.new_id, writer.version, writer.pick(connection, "documents")),
    )


def _delete_document(writer: Writer, connection: Connection) -> None:
    connection.execute("DELETE FROM documents WHERE id = %s", (writer.pick(connection, "documents"),))


def _insert_events(writer: Writer, connection: Connection) -> None:
    for _ in range(writer.random.choice((1, 2, 6))):
        connection.execute(
            "INSERT INTO events (id, order_id, kind, payload, score, version) VALUES (%s,%s,%s,%s,%s,%s)",
            (writer.new_uuid(), writer.random.randrange(1000), writer.text(),
             f'{{"n": {writer.random.randrange(100)}}}', writer.random.lognormvariate(0, 20), writer.version),
        )  # fmt: skip


def _update_event(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE events SET kind = %s, version = %s WHERE id = %s",
        (writer.text(), writer.version, writer.pick(connection, "events")),
    )


def _change_event_key(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE events SET id = %s, version = %s WHERE id = %s",
        (writer.new_uuid(), writer.version, writer.pick(connection, "events")),
    )


def _delete_event(writer: Writer, connection: Connection) -> None:
    connection.execute("DELETE FROM events WHERE id = %s", (writer.pick(connection, "events"),))


def _insert_reading(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO readings VALUES (%s, %s, %s, %s, %s)",
        (
            writer.new_id,
            writer.random.choice(_REGIONS),
            writer.random.gauss(0, 1e5),
            "2026-02-28",
            writer.version,
        ),
    )


def _move_reading(writer: Writer, connection: Connection) -> None:
    """Into another partition, or within one: a delete and an insert in one table or two."""
    connection.execute(
        "UPDATE readings SET region = %s, version = %s WHERE id = %s",
        (writer.random.choice(_REGIONS), writer.version, writer.pick(connection, "readings")),
    )


def _update_reading(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "UPDATE readings SET value = value + 1, version = %s WHERE id = %s",
        (writer.version, writer.pick(connection, "readings")),
    )


def _delete_reading(writer: Writer, connection: Connection) -> None:
    connection.execute("DELETE FROM readings WHERE id = %s", (writer.pick(connection, "readings"),))


def _write_scratch(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO scratch VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE "
        "SET word = excluded.word, version = excluded.version",
        (writer.random.randrange(50), writer.text(), writer.version),
    )


def _write_signal(writer: Writer, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO signals VALUES (%(id)s, %(level)s, %(body)s, %(version)s) ON CONFLICT (id) DO UPDATE "
        "SET level = excluded.level, version = excluded.version",
        {
            "id": writer.random.randrange(40),
            "level": writer.random.randrange(-100, 100),
            "body": writer.body() if writer.random.random() < 0.3 else writer.text(),
            "version": writer.version,
        },
    )


def _truncate(writer: Writer, connection: Connection) -> None:
    for table in writer.random.choice((["scratch"], ["signals"], ["scratch", "signals"])):
        connection.execute(f"TRUNCATE {table}".encode())
        (_write_scratch if table == "scratch" else _write_signal)(writer, connection)


_OPERATIONS: dict[Operation, float] = {
    _insert_orders: 6,
    _update_order: 8,
    _update_many_orders: 1,
    _delete_order: 2,
    _change_order_key: 2,
    _reinsert_order: 2,
    _insert_document: 2,
    _update_title: 4,
    _update_body: 2,
    _change_document_key: 2,
    _delete_document: 1,
    _insert_events: 4,
    _update_event: 2,
    _change_event_key: 1,
    _delete_event: 1,
    _insert_reading: 3,
    _move_reading: 3,
    _update_reading: 2,
    _delete_reading: 1,
    _write_scratch: 3,
    _write_signal: 3,
    _truncate: 0.3,
}
_APPEND_HEAVY: dict[Operation, float] = {
    _insert_events: 30,
    _update_event: 15,
    _change_event_key: 6,
    _delete_event: 6,
    _write_signal: 15,
}

"""Writers that do to a MySQL server what `tests.workload` has them do to Postgres.

Inserts, updates, deletes, key changes, delete and re-insertion of a key, transactions over several tables,
rollbacks, savepoints rolled back, and TRUNCATE, which commits by itself there. Every row they write carries a
fresh `version`, so that no two changes of a row look alike. A transaction says who it is by `@tx`, for the
audit.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pymysql

from tests.mysql_server import MysqlServer
from tests.oracle_mysql import install_audit
from tests.writers import Writers

UPSERT = ("shop.orders", "shop.documents", "shop.readings", "shop.scratch")
APPEND = ("shop.events", "shop.signals")
SCHEMA = (
    "DROP DATABASE IF EXISTS shop",
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.orders (id BIGINT UNSIGNED PRIMARY KEY, customer INT NOT NULL, amount DECIMAL(12,2), "
    "note VARCHAR(60), placed_at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), paid TINYINT, raw VARBINARY(20), "
    "version BIGINT NOT NULL)",
    "CREATE TABLE shop.documents (id INT PRIMARY KEY, title VARCHAR(60), body MEDIUMTEXT, "
    "version BIGINT NOT NULL)",
    "CREATE TABLE shop.readings (word VARCHAR(20) COLLATE utf8mb4_bin, part INT, value DOUBLE, day DATE, "
    "version BIGINT NOT NULL, PRIMARY KEY (word, part))",
    "CREATE TABLE shop.scratch (id INT PRIMARY KEY, word VARCHAR(60), version BIGINT NOT NULL)",
    "CREATE TABLE shop.events (id VARCHAR(36) PRIMARY KEY, order_id BIGINT, kind VARCHAR(60), "
    "score DECIMAL(9,3), version BIGINT NOT NULL)",
    "CREATE TABLE shop.signals (id INT PRIMARY KEY, level SMALLINT, body TEXT, version BIGINT NOT NULL)",
)
_HOT_KEYS = 8
_KEYS_OF_A_WRITER = 1_000_000
_BODY_BYTES = 9_000
#: A row that changed since the transaction began (MariaDB), a key that is there already, a lock that took too
#: long, a deadlock: the transaction is given up.
_GIVEN_UP = (1020, 1062, 1205, 1213)
Cursor = Any
Operation = Callable[["MysqlWriter", Cursor], None]


class MysqlWriter:
    def __init__(self, seed: int, number: int) -> None:
        self.number = number
        self.random = random.Random(f"{seed}/{number}")
        self.committed = 0
        self.error: BaseException | None = None
        self._transactions = itertools.count(1)
        self._versions = itertools.count((number + 1) * 10**9)
        self._ids = itertools.count((number + 1) * _KEYS_OF_A_WRITER)

    def transact(self, cursor: Cursor) -> None:
        """One to four operations in one transaction that is sometimes rolled back; seldom a TRUNCATE."""
        if self.random.random() < 0.01:
            cursor.execute("TRUNCATE TABLE shop.scratch")
        wanted = self.random.choices(
            list(_OPERATIONS), list(_OPERATIONS.values()), k=self.random.choice((1, 1, 2, 4))
        )
        cursor.execute(f"SET @tx = '{self.number}-{next(self._transactions)}'")
        cursor.execute("BEGIN")
        try:
            for operation in wanted:
                operation(self, cursor)
            if self.random.random() < 0.1:
                cursor.execute("SAVEPOINT undone")
                wanted[-1](self, cursor)
                cursor.execute("ROLLBACK TO SAVEPOINT undone")
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _GIVEN_UP:
                raise
            cursor.execute("ROLLBACK")
            return
        if self.random.random() < 0.05:
            cursor.execute("ROLLBACK")
            return
        cursor.execute("COMMIT")
        self.committed += 1

    @property
    def version(self) -> int:
        return next(self._versions)

    @property
    def new_id(self) -> int:
        return next(self._ids)

    def text(self, length: int = 12) -> str:
        return "".join(self.random.choices("abcdefgh äöü€\\'\"\t,{}\n", k=self.random.randint(0, length)))

    def body(self) -> str:
        return f"{self.random.getrandbits(64):016x}" * (_BODY_BYTES // 16)

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def pick(self, cursor: Cursor, table: str) -> Any:
        """A key of that table: one in five times a hot one, else any that is there (-1: it is empty)."""
        if self.random.random() < 0.2:
            cursor.execute(f"SELECT id FROM {table} ORDER BY id LIMIT {self.random.randrange(_HOT_KEYS)}, 1")
        else:
            least = self.new_uuid() if table == "shop.events" else self.random.randrange(self._upper_bound())
            cursor.execute(f"SELECT id FROM {table} WHERE id >= %s ORDER BY id LIMIT 1", (least,))
        found = cursor.fetchone()
        return found[0] if found else "-1"

    def _upper_bound(self) -> int:
        return self.random.choice((1000, (self.number + 1) * _KEYS_OF_A_WRITER + 200))


def _insert_orders(writer: MysqlWriter, cursor: Cursor) -> None:
    for _ in range(writer.random.choice((1, 1, 5))):
        amount = None if writer.random.random() < 0.1 else f"{writer.random.uniform(-1e6, 1e6):.2f}"
        cursor.execute(
            "INSERT INTO shop.orders (id, customer, amount, note, paid, raw, version) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (writer.new_id, writer.random.randrange(500), amount, writer.text(),
             writer.random.choice((0, 1, None)), writer.random.randbytes(5), writer.version),
        )  # fmt: skip


def _update_order(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.orders SET amount = amount + 1, note = %s, version = %s WHERE id = %s",
        (writer.text(), writer.version, writer.pick(cursor, "shop.orders")),
    )


def _delete_order(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute("DELETE FROM shop.orders WHERE id = %s", (writer.pick(cursor, "shop.orders"),))


def _change_order_key(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.orders SET id = %s, version = %s WHERE id = %s",
        (writer.new_id, writer.version, writer.pick(cursor, "shop.orders")),
    )


def _reinsert_order(writer: MysqlWriter, cursor: Cursor) -> None:
    key = writer.pick(cursor, "shop.orders")
    if cursor.execute("DELETE FROM shop.orders WHERE id = %s", (key,)):
        cursor.execute(
            "INSERT INTO shop.orders (id, customer, version) VALUES (%s, 0, %s)", (key, writer.version)
        )


def _insert_document(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "INSERT INTO shop.documents VALUES (%s, %s, %s, %s)",
        (writer.new_id, writer.text(), writer.body(), writer.version),
    )


def _update_title(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.documents SET title = %s, version = %s WHERE id = %s",
        (writer.text(), writer.version, writer.pick(cursor, "shop.documents")),
    )


def _change_document_key(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.documents SET id = %s, version = %s WHERE id = %s",
        (writer.new_id, writer.version, writer.pick(cursor, "shop.documents")),
    )


def _write_reading(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "INSERT INTO shop.readings VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
        "value = VALUES(value), version = VALUES(version)",
        (f"wörd {writer.random.randrange(300)}", writer.random.randrange(4), writer.random.uniform(-9, 9),
         f"2026-0{writer.random.randrange(1, 9)}-11", writer.version),
    )  # fmt: skip


def _delete_readings(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute("DELETE FROM shop.readings WHERE word = %s", (f"wörd {writer.random.randrange(300)}",))


def _write_scratch(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "REPLACE INTO shop.scratch VALUES (%s, %s, %s)",
        (writer.random.randrange(50), writer.text(), writer.version),
    )


def _insert_events(writer: MysqlWriter, cursor: Cursor) -> None:
    for _ in range(writer.random.choice((1, 3))):
        cursor.execute(
            "INSERT INTO shop.events VALUES (%s, %s, %s, %s, %s)",
            (writer.new_uuid(), writer.random.randrange(9), writer.text(),
             f"{writer.random.uniform(-9, 9):.3f}", writer.version),
        )  # fmt: skip


def _update_event(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.events SET score = score + 1, version = %s WHERE id = %s",
        (writer.version, writer.pick(cursor, "shop.events")),
    )


def _change_event_key(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "UPDATE shop.events SET id = %s, version = %s WHERE id = %s",
        (writer.new_uuid(), writer.version, writer.pick(cursor, "shop.events")),
    )


def _delete_event(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute("DELETE FROM shop.events WHERE id = %s", (writer.pick(cursor, "shop.events"),))


def _write_signal(writer: MysqlWriter, cursor: Cursor) -> None:
    cursor.execute(
        "INSERT INTO shop.signals VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE level = VALUES(level), "
        "version = VALUES(version)",
        (writer.random.randrange(40), writer.random.randrange(-100, 100), writer.text(), writer.version),
    )


_OPERATIONS: dict[Operation, float] = {
    _insert_orders: 6,
    _update_order: 8,
    _delete_order: 2,
    _change_order_key: 2,
    _reinsert_order: 2,
    _insert_document: 2,
    _update_title: 4,
    _change_document_key: 2,
    _write_reading: 5,
    _delete_readings: 1,
    _write_scratch: 3,
    _insert_events: 4,
    _update_event: 2,
    _change_event_key: 1,
    _delete_event: 1,
    _write_signal: 3,
}


class MysqlWorkload(Writers):
    """Writers on one server."""

    def __init__(self, server: MysqlServer, seed: int, *, pause_s: float = 0.01) -> None:
        super().__init__(pause_s)
        self.server = server
        self._writers = [MysqlWriter(seed, number) for number in range(2)]
        print(f"workload seed {seed}")

    def setup(self, rows: int) -> Self:
        self.server.execute(*SCHEMA)
        install_audit(self.server, APPEND)
        chance = random.Random(rows)
        with self.server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET @tx = 'loaded'")
            cursor.executemany(
                "INSERT INTO orders (id, customer, amount, note, version) VALUES (%s, %s, %s, %s, %s)",
                [(n, n % 500, f"{n}.37", f"order {n}", n) for n in range(rows)],
            )
            cursor.executemany(
                "INSERT INTO documents VALUES (%s, %s, %s, %s)",
                [(n, f"title {n}", f"{n:016x}" * 600, n) for n in range(rows // 20)],
            )
            cursor.executemany(
                "INSERT INTO readings VALUES (%s, %s, %s, '2026-01-01', %s)",
                [(f"wörd {n // 4}", n % 4, n / 7, n) for n in range(rows)],
            )
            cursor.executemany(
                "INSERT INTO events VALUES (%s, %s, 'loaded', '1.125', %s)",
                [(str(uuid.UUID(int=chance.getrandbits(128))), n, n) for n in range(rows)],
            )
            for table in ("scratch (id, word, version)", "signals (id, body, version)"):
                cursor.executemany(
                    f"INSERT INTO {table} VALUES (%s, %s, %s)", [(n, f"{n}", n) for n in range(20)]
                )
        return self

    def start(self) -> Self:
        return self.begin(len(self._writers))

    @property
    def writers(self) -> list[MysqlWriter]:
        return self._writers

    @contextmanager
    def connected(self) -> Iterator[Cursor]:
        with self.server.connect("shop") as connection, connection.cursor() as cursor:
            yield cursor

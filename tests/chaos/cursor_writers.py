"""Writers of tables that are read on by cursors, at a source of any kind.

`ticks` has a time as a cursor and a number for rows without one. Two writers change rows of their own, and
their transactions overlap, so that rows commit after others with greater values: that is what the lookback is
for. `parts` is written by one of them alone, in the order of its cursor, and read on without a lookback: what
a round loses of it no later one finds.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import psycopg
import pymysql
from pymongo.client_session import ClientSession

from tests.mongo_server import MongoServer
from tests.writers import Writers

WRITERS = 2
FIRST_ROWS = 900
COLUMNS = {"ticks": ("id", "changed", "turn", "v"), "parts": ("id", "turn", "v")}
_PAUSE_S = 0.03
Values = Sequence[Any]


class Session(ABC):
    """Writes rows, in one transaction each time."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Values]) -> None: ...

    @abstractmethod
    def update(self, table: str, row: Values) -> None: ...


@dataclass
class SqlSession(Session):
    """`begun` is a transaction of the driver's connection, with its cursor."""

    begun: Callable[[], AbstractContextManager[Any]]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.begun() as self._cursor:
            yield

    def insert(self, table: str, rows: Sequence[Values]) -> None:
        places = ", ".join(["%s"] * len(COLUMNS[table]))
        self._cursor.executemany(f"INSERT INTO {table} VALUES ({places})", [tuple(row) for row in rows])

    def update(self, table: str, row: Values) -> None:
        values = ", ".join(f"{name} = %s" for name in COLUMNS[table][1:])
        self._cursor.execute(f"UPDATE {table} SET {values} WHERE id = %s", (*row[1:], row[0]))


@contextmanager
def of_postgres(url: str) -> Iterator[Session]:
    with psycopg.connect(url, autocommit=True) as connection:

        @contextmanager
        def begun() -> Iterator[Any]:
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor

        yield SqlSession(begun)


@contextmanager
def of_mysql(connect: Callable[[], pymysql.Connection[Any]]) -> Iterator[Session]:
    with connect() as connection:

        @contextmanager
        def begun() -> Iterator[Any]:
            connection.begin()
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()

        yield SqlSession(begun)


@dataclass
class DocumentSession(Session):
    """Fields are named as columns are, but for `_id`."""

    session: ClientSession
    database: str

    def transaction(self) -> AbstractContextManager[object]:
        return self.session.start_transaction()

    def insert(self, table: str, rows: Sequence[Values]) -> None:
        found = [{"_id": key, **self._fields(table, values)} for key, *values in rows]
        self._collection(table).insert_many(found, session=self.session)

    def update(self, table: str, row: Values) -> None:
        changed = {"$set": self._fields(table, row[1:])}
        self._collection(table).update_one({"_id": row[0]}, changed, session=self.session)

    def _fields(self, table: str, values: Values) -> dict[str, Any]:
        return dict(zip(COLUMNS[table][1:], values, strict=True))

    def _collection(self, table: str) -> Any:
        return self.session.client[self.database][table]


@contextmanager
def of_mongodb(mongo: MongoServer, database: str) -> Iterator[Session]:
    with mongo.connect() as client, client.start_session() as session:
        yield DocumentSession(session, database)


@dataclass
class CursorWriter:
    number: int
    random: random.Random
    turns: Iterator[int]  # of all writers
    committed: int = 0
    error: BaseException | None = None
    _ticks: list[int] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)

    @property
    def has_parts(self) -> bool:
        return self.number == 0

    def transact(self, connection: Session) -> None:
        changes = [self._new_tick, self._later_tick, self._later_tick]
        if self.has_parts:
            changes += [self._new_parts, self._later_part]
        with connection.transaction():
            for _ in range(self.random.randint(1, 4)):
                self.random.choice(changes)(connection)
                time.sleep(self.random.random() * _PAUSE_S)
        self.committed += 1

    def set_up(self, connection: Session) -> None:
        ticks = [self._tick(number, "first") for number in range(self.number, FIRST_ROWS, WRITERS)]
        self._ticks = [row[0] for row in ticks]
        with connection.transaction():
            connection.insert("ticks", ticks)
            if self.has_parts:
                connection.insert("parts", [self._part() for _ in range(FIRST_ROWS)])

    def _new_tick(self, connection: Session) -> None:
        self._ticks.append(self._ticks[-1] + WRITERS)
        connection.insert("ticks", [self._tick(self._ticks[-1], "x" * 3000)])

    def _later_tick(self, connection: Session) -> None:
        connection.update("ticks", self._tick(self.random.choice(self._ticks), self._word()))

    def _new_parts(self, connection: Session) -> None:
        connection.insert("parts", [self._part() for _ in range(3)])

    def _later_part(self, connection: Session) -> None:
        connection.update("parts", (self.random.choice(self._parts), next(self.turns), self._word()))

    def _tick(self, number: int, word: str) -> Values:
        return number, datetime.now(UTC) if number % 3 else None, next(self.turns), word

    def _part(self) -> Values:
        self._parts.append(str(uuid.UUID(int=self.random.getrandbits(128), version=4)))
        return self._parts[-1], next(self.turns), "new"

    def _word(self) -> str:
        return f"{self.random.getrandbits(64):016x}"


class CursorWriters(Writers):
    def __init__(self, connect: Callable[[], AbstractContextManager[Session]], seed: int) -> None:
        super().__init__(pause_s=0.0)
        self._connect = connect
        turns = itertools.count(1)
        self._writers = [
            CursorWriter(number, random.Random(f"{seed}/{number}"), turns) for number in range(WRITERS)
        ]

    @property
    def writers(self) -> list[CursorWriter]:
        return self._writers

    def connected(self) -> AbstractContextManager[Session]:
        return self._connect()

    def set_up(self) -> Self:
        with self.connected() as session:
            for writer in self._writers:
                writer.set_up(session)
        return self

    def start(self) -> Self:
        return self.begin(WRITERS)

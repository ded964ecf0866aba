"""Shapes with generated conditions against the source's own answers, while processes are killed.

Clients follow each shape by long polls or server-sent events; their connections break now and then. After
every batch of transactions, each client must have exactly the rows that the same condition selects at the
source; nothing may be told twice or of a row that is not there; and nobody may have to begin anew.

How much of it: see `SIZES`, by `PENSTOCK_CHAOS` as for the rest of chaos; or

    PENSTOCK_ORACLE_SEED      what is generated (printed)
    PENSTOCK_ORACLE_SHAPES    how many shapes
    PENSTOCK_ORACLE_BATCHES   how many batches of transactions
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.matrix import LEVEL
from tests.conftest import Database, new_database, wait_until
from tests.event_client import Row
from tests.event_follower import EventFollower
from tests.serving import ShapeServer

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

#: Shapes and batches.
SIZES = {"short": (12, 4), "once": (40, 12), "full": (100, 24)}
SEED = int(os.environ.get("PENSTOCK_ORACLE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
SHAPES = int(os.environ.get("PENSTOCK_ORACLE_SHAPES", "0")) or SIZES[LEVEL][0]
BATCHES = int(os.environ.get("PENSTOCK_ORACLE_BATCHES", "0")) or SIZES[LEVEL][1]
KILL_EVERY = 2  # batches
CUT = 0.2  # of the clients, in each batch
WRITERS = 3
WAIT_S = 120.0
LEVELS = 4
IDS = 12

SCHEMA = """
CREATE TABLE level_1 (id int PRIMARY KEY, active boolean NOT NULL, name text);
CREATE TABLE level_2 (id int PRIMARY KEY, parent int, active boolean NOT NULL, name text);
CREATE TABLE level_3 (id int PRIMARY KEY, parent int, active boolean NOT NULL, name text);
CREATE TABLE level_4 (id int PRIMARY KEY, parent int, other int, amount int, name text);
"""
COLUMNS = {
    "level_1": ["id", "active", "name"],
    "level_2": ["id", "parent", "active", "name"],
    "level_3": ["id", "parent", "active", "name"],
    "level_4": ["id", "parent", "other", "amount", "name"],
}


class Conditions:
    """Random ones, on any of the tables."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def any(self) -> tuple[str, str]:
        level = self._chance.choice([2, 3, 3, 4, 4, 4])
        return f"level_{level}", self._of(level, self._chance.randint(1, 3))

    def _of(self, level: int, depth: int) -> str:
        chance = self._chance
        kind = chance.random()
        if kind < 0.35:
            return f"{self._part(level, depth)} AND {self._part(level, depth)}"
        if kind < 0.7:
            return f"({self._part(level, depth)} OR {self._part(level, depth)})"
        if kind < 0.8:
            return f"NOT ({self._part(level, depth)})"
        return self._subquery(level, depth) if level > 1 and depth else self._plain(level)

    def _part(self, level: int, depth: int) -> str:
        if level > 1 and depth and self._chance.random() < 0.6:
            return self._subquery(level, depth)
        return self._plain(level)

    def _subquery(self, level: int, depth: int) -> str:
        chance = self._chance
        negated = "NOT " if chance.random() < 0.25 else ""
        if level < 4 and chance.random() < 0.2:  # whose rows may have a null there
            return f"id {negated}IN (SELECT parent FROM level_{level + 1} WHERE {self._plain(level + 1)})"
        column = chance.choice(["parent", "other"]) if level == 4 else "parent"
        where = self._of(level - 1, depth - 1) if depth > 1 else self._plain(level - 1)
        if level == 4 and chance.random() < 0.1:
            return f"(parent, other) {negated}IN (SELECT id, id FROM level_3 WHERE {where})"
        return f"{column} {negated}IN (SELECT id FROM level_{level - 1} WHERE {where})"

    def _plain(self, level: int) -> str:
        chance = self._chance
        n = chance.randint(1, IDS)
        some = [
            f"name = 'n{n % 4}'",
            f"name LIKE 'n{n % 4}%'",
            f"name IN ('n1', 'n{n % 4}')",
            f"id BETWEEN {n} AND {n + 6}",
            f"id <> {n}",
            "name IS NOT NULL",
        ]
        some += (
            ["active", "NOT active", "active = true"] if level < 4 else [f"amount > {n}", "amount IS NULL"]
        )
        return chance.choice(some)


class Writes:
    """Transactions on all levels, several at once."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self._database = database
        self._chance = chance

    def batch(self, count: int) -> None:
        seeds = [self._chance.randrange(1 << 30) for _ in range(count)]
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._transaction, seeds))

    def _transaction(self, seed: int) -> None:
        chance = random.Random(seed)
        with self._database.connect(autocommit=False) as connection:
            try:
                for _ in range(chance.randint(1, 5)):
                    connection.execute(self._statement(chance).encode())
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                connection.rollback()

    def _statement(self, chance: random.Random) -> str:
        level = chance.choice([1, 2, 3, 4, 4])
        table, row_id = f"level_{level}", chance.randint(1, IDS * level)
        columns = COLUMNS[table][1:]
        kind = chance.random()
        if kind < 0.4:
            values = ", ".join(self._value(column, chance) for column in columns)
            return f"INSERT INTO {table} VALUES ({row_id}, {values})"
        if kind < 0.75:
            column = chance.choice(columns)
            return f"UPDATE {table} SET {column} = {self._value(column, chance)} WHERE id = {row_id}"
        if kind < 0.8:
            column = chance.choice(columns)
            return f"UPDATE {table} SET {column} = {self._value(column, chance)} WHERE id % 3 = {row_id % 3}"
        if kind < 0.85:
            return f"UPDATE {table} SET id = {chance.randint(100, 200)} WHERE id = {row_id}"
        return f"DELETE FROM {table} WHERE id = {row_id}"

    @staticmethod
    def _value(column: str, chance: random.Random) -> str:
        if column == "active":
            return chance.choice(["true", "false"])
        if chance.random() < 0.1:
            return "NULL"
        if column == "name":
            return f"'n{chance.randint(0, 3)}'"
        return str(chance.randint(1, IDS))


def selected(database: Database, table: str, where: str) -> dict[str, Row]:
    texts = ", ".join(f"{column}::text" for column in COLUMNS[table])
    found = database.query(f"SELECT {texts} FROM {table} WHERE {where}")
    return {f'"public"."{table}"/"{row[0]}"': dict(zip(COLUMNS[table], row, strict=True)) for row in found}


def as_printed(rows: dict[str, Row]) -> dict[str, Row]:
    """The log says t and f, where a first answer says true and false."""
    words = {"t": "true", "f": "false"}
    return {
        key: {
            name: words.get(value or "", value) if name == "active" else value for name, value in row.items()
        }
        for key, row in rows.items()
    }


class Followers:
    """Clients of shapes with random conditions, each in a thread of its own."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port = port
        self._chance = chance
        self._conditions = Conditions(chance)
        self._begun: list[EventFollower] = []
        self.all: list[tuple[str, str, EventFollower]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._begun:
            follower.stop()
        for follower in self._begun:
            follower.join()

    def start(self, count: int) -> None:
        """All at once, and others for those whose conditions are refused."""
        while len(self.all) < count:
            begun = [self._start() for _ in range(count - len(self.all))]
            for table, where, follower in begun:
                wait_until(partial(_has_answer, follower), f"a first answer for {where}", WAIT_S)
                if follower.refused is None:
                    self.all.append((table, where, follower))
                else:
                    assert "polarity" in follower.refused, (where, follower.refused)

    def _start(self) -> tuple[str, str, EventFollower]:
        table, where = self._conditions.any()
        sse = self._chance.random() < 0.5
        follower = EventFollower(self._port, {"table": table, "where": where}, sse=sse)
        self._begun.append(follower)
        follower.start()
        return table, where, follower

    def cut_some(self) -> None:
        for _, _, follower in self.all:
            if self._chance.random() < CUT:
                follower.cut()


def _has_answer(follower: EventFollower) -> bool:
    return follower.is_up_to_date or follower.refused is not None or follower.problem is not None


def test_each_client_has_what_its_condition_selects_whatever_is_killed(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    print(f"seed {SEED}, {SHAPES} shapes, {BATCHES} batches")
    chance = random.Random(SEED)
    with new_database(server) as database, ShapeServer(database.url, tmp_path / "s") as shapes:
        database.execute(SCHEMA)
        writes = Writes(database, chance)
        writes.batch(60)
        shapes.wait_until_active()
        with Followers(shapes.port, chance) as followers:
            followers.start(SHAPES)
            for batch in range(BATCHES):
                if batch % KILL_EVERY == KILL_EVERY - 1:
                    writes.batch(chance.randint(1, 8))
                    shapes.kill_and_await("shapes" if batch // KILL_EVERY % 2 == 0 else "capture")
                followers.cut_some()
                writes.batch(chance.randint(5, 30))
                for table, where, follower in followers.all:
                    _wait_until_same(database, table, where, follower)
            refetches = sum(follower.refetches for _, _, follower in followers.all)
            print(f"must-refetch: {refetches}")
            assert refetches == 0
            assert shapes.failures() == []


def _wait_until_same(database: Database, table: str, where: str, follower: EventFollower) -> None:
    expected = selected(database, table, where)

    def is_same() -> bool:
        if follower.problem is not None:
            raise AssertionError(f"{table} WHERE {where}") from follower.problem
        return as_printed(follower.rows) == expected

    try:
        wait_until(is_same, f"{table} WHERE {where}", WAIT_S)
    except BaseException:
        got = as_printed(follower.rows)
        print("missing", {key: row for key, row in expected.items() if got.get(key) != row})
        print("too many", {key: row for key, row in got.items() if expected.get(key) != row})
        raise

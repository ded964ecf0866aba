"""kill -9 between all steps of incremental streams, with writers that never stop: every row ends right.

Rows change under two kinds of cursor, a time with a second cursor for its nulls and a sequence;
transactions overlap, so that rows commit after others with greater values. As in `test_kill`, a sync in a
process of its own is killed at the named place, the writers go on, the next sync recovers; then they rest,
a sync catches up, and the oracle compares every value. How much is struck, and beside which writers, is in
`matrix`, as there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.chain import Chain
from tests.chaos.databases import new_database
from tests.chaos.killing import skip_if_nothing_was_struck, struck_nothing
from tests.chaos.matrix import LOADED_BY, LOADING_TO_READ_ON, ONCE, READING_ON, SEED
from tests.conftest import wait_until
from tests.pipelines import DESTINATIONS, PipelineUnderTest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

STREAMS = ["public.ticks", "public.parts"]

_TABLES = """
    CREATE SEQUENCE turns;
    CREATE TABLE ticks (id bigint PRIMARY KEY, changed timestamptz, turn bigint NOT NULL, v text);
    CREATE TABLE parts (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), turn bigint NOT NULL, v text);
    CREATE INDEX ON ticks (changed); CREATE INDEX ON ticks (turn); CREATE INDEX ON parts (turn);
    INSERT INTO ticks SELECT i, CASE WHEN i % 3 > 0 THEN clock_timestamp() END, nextval('turns'), 'first'
        FROM generate_series(1, 900) i;
    INSERT INTO parts (turn, v) SELECT nextval('turns'), 'first' FROM generate_series(1, 900) i
"""
_CHANGES = [
    "UPDATE ticks SET changed = clock_timestamp(), turn = nextval('turns'), v = md5(random()::text) "
    "WHERE id = %(id)s AND changed IS NOT NULL",
    "UPDATE ticks SET turn = nextval('turns'), v = md5(random()::text) WHERE id = %(id)s AND changed IS NULL",
    "INSERT INTO ticks SELECT %(new)s, CASE WHEN random() < 0.5 THEN clock_timestamp() END, nextval('turns')"
    ", repeat('x', 3000) ON CONFLICT DO NOTHING",
    "INSERT INTO parts (turn, v) SELECT nextval('turns'), 'new' FROM generate_series(1, 3)",
    "UPDATE parts SET turn = nextval('turns'), v = md5(random()::text) WHERE id = "
    "(SELECT id FROM parts OFFSET %(id)s %% 900 LIMIT 1 FOR UPDATE SKIP LOCKED)",
]


@dataclass
class Writers:
    """Two sessions whose transactions overlap: the later one often commits first."""

    url: str
    transactions: int = 0
    _goes: threading.Event = field(default_factory=threading.Event)
    _ends: threading.Event = field(default_factory=threading.Event)
    _resting: list[bool] = field(default_factory=lambda: [False, False])

    def run(self, number: int) -> None:
        chance = random.Random(SEED * 10 + number)
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self._ends.is_set():
                self._resting[number] = not self._goes.is_set()
                if self._resting[number] or not self._goes.is_set():  # asked to rest in between
                    self._goes.wait(0.05)
                    continue
                with connection.transaction():
                    for _ in range(chance.randint(1, 4)):
                        # Each session has its own rows of `ticks`: they never wait for each other.
                        row = 2 * chance.randrange(450) + 1 + number
                        new = 2 * chance.randrange(500, 100_000) + number
                        connection.execute(chance.choice(_CHANGES).encode(), {"id": row, "new": new})
                        self._ends.wait(chance.random() * 0.03)
                self.transactions += 1

    def start(self) -> None:
        self._goes.set()

    def rest(self) -> None:
        self._goes.clear()
        wait_until(lambda: all(self._resting), "the writers to rest")

    def end(self) -> None:
        self._ends.set()

    def wait_for_writes(self) -> None:
        enough = self.transactions + 20
        wait_until(lambda: self.transactions > enough, "the writers to go on")


@pytest.fixture(scope="module")
def writers(server: EmbeddedPostgres) -> Iterator[Writers]:
    with new_database(server) as database:
        database.execute(_TABLES)
        writers = Writers(database.url)
        threads = [threading.Thread(target=writers.run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        writers.start()
        yield writers
        writers.end()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def all_reading_on(
    writers: Writers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain[PipelineUnderTest]]:
    with Chain(lambda name: _caught_up(writers, tmp_path_factory.mktemp("reading_on"), name)) as chain:
        yield chain


@pytest.fixture
def reading_on(request: pytest.FixtureRequest, all_reading_on: Chain[PipelineUnderTest]) -> PipelineUnderTest:
    """A pipeline that has loaded its tables."""
    return all_reading_on.of(request.param)


@contextmanager
def _caught_up(writers: Writers, directory: Path, destination: str) -> Iterator[PipelineUnderTest]:
    pipeline = _pipeline(writers, directory, destination)
    pipeline.sync()
    _compare(writers, pipeline)
    yield pipeline


def _pipeline(writers: Writers, directory: Path, destination: str) -> PipelineUnderTest:
    ticks = {"table": "public.ticks", "mode": "incremental", "cursor": "changed:turn"}
    parts = {"table": "public.parts", "mode": "incremental", "cursor": "turn", "lookback": 500}
    settings: dict[str, Any] = {
        "load": {"rows_per_chunk": 300, **LOADED_BY[destination]},
        "readers": {"grace": "5s"},
        "destination": DESTINATIONS[destination],
    }
    return PipelineUnderTest(directory, writers.url, [ticks, parts], settings)


@pytest.mark.parametrize(("reading_on", "rule"), READING_ON.cases(), indirect=["reading_on"])
def test_killed_while_reading_on_it_ends_with_every_row_right(
    writers: Writers, reading_on: PipelineUnderTest, rule: str
) -> None:
    _kill_and_recover(writers, reading_on, rule)


@pytest.mark.parametrize(("destination", "rule"), LOADING_TO_READ_ON.cases())
def test_killed_during_the_first_load_it_ends_with_every_row_right(
    writers: Writers, tmp_path: Path, destination: str, rule: str
) -> None:
    _kill_and_recover(writers, _pipeline(writers, tmp_path, destination), rule)


def _kill_and_recover(writers: Writers, pipeline: PipelineUnderTest, rule: str) -> None:
    writers.wait_for_writes()
    ended = pipeline.sync_apart(rule)
    name = rule.partition("=")[0]
    if not struck_nothing(ended, rule):
        assert ended.struck == (f"{name}=kill",), f"{name} did not strike, or not once: {ended}"
        assert ended.killed, str(ended)
    writers.wait_for_writes()
    if not ONCE:
        pipeline.sync()
    _compare(writers, pipeline)
    skip_if_nothing_was_struck(ended, rule)


def _compare(writers: Writers, pipeline: PipelineUnderTest) -> None:
    writers.rest()
    try:
        pipeline.sync()
        pipeline.assert_same(*STREAMS)
    finally:
        writers.start()

"""kill -9 between all steps of incremental streams, with writers that never stop: every row ends right.

Rows change under two kinds of cursor, a time with a second cursor for its nulls and a number; transactions
overlap, so that rows commit after others with greater values (`cursor_writers`). As in `test_kill`, a sync in
a process of its own is killed at the named place, the writers go on, the next sync recovers; then they rest,
a sync catches up, and the oracle compares every value. So it is of a source of each kind. How much is struck,
and beside which writers, is in `matrix`, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.chaos.chain import Chain
from tests.chaos.cursor_sources import CursorSource, mongodb, mysql, postgres
from tests.chaos.killing import kill_and_recover
from tests.chaos.matrix import (
    LOADING_TO_READ_ON,
    READING_ON,
    READING_ON_MONGODB,
    READING_ON_MYSQL,
    shared,
)
from tests.pipelines import PipelineUnderTest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

CASES = [
    *(("postgres", *case) for case in READING_ON.cases()),
    *shared([("mysql", *case) for case in READING_ON_MYSQL.cases()]),
    *shared([("mongodb", *case) for case in READING_ON_MONGODB.cases()]),
]
Sources = Chain[CursorSource]
Links = Chain[tuple[CursorSource, PipelineUnderTest]]


@pytest.fixture(scope="module")
def sources(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    """One at a time is there, and written to."""

    def started(kind: str) -> AbstractContextManager[CursorSource]:
        if kind == "mysql":
            return mysql(tmp_path_factory.mktemp("mysql"))
        if kind == "mongodb":
            return mongodb(request.getfixturevalue("mongo"))
        return postgres(request.getfixturevalue("server"))

    with Chain(started) as chain:
        yield chain


@pytest.fixture(scope="module")
def reading_on(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    """Pipelines that have loaded their tables, by source and destination."""

    @contextmanager
    def caught_up(name: str) -> Iterator[tuple[CursorSource, PipelineUnderTest]]:
        kind, _, destination = name.partition(" ")
        source = sources.of(kind)
        pipeline = source.pipeline(tmp_path_factory.mktemp("reading_on"), destination)
        pipeline.sync()
        source.compare(pipeline)
        yield source, pipeline

    with Chain(caught_up) as chain:
        yield chain


@pytest.mark.parametrize(("kind", "destination", "rule"), CASES)
def test_killed_while_reading_on_it_ends_with_every_row_right(
    reading_on: Links, kind: str, destination: str, rule: str
) -> None:
    source, pipeline = reading_on.of(f"{kind} {destination}")
    source.wait_for_writes()
    kill_and_recover(source, pipeline, rule)


@pytest.mark.parametrize(("destination", "rule"), LOADING_TO_READ_ON.cases())
def test_killed_during_the_first_load_it_ends_with_every_row_right(
    sources: Sources, tmp_path: Path, destination: str, rule: str
) -> None:
    source = sources.of("postgres")
    source.wait_for_writes()
    kill_and_recover(source, source.pipeline(tmp_path, destination), rule)

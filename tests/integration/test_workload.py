"""A busy database, followed: in the end every value is equal, and every change is there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.pipelines import PipelineUnderTest, streams_of
from tests.workload import APPEND, UPSERT, Workload

SETTINGS = {"load": {"rows_per_chunk": 200}}


@pytest.fixture
def workload(database: Database) -> Iterator[Workload]:
    with Workload(database.url, seed=20261115, pause_s=0.02).setup(400) as prepared:
        yield prepared


@pytest.fixture
def pipeline(workload: Workload, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    made = PipelineUnderTest(tmp_path, workload.url, streams_of(UPSERT, APPEND), SETTINGS)
    yield made
    made.drop()


def test_a_table_that_is_followed_in_rounds_equals_its_source(
    workload: Workload, pipeline: PipelineUnderTest
) -> None:
    """The same transactions in every run: the first thing to look at when something is wrong."""
    pipeline.sync()
    for _ in range(3):
        workload.run(80)
        pipeline.sync()
        pipeline.assert_same(*UPSERT)
        pipeline.assert_history(*APPEND)


def test_writers_that_do_not_wait_for_the_load_lose_and_double_nothing(
    workload: Workload, pipeline: PipelineUnderTest
) -> None:
    workload.start()
    pipeline.sync()
    pipeline.sync()
    workload.stop()
    pipeline.sync()
    pipeline.assert_same(*UPSERT)
    pipeline.assert_history(*APPEND)


@pytest.mark.slow
def test_a_backlog_of_wide_rows_is_read_to_its_end(database: Database, tmp_path: Path) -> None:
    """More bytes than one batch of messages holds, in few messages."""
    database.execute("CREATE TABLE wide (id int PRIMARY KEY, body text)")
    database.execute("ALTER TABLE wide ALTER COLUMN body SET STORAGE EXTERNAL")
    pipeline = PipelineUnderTest(tmp_path, database.url, ["public.wide"])
    pipeline.sync()
    for size in (9_000, 1_000_000, 30_000_000):
        rows = 60_000_000 // size
        database.execute(
            f"INSERT INTO wide SELECT {size} + n, repeat(chr(65 + n % 26), {size}) "
            f"FROM generate_series(1, {rows}) n"
        )
    pipeline.sync()
    pipeline.assert_same("public.wide")
    pipeline.drop()

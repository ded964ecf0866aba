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

"""kill -9 at every failpoint of a pipeline that reads MySQL, with writers that never stop.

As `test_kill` has it for Postgres: afterwards every value is right. The oracle asks the server by its driver,
and its triggers write the history.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.mysql.binlog.warming import warm_up
from tests.chaos.chain import Chain
from tests.chaos.killing import ToldNothing, kill_and_recover
from tests.chaos.matrix import FOLLOWING_MYSQL, LOADING_MYSQL, SEED, shared
from tests.conftest import wait_until
from tests.mysql_server import MysqlServer
from tests.mysql_workload import APPEND, UPSERT, MysqlWorkload
from tests.oracle_mysql import assert_history, assert_same
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

Pipelines = Chain[PipelineUnderTest]


@dataclass
class MysqlSource(ToldNothing):
    """A server with writers at work."""

    server: MysqlServer
    workload: MysqlWorkload

    def compare(self, pipeline: PipelineUnderTest) -> None:
        self.workload.stop()
        try:
            pipeline.sync()
            for table in UPSERT:
                assert_same(self.server, table, pipeline.path(table))
            for table in APPEND:
                assert_history(self.server, table, pipeline.path(table))
        finally:
            self.workload.start()

    def wait_for_writes(self) -> None:
        enough = self.workload.transactions + 30
        wait_until(lambda: self.workload.transactions > enough, "the writers to go on")

    def pipeline(self, directory: Path, destination: str) -> PipelineUnderTest:
        # Several chunks per table; log steps that go as soon as nobody needs them.
        url = f"mysql://root@127.0.0.1:{self.server.port}/shop"
        settings: dict[str, Any] = {
            "source": {"type": "mysql", "url": url, "name": f"penstock_{secrets.token_hex(4)}"},
            "load": {"rows_per_chunk": 300},
            "log": {"retention": "0s"},
            "readers": {"grace": "5s"},
            "destination": DESTINATIONS[destination],
        }
        return PipelineUnderTest(directory, "", streams_of(UPSERT, APPEND), settings)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlSource]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp("mysql")) as server:
        workload = MysqlWorkload(server, SEED, pause_s=0.04).setup(800)
        with workload.start():
            yield MysqlSource(server, workload)


@pytest.fixture(scope="module")
def all_following(source: MysqlSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    @contextmanager
    def caught_up(destination: str) -> Iterator[PipelineUnderTest]:
        pipeline = source.pipeline(tmp_path_factory.mktemp("following"), destination)
        pipeline.sync()
        source.compare(pipeline)
        yield pipeline

    with Chain(caught_up) as chain:
        yield chain


@pytest.fixture
def following(request: pytest.FixtureRequest, all_following: Pipelines) -> PipelineUnderTest:
    """A pipeline that has loaded its tables."""
    return all_following.of(request.param)


@pytest.fixture
def loading(request: pytest.FixtureRequest, source: MysqlSource, tmp_path: Path) -> PipelineUnderTest:
    """A pipeline that has not begun."""
    return source.pipeline(tmp_path, request.param)


@pytest.mark.parametrize(("following", "rule"), shared(FOLLOWING_MYSQL.cases()), indirect=["following"])
def test_killed_while_following_it_ends_with_every_value_right(
    source: MysqlSource, following: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(source, following, rule)


@pytest.mark.parametrize(("loading", "rule"), shared(LOADING_MYSQL.cases()), indirect=["loading"])
def test_killed_while_loading_it_ends_with_every_value_right(
    source: MysqlSource, loading: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(source, loading, rule)

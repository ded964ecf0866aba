"""kill -9 in syncs from MongoDB, with writers that never stop: afterwards every document is right.

As in `test_kill`, on one destination: how the log is read, and how rounds of streams with a position each are
settled, is all that is another way here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.mongodb.warming import warm_up
from tests.chaos.killing import kill_and_recover
from tests.chaos.matrix import FOLLOWING_MONGODB, LOADING_MONGODB, Scenario, shared
from tests.mongo_server import MongoServer
from tests.mongo_shop import FOLLOWED, Shop, assert_same, new_shop, pipeline, states, writing
from tests.pipelines import PipelineUnderTest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def rules(scenario: Scenario) -> list[str]:
    return [rule for _, rule in shared(scenario.cases())]


@dataclass
class MongoSource:
    """A database with a writer at work."""

    mongo: MongoServer
    shop: Shop
    _writing: ExitStack = field(default_factory=ExitStack)
    _written: Callable[[int], None] | None = None

    def start(self) -> None:
        self._written = self._writing.enter_context(writing(self.mongo, self.shop, pause_s=0.02))

    def stop(self) -> None:
        self._writing.close()

    def compare(self, pipeline: PipelineUnderTest) -> None:
        self.stop()
        try:
            pipeline.sync()
            assert_same(pipeline, self.shop, *FOLLOWED)
            after = states(pipeline)
            assert len({after[name]["_data"] for name in FOLLOWED}) == 1
            assert not any("next_data" in state for state in after.values())
        finally:
            self.start()

    def wait_for_writes(self) -> None:
        assert self._written is not None
        self._written(20)

    def assert_acknowledged_no_more_than_committed(self, pipeline: PipelineUnderTest) -> None:
        """The server keeps its log for nobody in particular."""

    def pipeline(self, directory: Path) -> PipelineUnderTest:
        """Of followed streams alone: a sync that finds them loaded starts no Spark."""
        settings: dict[str, Any] = {"log": {"retention": "0s"}, "readers": {"grace": "5s"}}
        streams = [f"{self.shop.name}.{name}" for name in FOLLOWED]
        return pipeline(self.mongo, self.shop, directory, streams=streams, **settings)


@pytest.fixture(scope="module")
def source(mongo: MongoServer) -> Iterator[MongoSource]:
    warm_up()
    with new_shop(mongo) as shop:
        found = MongoSource(mongo, shop)
        found.start()
        yield found
        found.stop()


@pytest.fixture(scope="module")
def following(source: MongoSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineUnderTest]:
    """One pipeline for all crashes while following, so that each meets the traces of those before it."""
    synced = source.pipeline(tmp_path_factory.mktemp("following"))
    synced.sync()
    yield synced
    synced.drop()


@pytest.mark.parametrize("rule", rules(FOLLOWING_MONGODB))
def test_killed_while_following_it_ends_with_every_document_right(
    source: MongoSource, following: PipelineUnderTest, rule: str
) -> None:
    source.wait_for_writes()
    kill_and_recover(source, following, rule)


@pytest.mark.parametrize("rule", rules(LOADING_MONGODB))
def test_killed_while_loading_it_ends_with_every_document_right(
    source: MongoSource, tmp_path: Path, rule: str
) -> None:
    loading = source.pipeline(tmp_path / "loading")
    kill_and_recover(source, loading, rule)
    loading.drop()

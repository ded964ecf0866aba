"""kill -9 in syncs from MongoDB, with writers that never stop: afterwards every document is right.

As in `test_kill`: how the log is read, and how rounds of streams with a position each are settled, is all
that is another way here. Beyond `short` there is an append table too, which tells each change once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.mongodb.warming import warm_up
from tests.chaos.chain import Chain
from tests.chaos.killing import ToldNothing, kill_and_recover
from tests.chaos.matrix import ASKED, FOLLOWING_MONGODB, LOADING_MONGODB, shared
from tests.mongo_history import TOLD, assert_told, change, set_up
from tests.mongo_server import MongoServer
from tests.mongo_shop import FOLLOWED, Shop, assert_same, new_shop, pipeline, states, writing
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
#: Beside upsert tables, where there is time for it.
WITH_HISTORY = ASKED != "short"
APPEND = (TOLD,) if WITH_HISTORY else ()
Pipelines = Chain[PipelineUnderTest]


@dataclass
class MongoSource(ToldNothing):
    """A database with a writer at work."""

    mongo: MongoServer
    shop: Shop
    _writing: ExitStack = field(default_factory=ExitStack)
    _written: Callable[[int], None] | None = None

    def start(self) -> None:
        also = change if WITH_HISTORY else None
        self._written = self._writing.enter_context(writing(self.mongo, self.shop, pause_s=0.02, also=also))

    def stop(self) -> None:
        self._writing.close()

    def compare(self, pipeline: PipelineUnderTest) -> None:
        self.stop()
        try:
            pipeline.sync()
            assert_same(pipeline, self.shop, *FOLLOWED)
            if WITH_HISTORY:
                assert_told(pipeline, self.shop)
            after = states(pipeline)
            assert len({after[name]["_data"] for name in (*FOLLOWED, *APPEND)}) == 1
            assert not any("next_data" in state for state in after.values())
        finally:
            self.start()

    def wait_for_writes(self) -> None:
        assert self._written is not None
        self._written(20)

    def pipeline(self, directory: Path, destination: str) -> PipelineUnderTest:
        """Of followed streams alone: a sync that finds them loaded starts no Spark."""
        settings: dict[str, Any] = {
            "log": {"retention": "0s"},
            "readers": {"grace": "5s"},
            "destination": DESTINATIONS[destination],
        }
        upsert, append = ([f"{self.shop.name}.{name}" for name in names] for names in (FOLLOWED, APPEND))
        return pipeline(self.mongo, self.shop, directory, streams=streams_of(upsert, append), **settings)


@pytest.fixture(scope="module")
def source(mongo: MongoServer) -> Iterator[MongoSource]:
    warm_up()
    with new_shop(mongo) as shop:
        set_up(shop)
        found = MongoSource(mongo, shop)
        found.start()
        yield found
        found.stop()


@pytest.fixture(scope="module")
def all_following(source: MongoSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    """One pipeline for all crashes while following, so that each meets the traces of those before it."""

    @contextmanager
    def caught_up(destination: str) -> Iterator[PipelineUnderTest]:
        synced = source.pipeline(tmp_path_factory.mktemp("following"), destination)
        synced.sync()
        yield synced
        synced.drop()

    with Chain(caught_up) as chain:
        yield chain


@pytest.fixture
def following(request: pytest.FixtureRequest, all_following: Pipelines) -> PipelineUnderTest:
    """A pipeline that has loaded its tables."""
    return all_following.of(request.param)


@pytest.mark.parametrize(("following", "rule"), shared(FOLLOWING_MONGODB.cases()), indirect=["following"])
def test_killed_while_following_it_ends_with_every_document_right(
    source: MongoSource, following: PipelineUnderTest, rule: str
) -> None:
    source.wait_for_writes()
    kill_and_recover(source, following, rule)


@pytest.mark.parametrize(("destination", "rule"), shared(LOADING_MONGODB.cases()))
def test_killed_while_loading_it_ends_with_every_document_right(
    source: MongoSource, tmp_path: Path, destination: str, rule: str
) -> None:
    loading = source.pipeline(tmp_path / "loading", destination)
    kill_and_recover(source, loading, rule)
    loading.drop()

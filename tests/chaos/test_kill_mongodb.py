"""kill -9 in syncs from MongoDB, with writers that never stop: afterwards every document is right.

As in `test_kill`, on one destination: how the log is read, and how rounds of streams with a position each are
settled, is all that is another way here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.failpoints import FAILPOINTS
from penstock.sources.mongodb.warming import warm_up
from tests.chaos.killing import skip_if_nothing_was_struck, struck_nothing
from tests.chaos.matrix import ASKED, FULL, LOAD, shared
from tests.mongo_server import MongoServer
from tests.mongo_shop import FOLLOWED, Shop, assert_same, new_shop, pipeline, states, writing
from tests.pipelines import Ended, PipelineUnderTest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

#: Reached by capture, or by a Spark task: the sync's own process lives on, and says what happened.
IN_ANOTHER_PROCESS = (
    *("capture.slot_created", "log.file_write", "log.files_written", "log.manifest_written"),
    *("checkpoint.write", "destination.file_write"),
)
SHORT: dict[str, list[str]] = {"following": ["cdc.committed"], "loading": []}
ALL = {
    "following": [
        name
        for name in FAILPOINTS
        if name.startswith(("log.", "checkpoint.", "cdc.", "state.", "destination."))
    ],
    "loading": ["capture.slot_created", *LOAD],
}
#: Struck in the midst of several streams, so that some are done and some are not.
NTH = {"cdc.written": 2, "cdc.committed": 2, "cdc.processed": 2, "load.swapped": 2, "load.done": 2}
TIMES = (1, 2, 3)


def cases(scenario: str) -> Sequence[str]:
    if FULL:
        return [f"{name}=kill@{nth}" for name in ALL[scenario] for nth in TIMES]
    short = SHORT[scenario]
    names = short if ASKED == "short" else ALL[scenario]
    left_out = short if ASKED == "rest" else ()
    return shared([f"{name}=kill@{NTH.get(name, 1)}" for name in names if name not in left_out])


@pytest.fixture(scope="module")
def shop(mongo: MongoServer) -> Iterator[Shop]:
    warm_up()
    with new_shop(mongo) as found:
        yield found


@pytest.fixture(scope="module")
def following(
    mongo: MongoServer, shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelineUnderTest]:
    """One pipeline for all crashes while following, so that each meets the traces of those before it."""
    synced = new_pipeline(mongo, shop, tmp_path_factory.mktemp("following"))
    synced.sync()
    yield synced
    synced.drop()


def new_pipeline(mongo: MongoServer, shop: Shop, directory: Path) -> PipelineUnderTest:
    """Of followed streams alone: a sync that finds them loaded starts no Spark."""
    settings: dict[str, Any] = {"log": {"retention": "0s"}, "readers": {"grace": "5s"}}
    streams = [f"{shop.name}.{name}" for name in FOLLOWED]
    return pipeline(mongo, shop, directory, streams=streams, **settings)


@pytest.mark.parametrize("rule", cases("following"))
def test_killed_while_following_it_ends_with_every_document_right(
    mongo: MongoServer, shop: Shop, following: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(mongo, shop, following, rule)


@pytest.mark.parametrize("rule", cases("loading"))
def test_killed_while_loading_it_ends_with_every_document_right(
    mongo: MongoServer, shop: Shop, tmp_path: Path, rule: str
) -> None:
    loading = new_pipeline(mongo, shop, tmp_path / "loading")
    kill_and_recover(mongo, shop, loading, rule)
    loading.drop()


def kill_and_recover(mongo: MongoServer, shop: Shop, synced: PipelineUnderTest, rule: str) -> None:
    with writing(mongo, shop) as written:
        written(20)
        ended = synced.sync_apart(rule)
        _require_struck(ended, rule)
        written(20)
        synced.sync()
    synced.sync()
    assert_same(synced, shop, *FOLLOWED)
    after = states(synced)
    assert len({after[name]["_data"] for name in FOLLOWED}) == 1
    assert not any("next_data" in state for state in after.values())
    assert synced.running() == []
    skip_if_nothing_was_struck(ended, rule)


def _require_struck(ended: Ended, rule: str) -> None:
    name = rule.partition("=kill@")[0]
    if struck_nothing(ended, rule):
        return
    assert set(ended.struck) == {f"{name}=kill"}, str(ended)
    if name not in IN_ANOTHER_PROCESS:
        assert ended.killed, str(ended)
    elif ended.status != 0 and not ended.killed:
        assert ended.answer["error"]["remedy"], str(ended)

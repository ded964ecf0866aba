"""`penstock run` from MongoDB as people run it: beside writers, with its processes killed and replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.mongodb.warming import warm_up
from tests.mongo_server import MongoServer
from tests.mongo_shop import Shop, Watched, assert_history, assert_same, new_shop, pipeline, writing
from tests.pipelines import PipelineUnderTest
from tests.running import Instance, instances

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS: dict[str, Any] = {
    "lanes": {"lake": {"every": "1s"}},
    "log": {"seal_every": "1s"},
    "run": {"restarts_max": 50},
}
LEVEL_TIMEOUT_S = 120.0


@pytest.fixture
def shop(mongo: MongoServer) -> Iterator[Shop]:
    warm_up()
    with new_shop(mongo) as found:
        yield found


def wait_until_level(instance: Instance, shop: Shop) -> None:
    """Everything that is committed now is in the tables, and the pipeline's document says so."""
    time = shop.client.admin.command("hello")["operationTime"]
    control = shop.client["penstock"]["control"]
    instance.wait_until(
        lambda: control.find_one({"_id": {"$regex": shop.name}, "from": {"$gt": time}}) is not None,
        f"the tables to have what was committed at {time}",
        LEVEL_TIMEOUT_S,
    )


def test_killed_processes_and_instances_are_replaced_and_nothing_is_lost_or_doubled(
    mongo: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    streams = [
        {"table": f"{shop.name}.orders", "write": "append"},
        *(f"{shop.name}.{name}" for name in ("words", "ring")),
    ]
    made: PipelineUnderTest = pipeline(mongo, shop, tmp_path / "pipeline", streams=streams, **SETTINGS)
    one, two = Instance(made, "one"), Instance(made, "two")
    watched = Watched(shop)
    with instances(one, two):
        with writing(mongo, shop, pause_s=0.02) as written:
            one.start()
            one.wait_until(lambda: one.state_of("lake") == "running", "the lake lane to run")
            wait_until_level(one, shop)
            for process in ("capture", "lake"):
                one.send(signal.SIGKILL, process)
                written(20)
                wait_until_level(one, shop)
            two.start()
            two.wait_until(lambda: two.state_of("capture") == "standby", "the other to stand by")
            one.end()
            two.wait_until(lambda: two.leading, "the other to lead")
            written(20)
        wait_until_level(two, shop)
        assert not any(name.startswith("penstock_lane_lag_bytes") for name in two.metrics())
        assert two.stop() == 0
    assert_same(made, shop, "words", "ring")
    assert_history(made, shop, "orders", watched)
    made.drop()

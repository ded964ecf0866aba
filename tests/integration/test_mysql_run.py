"""`penstock run` from a real MySQL: followed all the time, and by a standby when the leader is gone.

Writers never stop; in the end every value is equal and every change there once (`tests.oracle_mysql`).
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.position import Lsn
from penstock.ledger.store import StateStore
from penstock.sources.mysql.binlog.warming import warm_up
from tests.conftest import wait_until
from tests.mysql_server import MysqlServer
from tests.mysql_workload import APPEND, UPSERT, MysqlWorkload
from tests.oracle_mysql import assert_history, assert_same
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.running import Instance, instances

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

LEVEL_S = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp("mysql")) as started:
        yield started


@pytest.fixture
def workload(server: MysqlServer) -> MysqlWorkload:
    server.execute("DROP DATABASE IF EXISTS oracle")
    return MysqlWorkload(server, seed=11, pause_s=0.02).setup(800)


@pytest.fixture
def pipeline(server: MysqlServer, tmp_path: Path) -> PipelineUnderTest:
    url = f"mysql://root@127.0.0.1:{server.port}/shop"
    settings: dict[str, Any] = {
        "source": {"type": "mysql", "url": url, "name": f"penstock_{secrets.token_hex(4)}"},
        "destination": DESTINATIONS["parquet"],
        "log": {"seal_every": "1s"},
        "lanes": {"lake": {"every": "1s"}},
        "run": {"restarts_max": 50},
    }
    return PipelineUnderTest(tmp_path / "pipeline", "", streams_of(UPSERT, APPEND), settings)


def place(instance: Instance) -> tuple[str, int]:
    """Up to where the state says that the tables have everything."""
    file = instance.state / "state.json"
    state = json.loads(file.read_text()).get("global", {}).get("state") if file.exists() else None
    at = (state or {}).get("state") or {"name": "", "pos": 0}
    return at["name"], at["pos"]


def lead_and_follow(instance: Instance, pipeline: PipelineUnderTest, server: MysqlServer) -> None:
    """It leads, has loaded every table, and has made a round."""
    instance.start()
    instance.wait_until(lambda: instance.leading, "it to lead")
    instance.wait_until(lambda: all(map(pipeline.has_table, (*UPSERT, *APPEND))), "the first load", LEVEL_S)
    written = server.position()
    instance.wait_until(lambda: place(instance) >= written, "a round", LEVEL_S)


def assert_level(instance: Instance, pipeline: PipelineUnderTest, server: MysqlServer) -> None:
    written = server.position()
    wait_until(lambda: place(instance) >= written, f"the tables to have all up to {written}", LEVEL_S)
    for table in UPSERT:
        assert_same(server, table, pipeline.path(table))
    for table in APPEND:
        assert_history(server, table, pipeline.path(table))


def test_tables_follow_the_source_and_status_and_metrics_say_how_far(
    server: MysqlServer, workload: MysqlWorkload, pipeline: PipelineUnderTest
) -> None:
    instance = Instance(pipeline, "a")
    with instances(instance), workload.start():
        lead_and_follow(instance, pipeline, server)
        metrics = instance.metrics()
        assert any(name.startswith("penstock_capture_lag_bytes") for name in metrics), sorted(metrics)
        shown = instance.status()
        assert shown["source"]["capture_lag_bytes"] is not None
        assert {stream["stream"] for stream in shown["streams"]} == {*UPSERT, *APPEND}
        readers = [row[0] for row in server.rows("SHOW PROCESSLIST") if row[4].startswith("Binlog Dump")]
        assert len(readers) == 1
        server.execute(f"KILL {readers[0]}")
        written = server.position()
        instance.wait_until(lambda: place(instance) >= written, "what was written since the log was cut")
        workload.stop()
        assert_level(instance, pipeline, server)
        assert instance.stop() == 0, instance.said()


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP], ids=lambda strike: strike.name)
def test_a_standby_takes_over_and_nothing_is_lost_or_doubled(
    server: MysqlServer, workload: MysqlWorkload, pipeline: PipelineUnderTest, strike: signal.Signals
) -> None:
    leader, standby = Instance(pipeline, "a"), Instance(pipeline, "b")
    with instances(leader, standby), workload.start():
        lead_and_follow(leader, pipeline, server)
        standby.start()
        standby.wait_until(lambda: standby.role == "standby", "it to stand by")
        known, shown = leader.epochs(), pipeline.version("shop.orders")
        assert len(leader.send(strike)) >= 3, "the supervisor, capture and the lake process"
        standby.wait_until(lambda: bool(standby.epochs() - known), "the standby to seal a step")
        standby.wait_until(lambda: pipeline.version("shop.orders") != shown, "the standby to commit")
        if strike is signal.SIGSTOP:
            leader.send(signal.SIGCONT)
            leader.wait_until(lambda: leader.role == "standby", "the woken leader to stand by")
        workload.stop()
        assert_level(standby, pipeline, server)
        assert standby.stop() == 0, standby.said()


def test_a_clock_that_was_set_back_costs_a_term_and_no_state(
    server: MysqlServer, workload: MysqlWorkload, pipeline: PipelineUnderTest
) -> None:
    """First where the state says that it was, then for an instance that only the tables tell of it."""
    leader, other = Instance(pipeline, "a"), Instance(pipeline, "b", {"state": "./other"})
    with instances(leader, other), workload.start():
        lead_and_follow(leader, pipeline, server)
        assert leader.stop() == 0, leader.said()
        store = StateStore(leader.state)
        known = store.load()
        assert known is not None
        assert known.epoch is not None
        ahead = Lsn(known.epoch + 3600 * 10**6)
        store.save(known.led_by(ahead))
        lead_and_follow(leader, pipeline, server)
        workload.stop()
        assert_level(leader, pipeline, server)
        assert leader.stop() == 0, leader.said()
        lead_and_follow(other, pipeline, server)
        for table in UPSERT:
            assert_same(server, table, pipeline.path(table))
        assert other.stop() == 0, other.said()
    assert all(Lsn.parse(epoch) > ahead for epoch in other.epochs())
    assert not [*leader.state.glob("superseded-*"), *other.state.glob("superseded-*")]

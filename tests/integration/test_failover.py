"""Two instances of `penstock run`: when the leader is gone, or seems to be, the other one goes on from there.

Measured from the moment the leader is struck: until the other one has sealed a step of the log, and until it
has committed to a table. Writers never stop, and in the end every value is equal and every change there once,
also if the old leader wakes and believes for a moment that it leads.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, wait_until
from tests.oracle_history import install_audit
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.running import Instance, flushed_position, instances, is_acknowledged, terminate_backends
from tests.silent_network import SilentNetwork
from tests.traps import MakePipeline
from tests.workload import APPEND, UPSERT, Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What is promised of a machine that does nothing else; beside other tests it may take longer.
_BESIDE_OTHERS = 3 if "PYTEST_XDIST_WORKER" in os.environ else 1
CAPTURES_WITHIN_S = 5.0 * _BESIDE_OTHERS
COMMITS_WITHIN_S = {"cold": 30.0 * _BESIDE_OTHERS, "warm": 10.0 * _BESIDE_OTHERS}
_LOADED_S = 300.0
_LEVEL_S = 180.0
Taken = list[tuple[str, str, str, str, float, float]]
_SETTINGS: dict[str, Any] = {
    "log": {"seal_every": "1s"},
    "lanes": {"lake": {"every": "1s"}},
    "run": {"restarts_max": 50},
}


@pytest.fixture(scope="module")
def taken() -> Iterator[Taken]:
    """Seconds from the strike, printed as a table in the end."""
    rows: Taken = []
    yield rows
    print(
        "\n| tables | leader | state | standby | sealed a step, s | committed, s |\n|---|---|---|---|---|---|"
    )
    for destination, strike, state, standby, captured_s, committed_s in rows:
        print(f"| {destination} | {strike} | {state} | {standby} | {captured_s:.1f} | {committed_s:.1f} |")


#: On Parquet every way, on Iceberg every two of them together.
_WAYS = list(product([signal.SIGKILL, signal.SIGSTOP], ["shared", "own"], ["cold", "warm"]))
_WAYS_OF_ICEBERG = [way for place, way in enumerate(_WAYS) if place in (0, 3, 5, 6)]


@pytest.mark.parametrize(
    ("make", "strike", "state", "standby"),
    [*(("parquet", *way) for way in _WAYS), *(("iceberg", *way) for way in _WAYS_OF_ICEBERG)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
    indirect=["make"],
)
def test_a_standby_takes_over_in_seconds_and_nothing_is_lost_or_doubled(
    make: MakePipeline,
    database: Database,
    taken: Taken,
    strike: signal.Signals,
    state: str,
    standby: str,
) -> None:
    pipeline = make(streams_of(UPSERT, APPEND), **_SETTINGS)
    other = {"run": {"standby": standby}, **({"state": "./state-b"} if state == "own" else {})}
    a, b = Instance(pipeline, "a"), Instance(pipeline, "b", other)
    workload = Workload(database.url, pause_s=0.02).setup()
    with instances(a, b), workload.start():
        _lead_and_follow(a, pipeline)
        _stand_by(b, warm=standby == "warm")
        known = a.epochs() | b.epochs()
        struck = time.monotonic()
        assert len(a.send(strike)) >= 3, "the supervisor, capture and the lake process"
        shown = pipeline.files("public.orders")
        b.wait_until(partial(_has_sealed_since, b, known), "the standby to seal a step")
        captured_s = time.monotonic() - struck
        b.wait_until(partial(_has_committed_since, pipeline, shown), "the standby to commit")
        committed_s = time.monotonic() - struck
        tables = "Iceberg" if pipeline.on_iceberg else "Parquet"
        taken.append((tables, strike.name, state, standby, captured_s, committed_s))
        if strike is signal.SIGSTOP:
            a.send(signal.SIGCONT)
            a.wait_until(lambda: a.role == "standby", "the woken leader to stand by")
        workload.stop()
        _assert_level(pipeline)
        assert b.stop() == 0, b.said()
        assert captured_s < CAPTURES_WITHIN_S
        assert committed_s < COMMITS_WITHIN_S[standby]


@pytest.mark.parametrize("state", ["shared", "own"])
def test_a_leader_whose_network_falls_silent_is_followed_and_does_no_harm_when_it_is_back(
    make: MakePipeline, database: Database, taken: Taken, state: str
) -> None:
    """Neither side is told: the server keeps the old leader's sessions until it has heard nothing of the one
    with the lock for a lease, and who leads then ends the one that reads from the slot."""
    pipeline = make(streams_of(UPSERT, APPEND), **_SETTINGS)
    workload = Workload(database.url, pause_s=0.02).setup()
    with SilentNetwork(database.server.port) as network:
        a = Instance(pipeline, "a", {"source": {"url": network.url(database.url)}})
        b = Instance(pipeline, "b", {"state": "./state-b"} if state == "own" else {})
        with instances(a, b), workload.start():
            _lead_and_follow(a, pipeline)
            _stand_by(b)
            processes = {process.pid for process, role in a.processes() if role in ("capture", "lake")}
            known = a.epochs() | b.epochs()
            assert network.connections >= 2, "the lock's and the slot's"
            network.fall_silent()
            struck = time.monotonic()
            shown = pipeline.files("public.orders")
            b.wait_until(partial(_has_sealed_since, b, known), "the standby to seal a step")
            captured_s = time.monotonic() - struck
            b.wait_until(partial(_has_committed_since, pipeline, shown), "the standby to commit")
            committed_s = time.monotonic() - struck
            tables = "Iceberg" if pipeline.on_iceberg else "Parquet"
            taken.append((tables, "silent network", state, "cold", captured_s, committed_s))
            a.wait_until(lambda: not a.leading, "the old leader to say that it no longer leads")
            network.restore()
            a.wait_until(lambda: a.role == "standby", "the old leader to stand by")
            workload.stop()
            _assert_level(pipeline)
            assert processes == {
                process.pid for process, role in a.processes() if role in ("capture", "lake")
            }, "none of its processes had to be ended for that"
            assert b.stop() == 0, b.said()
            assert captured_s < CAPTURES_WITHIN_S


def test_an_instance_whose_connections_are_cut_leads_again(make: MakePipeline, database: Database) -> None:
    pipeline = make(streams_of(UPSERT, APPEND), **_SETTINGS)
    a = Instance(pipeline, "a")
    workload = Workload(database.url, pause_s=0.02).setup()
    with instances(a), workload.start():
        _lead_and_follow(a, pipeline)
        processes = {process.pid for process, role in a.processes() if role in ("capture", "lake")}
        for _ in range(3):
            known = a.epochs()
            assert terminate_backends(database.url) >= 2
            a.wait_until(partial(_has_sealed_since, a, known), "a step of another term")
        workload.stop()
        _assert_level(pipeline)
        assert processes == {process.pid for process, role in a.processes() if role in ("capture", "lake")}
        assert a.stop() == 0, a.said()


@pytest.mark.parametrize("make", list(DESTINATIONS), indirect=True)
def test_leaders_that_change_places_again_and_again_leave_every_value_right(
    make: MakePipeline, database: Database
) -> None:
    """Each is killed while it leads and comes back as a standby with what it knew then."""
    pipeline = make(streams_of(UPSERT, APPEND), **_SETTINGS)
    pair = [Instance(pipeline, "a"), Instance(pipeline, "b", {"state": "./state-b"})]
    workload = Workload(database.url, pause_s=0.02).setup()
    with instances(*pair), workload.start():
        _lead_and_follow(pair[0], pipeline)
        for _ in range(3):
            leader, other = pair
            if not other.alive:
                other.start()
            _stand_by(other)
            leader.send(signal.SIGKILL)
            shown = pipeline.files("public.orders")
            other.wait_until(partial(_has_committed_since, pipeline, shown), "a commit")
            pair.reverse()
        workload.stop()
        _assert_level(pipeline)
        assert pair[0].stop() == 0, pair[0].said()


@pytest.mark.parametrize("make", list(DESTINATIONS), indirect=True)
def test_the_history_of_a_partitioned_table_goes_on_under_a_leader_with_a_state_of_its_own(
    make: MakePipeline, database: Database
) -> None:
    database.execute("CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY HASH (id)")
    for part in (0, 1):
        database.execute(
            f"CREATE TABLE parts_{part} PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        )
    install_audit(database.url, ["public.parts"])
    database.execute("INSERT INTO parts SELECT i, 'loaded' FROM generate_series(1, 100) i")
    pipeline = make([{"table": "public.parts", "write": "append"}], **_SETTINGS)
    a, b = Instance(pipeline, "a"), Instance(pipeline, "b", {"state": "./state-b"})

    def written(instance: Instance, value: str) -> None:
        database.execute(f"UPDATE parts SET v = '{value}' WHERE id <= 50")
        position = flushed_position(pipeline.url)
        instance.wait_until(lambda: is_acknowledged(pipeline.url, pipeline.name, position), "a round")

    with instances(a, b):
        a.start()
        a.wait_until(lambda: pipeline.has_table("public.parts"), "the first load")
        written(a, "followed")
        _stand_by(b)
        a.send(signal.SIGKILL)
        database.execute("DELETE FROM parts WHERE id > 90")
        b.wait_until(lambda: b.leading, "the standby to lead")
        written(b, "taken over")
        a.start()
        _stand_by(a)
        b.send(signal.SIGKILL)
        a.wait_until(lambda: a.leading, "the first one to lead again, with a state that was left behind")
        written(a, "led again")
        pipeline.assert_history("public.parts")
        assert a.stop() == 0, a.said()


# -- a lane that is away ----------------------------------------------------------------------------------


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that gives slots up which hold more than so much of its log."""
    limits = {"max_slot_wal_keep_size": "256MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(settings=limits) as server:
        yield server


def test_a_parked_lane_costs_no_slot_and_catches_up_from_the_log(
    limited: EmbeddedPostgres, tmp_path: Path
) -> None:
    settings = {
        **_SETTINGS,
        "run": {"restarts_max": 1},
        "wal": {"max_retained": "32MiB", "on_wal_pressure": "acknowledge_log"},
    }
    workload = Workload(limited.url(), pause_s=0.02).setup()
    pipeline = PipelineUnderTest(tmp_path / "pipeline", limited.url(), streams_of(UPSERT, APPEND), settings)
    a = Instance(pipeline, "a")
    with instances(a), workload.start():
        _lead_and_follow(a, pipeline)
        _park_lake(a)
        with _connected(limited) as source:
            for written in range(24):  # segments of 16 MiB: half as much again as the server would keep
                if written == 12:
                    terminate_backends(limited.url())
                source.execute(
                    "UPDATE documents SET body = repeat(md5(random()::text), 5000), version = version + 1 "
                    "WHERE id IN (SELECT id FROM documents ORDER BY id LIMIT 20)"
                )
                source.execute("SELECT pg_switch_wal()")
                source.execute("CHECKPOINT")
                _wait_for_acknowledged_log(source, pipeline)
            status, retained = source.query(
                "SELECT wal_status, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) "
                "FROM pg_replication_slots"
            )[0]
        print(f"lane parked for 24 segments of log: the slot is {status} and keeps {retained}")
        assert status in ("reserved", "extended")
        assert a.state_of("lake") == "parked"
        a.process.send_signal(signal.SIGHUP)
        workload.stop()
        position = flushed_position(pipeline.url)
        a.wait_until(lambda: _holds(a, position), "the tables to hold what only the log still had")
        _compare(pipeline)
        assert a.stop() == 0, a.said()


# -- parts ------------------------------------------------------------------------------------------------


def _lead_and_follow(instance: Instance, pipeline: PipelineUnderTest) -> None:
    """It leads, has loaded every table, and has made a round."""
    instance.start()
    instance.wait_until(lambda: instance.leading, "it to lead")
    loaded = (*UPSERT, *APPEND)
    instance.wait_until(lambda: all(map(pipeline.has_table, loaded)), "the first load", _LOADED_S)
    position = flushed_position(pipeline.url)
    instance.wait_until(lambda: is_acknowledged(pipeline.url, pipeline.name, position), "a round")


def _stand_by(instance: Instance, *, warm: bool = False) -> None:
    if not instance.alive:
        instance.start()
    instance.wait_until(lambda: instance.role == "standby", "it to stand by")
    instance.wait_until(lambda: instance.state_of("lake") == "waiting", "its lake process to wait")
    if warm:
        workers = [process for process, role in instance.processes() if role == "worker"]
        assert len(workers) >= 2, "the one that makes them, and one at least, before it says that it waits"


def _has_sealed_since(instance: Instance, known: set[str]) -> bool:
    """A step of a term that is not among those."""
    return bool(instance.epochs() - known)


def _has_committed_since(pipeline: PipelineUnderTest, shown: set[str]) -> bool:
    """Rows: a leader that takes over commits to an Iceberg table before it has any."""
    return pipeline.files("public.orders") != shown


def _park_lake(instance: Instance) -> None:
    def parked() -> bool:
        if instance.state_of("lake") != "parked":
            instance.send(signal.SIGKILL, "lake")
            return False
        return True

    instance.wait_until(parked, "the lake process to be parked")


def _assert_level(pipeline: PipelineUnderTest) -> None:
    """All that was written is in the tables, as the source is told; every value, and every change once."""
    position = flushed_position(pipeline.url)
    wait_until(
        lambda: is_acknowledged(pipeline.url, pipeline.name, position),
        f"the source to be told that {position} is in the tables",
        _LEVEL_S,
    )
    _compare(pipeline)


def _compare(pipeline: PipelineUnderTest) -> None:
    pipeline.assert_same(*UPSERT)
    pipeline.assert_history(*APPEND, one_moment=False)


def _holds(instance: Instance, position: str) -> bool:
    """Whether the state says that the tables have everything up to there."""
    document = json.loads((instance.state / "state.json").read_text())
    reached, wanted = (
        int(high, 16) << 32 | int(low, 16)
        for high, low in (lsn.split("/") for lsn in (document["global"]["state"]["lsn"], position))
    )
    return reached >= wanted


@contextmanager
def _connected(server: EmbeddedPostgres) -> Iterator[Database]:
    yield Database("postgres", server)


def _wait_for_acknowledged_log(source: Database, pipeline: PipelineUnderTest) -> None:
    """Less is retained than the server would keep: the pressure is let off."""
    wait_until(
        lambda: (
            source.query(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) < 64 * 1024 * 1024 "
                "FROM pg_replication_slots WHERE slot_name = %s",
                (pipeline.name,),
            )
            == [(True,)]
        ),
        "the source to be told that the log holds its changes",
        timeout_s=90,
    )

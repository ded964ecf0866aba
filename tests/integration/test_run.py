"""`penstock run` as people run it: on a busy database, with its processes killed."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.position import Lsn
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.run_file import read_running
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest, streams_of
from tests.running import Instance, flushed_position, instances, is_acknowledged
from tests.workload import APPEND, UPSERT, Workload

SETTINGS: dict[str, Any] = {
    "load": {"rows_per_chunk": 200},
    "lanes": {"lake": {"every": "1s"}},
    "log": {"seal_every": "1s"},
    "run": {"restarts_max": 50},
}
LEVEL_TIMEOUT_S = 120.0
SENDER_TIMEOUT_S = 5.0  # what capture asks of the server for its connection: five heartbeats
_SENDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"


@pytest.fixture
def workload(database: Database) -> Iterator[Workload]:
    with Workload(database.url, seed=20261115, pause_s=0.02).setup(400) as prepared:
        yield prepared


@pytest.fixture
def pipeline(workload: Workload, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    made = PipelineUnderTest(tmp_path / "pipeline", workload.url, streams_of(UPSERT, APPEND), SETTINGS)
    yield made
    made.drop()


@pytest.fixture
def instance(pipeline: PipelineUnderTest) -> Iterator[Instance]:
    made = Instance(pipeline, "one")
    with instances(made):
        yield made.start()


def wait_until_level(instance: Instance, pipeline: PipelineUnderTest) -> None:
    """Everything that is committed now is in the tables, and the source knows."""
    position = flushed_position(pipeline.url)
    instance.wait_until(
        lambda: is_acknowledged(pipeline.url, pipeline.name, position),
        f"the slot to be at {position}",
        LEVEL_TIMEOUT_S,
    )


def assert_equal(pipeline: PipelineUnderTest) -> None:
    pipeline.assert_same(*UPSERT)
    pipeline.assert_history(*APPEND)


def wait_until_restarted(instance: Instance, process: str, pid: int) -> None:
    def is_another() -> bool:
        entries = instance.status().get("processes", [])
        return any(
            entry["name"] == process and entry["pid"] not in (None, pid) and entry["state"] != "starting"
            for entry in entries
        )

    instance.wait_until(is_another, f"another {process} process")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_processes_come_back_and_lose_and_double_nothing(
    workload: Workload, pipeline: PipelineUnderTest, instance: Instance
) -> None:
    workload.start()
    instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run")
    wait_until_level(instance, pipeline)
    for process in ("capture", "lake", "capture"):
        [pid] = instance.send(signal.SIGKILL, process)
        wait_until_restarted(instance, process, pid)
        wait_until_level(instance, pipeline)
    workload.stop()
    wait_until_level(instance, pipeline)
    assert_equal(pipeline)
    assert instance.metrics()['penstock_process_restarts_total{process="capture"}'] == 2
    assert instance.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_or_stopped_goes_on_where_it_was(
    workload: Workload, pipeline: PipelineUnderTest, instance: Instance
) -> None:
    workload.start()
    instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run")
    instance.send(signal.SIGKILL, "supervisor")
    instance.process.wait()
    wait_until(lambda: not instance.processes(), "nothing to run on", timeout_s=120)
    assert read_running(pipeline.state) is None
    instance.start()
    instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run again")
    [_] = instance.send(signal.SIGSTOP, "lake")  # or the stop might end in order before the second signal
    instance.process.send_signal(signal.SIGTERM)
    instance.wait_until(lambda: instance.role == "stopping", "the stop to begin")
    instance.process.send_signal(signal.SIGTERM)
    assert instance.process.wait(120) == 130
    wait_until(lambda: not instance.processes(), "nothing to run on", timeout_s=120)
    instance.start()
    instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run again")
    workload.stop()
    assert instance.stop() == 0, instance.said()
    assert not (pipeline.state / "run.json").exists()
    pipeline.sync()
    assert_equal(pipeline)


def over_tcp(directory: Path) -> dict[str, Any]:
    """The section `tail`, with a certificate of its own for this host."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
        "-out", str(certificate), "-keyout", str(key),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    return {
        "listen": f"localhost:{port}",
        "certificate": str(certificate),
        "key": str(key),
        "token": "a token that is told to nobody",
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hop", ["unix", "tcp"])
def test_what_is_committed_is_in_the_tables_soon_and_the_numbers_say_so(
    database: Database, tmp_path: Path, hop: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    settings = SETTINGS if hop == "unix" else {**SETTINGS, "tail": over_tcp(tmp_path)}
    pipeline = PipelineUnderTest(tmp_path / "pipeline", database.url, ["public.t"], settings)
    instance = Instance(pipeline, "one")
    with instances(instance):
        instance.start()
        instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run")
        wait_until_level(instance, pipeline)  # loaded, with nothing in it
        database.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) AS i")
        wait_until_level(instance, pipeline)
        pipeline.assert_same("public.t")
        status = instance.status()
        assert status["role"] == "leading"
        assert status["health"]["ready"], status["health"]
        lane = pipeline.sync_apart(command=("lane", "list")).answer["lanes"]
        assert [(each["lane"], each["configured"]) for each in lane] == [("lake", True)]
        assert pipeline.sync_apart().status == 5, "sync is refused while a run is at work"
        counted = {name: value for name, value in instance.metrics().items() if "applied_rows" in name}
        assert sum(counted.values()) == 1000, counted
        assert instance.stop() == 0
    pipeline.drop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lane_that_is_gone_holds_the_source_until_it_is_given_up(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = PipelineUnderTest(tmp_path / "pipeline", database.url, ["public.t"], SETTINGS)
    LaneRegistry(pipeline.state / LANES_FILE).join("gone")
    instance = Instance(pipeline, "one")
    with instances(instance):
        instance.start()
        instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run")
        database.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) AS i")
        position = flushed_position(pipeline.url)

        def known() -> dict[str, bool]:
            return {lane["lane"]: lane["known"] for lane in instance.status().get("lanes", [])}

        def lake_is_level() -> bool:
            lanes = pipeline.sync_apart(command=("lane", "list")).answer["lanes"]
            held = {lane["lane"]: lane["position"] for lane in lanes}["lake"]
            return held is not None and Lsn.parse(held) >= Lsn.parse(position)

        instance.wait_until(lake_is_level, "the lake lane to hold what was inserted")
        pipeline.assert_same("public.t")
        instance.wait_until(lambda: known() == {"gone": False, "lake": True}, "the numbers to say so")
        assert not is_acknowledged(pipeline.url, pipeline.name, position)
        assert pipeline.sync_apart(command=("lane", "drop", "gone", "--yes")).status == 0
        wait_until_level(instance, pipeline)
        instance.wait_until(lambda: known() == {"lake": True}, "the lane to be forgotten")
        assert instance.stop() == 0
    pipeline.drop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lane_that_stands_still_for_three_timeouts_costs_no_connection_and_no_change(
    workload: Workload, pipeline: PipelineUnderTest, database: Database
) -> None:
    """Capture reads on and answers the server, however long the lane takes."""
    instance = Instance(pipeline, "one")
    with instances(instance.start()), workload.start():
        instance.wait_until(lambda: instance.state_of("lake") == "running", "the lake lane to run")
        instance.wait_until(
            lambda: database.query(_SENDER, (pipeline.name,)) not in ([], [(None,)]), "capture to follow"
        )
        wait_until_level(instance, pipeline)
        [(pid,)] = database.query(_SENDER, (pipeline.name,))
        assert pid is not None
        [_] = instance.send(signal.SIGSTOP, "lake")
        # What it held before is acknowledged a little later; what is committed from here on it cannot hold.
        database.execute(
            "UPDATE orders SET note = 'while it stands still' WHERE id = (SELECT min(id) FROM orders)"
        )
        [(since, not_held)] = database.query("SELECT clock_timestamp(), pg_current_wal_insert_lsn()")
        stands_still_s = 3 * SENDER_TIMEOUT_S
        wait_until(
            lambda: (
                database.query(
                    "SELECT clock_timestamp() - %s > make_interval(secs => %s)", (since, stands_still_s)
                )
                == [(True,)]
            ),
            "three timeouts to pass",
        )
        assert database.query(_SENDER, (pipeline.name,)) == [(pid,)], "the server heard from it all the while"
        assert not is_acknowledged(pipeline.url, pipeline.name, not_held), "what the lane does not hold"
        assert flushed_position(pipeline.url) != not_held, "and there was more than that"
        instance.send(signal.SIGCONT, "lake")
        workload.stop()
        wait_until_level(instance, pipeline)
        assert database.query(_SENDER, (pipeline.name,)) == [(pid,)]
        pipeline.assert_same(*UPSERT)
        pipeline.assert_history(*APPEND, one_moment=False)
        assert instance.stop() == 0, instance.said()

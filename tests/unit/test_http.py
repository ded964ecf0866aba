"""What an instance tells over HTTP, and that no client can hold it up."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from penstock import metrics
from penstock.cli.run_view import run_view
from penstock.core.errors import ConfigError
from penstock.ledger.run_file import RunFile, Running
from penstock.metrics import METRICS, Sample
from penstock.supervisor import http as serving
from penstock.supervisor.asking import running_status
from penstock.supervisor.health import health
from penstock.supervisor.http import StatusServer, status_document
from penstock.supervisor.status import ProcessStatus, RunStatus, run_status

NOW = datetime.now(UTC).isoformat()
CAPTURE = ProcessStatus("capture", "leading", "", NOW, 11, 0, 100)
LAKE = ProcessStatus("lake", "running", "", NOW, 12, 1, 200)
SAMPLES: list[Sample] = [
    (metrics.ROWS_CAPTURED.name, {}, 7.0),
    (metrics.FRESHNESS_SECONDS.name, {"stream": 'public."odd\\name"\n'}, 1.5),
    (metrics.ROWS_APPLIED.name, {"stream": "public.orders", "operation": "i"}, 3.0),
]


def of(*processes: ProcessStatus, live: bool = True, stopping: bool = False) -> RunStatus:
    return run_status("here", 42, NOW, processes, SAMPLES, live=live, stopping=stopping)


@dataclass
class Instance:
    """Takes the place of the supervisor."""

    status: RunStatus = field(default_factory=lambda: of(CAPTURE, LAKE))
    said: list[Sample] = field(default_factory=lambda: list(SAMPLES))
    dropped_samples: int = 0

    def snapshot(self) -> RunStatus:
        return self.status

    def samples(self) -> list[Sample]:
        return self.said


def test_what_is_measured_is_shown_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What `/metrics` says of lag, freshness, rows, durations, retries and what is kept, people see too."""
    stream, lake, kafka = {"stream": "public.orders"}, {"lane": "lake"}, {"lane": "kafka"}
    said: list[tuple[metrics.Metric, dict[str, str], float, str]] = [
        (metrics.LANE_KNOWN, lake, 1, ""),
        (metrics.LANE_KNOWN, kafka, 1, ""),
        (metrics.LANE_LAG_BYTES, lake, 11 << 20, "11.0 MiB"),
        (metrics.LANE_LAG_SECONDS, lake, 12.5, "12.5 s"),
        (metrics.STREAM_LAG_BYTES, stream, 13 << 10, "13.0 KiB"),
        (metrics.STREAM_LAG_SECONDS, stream, 14.5, "14.5 s"),
        (metrics.FRESHNESS_SECONDS, stream, 15.5, "15.5 s"),
        (metrics.STREAM_LANE_FRESHNESS_SECONDS, kafka, 16.5, "16.5 s"),
        (metrics.ROWS_APPLIED, stream | {"operation": "insert"}, 1017, "1,017"),
        (metrics.DEAD_LETTERS, stream, 1018, "1,018"),
        (metrics.STREAM_DEAD_LETTERS, kafka | {"stream": "public.orders", "code": "c"}, 1019, "1,019"),
        (metrics.ROUND_RETRIES, lake, 1020, "1,020"),
        (metrics.STREAM_RETRIES, kafka, 1021, "1,021"),
        (metrics.ROUNDS, {}, 10, ""),
        (metrics.ROUND_SECONDS, {}, 222, "22.2 s"),
        (metrics.STREAM_PUBLISHES, kafka, 10, ""),
        (metrics.STREAM_PUBLISH_SECONDS, kafka, 0.23, "23 ms"),
        (metrics.ROWS_CAPTURED, {}, 1024, "1,024 rows"),
        (metrics.TRANSACTIONS_CAPTURED, {}, 1025, "1,025 transactions"),
        (metrics.BYTES_CAPTURED, {}, 26 << 20, "26.0 MiB"),
        (metrics.STEPS_SEALED, {}, 1027, "1,027 steps sealed"),
        (metrics.SEAL_SECONDS, {}, 1027 * 2.8, "2.8 s each"),
        (metrics.SPILLED_BYTES, {}, 29 << 20, "29.0 MiB"),
        (metrics.RETAINED_WAL_BYTES, {}, 30 << 20, "30.0 MiB"),
        (metrics.SAFE_WAL_BYTES, {}, 31 << 20, "31.0 MiB"),
        (metrics.CAPTURE_LAG_BYTES, {}, 32 << 20, "32.0 MiB"),
        (metrics.LOG_BYTES, {}, 33 << 20, "33.0 MiB"),
        (metrics.LOG_UNSEALED_BYTES, {}, 34 << 20, "34.0 MiB"),
        (metrics.TAIL_BYTES, {}, 35 << 20, "35.0 MiB"),
        (metrics.RECONNECTS, {}, 1036, "1,036 times"),
        (metrics.CHECKPOINT_AGE_SECONDS, {}, 37.5, "37.5 s"),
        (metrics.CHECKPOINT_FAILURES, {}, 1038, "1,038 checkpoints"),
        (metrics.EPOCH, {}, 0x39, "0/39"),
        (metrics.ACKNOWLEDGED, {}, 0x40, "0/40"),
    ]
    samples = [(metric.name, labels, float(value)) for metric, labels, value, _ in said]
    lanes = (CAPTURE, replace(LAKE, restarts=1041), replace(LAKE, name="kafka"))
    status = run_status("here", 42, NOW, lanes, samples, live=True, stopping=False)
    Console(width=200).print(run_view(status_document(Instance(status))))
    shown = capsys.readouterr().out
    expected = [text for _, _, _, text in said] + ["1,041"]
    assert [text for text in expected if text not in shown] == []


def test_a_lane_without_a_process_is_told_as_one_to_be_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    said = [*SAMPLES, *((metrics.LANE_KNOWN.name, {"lane": lane}, 1.0) for lane in ("lake", "kafka"))]
    status = run_status("here", 42, NOW, (CAPTURE, LAKE), said, live=True, stopping=False)
    assert {lane.lane: lane.configured for lane in status.lanes} == {"lake": True, "kafka": False}
    Console(width=200).print(run_view(status_document(Instance(status))))
    shown = capsys.readouterr().out
    assert shown.count("not in the pipeline file") == 1
    assert "penstock lane drop kafka --yes" in shown


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def server(instance: Instance) -> Iterator[StatusServer]:
    server = StatusServer("127.0.0.1:0", instance)
    yield server
    server.stop()


def get(server: StatusServer, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class TestMetrics:
    def test_prometheus_reads_every_sample_with_its_kind(self, server: StatusServer) -> None:
        code, kind, content = get(server, "/metrics")
        assert code == 200
        assert kind.startswith("text/plain; version=0.0.4")
        found = {family.name: family for family in text_string_to_metric_families(content.decode())}
        rows = found["penstock_captured_rows"]
        assert (rows.type, rows.samples[0].name, rows.samples[0].value) == (
            "counter",
            "penstock_captured_rows_total",
            7.0,
        )
        fresh = found["penstock_freshness_seconds"].samples[0]
        assert (fresh.labels, fresh.value) == ({"stream": 'public."odd\\name"\n'}, 1.5)
        assert found["penstock_applied_rows"].samples[0].labels == {
            "operation": "i",
            "stream": "public.orders",
        }

    def test_a_sample_that_two_processes_say_is_served_once(
        self, server: StatusServer, instance: Instance
    ) -> None:
        instance.said.append((metrics.ROWS_CAPTURED.name, {}, 9.0))
        content = get(server, "/metrics")[2].decode()
        assert content.count("\npenstock_captured_rows_total ") == 1

    def test_samples_that_were_dropped_are_counted(self, server: StatusServer, instance: Instance) -> None:
        instance.dropped_samples = 5
        assert "\npenstock_samples_dropped_total 5.0\n" in get(server, "/metrics")[2].decode()

    @given(st.data())
    def test_every_metric_can_be_served_with_any_labels(self, data: st.DataObject) -> None:
        said = [
            (metric.name, {label: data.draw(st.text(max_size=5)) for label in metric.labels}, 1.0)
            for metric in METRICS
        ]
        _, _, content = serving.Answers(Instance(said=said)).answer("/metrics")
        families = list(text_string_to_metric_families(content.decode()))
        names = {sample.name for family in families for sample in family.samples}
        assert names == {metric.name for metric in METRICS}


class TestHealth:
    def test_an_instance_that_leads_is_live_and_ready(self, server: StatusServer) -> None:
        for path in ("/health", "/health/live", "/health/ready", "/health/"):
            code, kind, content = get(server, path)
            assert (code, kind) == (200, "application/json")
            assert json.loads(content) == {"live": True, "ready": True, "role": "leading", "reasons": []}

    def test_a_parked_lane_makes_it_unready_with_its_reason_and_not_dead(
        self, server: StatusServer, instance: Instance
    ) -> None:
        instance.status = of(CAPTURE, replace(LAKE, state="parked", reason="No space left.", pid=None))
        assert get(server, "/health/live")[0] == 200
        assert get(server, "/health/ready")[0] == 503
        code, _, content = get(server, "/health")
        assert code == 503
        assert json.loads(content)["reasons"] == ["lake is parked: No space left."]

    def test_when_a_parked_lane_is_tried_again_is_said(self) -> None:
        parked = replace(
            LAKE, state="parked", reason="No space left.", pid=None, next_try="2026-01-01T00:10:00"
        )
        assert health(of(CAPTURE, parked)).reasons == [
            "lake is parked and tried again at 2026-01-01T00:10:00: No space left."
        ]

    def test_a_standby_is_ready_while_its_lanes_wait(self) -> None:
        standing_by = of(replace(CAPTURE, state="standby"), replace(LAKE, state="waiting"))
        assert health(standing_by).ready
        assert health(standing_by).role == "standby"

    def test_a_leader_whose_lane_waits_is_not_ready_yet(self) -> None:
        assert not health(of(CAPTURE, replace(LAKE, state="waiting"))).ready

    @pytest.mark.parametrize(
        "state", ["starting", "reconnecting", "restarting", "parked", "stopped", "stopping"]
    )
    @pytest.mark.parametrize("process", [CAPTURE, LAKE])
    def test_whatever_is_not_at_work_makes_it_unready(self, process: ProcessStatus, state: str) -> None:
        others = [each for each in (CAPTURE, LAKE) if each is not process]
        found = health(of(replace(process, state=state), *others))
        assert found.live
        assert not found.ready
        assert found.reasons

    def test_a_supervisor_that_stands_still_is_not_live(
        self, server: StatusServer, instance: Instance
    ) -> None:
        instance.status = of(CAPTURE, LAKE, live=False)
        assert get(server, "/health/live")[0] == 503


class TestServer:
    def test_status_is_what_the_supervisor_knows(self, server: StatusServer, instance: Instance) -> None:
        code, _, content = get(server, "/status?x=1")
        assert code == 200
        assert json.loads(content) == json.loads(json.dumps(status_document(instance)))
        assert json.loads(content)["streams"][1]["rows_applied"] == 3

    def test_head_has_no_content_and_other_paths_and_methods_are_refused(self, server: StatusServer) -> None:
        assert get(server, "/health", "HEAD")[::2] == (200, b"")
        assert get(server, "/etc/passwd")[0] == 404
        assert get(server, "/status", "POST")[0] == 501

    def test_a_failure_of_ours_is_an_answer_without_its_words(
        self, server: StatusServer, instance: Instance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> RunStatus:
            raise RuntimeError("password=secret")

        monkeypatch.setattr(instance, "snapshot", fail)
        code, _, content = get(server, "/health")
        assert code == 500
        assert b"secret" not in content

    def test_clients_that_dawdle_are_sent_away_and_others_are_answered(
        self, instance: Instance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(serving, "CONNECTION_S_MAX", 1.0)
        server = StatusServer("127.0.0.1:0", instance)
        slow = [socket.create_connection((server.host, server.port)) for _ in range(2)]

        def is_sent_away(connection: socket.socket) -> bool:
            try:
                connection.sendall(b"X")  # one byte at a time keeps each single read within its limit
                connection.settimeout(0.01)
                return connection.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert get(server, "/health")[0] == 200
        for connection in slow:
            wait_for(partial(is_sent_away, connection))
            connection.close()
        assert get(server, "/health")[0] == 200
        server.stop()

    def test_there_are_never_more_connections_than_allowed(
        self, server: StatusServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(serving, "CONNECTIONS_MAX", 2)
        held = [socket.create_connection((server.host, server.port)) for _ in range(2)]

        def is_refused() -> bool:
            try:
                get(server, "/health")
            except (OSError, http.client.HTTPException):
                return True
            return False

        wait_for(is_refused)
        for connection in held:
            connection.close()
        wait_for(lambda: not is_refused())

    def test_an_address_that_is_taken_is_an_error_with_a_way_out(self, server: StatusServer) -> None:
        with pytest.raises(ConfigError, match=r"run\.listen") as caught:
            StatusServer(server.address, Instance())
        assert "port 0" in caught.value.remedy


class TestAsking:
    def run_file(self, state: Path, server: StatusServer, **fields: Any) -> None:
        running = {
            "pid": os.getpid(),
            "host": "here",
            "http": server.address,
            "capture": {},
            "since": NOW,
        }
        RunFile(state, Running(**{**running, **fields})).keep(leading=True)

    def test_the_instance_is_found_by_its_file(
        self, tmp_path: Path, server: StatusServer, instance: Instance
    ) -> None:
        instance.status = replace(instance.status, pid=4242)
        self.run_file(tmp_path, server, pid=4242)
        found = running_status(tmp_path)
        assert found is not None
        assert found["role"] == "leading"

    def test_nobody_is_taken_for_the_instance(self, tmp_path: Path, server: StatusServer) -> None:
        assert running_status(tmp_path) is None
        self.run_file(tmp_path, server, pid=4242)  # another process has the address now
        assert running_status(tmp_path) is None
        self.run_file(tmp_path, server, pid=42, host="there")  # and one on another host the id
        assert running_status(tmp_path) is None
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.run_file(tmp_path, server, http=f"127.0.0.1:{unused.getsockname()[1]}")
            assert running_status(tmp_path) is None

"""A stream lane and its capture as the supervisor starts them, on a table of the benchmarks' own.

A pipeline is *primed* before there are rows: its lane begins, follows, and is stopped. Rows that are written
then wait in the write-ahead log behind its slot, and are read when it is started again, so that every round
has the same work from the same log. There is no lake and no Spark beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench import workload
from bench.resources import peak_bytes
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.sources.postgres.embedded import EmbeddedPostgres

TABLE = "public.streamed"
WAIT_S = 300.0
_LOOK_EVERY_S = 0.05


@dataclass
class StreamPipeline:
    """`slot` names all that is this pipeline's own: publication, topics, directory."""

    server: EmbeddedPostgres
    slot: str
    directory: Path
    lane: str
    section: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        content = {
            "source": {
                "type": "postgres",
                "url": self.server.url(),
                "slot": self.slot,
                "publication": self.slot,
            },
            "destination": {"type": "parquet", "path": "./lake"},
            "state": "./state",
            "streams": [TABLE],
            "lanes": {self.lane: {"snapshot": "never", **self.section}},
        }
        self.file.write_text(yaml.safe_dump(content))

    @property
    def file(self) -> Path:
        return self.directory / "penstock.yaml"

    @property
    def capture_spec(self) -> CaptureSpec:
        state = self.directory / "state"
        return CaptureSpec(
            source=PostgresSpec(self.server.url(), self.slot, self.slot),
            log_directory=state / "log",
            checkpoint_path=state / "checkpoint.json",
            lanes_path=state / "lanes.json",
            lanes={self.lane: None},
        )

    def prime(self) -> None:
        """It has begun, and goes on from here when it is started again."""
        with self.running() as lane, workload.connect(self.server) as connection:
            lane.wait_until_running()
            self.wait_until_acknowledged(connection, workload.log_end(connection))

    def wait_until_acknowledged(self, connection: workload.Connection, position: str) -> None:
        deadline = time.monotonic() + WAIT_S
        query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        while connection.execute(query, (position, self.slot)).fetchone() != (True,):
            assert time.monotonic() < deadline, f"{self.slot} is not at {position} after {WAIT_S:g} s"
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def running(self) -> Iterator[RunningLane]:
        """Both processes; the lane ends in order, as when it is told to."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as sockets:
            service = ServiceSpec(f"grpc+unix://{sockets}/capture")
            spec = self.capture_spec.to_json() | {"service": service.to_json()}
            with _program("penstock.capture", spec, subprocess.DEVNULL, self.environment) as capture:
                where = {"address": service.address, "token": None, "certificate": None}
                told = {"config": str(self.file), "lane": self.lane, "capture": where}
                with _program("penstock.streams", told, subprocess.PIPE, self.environment) as process:
                    lane = RunningLane(capture.pid, process)
                    yield lane
                    lane.stop()


class RunningLane:
    """`began` is when the lane, its process started and compiled, turned to capture and its target."""

    def __init__(self, capture_pid: int, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._capture_pid = capture_pid
        self._process = process
        self._times: dict[str, float] = {}
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_starting(self) -> float:
        return self._wait_for("starting")

    def wait_until_running(self) -> float:
        return self._wait_for("running")

    def cpu_s(self, *, with_capture: bool = True) -> float:
        pids = [self.pid, self._capture_pid] if with_capture else [self.pid]
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return sum(each.user + each.system for each in times)

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.pid)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write('{"request": "stop"}\n')
        self._process.stdin.flush()
        assert self._process.wait(WAIT_S) == 0, "the lane ends in order"

    def _wait_for(self, state: str) -> float:
        """When it said so first."""
        with self._changed:
            self._changed.wait_for(lambda: state in self._times or self._ended, WAIT_S)
            assert state in self._times, f"the lane did not get to `{state}`"
            return self._times[state]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["event"] == "state":
                with self._changed:
                    self._times.setdefault(said["state"], time.perf_counter())
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextmanager
def _program(
    module: str, spec: Mapping[str, Any], output: int, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=output,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def create_table(connection: workload.Connection) -> None:
    workload.drop_table(connection, TABLE)
    workload.create_table(connection, TABLE)

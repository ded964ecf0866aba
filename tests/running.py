"""Instances of `penstock run` for tests: started, watched, paused and killed as a machine may do it.

Each instance has a pipeline file of its own beside the pipeline's, which differs in the address it listens on
and in what the test says. Its processes are found by a mark in their environment, so that those of an
instance whose supervisor is gone are found too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
import psycopg
import yaml

from tests.conftest import wait_until
from tests.pipelines import PipelineUnderTest
from tests.ports import free_port

Role = Literal["supervisor", "capture", "lake", "shapes", "stream", "jvm", "worker"]
ROLES: tuple[Role, ...] = ("supervisor", "capture", "lake", "jvm", "worker")
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 90.0
LOG_SHOWN_BYTES = 6_000
#: A JVM that is killed every minute should start soon rather than run fast.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_COMMAND = "from penstock.cli.main import main; main()"
MARK = "PENSTOCK_TEST_INSTANCE"
#: What a process of each role has in its command line; the supervisor is known by its id.
_TRACES: Mapping[str, Role] = {
    "penstock.capture": "capture",
    "penstock.lake_process": "lake",
    "penstock.shapes": "shapes",
    "penstock.streams": "stream",
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "pyspark.daemon": "worker",
}


@dataclass
class Instance:
    """One `penstock run` of a pipeline; `settings` are sections of the pipeline file, merged into its own."""

    pipeline: PipelineUnderTest
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None
    _mark: str = field(default_factory=lambda: secrets.token_hex(8))

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Instance:
        self._write_file()
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": _JAVA, **self.environment, MARK: self._mark}
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, "-c", str(self.file), "run"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def stop(self) -> int:
        """Ask for an end in order and wait for it; the exit status."""
        ending = [process for process, _ in self.processes()]
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_TIMEOUT_S)
        wait_until(partial(all_gone, ending), f"these to end: {ending}")
        assert not self.processes()
        return status

    def end(self) -> None:
        """Leave nothing running, whatever state it is in."""
        while ending := [process for process, _ in self.processes()]:
            for process in ending:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_until(partial(all_gone, ending), f"these to be gone: {ending}")
        if self._process is not None:
            self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def send(self, number: signal.Signals, role: Role | None = None) -> list[int]:
        """Send it to every process of that role, or of the whole instance; to whom it went."""
        reached = []
        for process, its_role in self.processes():
            if role in (None, its_role):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
                    reached.append(process.pid)
        return reached

    def processes(self) -> list[tuple[psutil.Process, Role]]:
        """Those that live and belong to it, directly or not."""
        found = []
        for process in marked(self._mark):
            with contextlib.suppress(psutil.Error):
                found.append((process, self._role(process)))
        return found

    def _role(self, process: psutil.Process) -> Role:
        if self._process is not None and process.pid == self._process.pid:
            return "supervisor"
        line = process.cmdline()
        return next((role for trace, role in _TRACES.items() if trace in line), "worker")

    # -- files ------------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        return self.pipeline.directory / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        """Beside the pipeline's directory, whose disk a test may fill."""
        return self.pipeline.directory.with_name(f"{self.pipeline.directory.name}-{self.name}.log")

    @property
    def state(self) -> Path:
        return self.pipeline.directory / str(self.settings.get("state", "state"))

    def _write_file(self) -> None:
        content = yaml.safe_load(self.pipeline.file.read_text())
        for section, value in {"run": {}, "console": {"enabled": False}, **self.settings}.items():
            merged = isinstance(value, Mapping) and isinstance(content.get(section, {}), Mapping)
            content[section] = {**content.get(section, {}), **value} if merged else value
        content["run"]["listen"] = f"127.0.0.1:{self.port}"
        self.file.write_text(yaml.safe_dump(content))

    def said(self) -> str:
        """The end of what it printed."""
        text = self.log.read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace") if self.log.exists() else ""
        return f"--- {self.name}, the end of its output\n{text}"

    def epochs(self) -> set[str]:
        """The terms in which steps of the log in its state directory were sealed."""
        found = set()
        for manifest in (self.state / "log").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # retention removes old ones
                found.add(json.loads(manifest.read_text())["epoch"])
        return found

    # -- what it says -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._get("/status") or "{}")
        return document

    def metrics(self) -> dict[str, float]:
        """By name with labels, as Prometheus writes them; empty if it does not answer."""
        lines = (self._get("/metrics") or "").splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    @property
    def role(self) -> str:
        """As its supervisor has it; empty if it does not answer."""
        return str(self.status().get("role", ""))

    @property
    def leading(self) -> bool:
        return self.role == "leading"

    def state_of(self, process: str) -> str:
        """Of one of its processes, by the supervisor's name for it."""
        states = {entry["name"]: entry["state"] for entry in self.status().get("processes", [])}
        return str(states.get(process, ""))

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                text: str = answer.read().decode()
                return text
        except (OSError, http.client.HTTPException):
            return None

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S
    ) -> float:
        """Wait while it lives; the seconds it took."""
        began = time.monotonic()

        def come() -> bool:
            assert self.alive, f"{self.name} ended while waited for: {what}\n{self.said()}"
            return condition()

        try:
            wait_until(come, what, timeout_s)
        except BaseException:
            print(self.said())
            raise
        return time.monotonic() - began


@contextlib.contextmanager
def instances(*made: Instance) -> Iterator[None]:
    """Nothing of them outlives the test."""
    try:
        yield
    finally:
        for instance in made:
            instance.send(signal.SIGCONT)
            instance.end()


def marked(mark: str) -> list[psutil.Process]:
    """All that live and have this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def all_gone(processes: list[psutil.Process]) -> bool:
    """One that ends loses its environment, by which it is found, before its last thread lets go of files."""
    return not any(_has_threads(process) for process in processes)


def _has_threads(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, OSError):
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        return process.is_running() and (threads > 1 or process.status() != psutil.STATUS_ZOMBIE)
    return False


# -- the source's side ------------------------------------------------------------------------------------


def flushed_position(url: str) -> str:
    """The end of the last commit record that the source has made durable."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def is_acknowledged(url: str, slot: str, position: str) -> bool:
    """Whether the slot has been told that everything up to there is safe: it is in the tables."""
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                (position, slot),
            ).fetchone()
    except psycopg.OperationalError:
        return False
    return row is not None and bool(row[0])


def terminate_backends(url: str) -> int:
    """Cut every connection that Penstock has to this database; how many there were."""
    with psycopg.connect(url, autocommit=True, application_name="test") as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'penstock%' AND datname = current_database()"
        ).fetchall()
    return len(rows)

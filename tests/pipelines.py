"""Pipelines for tests, each in a directory of its own, synced in this process or in one that may be killed.

A sync in this process shares the test run's one Spark session and costs a second or two. A sync in a process
of its own is the command people run, with a Spark start each time; only there can a failpoint kill.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

from penstock import Pipeline
from penstock.core.errors import DestinationError
from penstock.core.report import SyncReport
from tests.conftest import wait_until
from tests.iceberg import SPARK_CONF
from tests.oracle import assert_same
from tests.oracle_history import assert_append_is_history
from tests.oracle_iceberg import iceberg_files, iceberg_rows, iceberg_snapshot

DESTINATIONS: Mapping[str, Mapping[str, Any]] = {
    "parquet": {"type": "parquet", "path": "./lake"},
    "iceberg": {"type": "iceberg", "warehouse": "./lake"},
}
#: What pipelines write to, unless a test says so itself.
DESTINATION = os.environ.get("PENSTOCK_TEST_DESTINATION", "parquet")
SYNC_TIMEOUT_S = 300.0
#: These make a JVM that lives for seconds start sooner; a long-lived one would want the optimising compiler.
_FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_COMMAND = "from penstock.cli.main import main; main()"
_MARK = "PENSTOCK_TEST_MARK"


@dataclass(frozen=True)
class Ended:
    """How a sync in a process of its own ended. `struck` is what failpoints reported, in order."""

    status: int
    out: str
    err: str
    struck: tuple[str, ...]

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON document that `--json` promises, also for an error."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    def __str__(self) -> str:
        output = f"--- stdout\n{self.out}\n--- stderr\n{self.err}"
        return f"status {self.status}, struck {list(self.struck)}\n{output}"


class Notes(list[str]):
    """A listener that keeps what a person should know, and passes over progress."""

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None: ...

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None: ...

    def stream_finished(self, stream: str, phase: str, rows: int) -> None: ...

    def note(self, message: str) -> None:
        self.append(message)


@dataclass
class PipelineUnderTest:
    """One pipeline: its file, state and tables under `directory`. `streams` as in penstock.yaml."""

    directory: Path
    url: str
    streams: list[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"penstock_{secrets.token_hex(4)}")
    notes: Notes = field(default_factory=Notes)
    _mark: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.write_file()

    @property
    def file(self) -> Path:
        return self.directory / "penstock.yaml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def write_file(self) -> None:
        """Again after a change to `streams` or `settings`."""
        content = {
            "source": {"type": "postgres", "url": self.url, "slot": self.name, "publication": self.name},
            "destination": dict(DESTINATIONS[DESTINATION]),
            "state": "./state",
            "streams": self.streams,
            "spark": {"master": "local[2]", "conf": SPARK_CONF},
        }
        for section, value in self.settings.items():
            merge = isinstance(value, Mapping) and section in content and "type" not in value
            content[section] = {**content[section], **value} if merge else value  # type: ignore[dict-item]
        self.file.write_text(yaml.safe_dump(content))

    # -- syncs --------------------------------------------------------------------------------

    def sync(self) -> SyncReport:
        """In this process. What it has to say goes to `notes`."""
        return Pipeline.from_yaml(self.file).sync(self.notes)

    def start_sync(self, failpoint: str | None = None, command: Sequence[str] = ("sync",)) -> RunningSync:
        """In a process of its own, `failpoint` as in PENSTOCK_FAILPOINT; `command` may be another one."""
        report, gate = (self.directory / f"{what}-{secrets.token_hex(4)}" for what in ("report", "gate"))
        environment = {
            **os.environ,
            "PENSTOCK_FAILPOINT": failpoint or "",
            "PENSTOCK_FAILPOINT_REPORT": str(report),
            "PENSTOCK_FAILPOINT_GATE": str(gate),
            "JAVA_TOOL_OPTIONS": _FAST_START,
            _MARK: self._mark,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "-c", str(self.file), "--json", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return RunningSync(process, report, gate)

    def sync_apart(
        self,
        failpoint: str | None = None,
        timeout_s: float = SYNC_TIMEOUT_S,
        command: Sequence[str] = ("sync",),
    ) -> Ended:
        """In a process of its own, to its end; then nothing that it started runs on."""
        ended = self.start_sync(failpoint, command).wait(timeout_s)
        self.wait_until_nothing_runs()
        return ended

    def wait_until_nothing_runs(self) -> None:
        """Capture, Spark and its workers end by themselves when the sync that started them is gone."""
        while started := self.running():
            _, alive = psutil.wait_procs(started, timeout=120)
            assert not alive, f"these should have ended: {alive}"

    def running(self) -> list[psutil.Process]:
        """Every process that a sync of this pipeline started, directly or not."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def drop(self) -> None:
        """Its slot and publication; the database and the files are the fixtures' own."""
        Pipeline.from_yaml(self.file).teardown(force=True)

    # -- what came of it ----------------------------------------------------------------------

    @property
    def on_iceberg(self) -> bool:
        return bool(self.settings.get("destination", DESTINATIONS[DESTINATION])["type"] == "iceberg")

    @property
    def warehouse(self) -> Path:
        return self.directory / "lake"

    def path(self, stream: str) -> Path:
        """A directory of Parquet files with the table's rows: of an Iceberg table, what PyIceberg reads."""
        path = Pipeline.from_yaml(self.file).table(stream).path  # says so if there is no table yet
        if not self.on_iceberg:
            return path
        directory = self.directory / "read" / secrets.token_hex(4)
        directory.mkdir(parents=True)
        pq.write_table(iceberg_rows(self.warehouse, stream), directory / "rows.parquet")
        return directory

    def has_table(self, stream: str) -> bool:
        try:
            self.version(stream)
        except (DestinationError, AssertionError):
            return False
        return True

    def version(self, stream: str) -> object:
        """What readers are shown has changed exactly if this has."""
        path = Pipeline.from_yaml(self.file).table(stream).path
        return iceberg_snapshot(self.warehouse, stream) if self.on_iceberg else path

    def files(self, stream: str) -> set[str]:
        """The names, as they were written, of the files that readers are shown."""
        if self.on_iceberg:
            return iceberg_files(self.warehouse, stream)
        return {path.name.partition("-")[2] for path in self.path(stream).glob("*.parquet")}

    def assert_same(self, *streams: str) -> None:
        for stream in streams:
            assert_same(self.url, stream, self.path(stream))

    def assert_history(self, *streams: str, one_moment: bool = True) -> None:
        for stream in streams:
            assert_append_is_history(self.url, stream, self.path(stream), one_moment=one_moment)


@dataclass
class RunningSync:
    process: subprocess.Popen[str]
    report: Path
    gate: Path

    def struck(self) -> tuple[str, ...]:
        return tuple(self.report.read_text().split()) if self.report.exists() else ()

    def wait_until_paused(self, failpoint: str) -> None:
        def paused() -> bool:
            return f"{failpoint}=pause" in self.struck() or self.process.poll() is not None

        wait_until(paused, f"the sync to pause at {failpoint}", timeout_s=SYNC_TIMEOUT_S)
        assert self.process.poll() is None, f"the sync ended instead of pausing: {self.wait()}"

    def go_on(self) -> None:
        self.gate.touch()

    def wait(self, timeout_s: float = SYNC_TIMEOUT_S) -> Ended:
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the sync hangs\n--- stdout\n{out}\n--- stderr\n{err}") from None
        return Ended(self.process.returncode, out, err, self.struck())


def streams_of(upsert: Iterable[str], append: Iterable[str]) -> list[Any]:
    """The `streams:` of a pipeline file."""
    return [*upsert, *({"table": stream, "write": "append"} for stream in append)]

"""A stream lane in the test's own process, or in one that may be killed, on an always-on capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from penstock.capture.remote import RemoteCapture
from penstock.config import Config
from penstock.core.position import Lsn
from penstock.streams.bulk import BulkEncoder
from penstock.streams.file import committed_lines
from penstock.streams.lane import StreamLane
from penstock.streams.lane_measures import StreamMeasures
from penstock.streams.settings import StreamSettings
from tests.always import AlwaysOn, always_spec
from tests.conftest import WAIT_S, Database, wait_until


def pipeline_file(
    directory: Path, database: Database, lane: str, section: dict[str, Any], **more: Any
) -> Path:
    """A pipeline with one stream lane, of which no Spark is needed: the lake lane is never started."""
    path = directory / "penstock.yaml"
    document = {
        "source": {"type": "postgres", "url": database.url, "slot": f"slot_{database.name}"},
        "destination": {"type": "parquet", "path": "./lake"},
        "state": "./state",
        "streams": ["public.*"],
        "lanes": {lane: section},
        **more,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def stream_capture(config: Config, database: Database, **changed: Any) -> AlwaysOn:
    """Capture with the pipeline's stream lanes as its only ones."""
    [lane] = config.lanes.streams
    messages = config.lanes.streams[lane].messages
    prefixes = () if messages is None else tuple(messages.prefixes)
    spec = always_spec(database, config.state, lanes={lane: None}, messages=prefixes, **changed)
    return AlwaysOn(spec, lane)


class LaneThread:
    """One life of a lane, in a thread; the next one with the same pipeline file goes on."""

    def __init__(self, path: Path, address: str, bulk: BulkEncoder | None = None) -> None:
        config = Config.load(path)
        [lane] = config.lanes.streams
        self.states: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._capture = RemoteCapture(address, lane)
        self.measures = StreamMeasures(lane)
        self._lane = StreamLane(
            StreamSettings.of_pipeline(config, lane, path),
            self._capture,
            self.measures,
            lambda state, reason: self.states.append((state, reason)),
            self.notes.append,
            bulk,
        )
        works = (
            self._run,
            lambda: self._lane.reporter.run(self._stop),
            lambda: self.measures.send(lambda _samples: None, self._stop),
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._lane.reporter.wake()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads), "the lane ends in time"
        self._capture.close()
        if kind is None and self.error is not None:
            raise self.error

    @property
    def state(self) -> tuple[str, str]:
        return self.states[-1] if self.states else ("", "")

    def wait_until_running(self) -> None:
        wait_until(lambda: self.state == ("running", "") or self.error is not None, "the lane to run", WAIT_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._lane.run(self._stop)
        except BaseException as error:
            self.error = error


class LaneProcess:
    """`python -m penstock.streams`, spoken to as the supervisor does."""

    def __init__(self, path: Path, address: str, **environment: str) -> None:
        [lane] = Config.load(path).lanes.streams
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.streams"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
            },
        )
        assert self.process.stdin is not None
        spec = {"lane": lane, "config": str(path), "capture": {"address": address}}
        self.process.stdin.write(json.dumps(spec) + "\n")
        self.process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def state(self) -> str:
        states = [line["state"] for line in self.said if line["event"] == "state"]
        return states[-1] if states else ""

    def metric(self, name: str) -> float | None:
        for line in reversed(self.said):
            if line["event"] == "metrics":
                return next((value for each, _, value in line["samples"] if each == name), None)
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write('{"request": "stop"}\n')
        self.process.stdin.flush()
        return self.process.wait(WAIT_S)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))


class CapturedLane:
    """A pipeline file with one stream lane; `capture` is there while its capture runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = Config.load(path)
        self.capture: AlwaysOn | None = None

    @contextmanager
    def captured_by(self, always: AlwaysOn) -> Iterator[AlwaysOn]:
        with always as capture:
            self.capture = capture
            # gRPC is slow to try a socket again that was not there.
            wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
            yield capture

    def lane(self) -> LaneThread:
        assert self.capture is not None
        return LaneThread(self.path, self.capture.capture.address)

    def process(self, **environment: str) -> LaneProcess:
        assert self.capture is not None
        return LaneProcess(self.path, self.capture.capture.address, **environment)


def events_of(path: Path) -> list[dict[str, Any]]:
    """What a reader of the file target sees now."""
    return list(committed_lines(path)) if path.exists() else []


def rows_of(events: list[dict[str, Any]], table: str, *, resumed: bool) -> dict[str, dict[str, Any]]:
    """What somebody has who applies a table's events in order, and refuses what cannot be.

    `resumed`: a load went on after a crash, so changes of a row may be told before the row is.
    """
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        value = event["value"]
        if value is None or f"{value['source']['schema']}.{value['source']['table']}" != table:
            continue
        if value["op"] == "t":
            rows.clear()
            continue
        key = json.dumps(event["key"])
        assert resumed or (key in rows) == (value["op"] in "ud"), f"{value['op']} of {key}"
        if value["op"] == "d":
            rows.pop(key, None)
        else:
            rows[key] = {**rows.get(key, {}), **value["after"]}
    return rows


def standing_of(path: Path) -> dict[str, Any]:
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"commit"')]
    found: dict[str, Any] = json.loads(lines[-1])["commit"]
    return found


def position_of(path: Path) -> Lsn:
    return Lsn.parse(standing_of(path)["position"])

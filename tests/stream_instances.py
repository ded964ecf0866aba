"""Instances of a stream lane under test, as the supervisor runs them: an always-on capture and the lane.

There is no lake beside them, and so no Spark. Instances of one pipeline stand by for each other as two of
`penstock run` do: one capture leads, and the lane of the other one waits for its own to lead.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.streams.kinesis.target import UNPROVEN_SAID
from tests.always import QUICK_HEARTBEAT_S, AlwaysOn, always_spec
from tests.conftest import WAIT_S, Database, wait_until
from tests.running import flushed_position, is_acknowledged

LEVEL_S = 240.0  # a target on a busy machine takes some changes a second only, of keys that change often
LOG_SHOWN_BYTES = 6_000
_NUDGE_EVERY_S = 0.5
_COMMAND = "from penstock.cli.main import main; main()"


@dataclass
class StreamPipeline:
    """One pipeline with one stream lane; its file and state are below `directory`."""

    database: Database
    directory: Path
    lane: str
    section: Mapping[str, Any]
    tables: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: For the lane's process, such as credentials.
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"penstock_{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.database.execute("CREATE TABLE IF NOT EXISTS nudges (id serial PRIMARY KEY)")
        content = {
            "source": {
                "type": "postgres",
                "url": self.database.url,
                "slot": self.name,
                "publication": self.name,
            },
            "destination": {"type": "parquet", "path": "./lake"},
            "state": "./state",
            "streams": [*self.tables, "public.nudges"],
            "lanes": {self.lane: dict(self.section)},
            **self.settings,
        }
        self.file.write_text(yaml.safe_dump(content))

    def elsewhere(self, directory: Path) -> StreamPipeline:
        """The same one on a machine that shares no files with this one."""
        return replace(self, directory=directory)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def file(self) -> Path:
        return self.directory / "penstock.yaml"

    def command(self, *arguments: str) -> str:
        """Run `penstock`, which must succeed; what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, "-c", str(self.file), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def dead_letters(self) -> list[dict[str, Any]]:
        """As they are on disk, those of a key in their order."""
        path = self.state / "streams" / self.lane / "dead_letters.sqlite"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM letters ORDER BY batch, place")]

    def wait_until_level(self, *instances: StreamInstance, timeout_s: float = LEVEL_S) -> None:
        """Everything that is committed now is at the target, and the source is told so.

        The lane must run: loads that begin later than this are not waited for.
        """
        self._nudge()
        target = flushed_position(self.database.url)
        nudged_at = time.monotonic()

        def is_level() -> bool:
            nonlocal nudged_at
            for instance in instances:
                instance.lane.assert_alive()
            if time.monotonic() > nudged_at + _NUDGE_EVERY_S:
                self._nudge()
                nudged_at = time.monotonic()
            return is_acknowledged(self.database.url, self.name, target)

        try:
            wait_until(is_level, f"the target to hold everything up to {target}", timeout_s)
        except BaseException:
            for instance in instances:
                print(instance.lane.told())
            raise

    def _nudge(self) -> None:
        """A change: a server with nothing to send says for 30 s nothing of what it has passed over."""
        self.database.execute("INSERT INTO nudges DEFAULT VALUES")


class StreamInstance:
    """A capture and a lane; both can be started again after they were killed."""

    def __init__(self, pipeline: StreamPipeline, name: str = "a") -> None:
        self._pipeline = pipeline
        self._sockets = tempfile.TemporaryDirectory(prefix="penstock-")
        self._address = f"grpc+unix://{self._sockets.name}/capture"
        self._capture: AlwaysOn | None = None
        self.lane = LaneProcess(pipeline, name, self._address)

    def start(self, failpoint: str = "") -> None:
        self.start_capture()
        self.lane.start(failpoint)

    def start_capture(self) -> None:
        self.kill_capture()
        pipeline = self._pipeline
        spec = always_spec(
            pipeline.database,
            pipeline.state,
            slot=pipeline.name,
            publication=pipeline.name,
            lanes={pipeline.lane: None},
            heartbeat_s=QUICK_HEARTBEAT_S,
            log_retention_s=0.0,  # steps of the log go as soon as nobody needs them
        )
        self._capture = AlwaysOn(spec, "observer", self._address)

    def kill_capture(self) -> None:
        if self._capture is not None:
            self._capture.__exit__(None, None, None)
            self._capture = None

    def leads(self) -> bool:
        return self._capture is not None and self._capture.leads()

    def watch(self, failpoint: str = "") -> None:
        """Start again what was killed, as the supervisor would."""
        if self._capture is None or self._capture.process.poll() is not None:
            self.start_capture()
        if not self.lane.alive:
            self.lane.assert_not_ended()
            self.lane.start(failpoint)

    def send(self, number: signal.Signals) -> None:
        """To both, as a machine that stands still and goes on."""
        if self._capture is not None and self._capture.process.poll() is None:
            self._capture.process.send_signal(number)
        if self.lane.alive:
            self.lane.process.send_signal(number)

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self.lane.kill()
        self.kill_capture()
        self._sockets.cleanup()


class LaneProcess:
    """`python -m penstock.streams`. `said` is what it tells its supervisor, over all its lives."""

    def __init__(self, pipeline: StreamPipeline, name: str, address: str) -> None:
        self._pipeline = pipeline
        self._address = address
        self._log = pipeline.directory / f"lane-{name}.log"
        self._report = pipeline.directory / f"report-{name}"
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self.said: list[dict[str, Any]] = []
        self.struck: Counter[str] = Counter()  # failpoints, over all its lives
        self._said_before = 0  # in lives before this one

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the lane was not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, failpoint: str = "") -> None:
        self.kill()
        self._said_before = len(self.said)
        self._report.unlink(missing_ok=True)
        spec = {
            "config": str(self._pipeline.file),
            "lane": self._pipeline.lane,
            "capture": {"address": self._address, "token": None, "certificate": None},
        }
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.streams"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    **self._pipeline.environment,
                    "PENSTOCK_FAILPOINT": failpoint,
                    "PENSTOCK_FAILPOINT_REPORT": str(self._report),
                },
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def kill(self) -> None:
        """SIGKILL, if it lives."""
        if self._process is not None:
            self._process.kill()
            self._gone()

    def wait_until_struck(self, rule: str, timeout_s: float = WAIT_S) -> bool:
        """It is killed at that failpoint; False, if it does not come there so often."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        name, before = rule.partition("=")[0], self.struck.copy()
        self._gone()
        assert status == -signal.SIGKILL, f"it ended with {status}\n{self.told()}"
        assert self.struck - before == Counter({name: 1}), "it was killed where it should be"
        return True

    def wait_until_running(self) -> None:
        """It follows changes, and loads what it has to load."""

        def runs() -> bool:
            self.assert_alive()
            return "running" in self._states()

        try:
            wait_until(runs, "the lane to run", WAIT_S)
        except BaseException:
            print(self.told())
            raise

    def wait_until_it_stands_by(self) -> None:
        def stands_by() -> bool:
            self.assert_alive()
            return self._states()[-1:] == ["waiting"]

        wait_until(stands_by, "the lane to wait for its instance to lead", WAIT_S)

    def _states(self) -> list[str]:
        """That it has told in this life, in their order."""
        return [line["state"] for line in self.said[self._said_before :] if line["event"] == "state"]

    def assert_alive(self) -> None:
        assert self.alive, f"the lane has ended with {self.process.returncode}\n{self.told()}"

    def assert_not_ended(self) -> None:
        """It may have been killed, but by itself it goes on whatever others do."""
        if self._process is not None and (status := self._process.poll()) is not None:
            assert status == -signal.SIGKILL, f"the lane has ended with {status}\n{self.told()}"

    def unproven(self) -> int:
        """What it could not prove, over all its lives and terms: by its log, which a kill does not undo."""
        found = 0
        for line in self._log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                fields = json.loads(line)
                found += fields["times"] if fields.get("event") == UNPROVEN_SAID else 0
        return found

    def told(self) -> str:
        text = self._log.read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace")
        lines = [line for line in self.said if line["event"] != "metrics"][-10:]
        return f"--- said {lines}\n--- the end of its log\n{text}"

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(json.loads(line))

    def _gone(self) -> None:
        process, self._process = self.process, None
        process.wait()
        if self._report.exists():
            self.struck.update(line.partition("=")[0] for line in self._report.read_text().split())
            self._report.unlink()
        if self._listener is not None:
            self._listener.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


@contextlib.contextmanager
def running(pipeline: StreamPipeline, *names: str) -> Iterator[list[StreamInstance]]:
    """Instances of one pipeline, not started; nothing of them outlives the block."""
    made = [StreamInstance(pipeline, name) for name in names or ("a",)]
    try:
        yield made
    finally:
        for instance in made:
            instance.end()

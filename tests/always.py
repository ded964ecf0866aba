"""An always-on capture process under test, spoken to as the supervisor and as a lane do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import CaptureSpec, ServiceSpec, Started
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from tests.capture_specs import capture_spec
from tests.conftest import WAIT_S, Database, wait_until

HEARTBEAT_S = 20.0  # no machine stands still for a lease of three of them
QUICK_HEARTBEAT_S = 1.0  # for tests of leases that end


def always_spec(database: Database, state: Path, **changed: Any) -> CaptureSpec:
    """All but the service, which each process has of its own."""
    values: dict[str, Any] = {
        "url": database.url,
        "slot": f"slot_{database.name}",
        "publication": "penstock",
        "log_directory": state / "log",
        "checkpoint_path": state / "checkpoint.json",
        "checkpoint_interval_s": 0.2,
        "lanes_path": state / "lanes.json",
        "lanes": {"lake": None},
        "heartbeat_s": HEARTBEAT_S,
        "seal_every_s": 0.2,
    }
    return capture_spec(**{**values, **changed})


class AlwaysOn:
    """One process. `said`: the lines on its channel; `capture`: the lane's side of its service."""

    def __init__(
        self, spec: CaptureSpec, lane: str = "lake", address: str | None = None, **environment: str
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-")
        address = address or f"grpc+unix://{self._directory.name}/capture"
        fields = spec.to_json() | {"service": ServiceSpec(address).to_json()}
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.capture"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.capture = RemoteCapture(address, lane)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.capture.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._directory.cleanup()

    @property
    def states(self) -> list[str]:
        return [line["state"] for line in self.said if line["event"] == "state"]

    @property
    def state(self) -> str:
        states = self.states
        return states[-1] if states else ""

    @property
    def notes(self) -> list[str]:
        return [line["message"] for line in self.said if line["event"] == "note"]

    def metric(self, name: str) -> float | None:
        """The newest value said."""
        for line in reversed(self.said):
            if line["event"] == "metrics":
                return next((value for each, _, value in line["samples"] if each == name), None)
        return None

    def leads(self) -> bool:
        with contextlib.suppress(CaptureAwayError):
            return self.capture.hello().leading
        return False

    def join(self, *streams: str) -> Started:
        """Join the term there is, or the next one."""
        wanted = [StreamId.parse(stream) for stream in streams or ("public.orders",)]
        found: list[Started] = []

        def joined() -> bool:
            with contextlib.suppress(CaptureAwayError):
                if self.capture.hello().leading:
                    found.append(self.capture.join(wanted))
                    self.capture.heard()
            return bool(found)

        wait_until(joined, "capture to lead and to be joined", WAIT_S)
        return found[0]

    def read_now(self) -> Lsn:
        """Have everything that is committed now in the log, in whatever term that takes."""
        for _ in range(10):
            with contextlib.suppress(CaptureAwayError):
                self.capture.read_to(self.capture.note_target())
                end = self.capture.reached(WAIT_S)
                assert end is not None, "what was demanded is sealed in time"
                return end
            self.join()
        pytest.fail("capture went away again and again")

    def stop(self) -> int:
        """Ask for the end, as the supervisor does; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.write('{"request": "stop"}\n')
        self.process.stdin.flush()
        return self.process.wait(WAIT_S)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))


def ids(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [int(row["id"]) for row in rows]

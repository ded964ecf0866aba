"""Starts the capture process and talks to it.

Calls return when capture has done what was asked, except `read_to`, which only starts reading;
`wait_reached` waits for it. Errors of capture come back as the same classes. If the process dies,
every call says so: what it had sealed is in the log, the rest is read again at the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

from penstock.capture.base import Progress
from penstock.capture.spec import CaptureProgress, CaptureSpec, ExportedSnapshot, Started
from penstock.core import errors
from penstock.core.errors import PenstockError, SourceError
from penstock.core.position import Lsn

_STOP_TIMEOUT_S = 10.0
_ANSWER_S = 60.0  # for what needs no waiting at capture


class CaptureProcess:
    """One capture process. Once it is started, several threads may ask it at the same time.

    Without a `spec` it waits for one (`use`): a process takes longer to get ready than it takes to find out
    what to tell it.
    """

    def __init__(
        self, spec: CaptureSpec | None = None, on_progress: Callable[[CaptureProgress], None] | None = None
    ) -> None:
        self._spec = spec
        self._knows_spec = False
        self._on_progress = on_progress
        self._process: subprocess.Popen[str] | None = None
        self._heard = threading.Condition()
        self._asking = threading.Lock()
        self._answers: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._reached: Lsn | None = None
        self._failure: PenstockError | None = None
        self._ended = False
        self._target: Lsn | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def begin(self) -> None:
        """Have the process get ready; does nothing if it is running."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.capture"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._knows_spec = False

    def use(self, spec: CaptureSpec) -> None:
        """What the process is to do; before anything is asked of it."""
        assert not self._knows_spec, "a process has one spec"
        self._spec = spec

    def start(self) -> Started:
        """Set up replication: publication and slot exist afterwards, nothing is read yet."""
        return Started.from_json(self._ask("start"))

    def snapshot(self) -> ExportedSnapshot:
        """A snapshot with the position that separates what it shows from what the log will bring."""
        return ExportedSnapshot.from_json(self._ask("snapshot"))

    def plain_snapshot(self) -> ExportedSnapshot:
        """A snapshot without a slot; needs no `start`."""
        return ExportedSnapshot.from_json(self._ask("plain_snapshot"))

    def release_snapshot(self) -> None:
        self._ask("release_snapshot")

    def note_target(self) -> Lsn:
        """A position after everything that is committed now."""
        return Lsn.parse(self._ask("note_target"))

    def read_to(self, target: Lsn) -> None:
        """Start reading up to `target`; returns at once."""
        with self._heard:
            self._reached = None
        self._target = target
        self._ask("read_to", target=str(target))

    def wait_reached(self, timeout_s: float | None = None) -> Lsn:
        """The log's end, once everything up to the target is sealed."""
        reached = self.reached(timeout_s)
        if reached is None:
            raise SourceError(
                f"Capture did not reach position {self._target} in {timeout_s:.0f} seconds.",
                remedy="Run the same command again; it goes on where it stopped.",
            )
        return reached

    def reached(self, within_s: float | None = None) -> Lsn | None:
        """The log's end once the target is reached; None if that takes longer."""
        deadline = None if within_s is None else time.monotonic() + within_s
        with self._heard:
            while self._reached is None:
                self._raise_if_over()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._heard.wait(left)
            return self._reached

    def progress(self) -> Progress:
        """How far it has read and sealed."""
        return Progress.from_json(self._ask("progress", timeout_s=_ANSWER_S))

    def acknowledge(self, lane: str, position: Lsn) -> Lsn:
        """`lane` holds everything up to `position` durably; what the source has confirmed then."""
        return Lsn.parse(self._ask("acknowledge", lane=lane, position=str(position)))

    def stop(self) -> None:
        """End the process in order; does nothing if it is not running."""
        process = self._process
        if process is None:
            return
        if self._knows_spec:
            with contextlib.suppress(PenstockError):
                self._ask("stop", timeout_s=_STOP_TIMEOUT_S)
        elif process.stdout is not None:
            process.stdout.close()  # nobody listens to it yet
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with self._heard:  # `wait` looks now and then, its output ends at once
            ends = self._heard.wait_for(lambda: self._ended or not self._knows_spec, _STOP_TIMEOUT_S)
        try:
            process.wait(_STOP_TIMEOUT_S if ends else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _ask(self, request: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        process = self._running()
        assert process.stdin is not None
        with self._asking:
            self._last_id += 1
            number = self._last_id
            line = {"id": number, "request": request, "arguments": arguments}
            with contextlib.suppress(OSError):  # the process has ended: the wait below says so
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._heard:
            while number not in self._answers:
                if self._ended:
                    self._raise_if_over()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise SourceError("Capture does not answer.", remedy="End its process and try again.")
                self._heard.wait(left)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer["result"]

    def _running(self) -> subprocess.Popen[str]:
        self.begin()
        process = self._process
        assert process is not None
        if not self._knows_spec:
            assert self._spec is not None, "told before anything is asked"
            assert process.stdin is not None
            with self._heard:
                self._ended, self._failure, self._reached = False, None, None
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps(self._spec.to_json()) + "\n")
            self._knows_spec = True
            threading.Thread(
                target=self._listen, args=(process.stdout,), name="capture-listener", daemon=True
            ).start()
        return process

    def _listen(self, lines: IO[str]) -> None:
        for text in lines:
            line = json.loads(text)
            if line.get("event") == "progress":
                if self._on_progress is not None:
                    del line["event"]
                    self._on_progress(CaptureProgress.from_json(line))
                continue
            with self._heard:
                if "id" in line:
                    self._answers[line["id"]] = line
                elif line["event"] == "reached":
                    self._reached = Lsn.parse(line["position"])
                elif line["event"] == "failed":
                    self._failure = error_from_json(line["error"])
                self._heard.notify_all()
        lines.close()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    def _raise_if_over(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ended:
            code = self._process.wait() if self._process is not None else None
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            raise SourceError(
                f"The capture process ended {how}.",
                remedy="Run the same command again; it goes on where it stopped.",
            )


def error_from_json(fields: dict[str, str]) -> PenstockError:
    """An error of capture as the class it had there."""
    found = getattr(errors, fields.get("class", ""), PenstockError)
    kind = found if isinstance(found, type) and issubclass(found, PenstockError) else PenstockError
    return kind(
        fields.get("message", "Capture failed."),
        remedy=fields.get("remedy", ""),
        stream=fields.get("stream"),
        detail=fields.get("detail", ""),
    )

"""One process that is kept up: started, listened to, started again when it dies, parked when it keeps dying,
or at once if it says that it was told something wrong, which another start would not change.

A parked process is tried again when `parked_retry_s` has passed, and again after that: a disk that was full
and a destination that was away are mended by people who do not know of us. Not so where it says that time
mends nothing (`_TIME_DOES_NOT_MEND`): it waits for somebody.

Its spec goes to stdin, its words come from stdout (`penstock.channel`), its log from stderr. It leads a
session of its own, so that Ctrl-C in a terminal reaches the supervisor alone, which stops its processes in
order; and so that whatever it started and left behind is killed with its group before it is started again. It
ends with its stdin, so nothing runs on when the supervisor is killed.

A thread of its own leads each process through its lives; the others only ask (`ask_stop`, `kill`, `retry`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import IO, Any

from penstock.channel import STATES
from penstock.core.errors import ConfigError, PositionGoneError
from penstock.supervisor.events import Event, Kind, now
from penstock.supervisor.lines import LOGGED_BYTES_MAX, SAID_BYTES_MAX, Flood, lines
from penstock.supervisor.memory import resident_bytes
from penstock.supervisor.restarts import Restarts
from penstock.supervisor.samples import Samples
from penstock.supervisor.status import ProcessStatus

_LAST_LINES_WAIT_S = 2.0
_FOR_GOOD = frozenset({ConfigError.code})
_TIME_DOES_NOT_MEND = _FOR_GOOD | {PositionGoneError.code}


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. `spec` may hold secrets: it is written to stdin and shown nowhere."""

    name: str
    command: tuple[str, ...]
    spec: dict[str, Any]

    def __repr__(self) -> str:
        return f"Program({self.name!r})"


class KeptProcess:
    """`report` and `log` (a process's name and a line of its log) are called from threads of ours.

    `parked_retry_s`: None if a parked process waits for somebody.
    """

    def __init__(
        self,
        program: Program,
        restarts_max: int,
        parked_retry_s: float | None,
        samples: Samples,
        report: Callable[[Event], None],
        log: Callable[[str, str], None],
    ) -> None:
        self.name = program.name
        self._program = program
        self._restarts = Restarts(restarts_max)
        self._parked_retry_s = parked_retry_s
        self._samples = samples
        self._report = report
        self._log = log
        self._changed = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_asked = False
        self._retry_asked = False
        self._state, self._reason, self._since = "starting", "", now()
        self._next_try: str | None = None
        self._begun = time.monotonic()
        self._starts = 0
        self._last_words: dict[str, str] | None = None
        self._error: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._keep_up, name=f"keep-{self.name}", daemon=True)

    def start(self, told: dict[str, Any] | None = None) -> None:
        """`told`: what was not known when its program was made."""
        if told is not None:
            self._program = replace(self._program, spec={**self._program.spec, **told})
        self._thread.start()

    def ask_stop(self) -> None:
        """Let it finish what is under way and end; it is not started again."""
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
            if self._child is not None:
                self._write(self._child, {"request": "stop"})

    def kill(self) -> None:
        """End it at once, with all it started; it is not started again."""
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
            if self._child is not None:
                _kill_group(self._child.pid)

    def retry(self) -> None:
        """Start it now if it is parked or waits to be started again."""
        with self._changed:
            self._retry_asked = self._child is None
            self._changed.notify_all()

    @property
    def state(self) -> str:
        with self._changed:
            return self._state

    def join(self, timeout_s: float) -> None:
        """Wait until it is stopped, if it was ever started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def status(self) -> ProcessStatus:
        with self._changed:
            pid = self._child.pid if self._child is not None else None
            found = ProcessStatus(
                name=self.name,
                state=self._state,
                reason=self._reason,
                since=self._since,
                pid=pid,
                restarts=max(0, self._starts - 1),
                error=self._error,
                next_try=self._next_try,
                on_trial=self._restarts.is_on_trial(time.monotonic() - self._begun),
            )
        return found if pid is None else replace(found, memory_bytes=resident_bytes(pid))

    # -- the thread of its own ----------------------------------------------------------------

    def _keep_up(self) -> None:
        while True:
            self._begun = time.monotonic()
            how = self._live()
            if self._stop_asked:
                break
            ended = time.monotonic()
            delay_s = self._restarts.died(ended, ended - self._begun)
            reason = (self._error or {}).get("message", how)
            if delay_s is None or (self._error or {}).get("code") in _FOR_GOOD:
                self._park(how, reason)
            else:
                self._enter("restarting", reason)
                self._say("died", f"{how}; next start in {delay_s:g} s", how=how, delay_s=delay_s)
                self._wait(delay_s)
        self._enter("stopped", "")
        self._say("stopped", "stopped")

    def _park(self, how: str, reason: str) -> None:
        """Until somebody asks for it or, where that can help, time has passed."""
        is_mended = (self._error or {}).get("code") not in _TIME_DOES_NOT_MEND
        retry_s = self._parked_retry_s if is_mended else None
        if retry_s is None:
            self._enter("parked", reason)
            self._say("parked", f"{how}, and is not started again until SIGHUP: {reason}")
        else:
            next_try = (datetime.now(UTC) + timedelta(seconds=retry_s)).isoformat(timespec="seconds")
            self._enter("parked", reason, next_try)
            again = f"is not started again before {next_try} or SIGHUP"
            self._say("parked", f"{how}, and {again}: {reason}", next_try=next_try)
        if not self._wait(retry_s):
            self._restarts.try_once()

    def _live(self) -> str:
        """One life of the process; gives how it ended."""
        child = self._begin()
        if child is None:
            return "could not be started"
        assert child.stdout is not None
        assert child.stderr is not None
        readers = [
            threading.Thread(target=read, args=(pipe,), name=f"{what}-{self.name}", daemon=True)
            for what, read, pipe in (("hear", self._hear, child.stdout), ("relay", self._relay, child.stderr))
        ]
        for reader in readers:
            reader.start()
        code = child.wait()
        _kill_group(child.pid)
        with self._changed:
            self._child = None
        for reader in readers:
            reader.join(_LAST_LINES_WAIT_S)
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()
        self._samples.forget(self.name)
        self._error = self._last_words
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _begin(self) -> subprocess.Popen[bytes] | None:
        self._last_words = None
        with self._changed:
            if self._stop_asked:
                return None
            try:
                child = subprocess.Popen(
                    self._program.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                )
            except OSError as error:  # no memory, no processes left
                self._last_words = self._error = {"message": f"It could not be started: {error.strerror}."}
                return None
            self._child = child
            self._starts += 1
            self._write(child, self._program.spec)
        self._enter("starting", "")
        self._say("started", f"started as process {child.pid}", pid=child.pid)
        return child

    def _wait(self, delay_s: float | None) -> bool:
        """Until the delay has passed, or for ever; less if somebody asks for something, and whether."""
        with self._changed:
            asked = self._changed.wait_for(lambda: self._stop_asked or self._retry_asked, delay_s)
            if self._retry_asked:
                self._retry_asked = False
                self._restarts.forgive()
            return asked

    # -- what the process says ----------------------------------------------------------------

    def _hear(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in lines(pipe, SAID_BYTES_MAX):
                try:
                    said = json.loads(line)
                    self._take(said["event"], said)
                except Exception:  # whatever is odd about one line, the next ones are to be heard
                    self._log(self.name, line[:LOGGED_BYTES_MAX])

    def _take(self, event: str, said: dict[str, Any]) -> None:
        if event == "metrics":
            self._samples.say(self.name, said["samples"])
        elif event == "state" and said["state"] in STATES:
            reason = str(said.get("reason", ""))
            self._enter(said["state"], reason)
            text = f"{said['state']}: {reason}" if reason else said["state"]
            self._say("state", text, state=said["state"], reason=reason)
        elif event == "note":
            self._say("note", str(said["message"]))
        elif event == "failed":
            error = {str(name): str(value) for name, value in said["error"].items()}
            self._last_words = error
            self._say("failed", error.get("message", "failed"), error=error)

    def _relay(self, pipe: IO[bytes]) -> None:
        flood = Flood()
        with pipe:
            for line in lines(pipe, LOGGED_BYTES_MAX):
                for each in flood.let_through(line):
                    self._log(self.name, each)

    def _enter(self, state: str, reason: str, next_try: str | None = None) -> None:
        with self._changed:
            self._state, self._reason, self._since, self._next_try = state, reason, now(), next_try

    def _say(self, kind: Kind, message: str, **fields: Any) -> None:
        self._report(Event(kind, self.name, message, fields))

    def _write(self, child: subprocess.Popen[bytes], line: dict[str, Any]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: its thread is about to notice
            child.stdin.write((json.dumps(line) + "\n").encode())
            child.stdin.flush()


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)

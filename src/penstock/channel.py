"""A process's line to the supervisor that started it.

The first line on stdin is what the process needs to know (so no secret is in its arguments), each further
line a request; what the process has to say are lines of JSON on stdout, and its log goes to stderr. A process
ends with its stdin: a supervisor that dies, however, takes its processes along. Ctrl-C in a terminal reaches
the whole group, so SIGINT and SIGTERM are left to the supervisor, which stops its processes in order.

Said by a process, each with its fields:
    state    state, reason     where it stands: one of `STATES`
    metrics  samples           [[name, labels, value], …], all it knows, at most once a second (see `metrics`)
    note     message           one sentence for a person
    failed   error             the last words before it ends with an exit code that is not zero
Asked of a process: `stop` (finish what is under way, then end).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal, get_args

State = Literal["starting", "standby", "leading", "running", "waiting", "reconnecting", "stopping"]
STATES: tuple[State, ...] = get_args(State)


class Channel:
    """Made once, first thing in a process. `stop_asked` is set when the supervisor asks for the end.

    `first_line`: what stdin's first line was, if it has been read already.
    """

    def __init__(self, first_line: str | None = None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Only our own lines may reach stdout, whatever a library prints.
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._lock = threading.Lock()
        self.stop_asked = threading.Event()
        self._on_stop: list[Callable[[], None]] = []
        self.spec: dict[str, Any] = json.loads(sys.stdin.readline() if first_line is None else first_line)
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def on_stop(self, call: Callable[[], None]) -> None:
        """Have `call` called, in a thread of the channel's, when the end is asked for."""
        self._on_stop.append(call)
        if self.stop_asked.is_set():
            call()

    def state(self, state: State, reason: str = "") -> None:
        self._say("state", state=state, reason=reason)

    def metrics(self, samples: list[tuple[str, dict[str, str], float]]) -> None:
        """Left out while another thread's words wait to be read: the next ones say all there is."""
        if self._lock.acquire(blocking=False):
            try:
                self._write("metrics", samples=samples)
            finally:
                self._lock.release()

    def note(self, message: str) -> None:
        self._say("note", message=message)

    def failed(self, error: dict[str, str]) -> None:
        self._say("failed", error=error)

    def _say(self, event: str, **fields: Any) -> None:
        with self._lock:
            self._write(event, **fields)

    def _write(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps({"event": event, **fields}) + "\n")

    def _listen(self) -> None:
        for line in sys.stdin:
            if json.loads(line).get("request") == "stop" and not self.stop_asked.is_set():
                self.stop_asked.set()
                for call in self._on_stop:
                    call()
        # The supervisor is gone. What is under way is either committed or will be done again.
        os._exit(0)

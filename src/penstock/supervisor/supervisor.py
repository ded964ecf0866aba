"""Keeps the processes of one instance up, says how they are, and stops them in order.

Everything that decides the course of a run comes through one inbox: signals, and the news of processes. Lanes
are stopped first, for they report to capture what they hold durably; then capture, which acknowledges that,
saves its checkpoint and gives the lead away. What takes longer than `stop_timeout`, or a second signal, is
killed: everything durable is durable by then, and what was under way is done again.
"""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

from penstock import metrics
from penstock.capture.spec import ServiceSpec
from penstock.core.errors import StorageError
from penstock.ledger.run_file import RunFile, Running
from penstock.metrics import Sample
from penstock.supervisor.events import SUPERVISOR, Event, now
from penstock.supervisor.http import StatusServer
from penstock.supervisor.process import KeptProcess, Program
from penstock.supervisor.samples import Samples
from penstock.supervisor.status import CAPTURE, CONSOLE, RunStatus, run_status

ROUND_S = 1.0
_STANDS_STILL_S = 10.0
#: Of the time to stop in, capture gets this part, and no more than so many seconds: it waits for no lane.
_CAPTURE_PART, _CAPTURE_S_MAX = 0.25, 10.0
_KILLED_WITHIN_S = 10.0

#: Whether we are the one to be asked, by capture's state. In others that stays as it was: an instance that
#: has led, and waits for its source or for a person, knows how things stand.
_IS_TO_BE_ASKED = {"leading": True, "standby": False}

Message = Literal["stop", "retry", "news"]


class _AtOnceError(Exception):
    """Somebody asked for the end a second time."""


class Supervisor:
    """`report` is told every event, `log` every line of a process's log; both by several threads."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        listen: str,
        state: Path,
        service: ServiceSpec,
        admin: Path | None = None,
        restarts_max: int,
        parked_retry: timedelta | None,
        stop_timeout: timedelta,
        report: Callable[[Event], None],
        log: Callable[[str, str], None],
    ) -> None:
        self._samples = Samples()
        parked_retry_s = None if parked_retry is None else parked_retry.total_seconds()
        self._processes = [
            KeptProcess(program, restarts_max, parked_retry_s, self._samples, self._heard, log)
            for program in programs
        ]
        self._listen = listen
        self._state = state
        self._service = service
        self._admin = admin
        self._stop_timeout_s = stop_timeout.total_seconds()
        self._report = report
        # Its `put` may be called by a signal handler, wherever the main thread was interrupted.
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._since = now()
        self._seen_at = time.monotonic()
        self._stopping = False
        self._told_of_run_file = False

    # -- for signal handlers ------------------------------------------------------------------

    def ask_stop(self) -> None:
        """Stop in order; asked again, at once."""
        self._inbox.put("stop")

    def retry(self) -> None:
        """Start what is parked, or waits to be started, now."""
        self._inbox.put("retry")

    # -- for those who watch ------------------------------------------------------------------

    def snapshot(self) -> RunStatus:
        return run_status(
            socket.gethostname(),
            os.getpid(),
            self._since,
            [process.status() for process in self._processes],
            self._samples.all(),
            live=time.monotonic() - self._seen_at < _STANDS_STILL_S,
            stopping=self._stopping,
        )

    def samples(self) -> list[Sample]:
        """Our own, and what each process said last."""
        status = self.snapshot()
        said = self._samples.all()
        own: list[Sample] = [(metrics.LEADING.name, {}, float(status.role == "leading"))]
        if status.source.slot_healthy is False:  # capture may have ended by that
            own.append((metrics.SLOT_HEALTHY.name, {}, 0.0))
            said = [sample for sample in said if sample[0] != metrics.SLOT_HEALTHY.name]
        for process in status.processes:
            label = {"process": process.name}
            own += [
                (metrics.UP.name, label, float(process.is_up)),
                (metrics.RESTARTS.name, label, float(process.restarts)),
                (metrics.PARKED.name, label, float(process.is_parked)),
                (metrics.WAITING.name, label, float(process.state == "waiting")),
                (metrics.MEMORY.name, label, float(process.memory_bytes)),
            ]
        return own + said

    @property
    def dropped_samples(self) -> int:
        return self._samples.dropped

    # -- the main thread ----------------------------------------------------------------------

    def run(self) -> bool:
        """Until somebody asks for the end; whether everything ended in order."""
        server = StatusServer(self._listen, self)
        run_file = RunFile(self._state, self._running(server.address))
        try:
            self._report(Event("listening", SUPERVISOR, f"http://{server.address}", {"http": server.address}))
            for process in self._processes:
                process.start({"http": server.address} if process.name == CONSOLE else None)
            self._keep(run_file, leading=False)  # what an earlier life has left
            self._watch(run_file)
            return self._stop()
        finally:
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.join(_KILLED_WITHIN_S)
            self._keep(run_file, leading=False)
            server.stop()

    def _watch(self, run_file: RunFile) -> None:
        while True:
            leading = _IS_TO_BE_ASKED.get(self._capture().state)
            if leading is not None:
                self._keep(run_file, leading=leading)
            match self._next(ROUND_S):
                case "stop":
                    return
                case "retry":
                    for process in self._processes:
                        process.retry()

    def _stop(self) -> bool:
        self._stopping = True
        self._report(Event("stopping", SUPERVISOR, "stopping in order; a second signal stops at once"))
        ends_at = time.monotonic() + self._stop_timeout_s
        for_capture_s = min(_CAPTURE_PART * self._stop_timeout_s, _CAPTURE_S_MAX)
        lanes = [process for process in self._processes if process.name != CAPTURE]
        try:
            in_order = self._stop_these(lanes, ends_at - for_capture_s)
            return self._stop_these([self._capture()], ends_at) and in_order
        except _AtOnceError:
            return False

    def _stop_these(self, processes: Sequence[KeptProcess], ends_at: float) -> bool:
        """Whether they ended in time; those that did not are killed."""
        for process in processes:
            process.ask_stop()
        while (running := [process for process in processes if process.state != "stopped"]) and (
            left_s := ends_at - time.monotonic()
        ) > 0:
            if self._next(min(left_s, ROUND_S)) == "stop":
                raise _AtOnceError
        for process in running:
            self._report(Event("note", process.name, "did not end in time and is killed"))
            process.kill()
        return not running

    def _next(self, within_s: float) -> Message | None:
        self._seen_at = time.monotonic()
        try:
            return self._inbox.get(timeout=within_s)
        except queue.Empty:
            return None

    def _keep(self, run_file: RunFile, *, leading: bool) -> None:
        """A disk that is full, or a state directory that is gone for a while, does not end the run."""
        try:
            run_file.keep(leading=leading)
            self._told_of_run_file = False
        except (StorageError, OSError) as error:
            if not self._told_of_run_file:
                self._told_of_run_file = True
                reason = error.message if isinstance(error, StorageError) else error.strerror
                self._report(Event("note", SUPERVISOR, f"run.json cannot be kept: {reason}"))

    def _heard(self, event: Event) -> None:
        self._report(event)
        if self._inbox.empty():  # whatever else is in it has the main thread look at everything anyway
            self._inbox.put("news")

    def _capture(self) -> KeptProcess:
        return next(process for process in self._processes if process.name == CAPTURE)

    def _running(self, http: str) -> Running:
        capture = {"address": self._service.address}
        if self._service.certificate is not None:
            capture["certificate"] = self._service.certificate
        admin = None if self._admin is None else str(self._admin)
        return Running(os.getpid(), socket.gethostname(), http, capture, self._since, admin)

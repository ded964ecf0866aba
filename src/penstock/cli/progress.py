"""How a sync goes on, for people: bars on a terminal, plain lines elsewhere. Always on stderr.

A bar lasts as long as its stream's phase and then becomes one line, so a pipeline of a thousand
streams shows what is under way and not what is done. Reading the log shows only if there is something
in it for us. Calls come from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.cli.settings import Settings
from penstock.cli.tables import count, size
from penstock.core.report import ProgressListener

PLAIN_INTERVAL_S = 5.0
_VERBS = {"load": "loading", "capture": "reading changes", "apply": "applying changes", "verify": "comparing"}
_DONE = {"load": "loaded", "capture": "read", "apply": "applied", "verify": "compared"}


@contextmanager
def progress_listener(settings: Settings) -> Iterator[ProgressListener]:
    if not settings.err.is_terminal:
        yield PlainProgress(settings.note)
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        _Amount(),
        TimeRemainingColumn(compact=True),
        console=settings.err,
        transient=True,
    )
    with progress:
        yield BarProgress(progress)


@dataclass(slots=True)
class _Phase:
    started: float
    estimated: int | None
    reported: float
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class PlainProgress:
    """A line when a phase ends, and every few seconds while it lasts."""

    write: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _phases: dict[tuple[str, str], _Phase] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None:
        with self._lock:
            now = self.clock()
            self._phases[stream, phase] = _Phase(now, rows_estimated, now)

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None:
        with self._lock:
            now = self.clock()
            current = self._phases.get((stream, phase))
            if current is None:  # a late word from another thread: the phase is over
                return
            current.rows, current.bytes = max(current.rows, rows_total), max(current.bytes, bytes_total)
            if now - current.reported < PLAIN_INTERVAL_S or _is_idle_capture(phase, rows_total):
                return
            current.reported = now
            self.write(f"{stream}: {_VERBS.get(phase, phase)}, {_amount(current, now)}")

    def stream_finished(self, stream: str, phase: str, rows: int) -> None:
        with self._lock:
            now = self.clock()
            current = self._phases.pop((stream, phase), _Phase(now, None, now))
            if not _is_idle_capture(phase, rows):
                self.write(f"{stream}: {finished_line(phase, rows, now - current.started)}")

    def note(self, message: str) -> None:
        with self._lock:
            self.write(message)


class BarProgress:
    """A bar per stream and phase."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock = clock
        self._open: set[tuple[str, str]] = set()
        self._tasks: dict[tuple[str, str], tuple[TaskID, float]] = {}
        self._lock = threading.Lock()

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None:
        with self._lock:
            self._open.add((stream, phase))
            if phase != "capture":
                self._task(stream, phase, rows_estimated)

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None:
        with self._lock:
            # A late word from another thread must not open a bar that nobody ends.
            if (stream, phase) not in self._open or _is_idle_capture(phase, rows_total):
                return
            task, _ = self._task(stream, phase, None)
            known = next(item for item in self._progress.tasks if item.id == task)
            rows = max(rows_total, int(known.completed))  # a bar never goes back
            size_total = max(bytes_total, known.fields["bytes_total"])
            self._progress.update(task, completed=rows, bytes_total=size_total)
            if known.total is not None and known.total < rows:  # it was only an estimate
                self._progress.update(task, total=rows)

    def stream_finished(self, stream: str, phase: str, rows: int) -> None:
        with self._lock:
            self._open.discard((stream, phase))
            if _is_idle_capture(phase, rows):
                return
            task, started = self._task(stream, phase, None)
            del self._tasks[stream, phase]
            self._progress.remove_task(task)
        line = finished_line(phase, rows, self._clock() - started)
        self._progress.console.print(Text.assemble((stream, "bold"), f": {line}"), soft_wrap=True)

    def note(self, message: str) -> None:
        self._progress.console.print(Text(message), soft_wrap=True)

    def _task(self, stream: str, phase: str, rows_estimated: int | None) -> tuple[TaskID, float]:
        key = (stream, phase)
        if key not in self._tasks:
            description = f"[bold]{escape(stream)}[/bold] {_VERBS.get(phase, phase)}"
            task = self._progress.add_task(description, total=rows_estimated or None, bytes_total=0)
            self._tasks[key] = (task, self._clock())
        return self._tasks[key]


def _is_idle_capture(phase: str, rows: int) -> bool:
    """Whether the log is read and has nothing for us: no news for people."""
    return phase == "capture" and not rows


def finished_line(phase: str, rows: int, seconds: float) -> str:
    rate = f", {count(round(rows / seconds))} rows/s" if seconds >= 0.1 and rows >= seconds else ""
    return f"{_DONE.get(phase, phase)} {count(rows)} rows in {seconds:.1f} s{rate}"


def _amount(phase: _Phase, now: float) -> str:
    rate = phase.rows / max(now - phase.started, 0.001)
    parts = [f"{count(phase.rows)} rows", f"{count(round(rate))} rows/s", size(phase.bytes)]
    if phase.estimated and rate > 0:
        left = max(phase.estimated - phase.rows, 0)
        parts[0] = f"{count(phase.rows)} of about {count(phase.estimated)} rows"
        parts.append(f"about {left / rate:.0f} s left")
    return ", ".join(parts)


class _Amount(ProgressColumn):
    """Rows, rows per second, bytes."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        rate = f"{count(round(speed))} rows/s" if speed else ""
        return Text(
            f"{count(int(task.completed)):>13} rows  {rate:>16}  {size(task.fields['bytes_total']):>10}"
        )

"""What `penstock run` shows: a live view on a terminal, lines elsewhere, lines of JSON if asked for.

Events come from several threads, and whoever reads them may have gone: writing never fails a run.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.live import Live
from rich.text import Text

from penstock.cli.run_view import run_view
from penstock.cli.settings import Settings
from penstock.logs import handed_on
from penstock.supervisor.events import Event
from penstock.supervisor.http import Watched, status_document


def run_output(settings: Settings) -> RunLines | RunScreen:
    on_screen = settings.err.is_terminal and not settings.json and settings.log_form == "console"
    return RunScreen(settings) if on_screen else RunLines(settings)


class RunLines:
    """One line per event: on stdout as JSON with `--json`, else on stderr in the form of the log."""

    def __init__(self, settings: Settings) -> None:
        self._form = settings.log_form
        self._to_stdout = settings.json
        self._lock = threading.Lock()

    def event(self, event: Event) -> None:
        if self._to_stdout:
            self._write(sys.stdout, json.dumps(event.to_json(), ensure_ascii=False))
        elif self._form == "json":
            self._write(sys.stderr, handed_on(event.process, json.dumps(_log_fields(event)), "json"))
        else:
            self._write(sys.stderr, _line(event))

    def log(self, process: str, line: str) -> None:
        self._write(sys.stderr, handed_on(process, line, self._form))

    @contextmanager
    def showing(self, watched: Watched) -> Iterator[None]:
        yield

    def _write(self, file: TextIO, line: str) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            file.write(line + "\n")
            file.flush()


class RunScreen:
    """The state of the run, refreshed once a second, below the lines of what happened."""

    def __init__(self, settings: Settings) -> None:
        self._console = settings.err
        self._form = settings.log_form

    def event(self, event: Event) -> None:
        self._print(Text(_line(event)))

    def log(self, process: str, line: str) -> None:
        self._print(Text.from_ansi(handed_on(process, line, self._form)))

    @contextmanager
    def showing(self, watched: Watched) -> Iterator[None]:
        with Live(
            get_renderable=lambda: run_view(status_document(watched)),
            console=self._console,
            refresh_per_second=1,
            transient=True,
        ):
            yield

    def _print(self, text: Text) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._console.print(text, soft_wrap=True)


def _log_fields(event: Event) -> dict[str, Any]:
    """An event by the names that every log line has."""
    level = "error" if event.kind in ("failed", "died", "parked") else "info"
    return {"timestamp": event.at, "level": level, "event": event.message, "kind": event.kind, **event.fields}


def _line(event: Event) -> str:
    message = " ".join(event.message.splitlines())
    return f"{event.at[11:19]} {event.process}: {message}"

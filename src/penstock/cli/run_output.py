"""What `penstock run` shows: a live view on a terminal, lines elsewhere, lines of JSON if asked for.

Events come from several threads, among them those that listen to the processes and the one that stops them:
none of these may ever wait for whoever reads, or the run would stand still with them (`outlet`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.cli.outlet import Outlet, own_file
from penstock.cli.run_view import run_view
from penstock.cli.settings import Settings
from penstock.logs import handed_on
from penstock.supervisor.events import SUPERVISOR, Event
from penstock.supervisor.http import Watched, status_document


def run_output(settings: Settings) -> RunLines | RunScreen:
    on_screen = settings.err.is_terminal and not settings.json and settings.log_form == "console"
    return RunScreen(settings) if on_screen else RunLines(settings)


class RunLines:
    """One line per event: on stdout as JSON with `--json`, else on stderr in the form of the log."""

    def __init__(self, settings: Settings) -> None:
        self._form = settings.log_form
        self._logs = _lines_to(sys.stderr, lambda count: self._logged(_left_out(count)))
        self._events = _lines_to(sys.stdout, lambda count: _json(_left_out(count))) if settings.json else None

    def event(self, event: Event) -> None:
        if self._events is not None:
            self._events.put(_json(event))
        else:
            self._logs.put(self._logged(event))

    def log(self, process: str, line: str) -> None:
        self._logs.put(handed_on(process, line, self._form))

    @contextmanager
    def showing(self, watched: Watched) -> Iterator[None]:
        outlets = [self._logs] if self._events is None else [self._logs, self._events]
        for outlet in outlets:
            outlet.start()
        try:
            yield
        finally:
            for outlet in outlets:
                outlet.end()

    def _logged(self, event: Event) -> str:
        if self._form == "json":
            return handed_on(event.process, json.dumps(_log_fields(event)), "json")
        return _line(event)


class RunScreen:
    """The state of the run, refreshed once a second, below the lines of what happened."""

    def __init__(self, settings: Settings) -> None:
        self._form = settings.log_form
        self._outlet: Outlet[Text] | None = None

    def event(self, event: Event) -> None:
        self._print(Text(_line(event)))

    def log(self, process: str, line: str) -> None:
        self._print(Text.from_ansi(handed_on(process, line, self._form)))

    @contextmanager
    def showing(self, watched: Watched) -> Iterator[None]:
        console = Console(file=own_file(sys.stderr))
        live = Live(
            get_renderable=lambda: run_view(status_document(watched)),
            console=console,
            refresh_per_second=1,
            transient=True,
        )
        self._outlet = Outlet(
            lambda text: console.print(text, soft_wrap=True),
            lambda count: Text(_line(_left_out(count))),
            live,
        )
        self._outlet.start()
        try:
            yield
        finally:
            self._outlet.end()

    def _print(self, text: Text) -> None:
        if self._outlet is not None:
            self._outlet.put(text)


def _lines_to(file: TextIO, left_out: Callable[[int], str]) -> Outlet[str]:
    own = own_file(file)

    def write(line: str) -> None:
        own.write(line + "\n")
        own.flush()

    return Outlet(write, left_out)


def _left_out(count: int) -> Event:
    message = f"{count} lines were left out here: they were not read in time"
    return Event("note", SUPERVISOR, message, {"left_out": count})


def _json(event: Event) -> str:
    return json.dumps(event.to_json(), ensure_ascii=False)


def _log_fields(event: Event) -> dict[str, Any]:
    """An event by the names that every log line has."""
    level = "error" if event.kind in ("failed", "died", "parked") else "info"
    return {"timestamp": event.at, "level": level, "event": event.message, "kind": event.kind, **event.fields}


def _line(event: Event) -> str:
    message = " ".join(event.message.splitlines())
    return f"{event.at[11:19]} {event.process}: {message}"

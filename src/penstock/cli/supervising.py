"""What `penstock run` and `penstock shapes serve` share: processes, kept up and shown."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.failure import INTERRUPTED
from penstock.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from penstock.capture.spec import ServiceSpec
    from penstock.supervisor.process import Program
    from penstock.supervisor.supervisor import Supervisor

_DIRECTORY_LENGTH_MAX = 70


@dataclass(frozen=True, slots=True)
class Instance:
    """What one command keeps up. `admin`: where the live lane takes orders, if there is one.

    `notes`: what a person should know when it begins.
    """

    programs: Sequence[Program]
    listen: str
    state: Path
    service: ServiceSpec
    admin: Path | None
    restarts_max: int
    parked_retry: timedelta | None
    stop_timeout: timedelta
    notes: Sequence[str] = ()


def supervise(context: typer.Context, build: Callable[[Settings, Path], Instance]) -> None:
    """Until a signal; `build` is given a directory for sockets, which is this user's alone."""
    settings = replace(settings_of(context), json_lines=True)
    context.find_root().obj = settings
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=_short_directory()) as directory:
        in_order = _run(settings, build(settings, Path(directory)))
    if not in_order:
        raise typer.Exit(INTERRUPTED)


def _short_directory() -> str:
    """For sockets: the system takes no path of more than about a hundred characters."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _DIRECTORY_LENGTH_MAX else "/tmp"  # noqa: S108 - ours has a random name


def _run(settings: Settings, instance: Instance) -> bool:
    from penstock.cli.run_output import run_output
    from penstock.supervisor.events import SUPERVISOR, Event
    from penstock.supervisor.supervisor import Supervisor

    output = run_output(settings)
    supervisor = Supervisor(
        instance.programs,
        listen=instance.listen,
        state=instance.state,
        service=instance.service,
        admin=instance.admin,
        restarts_max=instance.restarts_max,
        parked_retry=instance.parked_retry,
        stop_timeout=instance.stop_timeout,
        report=output.event,
        log=output.log,
    )
    _handle_signals(supervisor)
    with output.showing(supervisor):
        for note in instance.notes:
            output.event(Event("note", SUPERVISOR, note))
        return supervisor.run()


def _handle_signals(supervisor: Supervisor) -> None:
    had_terminal = os.isatty(sys.stderr.fileno())

    def on_hangup() -> None:
        if had_terminal and not os.isatty(sys.stderr.fileno()):
            supervisor.ask_stop()  # the terminal is gone, and nobody watches
        else:
            supervisor.retry()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: supervisor.ask_stop())
    signal.signal(signal.SIGHUP, lambda _number, _frame: on_hangup())

"""`penstock run`: the always-on service. No Spark here: the lake process has it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.failure import INTERRUPTED
from penstock.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from penstock.supervisor.supervisor import Supervisor

_DIRECTORY_LENGTH_MAX = 70


def run(context: typer.Context) -> None:
    """Follow the source until stopped: capture and lanes as processes of their own, kept up.

    Several instances may run for one pipeline: one leads, the others stand by and take over. Ctrl-C or
    SIGTERM stops in order, a second one at once; SIGHUP starts parked processes again. With --json, one line
    for each event, and for the error if it ends with one.
    """
    settings = replace(settings_of(context), json_lines=True)
    context.find_root().obj = settings
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=_short_directory()) as directory:
        in_order = _run(settings, Path(directory))
    if not in_order:
        raise typer.Exit(INTERRUPTED)


def _short_directory() -> str:
    """For capture's socket: the system takes no path of more than about a hundred characters."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _DIRECTORY_LENGTH_MAX else "/tmp"  # noqa: S108 - ours has a random name


def _run(settings: Settings, directory: Path) -> bool:
    from penstock.capture.from_config import service_of
    from penstock.cli.run_output import run_output
    from penstock.config import Config
    from penstock.supervisor.programs import programs_of
    from penstock.supervisor.supervisor import Supervisor

    config = Config.load(settings.config_path)
    service = service_of(config, directory)
    output = run_output(settings)
    supervisor = Supervisor(
        programs_of(config, settings.config_path, service),
        listen=config.run.listen,
        state=config.state,
        service=service,
        restarts_max=config.run.restarts_max,
        stop_timeout=config.run.stop_timeout,
        report=output.event,
        log=output.log,
    )
    _handle_signals(supervisor)
    with output.showing(supervisor):
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

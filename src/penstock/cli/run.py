"""`penstock run`: the always-on service. No Spark here: the lake process has it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.supervising import Instance, supervise

if TYPE_CHECKING:
    from penstock.cli.settings import Settings


def run(context: typer.Context) -> None:
    """Follow the source until stopped: capture and lanes as processes of their own, kept up.

    Several instances may run for one pipeline: one leads, the others stand by and take over. Ctrl-C or
    SIGTERM stops in order, a second one at once; SIGHUP starts parked processes again. With --json, one line
    for each event, and for the error if it ends with one.
    """
    supervise(context, _instance)


def _instance(settings: Settings, directory: Path) -> Instance:
    from penstock.capture.from_config import lanes_of, service_of
    from penstock.config import Config
    from penstock.ledger.lanes import LANES_FILE, notes_of_left_lanes
    from penstock.supervisor.programs import programs_of

    config = Config.load(settings.config_path)
    service, admin = service_of(config, directory), directory / "shapes"
    return Instance(
        programs_of(config, settings.config_path, service, admin),
        listen=config.run.listen,
        state=config.state,
        service=service,
        admin=None if config.lanes.shapes is None else admin,
        restarts_max=config.run.restarts_max,
        parked_retry=config.run.parked_retry,
        stop_timeout=config.run.stop_timeout,
        notes=notes_of_left_lanes(config.state / LANES_FILE, lanes_of(config)),
    )

"""`penstock resync`: load tables again, while readers keep the old ones until the new ones are complete."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.progress import progress_listener
from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.sync import show_report
from penstock.core.errors import ConfigError


def resync(
    context: typer.Context,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="SCHEMA.TABLE", help="May be several; all of them if none.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, load everything again.")] = False,
) -> None:
    """Load these streams again and go on from there; without a name, all of them under a new slot.

    Readers see the old tables until each new one is complete.
    """
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    if not streams and not yes:
        raise ConfigError(
            "This drops the slot and the change log, and loads every stream of the pipeline again.",
            remedy="Name the streams to load again, or add --yes for all of them.",
        )
    with progress_listener(settings) as listener:
        report = pipeline.resync(streams or (), listener)
    show_report(settings, report)

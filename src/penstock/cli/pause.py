"""`penstock pause` and `penstock resume`: let a stream stand still while the others go on."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.settings import open_pipeline, settings_of

_Streams = Annotated[list[str], typer.Argument(metavar="SCHEMA.TABLE", help="May be several.")]


def pause(
    context: typer.Context,
    streams: _Streams,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown by `status`.")] = "",
) -> None:
    """Let these streams stand still where they are; the others go on.

    Their changes are still captured and kept until they are resumed: watch the disk of the source and of
    the change log meanwhile.
    """
    settings = settings_of(context)
    told = open_pipeline(settings).pause(streams, reason)
    if settings.json:
        settings.emit_json({"paused": streams, "told": told})
        return
    is_paused = "is paused." if told == "done" else "will be paused, when the run has ended its turn."
    for stream in streams:
        settings.out.print(f"{stream} {is_paused}", markup=False, highlight=False, soft_wrap=True)


def resume(context: typer.Context, streams: _Streams) -> None:
    """Let paused streams go on; the next sync, or the run that is at work, brings them up to the others."""
    settings = settings_of(context)
    told = open_pipeline(settings).resume(streams)
    if settings.json:
        settings.emit_json({"resumed": streams, "told": told})
        return
    for stream in streams:
        settings.out.print(
            f"{stream} goes on with the next turn or sync.", markup=False, highlight=False, soft_wrap=True
        )

"""`penstock table path`: where a table's committed files are, for any tool that reads Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.settings import open_pipeline, settings_of
from penstock.core.errors import ConfigError, DestinationError
from penstock.core.stream import StreamId

app = typer.Typer(no_args_is_help=True, help="Find the tables a pipeline writes.")


@app.callback()
def _group() -> None:
    """Find the tables a pipeline writes."""


@app.command()
def path(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The stream.")],
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Of the rows that the table could not hold.")
    ] = False,
) -> None:
    """Print the directory of the table's newest committed version; it never changes under a reader."""
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    try:
        found = (pipeline.dead_letters(stream) if dead_letters else pipeline.table(stream)).path
    except DestinationError:
        if any(entry.id.matches(StreamId.parse(stream)) for entry in pipeline.config.streams):
            raise
        raise ConfigError(
            "The pipeline file names no such stream, and there is no table of it.",
            stream=stream,
            remedy="`penstock status` lists the streams.",
        ) from None
    if settings.json:
        settings.emit_json({"stream": stream, "path": str(found)})
    else:
        typer.echo(found)

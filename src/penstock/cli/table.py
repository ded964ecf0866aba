"""`penstock table path`: where a table's committed files are, for any tool that reads Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.settings import open_pipeline, settings_of

app = typer.Typer(no_args_is_help=True, help="Find the tables a pipeline writes.")


@app.callback()
def _group() -> None:
    """Find the tables a pipeline writes."""


@app.command()
def path(context: typer.Context, stream: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE")]) -> None:
    """Print the directory of the table's newest committed version; it never changes under a reader."""
    settings = settings_of(context)
    found = open_pipeline(settings).table(stream).path
    if settings.json:
        settings.emit_json({"stream": stream, "path": str(found)})
    else:
        typer.echo(found)

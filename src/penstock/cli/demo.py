"""`penstock demo`: the whole thing on a Postgres of its own, in front of you."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.settings import settings_of


def demo(
    context: typer.Context,
    rows: Annotated[int, typer.Option(min=1, help="Rows of history in the largest table.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, help="Syncs while writers are at work.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave tables, state and pipeline file here.")
    ] = None,
    console: Annotated[
        bool | None,
        typer.Option(
            "--console/--no-console",
            help="Go on with a run and a link to its console, until Enter; on a terminal by default.",
        ),
    ] = None,
) -> None:
    """Start a real Postgres, load a small shop, follow its changes, compare both sides; then look at it."""
    from penstock.demo import run_demo

    settings = settings_of(context)
    raise typer.Exit(run_demo(rows=rows, rounds=rounds, keep=keep, json=settings.json, console=console))

"""`penstock state`: look at the pipeline's memory, test it, bring back an earlier one; mend a table by it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import table
from penstock.config import Config
from penstock.core.errors import ConfigError, StateError

if TYPE_CHECKING:
    from penstock.ledger.state import StateDocument
    from penstock.ledger.store import StateStore

app = typer.Typer(
    no_args_is_help=True, help="Show, check, restore or take over the state file; rewind a stream."
)


@app.command()
def show(context: typer.Context) -> None:
    """Print the state as it is."""
    from penstock.ledger import state_json

    document = _document(_store(settings_of(context)))
    sys.stdout.write(state_json.encode(document.to_json()).decode())


@app.command()
def check(context: typer.Context) -> None:
    """Say whether the state can be trusted; exit code 6 if not."""
    from penstock.ledger.state_check import problems

    settings = settings_of(context)
    store = _store(settings)
    document = _document(store)
    found = problems(document)
    if settings.json:
        settings.emit_json({"ok": not found, "version": document.state_version, "problems": found})
    elif found:
        for problem in found:
            settings.out.print(f"✗ {problem}", markup=False, highlight=False, soft_wrap=True)
    else:
        kept = len(store.history())
        settings.out.print(
            f"✓ {store.path} is good: version {document.state_version}, {len(document.streams)} streams, "
            f"{kept} versions kept.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if found:
        raise typer.Exit(StateError.exit_code)


@app.command()
def restore(
    context: typer.Context,
    version: Annotated[int | None, typer.Argument(help="The newest good one if not given.")] = None,
) -> None:
    """Make an earlier version of the state the newest. Nothing is deleted: the history keeps them all."""
    settings = settings_of(context)
    store = _store(settings)
    restored = store.restore(version)
    if settings.json:
        settings.emit_json({"version": restored.state_version})
    else:
        settings.out.print(f"Restored; it is now version {restored.state_version}.", highlight=False)


@app.command()
def migrate(
    context: typer.Context,
    state: Annotated[Path, typer.Option("--from", metavar="FILE", help="OLake's state.json.")],
    streams: Annotated[
        Path | None, typer.Option("--streams", metavar="FILE", help="OLake's streams.json, to compare.")
    ] = None,
) -> None:
    """Take over from OLake. No row is read yet, and nothing of OLake's is changed at the source.

    A stream with `mode: strict_cdc` carries on where OLake's table ends; any other is loaded anew.
    """
    settings = settings_of(context)
    told = open_pipeline(settings).migrate(state, streams)
    if settings.json:
        settings.emit_json({"streams": [stream.to_json() for stream in told]})
        return
    rows = [(each.stream, each.action, each.detail) for each in told]
    settings.out.print(table(("stream", "what becomes of it", ""), rows))


@app.command()
def rewind(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="Whose table it is.")],
    to: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="A position of the source's log: 0/1A2B3C4D.")
    ],
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, apply it again.")] = False,
) -> None:
    """Apply the change log after a position to a stream's table once more, in one commit.

    For a table that was spoilt while the log still has what made it. The next sync does it, or the run that
    is at work; the stream stays where it is, and rows that are as the log has them stay as they are. Without
    --yes it only says what would be read.
    """
    from penstock.operations import rewinds, streams

    settings = settings_of(context)
    config = Config.load(settings.config_path)
    found = rewinds.plan(config, stream, to)
    if not yes:
        raise ConfigError(
            f"This applies the changes of {found.stream} after {found.start} to its table once more.",
            detail=found.said,
            stream=str(found.stream),
            remedy="Add --yes if that is what you want.",
        )
    told = streams.rewind(config, found.stream, found.start)
    if settings.json:
        settings.emit_json({"rewind": found.to_json(), "told": told})
        return
    settings.out.print(found.said, markup=False, highlight=False, soft_wrap=True)
    does = (
        "The run that is at work does it."
        if told == "done"
        else "The next `penstock sync` or turn of `penstock run` does it."
    )
    settings.out.print(does, markup=False, highlight=False, soft_wrap=True)


def _store(settings: Settings) -> StateStore:
    from penstock.ledger.store import StateStore

    return StateStore(Config.load(settings.config_path).state)


def _document(store: StateStore) -> StateDocument:
    document = store.load()
    if document is None:
        raise StateError(
            f"There is no state in {store.directory} yet.", remedy="`penstock sync` makes it the first time."
        )
    return document

"""`penstock dlq`: what a table could not hold or a target would not take, and why.

Without `--lane` it is the lake's dead letters, rows; with it, those of a stream lane, events. Values are
shown only when asked for.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import stream_letters
from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.tables import count, table, text
from penstock.core.errors import ConfigError

_HELP = "Look at dead letters: what a table could not hold or a target would not take; replay or drop some."
_Lane = Annotated[
    str | None,
    typer.Option(
        "--lane", metavar="NAME", help="A stream lane: kafka, kinesis or file; without, the lake's."
    ),
]
_StreamLane = Annotated[
    str, typer.Option("--lane", metavar="NAME", help="The stream lane: kafka, kinesis or file.")
]
_OfStream = Annotated[
    str | None, typer.Option("--stream", metavar="SCHEMA.TABLE", help="Only those of a stream.")
]
_Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for a running lane.")
]

app = typer.Typer(no_args_is_help=True, help=_HELP)


@app.callback()
def _group() -> None:
    """Look at dead letters: what a table could not hold or a target would not take; replay or drop some."""


@app.command("list")
def list_letters(context: typer.Context, lane: _Lane = None) -> None:
    """Show how many dead letters each stream has; of a lane, why they are."""
    settings = settings_of(context)
    if lane is not None:
        stream_letters.list_letters(settings, lane)
        return
    found = [each for each in open_pipeline(settings).status().streams if each.dead_letters]
    if settings.json:
        fields = ("stream", "dead_letters", "dead_keys", "dead_letters_path")
        settings.emit_json([{name: getattr(each, name) for name in fields} for each in found])
        return
    rows = [
        (each.stream, count(each.dead_letters), count(each.dead_keys), text(each.dead_letters_path))
        for each in found
    ]
    columns = ("stream", "dead letters", "dead keys", "path")
    settings.out.print(table(columns, rows, right=("dead letters", "dead keys")))


@app.command()
def show(
    context: typer.Context,
    stream: Annotated[
        str | None, typer.Argument(metavar="[SCHEMA.TABLE]", help="The stream; with --lane, all by default.")
    ] = None,
    lane: _Lane = None,
    values: Annotated[
        bool, typer.Option("--values", help="Show keys and rows too, in the source's own words.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest first.")] = 20,
) -> None:
    """Show dead letters: which change it was, and what the table could not hold or the target said."""
    settings = settings_of(context)
    if lane is not None:
        stream_letters.show_letters(settings, lane, stream, values=values, limit=limit)
        return
    if stream is None:
        raise ConfigError("Which stream's dead letters?", remedy="Name one: penstock dlq show SCHEMA.TABLE.")
    letters = open_pipeline(settings).dead_letters(stream).to_arrow()
    newest = letters.slice(max(0, letters.num_rows - limit)).to_pylist()[::-1]
    shown = [_shown(letter, values=values) for letter in newest]
    if settings.json:
        settings.emit_json({"stream": stream, "dead_letters": letters.num_rows, "shown": shown})
        return
    columns = ("op", "offset", "committed", "dead since", "why", *(("key", "row") if values else ()))
    settings.out.print(table(columns, [[_cell(letter[name]) for name in columns] for letter in shown]))
    if len(shown) < letters.num_rows:
        settings.note(f"{len(shown)} of {letters.num_rows:,} are shown; --limit shows more.")


@app.command()
def replay(
    context: typer.Context,
    lane: _StreamLane,
    stream: _OfStream = None,
    letter: Annotated[
        int | None, typer.Option("--letter", metavar="NUMBER", help="Only this one, and others of its key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    wait: _Wait = 30.0,
) -> None:
    """Have a stream lane send dead letters again, key by key in their order; by default all of them.

    With `dead_letter.order: block_key` a key's later events go on once its letters are at the target.
    """
    settings = settings_of(context)
    if not yes and settings.out.is_terminal:
        typer.confirm(f"Send dead letters of the lane {lane} again?", abort=True)
    stream_letters.ask(settings, lane, "replay", stream, letter, wait)


@app.command()
def drop(
    context: typer.Context,
    lane: _StreamLane,
    stream: _OfStream = None,
    letter: Annotated[int | None, typer.Option("--letter", metavar="NUMBER", help="Only this one.")] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, give them up.")] = False,
    wait: _Wait = 30.0,
) -> None:
    """Give dead letters of a stream lane up: the target never gets them. By default all of them."""
    settings = settings_of(context)
    if not yes:
        raise ConfigError(
            f"This gives dead letters of the lane {lane} up.",
            detail="The target never gets these events.",
            remedy="Add --yes if that is what you want; `penstock dlq show --values` shows them before.",
        )
    stream_letters.ask(settings, lane, "drop", stream, letter, wait)


def _shown(letter: dict[str, Any], *, values: bool) -> dict[str, Any]:
    fields = {
        "op": letter["_op"],
        "offset": f"{letter['_tx']}_{letter['_op_index']}",
        "committed": _moment(letter["_commit_ts"]),
        "dead since": _moment(letter["_dead_at"]),
        "why": letter["_reason"] or ", ".join(letter["_bad_columns"] or ()),
    }
    if values:
        fields["key"] = letter["_key"]
        fields["row"] = {entry["column"]: entry["value"] for entry in letter["_row"]}
    return fields


def _moment(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={'NULL' if each is None else each}" for name, each in value.items())
    return ", ".join(value) if isinstance(value, list) else text(value)

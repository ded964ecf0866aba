"""`penstock dlq`: rows that a table could not hold, and why. Values are shown only when asked for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.tables import count, table, text

app = typer.Typer(no_args_is_help=True, help="Look at dead letters: rows that a table could not hold.")


@app.callback()
def _group() -> None:
    """Look at dead letters: rows that a table could not hold."""


@app.command("list")
def list_letters(context: typer.Context) -> None:
    """Show how many dead letters each stream has, and where they are."""
    settings = settings_of(context)
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
    stream: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The stream.")],
    values: Annotated[
        bool, typer.Option("--values", help="Show keys and rows too, in the source's own words.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest first.")] = 20,
) -> None:
    """Show a stream's dead letters: which change it was, and what the table could not hold."""
    settings = settings_of(context)
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

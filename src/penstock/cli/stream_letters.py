"""What `penstock dlq --lane` does: dead letters of a stream lane, listed, shown, replayed, dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.settings import Settings
from penstock.cli.tables import count, table, text

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.streams.letter_requests import Action


def list_letters(settings: Settings, lane: str) -> None:
    from penstock.operations import letters

    found = letters.summary(_config(settings), lane)
    if settings.json:
        settings.emit_json(found)
        return
    if not found:
        settings.note(f"The lane {lane} has no dead letters.")
        return
    rows = [
        (each["stream"], each["code"], count(each["dead_letters"]), count(each["dead_keys"]), each["since"])
        for each in found
    ]
    columns = ("stream", "code", "dead letters", "dead keys", "since")
    settings.out.print(table(columns, rows, right=("dead letters", "dead keys")))


def show_letters(settings: Settings, lane: str, stream: str | None, *, values: bool, limit: int) -> None:
    from penstock.operations import letters

    total, shown = letters.shown(_config(settings), lane, stream, values=values, limit=limit)
    if settings.json:
        settings.emit_json({"lane": lane, "dead_letters": total, "shown": shown})
        return
    if not shown:
        settings.note(f"The lane {lane} has no dead letters{f' of {stream}' if stream else ''}.")
        return
    of_values = ("key", "value") if values else ()
    columns = ("letter", "stream", "op", "offset", "dead since", "code", "why", "attempts", *of_values)
    settings.out.print(table(columns, [[text(str(each[name])) for name in columns] for each in shown]))
    if len(shown) < total:
        settings.note(f"{len(shown)} of {total:,} are shown; --limit shows more.")


def ask(
    settings: Settings, lane: str, action: Action, stream: str | None, letter: int | None, wait_s: float
) -> None:
    """Ask the lane, and wait for it for a while, if it may be running."""
    from penstock.operations import letters

    asked = letters.ask(_config(settings), lane, action, stream, letter, wait_s)
    found = asked.request
    if settings.json:
        fields = {"finished": found.finished_at is not None, "done": found.done, "kept": found.kept}
        settings.emit_json({"lane": lane, "action": action, "request": found.number} | fields)
    else:
        settings.out.print(asked.said, markup=False, highlight=False)


def _config(settings: Settings) -> Config:
    from penstock.config import Config

    return Config.load(settings.config_path)

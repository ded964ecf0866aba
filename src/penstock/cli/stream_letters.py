"""What `penstock dlq --lane` does: dead letters of a stream lane, listed, shown, replayed, dropped.

Letters are read from the lane's own file. To replay or drop some, the lane is asked by a request in that
file; it looks twice a second. Without a running lane the request stays, and is served when there is one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.settings import Settings
from penstock.cli.tables import count, plural, table, text
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.streams.letter_file import Letter, LetterFile
    from penstock.streams.letter_requests import Action, Request

_LOOK_EVERY_S = 0.1


def list_letters(settings: Settings, lane: str) -> None:
    query = (
        "SELECT stream, code, count(*), count(DISTINCT key), min(at) FROM letters "
        "GROUP BY stream, code ORDER BY stream, code"
    )
    with _letters_of(settings, lane) as file:
        found = [] if file is None else file.rows(query)
    if settings.json:
        fields = ("stream", "code", "dead_letters", "dead_keys", "since")
        settings.emit_json([dict(zip(fields, row, strict=True)) for row in found])
        return
    if not found:
        settings.note(f"The lane {lane} has no dead letters.")
        return
    rows = [(stream, code, count(number), count(keys), since) for stream, code, number, keys, since in found]
    columns = ("stream", "code", "dead letters", "dead keys", "since")
    settings.out.print(table(columns, rows, right=("dead letters", "dead keys")))


def show_letters(settings: Settings, lane: str, stream: str | None, *, values: bool, limit: int) -> None:
    with _letters_of(settings, lane) as file:
        condition, parameters = _wanted(stream, None)
        total = 0 if file is None else file.count(condition, parameters)
        newest = f"{condition} ORDER BY batch DESC, place DESC LIMIT {limit:d}"
        letters = [] if file is None else file.letters(newest, parameters)
    shown = [_shown(letter, values=values) for letter in letters]
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
    from penstock.ledger.run_file import read_running
    from penstock.streams import letter_requests

    config = _config(settings)
    with _letters_of(settings, lane) as file:
        if file is None or not file.count("true"):
            raise ConfigError(f"The lane {lane} has no dead letters.")
        if not file.count(*_wanted(stream, letter)):
            raise ConfigError(
                f"The lane {lane} has no such dead letters.",
                remedy=f"`penstock dlq show --lane {lane}` shows those it has.",
            )
        number = letter_requests.ask(file, action, stream=stream, letter=letter)
        is_running = read_running(config.state) is not None
        asked = _wait_for(file, number, wait_s if is_running else 0.0)
    if settings.json:
        fields = {"finished": asked.finished_at is not None, "done": asked.done, "kept": asked.kept}
        settings.emit_json({"lane": lane, "action": action, "request": number} | fields)
    else:
        settings.out.print(_said(asked, lane, is_running=is_running), markup=False, highlight=False)


def _said(asked: Request, lane: str, *, is_running: bool) -> str:
    verb = "sent" if asked.action == "replay" else "dropped"
    said = f"{plural(asked.done, 'dead letter')} {verb}"
    if asked.kept:
        said += f", {asked.kept:,} refused again; the others of their keys wait behind them"
    if asked.finished_at is not None:
        return f"{said}."
    why = "is not done yet" if is_running else "does not run"
    return f"Requested; the lane {lane} {why}, and does the rest when it can. So far: {said}."


def _wait_for(file: LetterFile, number: int, within_s: float) -> Request:
    from penstock.streams import letter_requests

    deadline = time.monotonic() + within_s
    while (asked := letter_requests.request(file, number)).finished_at is None:
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_EVERY_S)
    return asked


def _wanted(stream: str | None, letter: int | None) -> tuple[str, tuple[Any, ...]]:
    if letter is not None:
        return "number = ?", (letter,)
    return ("true", ()) if stream is None else ("stream = ?", (stream,))


def _shown(letter: Letter, *, values: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "letter": letter.number,
        "stream": letter.stream,
        "route": letter.route,
        "op": chr(letter.kind),
        "offset": f"{letter.tx}_{letter.op}" if not letter.chunk else f"{letter.chunk} {letter.op}",
        "dead since": letter.at,
        "code": letter.code,
        "why": letter.reason,
        "attempts": letter.attempts,
    }
    if values:
        fields |= {"key": _readable(letter.key), "value": _readable(letter.value)}
    return fields


def _readable(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")


@contextmanager
def _letters_of(settings: Settings, lane: str) -> Iterator[LetterFile | None]:
    """The lane's file; None, if it never had a letter."""
    from penstock.streams.letter_file import LetterFile, dead_letters_path

    config = _config(settings)
    if lane not in config.lanes.streams:
        there = ", ".join(config.lanes.streams) or "none"
        raise ConfigError(
            f"There is no stream lane {lane} in the pipeline file.", remedy=f"Stream lanes there: {there}."
        )
    path = dead_letters_path(config.state, lane)
    if not path.exists():
        yield None
        return
    file = LetterFile(path)
    try:
        yield file
    finally:
        file.close()


def _config(settings: Settings) -> Config:
    from penstock.config import Config

    return Config.load(settings.config_path)

"""Dead letters of a stream lane: counted, shown, sent again, given up.

Letters are read from the lane's own file. To replay or drop some, the lane is asked by a request in that
file; it looks twice a second. Without a running lane the request stays, and is served when there is one.
Keys and values are given only to whoever asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.ledger.run_file import read_running
from penstock.operations.lanes import require_stream_lane
from penstock.streams import letter_requests
from penstock.streams.letter_file import Letter, LetterFile, dead_letters_path
from penstock.streams.letter_requests import Action, Request

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of a request so far; `is_running`: somebody is there to serve it."""

    request: Request
    is_running: bool

    @property
    def said(self) -> str:
        asked = self.request
        verb = "sent" if asked.action == "replay" else "dropped"
        said = f"{asked.done:,} dead {'letter' if asked.done == 1 else 'letters'} {verb}"
        if asked.kept:
            said += f", {asked.kept:,} refused again; the others of their keys wait behind them"
        if asked.finished_at is not None:
            return f"{said}."
        why = "is not done yet" if self.is_running else "does not run"
        return f"Requested; the lane {why}, and does the rest when it can. So far: {said}."


def summary(config: Config, lane: str) -> list[dict[str, Any]]:
    """How many there are of each stream, and why."""
    query = (
        "SELECT stream, code, count(*), count(DISTINCT key), min(at) FROM letters "
        "GROUP BY stream, code ORDER BY stream, code"
    )
    fields = ("stream", "code", "dead_letters", "dead_keys", "since")
    with _letters_of(config, lane) as file:
        return [dict(zip(fields, row, strict=True)) for row in file.rows(query)] if file is not None else []


def shown(
    config: Config,
    lane: str,
    stream: str | None,
    *,
    values: bool,
    limit: int,
    letter: int | None = None,
    text: str = "",
    skip: int = 0,
    bytes_max: int | None = None,
) -> tuple[int, list[dict[str, Any]]]:
    """How many there are with `text` in their code or reason, and the newest of them after `skip`. Of a key
    and of a value, `bytes_max` are given; those that nobody asked for are not read.
    """
    with _letters_of(config, lane) as file:
        if file is None:
            return 0, []
        condition, parameters = _wanted(stream, letter)
        if text:
            condition += " AND instr(lower(code || ' ' || reason), lower(?)) > 0"
            parameters += (text,)
        newest = f"{condition} ORDER BY batch DESC, place DESC LIMIT {limit:d} OFFSET {skip:d}"
        read_max = 0 if not values else None if bytes_max is None else bytes_max + 1
        letters = file.letters(newest, parameters, bytes_max=read_max)
        shown = [_described(each, values=values, bytes_max=bytes_max) for each in letters]
        return file.count(condition, parameters), shown


def ask(
    config: Config, lane: str, action: Action, stream: str | None, letter: int | None, wait_s: float
) -> Asked:
    """Ask the lane, and wait for it for a while, if it may be running."""
    with _letters_of(config, lane) as file:
        if file is None or not file.count("true"):
            raise ConfigError(f"The lane {lane} has no dead letters.")
        if not file.count(*_wanted(stream, letter)):
            raise ConfigError(
                f"The lane {lane} has no such dead letters.",
                remedy=f"`penstock dlq show --lane {lane}` shows those it has.",
            )
        number = letter_requests.ask(file, action, stream=stream, letter=letter)
        is_running = read_running(config.state) is not None
        return Asked(_wait_for(file, number, wait_s if is_running else 0.0), is_running)


def _wait_for(file: LetterFile, number: int, within_s: float) -> Request:
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


def _described(letter: Letter, *, values: bool, bytes_max: int | None) -> dict[str, Any]:
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
        fields |= {"key": _readable(letter.key, bytes_max), "value": _readable(letter.value, bytes_max)}
    return fields


def _readable(content: bytes | None, bytes_max: int | None) -> str | None:
    if content is None:
        return None
    shown = content[:bytes_max].decode(errors="backslashreplace")
    return shown if bytes_max is None or len(content) <= bytes_max else f"{shown}…"


@contextmanager
def _letters_of(config: Config, lane: str) -> Iterator[LetterFile | None]:
    """The lane's file; None, if it never had a letter."""
    require_stream_lane(config, lane)
    path = dead_letters_path(config.state, lane)
    if not path.exists():
        yield None
        return
    file = LetterFile(path)
    try:
        yield file
    finally:
        file.close()

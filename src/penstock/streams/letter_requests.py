"""What people ask of a lane's dead letters: to send them again, or to give them up.

Only the lane touches its letters: it alone knows which are of events that may come again, and which keys are
blocked in its memory. So a request is a row in the lane's file; the lane looks once a second, does it between
two of its own writes, and says how it ended. Without a running lane a request waits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from penstock.streams.letter_file import LetterFile

Action = Literal["replay", "drop"]
Key = tuple[str, bytes]  # its stream, and itself
_COLUMNS = "number, action, stream, letter, up_to, asked_at, finished_at, done, kept"
_KEPT_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """For a letter, a stream's letters, or all of them; `up_to`: of those that were there when it was asked.

    `done`: so many were sent or dropped; `kept`: so many were refused again.
    """

    number: int
    action: Action
    stream: str | None
    letter: int | None
    up_to: int
    asked_at: str
    finished_at: str | None = None
    done: int = 0
    kept: int = 0


def ask(file: LetterFile, action: Action, *, stream: str | None = None, letter: int | None = None) -> int:
    """Durable when it returns; the request's number."""
    with file.transaction():
        file.execute(
            "INSERT INTO requests (action, stream, letter, up_to, asked_at) "
            "SELECT ?, ?, ?, coalesce(max(number), 0), ? FROM letters",
            (action, stream, letter, now()),
        )
        number: int = file.rows("SELECT last_insert_rowid()")[0][0]
        old = "DELETE FROM requests WHERE finished_at IS NOT NULL AND number <= ?"
        file.execute(old, (number - _KEPT_REQUESTS,))
    return number


def request(file: LetterFile, number: int) -> Request:
    (row,) = file.rows(f"SELECT {_COLUMNS} FROM requests WHERE number = ?", (number,))
    return Request(*row)


def waiting(file: LetterFile) -> list[Request]:
    """Those that nobody has finished, the oldest first."""
    query = f"SELECT {_COLUMNS} FROM requests WHERE finished_at IS NULL ORDER BY number"
    return [Request(*row) for row in file.rows(query)]


def count(file: LetterFile, number: int, done: int, kept: int) -> None:
    """Part of the caller's transaction."""
    statement = "UPDATE requests SET done = done + ?, kept = kept + ? WHERE number = ?"
    file.execute(statement, (done, kept, number))


def note_keys(file: LetterFile, number: int, keys: Sequence[Key]) -> None:
    """A replay begins, and these are to be drained by it. Part of the caller's transaction."""
    file.set_fact(_drained_name(number), json.dumps([(stream, key.hex()) for stream, key in keys]))


def noted_keys(file: LetterFile, number: int) -> list[Key] | None:
    """None: the replay has not begun."""
    told = file.fact(_drained_name(number), None)
    return None if told is None else [(stream, bytes.fromhex(key)) for stream, key in json.loads(told)]


def finish(file: LetterFile, number: int) -> None:
    with file.transaction():
        file.execute("UPDATE requests SET finished_at = ? WHERE number = ?", (now(), number))
        file.execute("DELETE FROM facts WHERE name = ?", (_drained_name(number),))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _drained_name(number: int) -> str:
    return f"drained by request {number}"

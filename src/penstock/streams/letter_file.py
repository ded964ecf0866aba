"""The file of a lane's dead letters: what the lane writes and the command line reads.

One SQLite file per lane. A transaction that returns is on disk (`synchronous=EXTRA` also syncs the directory,
without which the end of a transaction may be lost with the power). The journal is the old one, not the
write-ahead log, which does not work on shared file systems, where instances that stand by keep their state.

A letter is named by its source (the server), its stream and (tx, op, kind) of its event; a loaded row by its
chunk and key, since its number may be another one when the chunk is read again. Writing a letter twice
changes nothing. Letters of a key are in order by (batch, place): the batch they came in, over all terms, and
where in it. `known` are events that the target has refused before and that come again: not letters yet.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from penstock.core.errors import StateError, StorageError

FORMAT_VERSION = 1
_BUSY_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    stream TEXT NOT NULL, chunk TEXT NOT NULL, tx INTEGER NOT NULL, name BLOB NOT NULL,
    op INTEGER NOT NULL, kind INTEGER NOT NULL, xid INTEGER NOT NULL, route TEXT NOT NULL,
    key BLOB, value BLOB,
    code TEXT NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL, at TEXT NOT NULL,
    batch INTEGER NOT NULL, place INTEGER NOT NULL, replay INTEGER NOT NULL DEFAULT 0,
    headers TEXT NOT NULL, source TEXT NOT NULL,
    UNIQUE (source, stream, chunk, tx, name)
);
CREATE INDEX IF NOT EXISTS letters_by_key ON letters (stream, key, batch, place);
CREATE INDEX IF NOT EXISTS letters_by_code ON letters (stream, code);
CREATE TABLE IF NOT EXISTS known (
    stream TEXT NOT NULL, chunk TEXT NOT NULL, tx INTEGER NOT NULL, name BLOB NOT NULL,
    code TEXT NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL,
    PRIMARY KEY (stream, chunk, tx, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    action TEXT NOT NULL, stream TEXT, letter INTEGER, up_to INTEGER NOT NULL, asked_at TEXT NOT NULL,
    finished_at TEXT, done INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0
);
"""


def dead_letters_path(state: Path, lane: str) -> Path:
    return state / "streams" / lane / "dead_letters.sqlite"


@dataclass(frozen=True, slots=True)
class Letter:
    """One event that is not at the target, and why. `replay`: the number of the replay it is in, or 0."""

    number: int
    stream: str
    chunk: str
    tx: int
    op: int
    kind: int
    xid: int
    route: str
    key: bytes | None
    value: bytes | None
    code: str
    reason: str
    attempts: int
    at: str
    batch: int
    place: int
    replay: int
    headers: str

    COLUMNS: ClassVar[str] = (
        "number, stream, chunk, tx, op, kind, xid, route, key, value, code, reason, attempts, at, batch,"
        " place, replay, headers"
    )

    @property
    def bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


class LetterFile:
    """The lane's one is used by one thread after another; other processes have their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA synchronous = EXTRA")
        if self._format() == 0:
            with self.transaction():
                for statement in _TABLES.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        if self._format() != FORMAT_VERSION:
            raise StateError(
                f"{path} was written by another version of Penstock (format {self._format()}).",
                remedy="Use the version that wrote it, or move the file away: its dead letters go with it.",
            )

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, durable at the end; nobody else writes meanwhile."""
        with self._storage_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> int:
        """Returns how many rows it changed."""
        with self._storage_errors():
            return self._connection.execute(statement, parameters).rowcount

    def execute_many(self, statement: str, parameters: Iterable[tuple[Any, ...]]) -> int:
        with self._storage_errors():
            return self._connection.executemany(statement, parameters).rowcount

    def rows(self, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._storage_errors():
            return self._connection.execute(query, parameters).fetchall()

    def letters(
        self, condition: str, parameters: tuple[Any, ...] = (), *, bytes_max: int | None = None
    ) -> list[Letter]:
        """`bytes_max`: of a key, and of a value, no more than so many; with 0 they are None, and not read."""
        columns = Letter.COLUMNS
        if bytes_max is not None:
            part = f"substr({{0}}, 1, {bytes_max:d})" if bytes_max else "NULL"
            own = f" {part.format('key')}, {part.format('value')},"
            columns = columns.replace(" key, value,", own)
        query = f"SELECT {columns} FROM letters WHERE {condition}"
        return [Letter(*row) for row in self.rows(query, parameters)]

    def count(self, condition: str, parameters: tuple[Any, ...] = ()) -> int:
        number: int = self.rows(f"SELECT count(*) FROM letters WHERE {condition}", parameters)[0][0]
        return number

    @property
    def bytes(self) -> int:
        """What the file holds, without the room that was given back in it."""
        query = (
            "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count,"
        )
        number: int = self.rows(f"{query} pragma_page_size")[0][0]
        return number

    def fact(self, name: str, default: Any) -> Any:
        found = self.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return found[0][0] if found else default

    def set_fact(self, name: str, value: Any) -> None:
        self.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _format(self) -> int:
        number: int = self.rows("PRAGMA user_version")[0][0]
        return number

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"The dead letters in {self.path} cannot be read or written ({type(error).__name__}).",
                remedy="Look for a full disk or missing permissions; the lane goes on where it was.",
            ) from error

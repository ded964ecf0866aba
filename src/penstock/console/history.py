"""What the numbers were: a small SQLite file, so that plots reach over a restart.

A moment is one row: the numbers of all series as packed pairs, 8 bytes each. Two tables hold them: every
ten seconds for the last three hours, and a row per minute for as long as `console.history` says. A minute
has the mean of what is a rate and the greatest of what is a delay or a size, so that a peak stays one.

Size, for 200 streams with three series each and some thirty others: 630 × 8 = 5 KB a moment, 1,080 + 1,440
of them a day: 13 MB. The oldest goes when its time has passed, or when the file would grow beyond
`bytes_max`.

What is asked for is read a few moments at a time and thinned on the way to what a plot can show: neither the
answer nor the memory it takes grows with the file.

Of several consoles of one state directory one writes, who holds the lock beside the file; the others read
what it wrote, and one of them goes on when it ends.

The file is a convenience: one that cannot be read is put aside, and a new one begun.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.file_lock import lock_file

FINE_S, FINE_KEPT_S = 10, 3 * 3600
COARSE_S = 60
SERIES_MAX = 50_000
POINTS_MAX = 1500
_FORMAT_VERSION = 1
_PRUNE_EVERY = 30
#: Errors of SQLite that say nothing against the file.
_NOT_ITS_FAULT = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")
_READ_ROWS = 32  # at a time; the writer waits for no more
_PAIR = struct.Struct("<If")
_PAIRS = np.dtype([("series", "<u4"), ("value", "<f4")])
Point = tuple[int, float | None]
_TABLES = """
CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, seen INTEGER NOT NULL);
CREATE TABLE fine (at INTEGER PRIMARY KEY, points BLOB NOT NULL);
CREATE TABLE coarse (at INTEGER PRIMARY KEY, points BLOB NOT NULL);
"""


@dataclass(slots=True)
class _Minute:
    at: int
    sums: dict[str, float]
    counts: dict[str, int]
    peaks: dict[str, float]


class History:
    """Written by one thread, read by others."""

    def __init__(self, path: Path, kept_s: float, bytes_max: int) -> None:
        self.path = path
        self._kept_s = kept_s
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._minute: _Minute | None = None
        self._written = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writer = lock_file(self._lock_path)
        try:
            self._connection = self._opened()
            self._learn_ids()
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._let_go()

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """The numbers of a moment. Names that end in `_rate` are rates; all others are sizes or delays.

        Nothing while another console writes.
        """
        if not self._may_write():
            return
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        moment, minute = int(at) // FINE_S * FINE_S, int(at) // COARSE_S * COARSE_S
        over = self._minute if self._minute is not None and self._minute.at != minute else None
        with self._lock:
            new: dict[str, int] = {}
            try:
                with self._connection:
                    self._name(known, moment, new)
                    self._put("fine", moment, known)
                    if over is not None:
                        self._put("coarse", over.at, _folded(over))
            except BaseException:
                for name in new:  # was rolled back: the next moment names it again
                    del self._ids[name]
                raise
        # Only when it is committed: a minute that could not be written is with the next moment.
        if self._minute is None or over is not None:
            self._minute = _Minute(minute, {}, {}, {})
        for name, value in known.items():
            self._minute.sums[name] = self._minute.sums.get(name, 0.0) + value
            self._minute.counts[name] = self._minute.counts.get(name, 0) + 1
            self._minute.peaks[name] = max(self._minute.peaks.get(name, value), value)
        self._written += 1
        if self._written % _PRUNE_EVERY == 0:
            self.prune(at)

    def read(
        self, names: Sequence[str], start: float, end: float
    ) -> dict[str, list[tuple[int, float | None]]]:
        """Points of each series in order, no more than `POINTS_MAX`, and a None in each gap between them."""
        table, step = ("fine", FINE_S) if end - start <= FINE_KEPT_S else ("coarse", COARSE_S)
        with self._lock:
            self._follow()
            wanted = {self._ids[name]: name for name in names if name in self._ids}
            count = f"SELECT count(*) FROM {table} WHERE at BETWEEN ? AND ?"
            moments = int(self._connection.execute(count, (int(start), int(end))).fetchone()[0])
        found: dict[str, list[tuple[int, float | None]]] = {name: [] for name in names}
        before: int | None = None
        every = max(1, math.ceil(moments / POINTS_MAX))
        for first, last, values in _thinned(self._moments(table, int(start), int(end)), every, wanted):
            if before is not None and first - before > 3 * step:
                for points in found.values():
                    points.append((before + step, None))
            before = last
            for name, value in values.items():
                found[name].append((last, value))
        return found

    def _moments(self, table: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """A few at a time; what is written or goes meanwhile is there or is not."""
        query = f"SELECT at, points FROM {table} WHERE at BETWEEN ? AND ? ORDER BY at LIMIT {_READ_ROWS}"
        while True:
            with self._lock:
                rows = self._connection.execute(query, (start, end)).fetchall()
            yield from rows
            if len(rows) < _READ_ROWS:
                return
            start = rows[-1][0] + 1

    def names(self) -> list[str]:
        with self._lock:
            self._follow()
            return sorted(self._ids)

    def prune(self, now: float) -> None:
        with self._lock:
            with self._connection:
                execute = self._connection.execute
                execute("DELETE FROM fine WHERE at < ?", (int(now) - FINE_KEPT_S,))
                execute("DELETE FROM coarse WHERE at < ?", (int(now - self._kept_s),))
                gone = [
                    name
                    for (name,) in execute(
                        "SELECT name FROM series WHERE seen < ?", (int(now - self._kept_s),)
                    )
                ]
                execute("DELETE FROM series WHERE seen < ?", (int(now - self._kept_s),))
            for name in gone:
                self._ids.pop(name, None)
            while self._size() > self._bytes_max and self._halve():
                pass
            self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` gives one page back

    def _halve(self) -> bool:
        """Let the older half of the longer table go; False if there is nothing left."""
        counts = {table: self._count(table) for table in ("fine", "coarse")}
        table = max(counts, key=lambda each: counts[each])
        if counts[table] < 2:
            return False
        middle = f"SELECT at FROM {table} ORDER BY at LIMIT 1 OFFSET {counts[table] // 2}"
        with self._connection:
            self._connection.execute(f"DELETE FROM {table} WHERE at < ({middle})")
        return True

    def _count(self, table: str) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def _size(self) -> int:
        """What is in use; pages that are free are given back."""
        names = ("page_count", "freelist_count", "page_size")
        count, free, size = (int(self._connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
        return (count - free) * size

    def _name(self, values: Iterable[str], at: int, new: dict[str, int]) -> None:
        """Those that have no id get one, and are told in `new`."""
        for name in values:
            if name not in self._ids and len(self._ids) < SERIES_MAX:
                named = self._connection.execute("INSERT INTO series (name, seen) VALUES (?, ?)", (name, at))
                assert named.lastrowid is not None
                self._ids[name] = new[name] = named.lastrowid
        if self._written % _PRUNE_EVERY == 0:
            seen = [(at, self._ids[name]) for name in values if name in self._ids]
            self._connection.executemany("UPDATE series SET seen = ? WHERE id = ?", seen)

    def _put(self, table: str, at: int, values: Mapping[str, float]) -> None:
        pairs = sorted((self._ids[name], value) for name, value in values.items() if name in self._ids)
        content = b"".join(_PAIR.pack(number, value) for number, value in pairs)
        self._connection.execute(f"INSERT OR REPLACE INTO {table} (at, points) VALUES (?, ?)", (at, content))

    @property
    def _lock_path(self) -> Path:
        return self.path.with_suffix(".lock")

    def _may_write(self) -> bool:
        with self._lock:
            if self._writer is None and (writer := lock_file(self._lock_path)) is not None:
                self._writer = writer
                self._learn_ids()
            return self._writer is not None

    def _let_go(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def _follow(self) -> None:
        """Know what another console has named since."""
        if self._writer is None:
            self._learn_ids()

    def _learn_ids(self) -> None:
        self._ids = {name: number for number, name in self._connection.execute("SELECT id, name FROM series")}

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "").startswith(_NOT_ITS_FAULT):
                raise
            for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self.path.with_name(name), self.path.with_name(f"{name}.unreadable"))
            return self._open()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=10.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:
                with connection:
                    connection.executescript(_TABLES)
                    connection.execute(f"PRAGMA user_version = {_FORMAT_VERSION}")
            elif version != _FORMAT_VERSION:
                raise sqlite3.DatabaseError("written by another version")
            connection.execute("SELECT count(*) FROM series, fine, coarse LIMIT 0").fetchall()
        except sqlite3.DatabaseError:
            connection.close()
            raise
        os.chmod(self.path, 0o600)  # noqa: PTH101
        return connection


def _folded(minute: _Minute) -> dict[str, float]:
    return {
        name: minute.sums[name] / minute.counts[name] if name.endswith("_rate") else minute.peaks[name]
        for name in minute.sums
    }


def _thinned(
    moments: Iterable[tuple[int, bytes]], every: int, wanted: Mapping[int, str]
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Of each so many moments: the first, the last, and the greatest number of each series."""
    series = np.array(sorted(wanted), np.uint32)
    first, count = 0, 0
    greatest: dict[str, float] = {}
    at = 0
    for at, points in moments:
        first, count = (at if count == 0 else first), count + 1
        pairs = np.frombuffer(points, _PAIRS)
        places = np.minimum(np.searchsorted(pairs["series"], series), max(len(pairs) - 1, 0))
        is_there = pairs["series"][places] == series if len(pairs) else np.zeros(len(series), bool)
        for number, value in zip(
            series[is_there].tolist(), pairs["value"][places[is_there]].tolist(), strict=True
        ):
            name = wanted[number]
            greatest[name] = max(greatest.get(name, value), value)
        if count == every:
            yield first, at, greatest
            count, greatest = 0, {}
    if count:
        yield first, at, greatest

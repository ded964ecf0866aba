"""`console/audit.jsonl`: who did what by the console, a line each; and who asked for values of rows.

A line is on disk before what it says is begun, and another when it has ended: so nothing is done that was not
written down. A line is there whole when `write` returns; one that a full disk or a crash has cut is ended by
whoever writes next, and passed over by readers. Two files of bounded size are kept; consoles of one state
directory write and turn them over under one lock.

What was refused is in files of its own, `refused.jsonl`, so that it cannot push out what was done, however
much comes. Repeated refusals are one line: the first is written at once, those of the same kind within
`SUMMED_S` are counted, and the count is written when the time is over. Beyond `KINDS_MAX` kinds at a time,
addresses and names are no longer told apart. So a day of attacks of any kind fits into these files.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.file_lock import held

FILE_BYTES_MAX = 8 << 20
SUMMED_S = 60.0
KINDS_MAX = 32
SHOWN_MAX = 500
_TEXT_MAX = 500
_READ_BYTES = 1 << 20  # of a file's end, to find the newest lines
_MANY = "many"  # addresses
_Kind = tuple[str, str, str]  # who, from where, what


class Audit:
    """`clock`: seconds that only grow."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = directory / "audit.jsonl"
        self.refused_path = directory / "refused.jsonl"
        self._locked_by = directory / "audit.lock"
        self._clock = clock
        self._lock = threading.Lock()
        self._repeated: dict[_Kind, int] = {}  # since the first of the kind was written
        self._counted_since = clock()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, who: str, address: str, what: str, outcome: str, **fields: Any) -> None:
        with self._lock:
            self._append(self.path, [_line(who, address, what, outcome, **fields)])

    def refuse(self, who: str, address: str, what: str) -> None:
        """Nothing was done; that it was tried is written, or counted with others."""
        with self._lock:
            lines = self._summed()
            kind = (who, address, what)
            if kind not in self._repeated and len(self._repeated) >= KINDS_MAX:
                kind = ("", _MANY, what)
            if kind in self._repeated:
                self._repeated[kind] += 1
            else:
                self._repeated[kind] = 0
                lines.append(_line(*kind, "refused"))
            self._append(self.refused_path, lines)

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """The newest first."""
        wanted = min(limit, SHOWN_MAX)
        with self._lock:
            self._append(self.refused_path, self._summed())
            with held(self._locked_by):  # neither is turned over meanwhile
                found = [*_newest_of(self.path, wanted), *_newest_of(self.refused_path, wanted)]
        return sorted(found, key=lambda line: str(line.get("at", "")), reverse=True)[:wanted]

    def close(self) -> None:
        """Write what is counted."""
        with self._lock:
            self._append(self.refused_path, self._summed(is_over=True))

    def _summed(self, *, is_over: bool = False) -> list[bytes]:
        """Counts whose time is over."""
        now = self._clock()
        if not is_over and now < self._counted_since + SUMMED_S:
            return []
        lines = [_line(*kind, "refused", repeated=more) for kind, more in self._repeated.items() if more]
        self._repeated, self._counted_since = {}, now
        return lines

    def _append(self, path: Path, lines: list[bytes]) -> None:
        if not lines:
            return
        with held(self._locked_by):
            if path.exists() and path.stat().st_size >= FILE_BYTES_MAX:
                os.replace(path, _before(path))
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                content = b"".join(lines)
                _write_all(descriptor, b"\n" + content if _is_cut(descriptor) else content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _line(who: str, address: str, what: str, outcome: str, **fields: Any) -> bytes:
    line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "who": who, "from": address}
    line |= {"what": what, "outcome": outcome}
    line |= {name: _short(value) for name, value in fields.items() if value not in (None, "")}
    return json.dumps(line, ensure_ascii=True).encode() + b"\n"


def _before(path: Path) -> Path:
    return path.with_suffix(".jsonl.1")


def _newest_of(path: Path, limit: int) -> list[dict[str, Any]]:
    """Of this file and the one before it, the newest first."""
    found: list[dict[str, Any]] = []
    for each in (path, _before(path)):
        for line in reversed(_end_of(each)):
            if len(found) >= limit:
                return found
            if (said := _read(line)) is not None:
                found.append(said)
    return found


def _end_of(path: Path) -> list[bytes]:
    """Its last lines: as many as fit."""
    try:
        with open(path, "rb") as file:
            begins = max(0, os.fstat(file.fileno()).st_size - _READ_BYTES)
            file.seek(begins)
            lines = file.read(_READ_BYTES).splitlines()
    except FileNotFoundError:
        return []
    return lines[1:] if begins else lines  # the first is a part of one


def _write_all(descriptor: int, content: bytes) -> None:
    """In one piece, unless the kernel takes less of it; OSError when it takes no more."""
    while content:
        content = content[os.write(descriptor, content) :]


def _is_cut(descriptor: int) -> bool:
    """Whether the last line has no end."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _short(value: Any) -> Any:
    return value[:_TEXT_MAX] if isinstance(value, str) else value

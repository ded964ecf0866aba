"""`console/audit.jsonl`: who did what by the console, a line each; and who asked for values of rows.

A line is on disk before what it says is begun, and another when it has ended: so nothing is done that was not
written down. A line is there whole when `write` returns; one that a full disk or a crash has cut is ended by
whoever writes next, and passed over by readers. Two files of bounded size are kept.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 8 << 20
_TEXT_MAX = 500
SHOWN_MAX = 500


class Audit:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "audit.jsonl"
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, who: str, address: str, what: str, outcome: str, **fields: Any) -> None:
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "who": who, "from": address}
        line |= {"what": what, "outcome": outcome}
        line |= {name: _short(value) for name, value in fields.items() if value not in (None, "")}
        with self._lock:
            self._turn_over()
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                content = json.dumps(line, ensure_ascii=True).encode() + b"\n"
                _write_all(descriptor, b"\n" + content if _is_cut(descriptor) else content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """The newest first."""
        lines: list[bytes] = []
        with self._lock:
            for path in (self._before, self.path):
                if path.exists():
                    lines += path.read_bytes().splitlines()
        found: list[dict[str, Any]] = []
        for line in reversed(lines):
            if len(found) >= min(limit, SHOWN_MAX):
                break
            if (said := _read(line)) is not None:
                found.append(said)
        return found

    @property
    def _before(self) -> Path:
        return self.path.with_suffix(".jsonl.1")

    def _turn_over(self) -> None:
        if self.path.exists() and self.path.stat().st_size >= FILE_BYTES_MAX:
            os.replace(self.path, self._before)


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

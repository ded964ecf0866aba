"""`console/audit.jsonl`: who did what by the console, a line each; and who asked for values of rows.

A line is on disk before what it says is begun, and another when it has ended: so nothing is done that was not
written down. Two files of bounded size are kept.
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
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, json.dumps(line, ensure_ascii=True).encode() + b"\n")
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
        return [json.loads(line) for line in lines[-min(limit, SHOWN_MAX) :][::-1]]

    @property
    def _before(self) -> Path:
        return self.path.with_suffix(".jsonl.1")

    def _turn_over(self) -> None:
        if self.path.exists() and self.path.stat().st_size >= FILE_BYTES_MAX:
            os.replace(self.path, self._before)


def _short(value: Any) -> Any:
    return value[:_TEXT_MAX] if isinstance(value, str) else value

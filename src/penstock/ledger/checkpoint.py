"""`checkpoint.json`: how far capture has durably come, for operators and for counting on.

A report, never the judge: the log's newest manifest decides where reading goes on (correctness 2). So a
write that fails is logged and counted and capture goes on; it only must not acknowledge beyond
`last_saved`. A checkpoint that cannot be read gives way to the newest good one of its history.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock import durable, failpoints
from penstock.core.errors import PenstockError
from penstock.core.position import Lsn

HISTORY_KEPT = 20
_logger = structlog.get_logger("penstock.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`timestamp` is UTC with nanoseconds, as text ("" if an older format had none)."""

    lsn: Lsn
    timestamp: str
    message_count: int

    def to_json(self) -> dict[str, Any]:
        return {"lsn": str(self.lsn), "timestamp": self.timestamp, "message_count": self.message_count}

    @classmethod
    def from_json(cls, fields: Any) -> Checkpoint:
        """Unknown fields are passed over; all but `lsn` may be missing; `lsn` may be a plain number."""
        if not isinstance(fields, dict) or "lsn" not in fields:
            raise ValueError("it has no lsn")
        lsn, count = fields["lsn"], fields.get("message_count", 0)
        if isinstance(lsn, bool) or not isinstance(lsn, int | str):
            raise ValueError("its lsn is neither text nor a number")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError("its message_count is not a count")
        position = Lsn(lsn) if isinstance(lsn, int) else Lsn.parse(lsn)
        return cls(position, str(fields.get("timestamp") or ""), count)


class CheckpointFile:
    """One checkpoint and its history in `checkpoint.history` beside it. Safe to use from several threads."""

    def __init__(self, path: Path, history_kept: int = HISTORY_KEPT) -> None:
        self.path = path
        self.history_directory = path.with_name(f"{path.stem}.history")
        self.history_kept = history_kept
        self.saves = 0
        self.failed_saves = 0
        self.last_saved: Checkpoint | None = None
        self._lock = threading.Lock()

    def save(self, lsn: Lsn, message_count: int) -> bool:
        """Write it durably; False (counted and logged, not raised) if that failed."""
        with self._lock:
            checkpoint = Checkpoint(lsn, _timestamp(time.time_ns()), message_count)
            try:
                failpoints.reach("checkpoint.write")
                content = (json.dumps(checkpoint.to_json()) + "\n").encode()
                durable.replace(self.history_directory / f"{time.time_ns():020d}.json", content)
                durable.replace(self.path, content)
                self._prune()
            except (OSError, PenstockError) as error:
                self.failed_saves += 1
                _logger.error(
                    "checkpoint not written",
                    path=str(self.path),
                    reason=type(error).__name__,
                    failed_saves=self.failed_saves,
                )
                return False
            self.saves += 1
            self.last_saved = checkpoint
            return True

    def load(self) -> Checkpoint | None:
        """The last checkpoint; None if there is none that can be read."""
        try:
            return _read(self.path)
        except FileNotFoundError:
            if not self._history():
                return None
            reason = "the file is missing"
        except (ValueError, OSError) as error:
            reason = str(error)
        _logger.error("checkpoint cannot be read, using its history", path=str(self.path), reason=reason)
        for path in reversed(self._history()):
            try:
                return _read(path)
            except (ValueError, OSError) as error:
                _logger.error("checkpoint in history cannot be read", path=str(path), reason=str(error))
        return None

    def _history(self) -> list[Path]:
        return sorted(path for path in self.history_directory.glob("*.json") if path.stem.isdigit())

    def _prune(self) -> None:
        for path in self._history()[: -self.history_kept]:
            path.unlink(missing_ok=True)


def _read(path: Path) -> Checkpoint:
    try:
        fields = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("it is not whole JSON") from None
    return Checkpoint.from_json(fields)


def _timestamp(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"

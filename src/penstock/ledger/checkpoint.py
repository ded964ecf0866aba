"""`checkpoint.json`: how far capture has durably come, for operators and for counting on.

A report, never the judge: the log's newest manifest decides where reading goes on (correctness 2). So a
write that fails, for whatever reason, is logged and counted and capture goes on; it only must not acknowledge
beyond `last_saved`. A checkpoint that cannot be read gives way to the newest good one of its history, which
is written first. It lies in a directory or in an object store (`checkpoint_store`).
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

from penstock import failpoints
from penstock.core.errors import PenstockError
from penstock.core.position import Lsn
from penstock.ledger.checkpoint_store import Store, open_store

HISTORY_KEPT = 20
_LEFT_OVER_MAX = 1000  # old ones that are remembered while they cannot be removed
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

    def __init__(self, path: str | Path, history_kept: int = HISTORY_KEPT) -> None:
        self._store, self._name = open_store(path)
        self._history_directory = f"{Path(self._name).stem}.history"
        self._history_kept = history_kept
        self._history: list[str] | None = None  # oldest first; asked for once, others' too
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
                self._add_to_history(content)
                self._store.write(self._name, content)
            except Exception as error:
                self.failed_saves += 1
                _logger.error(
                    "checkpoint not written",
                    file=self._name,
                    reason=_reason(error),
                    failed_saves=self.failed_saves,
                )
                self._prune()  # it may have got as far as the history
                return False
            self.saves += 1
            self.last_saved = checkpoint
            self._prune()
            return True

    def load(self) -> Checkpoint | None:
        """The last checkpoint; None if there is none that can be read."""
        try:
            return _read(self._store, self._name)
        except FileNotFoundError:
            reason = "the file is missing"
        except Exception as error:
            reason = _reason(error)
        try:
            names = _history_names(self._store, self._history_directory)
        except Exception as error:
            names, reason = [], _reason(error)
        if names or reason != "the file is missing":
            _logger.error("checkpoint cannot be read, using its history", file=self._name, reason=reason)
        for name in reversed(names):
            try:
                return _read(self._store, f"{self._history_directory}/{name}")
            except Exception as error:
                _logger.error("checkpoint in history cannot be read", file=name, reason=_reason(error))
        return None

    def _add_to_history(self, content: bytes) -> None:
        if self._history is None:
            self._history = _history_names(self._store, self._history_directory)
        name = f"{time.time_ns():020d}.json"
        self._store.write(f"{self._history_directory}/{name}", content)
        self._history.append(name)

    def _prune(self) -> None:
        """What is left over because this failed goes the next time; of very much, with the next process:
        a store may let us write for years and never remove."""
        history = self._history or []
        try:
            while len(history) > self._history_kept:
                self._store.remove(f"{self._history_directory}/{history[0]}")
                del history[0]
        except FileNotFoundError:
            del history[0]
        except Exception as error:
            _logger.warning("old checkpoint not removed", file=history[0], reason=_reason(error))
            del history[: -self._history_kept - _LEFT_OVER_MAX]


def _history_names(store: Store, directory: str) -> list[str]:
    return sorted(name for name in store.names(directory) if Path(name).stem.isdigit())


def _read(store: Store, name: str) -> Checkpoint:
    try:
        fields = json.loads(store.read(name))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("it is not whole JSON") from None
    return Checkpoint.from_json(fields)


def _reason(error: Exception) -> str:
    """What may be said of it: Arrow quotes an address that it cannot use, which may hold a secret."""
    if isinstance(error, PenstockError):
        return error.message
    is_known = isinstance(error, OSError | ValueError) and not type(error).__module__.startswith("pyarrow")
    return str(error) if is_known else type(error).__name__


def _timestamp(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"

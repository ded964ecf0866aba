"""`checkpoint.json`: how far capture has durably come, for operators and for counting on.

A report, never the judge: the log's newest manifest decides where reading goes on (correctness 2). So a
write that fails, for whatever reason, is logged and counted and capture goes on; it only must not acknowledge
beyond `last_saved`. A checkpoint that cannot be read gives way to the newest good one of its history, which
is written first. It lies in a directory or in an object store (`checkpoint_store`).

What a leader saves that was replaced does no harm, wherever it was stopped. When it wakes up it finds that
its lease is over, and saves nothing (`may_save`). Stopped after that look, it replaces nothing in a directory
(`leader_files`). In an object store it may replace the file once more: no look can prevent that, and stores
that compare before they write are not the rule. But the file says by whom it is (`system_id`, `epoch`), and
the history is the judge of that:

- a successor that has ever saved has a file in the history under its own name, written before
  `checkpoint.json`, which an earlier leader neither writes nor removes (`checkpoint_history`);
- so who loads finds that the file is of an earlier leader than the history's newest, and takes that one;
- and the leader looks at the file once in a while (`keep`), and puts its own back for people to see.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock import failpoints
from penstock.core.errors import PenstockError
from penstock.core.position import Lsn
from penstock.ledger.checkpoint_history import NOBODY, CheckpointHistory, Leader
from penstock.ledger.checkpoint_store import open_store

HISTORY_KEPT = 20
_MISSING = "the file is missing"
_logger = structlog.get_logger("penstock.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`timestamp` is UTC with nanoseconds, as text ("" if an older format had none)."""

    lsn: Lsn
    timestamp: str
    message_count: int
    leader: Leader = NOBODY

    def to_json(self) -> dict[str, Any]:
        fields = {"lsn": str(self.lsn), "timestamp": self.timestamp, "message_count": self.message_count}
        if not self.leader.system_id:
            return fields
        return fields | {"system_id": self.leader.system_id, "epoch": str(self.leader.epoch)}

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
        leader = Leader(str(fields.get("system_id", "")), Lsn.parse(str(fields.get("epoch", "0/0"))))
        return cls(position, str(fields.get("timestamp") or ""), count, leader)


class CheckpointFile:
    """One checkpoint and its history in `checkpoint.history` beside it. Safe to use from several threads.

    `may_save` raises where this process may not lead any more.
    """

    def __init__(
        self,
        path: str | Path,
        history_kept: int = HISTORY_KEPT,
        leader: Leader = NOBODY,
        may_save: Callable[[], None] | None = None,
    ) -> None:
        self._store, self._name = open_store(path, may_save)
        self._leader = leader
        self._may_save = may_save
        self._history = CheckpointHistory(
            self._store, f"{Path(self._name).stem}.history", leader, history_kept
        )
        self.saves = 0
        self.failed_saves = 0
        self.last_saved: Checkpoint | None = None
        self._lock = threading.Lock()

    def save(self, lsn: Lsn, message_count: int) -> bool:
        """Write it durably; False (counted and logged, not raised) if that failed."""
        with self._lock:
            checkpoint = Checkpoint(lsn, _timestamp(time.time_ns()), message_count, self._leader)
            try:
                failpoints.reach("checkpoint.write")
                self._history.look()
                self._require_lead()
                content = _content(checkpoint)
                self._history.add(content)
                self._store.write(self._name, content)
            except Exception as error:
                self.failed_saves += 1
                _logger.error(
                    "checkpoint not written",
                    file=self._name,
                    reason=_reason(error),
                    failed_saves=self.failed_saves,
                )
                self._history.prune(_not_removed)  # it may have got as far as the history
                return False
            self.saves += 1
            self.last_saved = checkpoint
            self._history.prune(_not_removed)
            return True

    def keep(self) -> None:
        """Put what was last saved back, if something else stands there."""
        with self._lock:
            if self.last_saved is None:
                return
            found, _ = self._read_file()
            if found == self.last_saved:
                return
            try:
                self._require_lead()
                self._store.write(self._name, _content(self.last_saved))
            except Exception as error:
                _logger.warning("checkpoint not put back", file=self._name, reason=_reason(error))
                return
            _logger.warning("checkpoint was not ours, and is put back", file=self._name)

    def load(self) -> Checkpoint | None:
        """The last checkpoint of the newest leader; None if there is none that can be read."""
        found, reason = self._read_file()
        try:
            entries = self._history.newest_first()
        except Exception as error:
            entries, reason = [], reason or _reason(error)
        if found is not None:
            if not entries or not found.leader.was_replaced_by(entries[0].leader):
                return found
            reason = "an earlier leader wrote it, later than its successor"
        if entries or reason != _MISSING:
            _logger.error("checkpoint cannot be used, using its history", file=self._name, reason=reason)
        for entry in entries:
            try:
                return _parsed(self._history.read(entry))
            except Exception as error:
                _logger.error("checkpoint in history cannot be read", file=entry.name, reason=_reason(error))
        return None

    def _read_file(self) -> tuple[Checkpoint | None, str]:
        """What stands there, or why it cannot be read."""
        try:
            return _parsed(self._store.read(self._name)), ""
        except FileNotFoundError:
            return None, _MISSING
        except Exception as error:
            return None, _reason(error)

    def _require_lead(self) -> None:
        """Raise if another may lead by now. If none does, nobody has come after us: what seems to be of a
        later leader is from before the source was put back, and would be taken for the newest for ever."""
        if self._may_save is not None:
            self._may_save()
            self._history.forget_later(_not_removed)


def _not_removed(name: str, error: Exception) -> None:
    _logger.warning("old checkpoint not removed", file=name, reason=_reason(error))


def _content(checkpoint: Checkpoint) -> bytes:
    return (json.dumps(checkpoint.to_json()) + "\n").encode()


def _parsed(content: bytes) -> Checkpoint:
    try:
        fields = json.loads(content)
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

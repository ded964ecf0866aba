"""Saves the checkpoint in the background: every `interval_s` while the log grows, sooner after much, and at
the end.

A report for people (correctness 2). Saving never holds up the stream, however slow its store is: one thread
saves, nothing queues up, and nobody waits for it longer than `WAIT_S`. But the source is not acknowledged
past `saved`, the last checkpoint that is durable.

Once in an interval without anything to save it is looked whether the file is still ours: a leader that was
stopped may have replaced it when it woke up (`ledger/checkpoint.py`).

`message_count` counts on from the checkpoint where the log does not, because it was begun anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.core.position import Lsn
from penstock.ledger.checkpoint import HISTORY_KEPT, CheckpointFile
from penstock.ledger.checkpoint_history import Leader
from penstock.log.writer import LogWriter
from penstock.metrics import CHECKPOINT_AGE_SECONDS, Sample

INTERVAL_S = 10.0
WAIT_S = 15.0
LARGE_BYTES = 256 << 20  # of the source's log: a checkpoint is due whenever the last one was


class CheckpointSaver:
    def __init__(
        self,
        path: str | Path,
        writer: LogWriter,
        interval_s: float = INTERVAL_S,
        history: int = HISTORY_KEPT,
        may_save: Callable[[], None] | None = None,
    ) -> None:
        self._file = CheckpointFile(path, history, Leader(writer.system_id, writer.epoch), may_save)
        self._writer = writer
        self._interval_s = interval_s
        self._counted_in_log = writer.message_count
        self._counted_before = 0
        self._found: Lsn | None = None  # an earlier process's
        self._changed = threading.Condition()
        self._asked = self._answered = 0  # saves that somebody waits for
        self._closed = False
        self._failed = False
        self._saving: Lsn | None = None  # what the newest try saves
        self._unsaved_since: float | None = time.monotonic()  # when the log went past `saved`
        self._past_saving_at: float | None = None  # when it went past that
        self._tried_at = time.monotonic() - interval_s
        self._thread = threading.Thread(target=self._run, name="capture-checkpoint", daemon=True)
        self._thread.start()

    @property
    def saved(self) -> Lsn | None:
        """The position of the last checkpoint that this process saved durably."""
        last = self._file.last_saved
        return None if last is None else last.lsn

    def sealed(self) -> None:
        """A step was sealed: save soon."""
        with self._changed:
            now, end = time.monotonic(), self._writer.end
            if self._unsaved_since is None and end != self.saved:
                self._unsaved_since = now
            if self._past_saving_at is None and end != self._saving:
                self._past_saving_at = now
            self._changed.notify_all()

    def save_before_acknowledging(self) -> Lsn | None:
        """Save now; None if that worked, else the position of the last one that could be saved."""
        end = self._writer.end
        if self.saved != end:
            with self._changed:
                self._asked += 1
                asked = self._asked
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._answered >= asked, WAIT_S)
        saved = self.saved
        return None if saved is not None and saved >= end else saved or self._found or Lsn(0)

    def close(self) -> None:
        """Save what is not saved yet, if that can be done in time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(WAIT_S)

    @property
    def saves(self) -> int:
        return self._file.saves

    @property
    def failures(self) -> int:
        return self._file.failed_saves

    def samples(self) -> list[Sample]:
        with self._changed:
            since = None if self._writer.end == self.saved else self._unsaved_since
            age_s = 0.0 if since is None else time.monotonic() - since
        return [(CHECKPOINT_AGE_SECONDS.name, {}, age_s)]

    def _run(self) -> None:
        found = self._file.load()
        if found is not None:
            self._found = found.lsn
            self._counted_before = max(0, found.message_count - self._counted_in_log)
        closing = False
        while not closing:
            asked, closing = self._wait_until_due()
            if self._writer.end != self.saved:
                self._save()
            elif not closing:
                self._tried_at = time.monotonic()
                self._file.keep()
            with self._changed:
                self._answered = asked
                self._changed.notify_all()

    def _wait_until_due(self) -> tuple[int, bool]:
        """What is asked for by then, and whether it is the last time."""
        with self._changed:
            while self._asked == self._answered and not self._closed:
                rest_s = self._due_in_s()
                if rest_s <= 0:
                    break
                self._changed.wait(rest_s)
            return self._asked, self._closed

    def _due_in_s(self) -> float:
        """Until something is to be saved, or what was saved is to be looked at."""
        end, saved = self._writer.end, self.saved
        if saved is not None and end - saved >= LARGE_BYTES and not self._failed:
            return 0.0
        return self._tried_at + self._interval_s - time.monotonic()

    def _save(self) -> None:
        self._tried_at = time.monotonic()
        with self._changed:
            self._saving, self._past_saving_at = self._writer.end, None
        count = self._counted_before + self._writer.message_count
        self._failed = not self._file.save(self._saving, count)
        if not self._failed:
            with self._changed:
                self._unsaved_since = self._past_saving_at

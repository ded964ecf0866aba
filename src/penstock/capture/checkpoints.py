"""Saves `checkpoint.json` beside the log, in the background, at most every `INTERVAL_S`.

A report for people (correctness 2). Saving never holds up the stream; but Postgres is not
acknowledged past the last checkpoint that could be saved.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.core.position import Lsn
from penstock.ledger.checkpoint import CheckpointFile
from penstock.log.writer import LogWriter

INTERVAL_S = 10.0


class CheckpointSaver:
    def __init__(self, path: Path, writer: LogWriter) -> None:
        self._file = CheckpointFile(path)
        self._writer = writer
        self._background = ThreadPoolExecutor(1, "capture-checkpoint")
        self._last = 0.0

    def sealed(self) -> None:
        """A step was sealed: save soon, unless that was done a moment ago."""
        if time.monotonic() - self._last >= INTERVAL_S:
            self._last = time.monotonic()
            self._background.submit(self._save)

    def save_before_acknowledging(self) -> Lsn | None:
        """Save now; None if that worked, else the position of the last one that could be saved."""
        end = self._writer.end
        last = self._file.last_saved
        if (last is not None and last.lsn == end) or self._save():
            return None
        last = self._file.last_saved or self._file.load()
        return last.lsn if last is not None else Lsn(0)

    def close(self) -> None:
        self._background.submit(self._save)
        self._background.shutdown(wait=True)

    def _save(self) -> bool:
        return self._file.save(self._writer.end, self._writer.message_count)

"""Watches the server while it is read: where its log ends, what is not read of it, how far it reaches back.

On a session of its own, so that a question that hangs holds up nobody. What cannot be asked is asked again at
the next turn: if the server is gone, those who read from it say so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock import metrics
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.metrics import Sample
from penstock.sources.mysql.connection import connect
from penstock.sources.mysql.server import LogFiles, read_files

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class LogHealth:
    files: LogFiles
    numbering: Numbering

    @property
    def end(self) -> Lsn:
        return self.numbering.position(self.files.last)

    def lag_bytes(self, received: Lsn) -> int:
        """Of the log's files, not of their numbers. From before another server took over: all that it has."""
        first = BinlogPlace(self.files.sizes[0][0], 0)
        is_older = int(received) - self.numbering.offset < first.number
        place = first if is_older else self.numbering.place(received)
        if place.number >= self.files.last.number:
            return 0
        between = sum(size for name, size in self.files.sizes if place.name <= name < self.files.last.name)
        return max(0, between + self.files.last.pos - place.pos)


class BinlogMonitor:
    """A `Monitor`. `numbering`: None until the log was set up."""

    def __init__(self, url: str, numbering: Callable[[], Numbering | None]) -> None:
        self._url = url
        self._numbering = numbering
        self._latest: LogHealth | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    @property
    def log_end(self) -> Lsn | None:
        return None if self._latest is None else self._latest.end

    def lag_bytes(self, position: Lsn, received: Lsn | None) -> int | None:
        return None if self._latest is None else self._latest.lag_bytes(position)

    @property
    def is_pressed(self) -> bool:
        """The server keeps nothing for us."""
        return False

    def status(self) -> dict[str, Any]:
        if self._latest is None:
            return {}
        files = self._latest.files
        oldest = BinlogPlace(files.sizes[0][0], 0)
        return {"binlog": {"end": str(files.last), "oldest": oldest.name, "files": len(files.sizes)}}

    def samples(self, received: Lsn | None) -> list[Sample]:
        if self._latest is None or received is None:
            return []
        return [(metrics.CAPTURE_LAG_BYTES.name, {}, self._latest.lag_bytes(received))]

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
            except SourceError:
                self._ended.wait(LOOK_EVERY_S)

    def _look(self) -> None:
        with closing(connect(self._url, program_name="penstock monitor")) as connection:
            while not self._ended.is_set():
                if (numbering := self._numbering()) is not None:
                    self._latest = LogHealth(read_files(connection), numbering)
                self._ended.wait(LOOK_EVERY_S)

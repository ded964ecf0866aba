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

    @property
    def oldest(self) -> BinlogPlace:
        return BinlogPlace(self.files.sizes[0][0], 0)

    def has(self, received: Lsn) -> bool:
        """Whether what follows is in the log still."""
        return int(received) - self.numbering.offset >= self.oldest.number

    def reads_oldest(self, received: Lsn) -> bool:
        """Whether what follows is in the file that the server removes next."""
        if not self.has(received) or len(self.files.sizes) == 1:
            return False
        return self.numbering.place(received).name == self.oldest.name

    def lag_bytes(self, received: Lsn) -> int:
        """Of the log's files, not of their numbers. From before another server took over: all that it has."""
        place = self.numbering.place(received) if self.has(received) else self.oldest
        if place.number >= self.files.last.number:
            return 0
        first, last = place.file, self.files.last.file
        between = sum(size for name, size in self.files.sizes if first <= BinlogPlace(name, 0).file < last)
        return max(0, between + self.files.last.pos - place.pos)


class BinlogMonitor:
    """A `Monitor`. `numbering`: None until the log was set up. The server keeps nothing for us: `note` is
    told when it has removed files up to the one that is being read."""

    def __init__(
        self, url: str, numbering: Callable[[], Numbering | None], note: Callable[[str], None]
    ) -> None:
        self._url = url
        self._numbering = numbering
        self._note = note
        self._latest: LogHealth | None = None
        self._first_seen: BinlogPlace | None = None
        self._was_near = False
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
        oldest = self._latest.oldest.name
        return {"binlog": {"end": str(files.last), "oldest": oldest, "files": len(files.sizes)}}

    def samples(self, received: Lsn | None) -> list[Sample]:
        latest = self._latest
        if latest is None or received is None:
            return []
        self._tell(latest, received)
        return [
            (metrics.CAPTURE_LAG_BYTES.name, {}, latest.lag_bytes(received)),
            (metrics.SLOT_HEALTHY.name, {}, float(latest.has(received))),
        ]

    def _tell(self, latest: LogHealth, received: Lsn) -> None:
        """Of a server that removes files: one that has all of its log may have its first file read."""
        self._first_seen = self._first_seen or latest.oldest
        is_near = latest.oldest != self._first_seen and latest.reads_oldest(received)
        if is_near and not self._was_near:
            self._note(
                f"The server has removed its binary log up to {latest.oldest.name}, which is being read: if "
                "that goes before it was read, tables must be loaded again. Have it keep binary logs for "
                "longer (binlog_expire_logs_seconds, or the managed service's retention)."
            )
        self._was_near = is_near

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

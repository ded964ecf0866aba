"""Watches the source while it is read: how far its oplog is, and how far it reaches back.

On a connection of its own, so that a question that hangs holds up nobody. What cannot be asked is asked again
at the next turn. How far the oplog reaches back is known only to users who may read it; of a sharded cluster
each shard has its own, and none is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from penstock import metrics
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.metrics import Sample
from penstock.sources.mongodb.check import Oplog, judge_oplog, read_oplog
from penstock.sources.mongodb.connection import Client, connect
from penstock.sources.mongodb.control import position_now

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """`oplog` None: it is not for us to see."""

    end: Lsn
    oplog: Oplog | None

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {"wal_end": str(self.end)}
        if self.oplog is not None:
            found["oplog"] = {"hours": round(self.oplog.hours, 2), "drops_entries": self.oplog.drops_entries}
        return found

    def samples(self, received: Lsn) -> list[Sample]:
        """How far behind we are, and whether the next entry that we need is in the oplog still."""
        lag_s = max(0, (self.end >> 32) - (received >> 32))
        found: list[Sample] = [(metrics.CAPTURE_LAG_SECONDS.name, {}, lag_s)]
        if self.oplog is not None:
            found.append((metrics.SLOT_HEALTHY.name, {}, float(self.oplog.first_s <= received >> 32)))
        return found


class OplogMonitor:
    """A `Monitor`. The oplog is kept for nobody, so nothing presses: `note` is told if it is short."""

    is_pressed = False

    def __init__(self, url: str, note: Callable[[str], None]) -> None:
        self._url = url
        self._note = note
        self._latest: Seen | None = None
        self._client: Client | None = None
        self._was_short = False
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
        """Positions are times (`metrics.CAPTURE_LAG_SECONDS`)."""
        return None

    def status(self) -> dict[str, Any]:
        return {} if self._latest is None else self._latest.status()

    def samples(self, received: Lsn | None) -> list[Sample]:
        return [] if self._latest is None or received is None else self._latest.samples(received)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._latest = self._look()
                self._tell(self._latest)
            except (SourceError, PyMongoError):
                self._close()
            self._ended.wait(LOOK_EVERY_S)
        self._close()

    def _look(self) -> Seen:
        if self._client is None:
            self._client = connect(self._url, application_name="penstock monitor")
        end = position_now(self._client)
        try:
            return Seen(end, read_oplog(self._client))
        except OperationFailure:
            return Seen(end, None)

    def _tell(self, seen: Seen) -> None:
        if seen.oplog is None:
            return
        finding = judge_oplog(seen.oplog)
        is_short = finding.level != "ok"
        if is_short and not self._was_short:
            self._note(f"{finding.message} {finding.remedy}")
        self._was_short = is_short

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

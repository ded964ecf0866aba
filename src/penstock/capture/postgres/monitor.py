"""Watches the source while it is read: where its log ends, what it keeps for the slot, how the slot is.

On a session of its own, so that a question that hangs holds up nobody. What cannot be asked is asked again
at the next turn: if the source is gone, those who read from it say so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import metrics
from penstock.capture.postgres.pressure import WalPressure
from penstock.capture.source import distance
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.metrics import Sample
from penstock.sources.postgres.connection import Connection, connect
from penstock.sources.postgres.slots import SlotInfo, read_slot

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """`wal_end`: where the source's log ended when we looked. `had_slot`: a slot has been there."""

    wal_end: Lsn
    slot: SlotInfo | None
    had_slot: bool

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        slot = self.slot
        if slot is not None:
            found["slot"] = {
                "name": slot.name,
                "wal_status": slot.wal_status,
                "confirmed": str(slot.confirmed_flush),
                "retained_bytes": slot.retained_bytes,
                "safe_wal_size": slot.safe_wal_size,
                "failover": slot.failover,
            }
        return {**found, "wal_end": str(self.wal_end)}

    def samples(self, received: Lsn | None) -> list[Sample]:
        found: list[Sample] = []
        if received is not None:
            found.append((metrics.CAPTURE_LAG_BYTES.name, {}, max(0, self.wal_end - received)))
        slot = self.slot
        if self.had_slot:  # it is made with the first lane: before that, nothing is amiss
            found.append((metrics.SLOT_HEALTHY.name, {}, float(slot is not None and not slot.lost)))
        if slot is not None and slot.retained_bytes is not None:
            found.append((metrics.RETAINED_WAL_BYTES.name, {}, slot.retained_bytes))
        if slot is not None and slot.safe_wal_size is not None:
            found.append((metrics.SAFE_WAL_BYTES.name, {}, slot.safe_wal_size))
        return found


class SlotMonitor:
    """A `Monitor`; `pressure` is shown the slot each time, and `note` told what that says."""

    def __init__(self, url: str, slot: str, pressure: WalPressure, note: Callable[[str], None]) -> None:
        self._url, self._slot = url, slot
        self._pressure = pressure
        self._note = note
        self._latest: SourceHealth | None = None
        self._connection: Connection | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture-monitor", daemon=True)
        self._had_slot = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._latest = self._look()
                self._press(self._latest)
            except (SourceError, psycopg.Error):
                self._close()
            self._ended.wait(LOOK_EVERY_S)
        self._close()

    @property
    def log_end(self) -> Lsn | None:
        return None if self._latest is None else self._latest.wal_end

    def lag_bytes(self, position: Lsn, received: Lsn | None) -> int | None:
        return distance(position, self.log_end, received)

    @property
    def is_pressed(self) -> bool:
        return self._pressure.acknowledge_log

    def status(self) -> dict[str, Any]:
        return {} if self._latest is None else self._latest.status()

    def samples(self, received: Lsn | None) -> list[Sample]:
        return [] if self._latest is None else self._latest.samples(received)

    def _press(self, health: SourceHealth) -> None:
        if health.slot is not None and (sentence := self._pressure.look(health.slot)) is not None:
            self._note(sentence)

    def _look(self) -> SourceHealth:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, application_name="penstock-monitor")
        row = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        slot = read_slot(self._connection, self._slot)
        self._had_slot = self._had_slot or slot is not None
        return SourceHealth(Lsn.parse(row[0]), slot, self._had_slot)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""Postgres as capture reads it: a slot, a publication, exported snapshots and an advisory lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import psycopg

from penstock.capture.postgres.lock import AdvisoryLock
from penstock.capture.postgres.log import PostgresLog
from penstock.capture.postgres.marks import emitted_position, mark_position
from penstock.capture.postgres.monitor import SlotMonitor
from penstock.capture.postgres.pressure import WalPressure
from penstock.capture.postgres.setup import set_up
from penstock.capture.postgres.snapshots import SnapshotKeeper, connect_patiently
from penstock.capture.source import Wanted
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.errors import CaptureAwayError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.load_record import LoadPoint
from penstock.sources.postgres import inbox, pgoutput, streamed
from penstock.sources.postgres.connection import Connection, end_session
from penstock.sources.postgres.publication import PublicationManager
from penstock.sources.postgres.replica import Replica
from penstock.sources.postgres.slots import drop_slot, read_slot
from penstock.sources.postgres.timelines import epoch_at, written_timeline

_CONTROL = "penstock-control"
_CONFIRM_POLL_S = 0.005


class PostgresCapture:
    """A `CaptureSource`. What is asked now and then is asked on one ordinary session."""

    def __init__(self, source: PostgresSpec, spec: CaptureSpec) -> None:
        self._source, self._spec = source, spec
        replica = source.replica_url
        self.snapshots = SnapshotKeeper(
            source.url, Replica(source.url, replica, source.replica_wait_s) if replica else None
        )
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._closed = False

    def lock(self, lease_s: float) -> AdvisoryLock:
        return AdvisoryLock(self._source.url, self._source.slot, lease_s)

    def new_epoch(self) -> Lsn:
        position = self._marked(emitted_position)
        return epoch_at(written_timeline(self._ordinary()), position)

    def position_now(self) -> Lsn:
        return self._marked(mark_position)

    def _marked(self, mark: Callable[[Connection], Lsn]) -> Lsn:
        connection = self._ordinary()
        try:
            return mark(connection)
        except SourceError:
            if not connection.closed:
                raise
            return mark(self._ordinary())  # the session was ended while nobody used it

    def set_up(self, wanted: Wanted, take_lead: Callable[[], Lsn]) -> PostgresLog:
        return set_up(self._source, self._spec, wanted, self._ordinary(), take_lead, self.snapshots)

    def begin_at(self, points: Mapping[StreamId, LoadPoint]) -> dict[StreamId, LoadPoint]:
        """The other tool's slot is ours from now on: it has the log from before that."""
        return {stream: LoadPoint(point.consistent_point, "") for stream, point in points.items()}

    def publish(
        self, streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> tuple[StreamId, ...]:
        source = self._source
        with connect_patiently(source.url, _CONTROL) as connection:
            manager = PublicationManager(connection, source.publication, source.publication_mode, source.slot)
            return manager.ensure(streams, full_identity)

    def lacking(self, streams: Sequence[StreamId]) -> Sequence[SourceError]:
        source = self._source
        with connect_patiently(source.url, _CONTROL) as connection:
            manager = PublicationManager(connection, source.publication, source.publication_mode, source.slot)
            return manager.refused(streams)

    def confirmed(self, wanted: Lsn, within_s: float, go_on: Callable[[], None]) -> Lsn:
        deadline = time.monotonic() + within_s
        while True:
            confirmed = self._confirmed()
            if confirmed >= wanted:
                return confirmed
            go_on()
            if time.monotonic() > deadline:
                raise SourceError(
                    f"Postgres did not confirm position {wanted} for slot {self._source.slot}.",
                    remedy="Run the same command again; nothing is lost or done twice.",
                )
            time.sleep(_CONFIRM_POLL_S)

    def forget_lost(self) -> None:
        connection = self._ordinary()
        slot = read_slot(connection, self._source.slot)
        if slot is not None and slot.lost:
            drop_slot(connection, self._source.slot)

    def monitor(self, note: Callable[[str], None]) -> SlotMonitor:
        source, spec = self._source, self._spec
        pressure = WalPressure(source.slot, spec.wal_max_retained, spec.on_wal_pressure)
        return SlotMonitor(source.url, source.slot, pressure, note)

    def heals(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error)

    def close(self) -> None:
        """A lane's request may be under way, for as long as a network is silent: it fails."""
        self._closed = True
        if (connection := self._connection) is not None:
            end_session(connection)

    def _ordinary(self) -> Connection:
        with self._connecting:
            if self._connection is None or self._connection.closed:
                self._require_open()
                self._connection = connect_patiently(self._source.url, _CONTROL)
                if self._closed:  # meanwhile: whoever closed did not see it
                    self._connection.close()
                    self._require_open()
            return self._connection

    def _require_open(self) -> None:
        if self._closed:
            raise CaptureAwayError("Capture's term is over.", remedy="Join the next one.")

    def _confirmed(self) -> Lsn:
        slot = read_slot(self._ordinary(), self._source.slot)
        if slot is None or slot.confirmed_flush is None:
            raise SourceError(
                f"The replication slot {self._source.slot} has disappeared.", remedy="Run `penstock check`."
            )
        return slot.confirmed_flush


def load_compiled() -> None:
    """Have compiled code ready by the time that it is needed."""
    pgoutput.warm_up()
    inbox.warm_up()
    streamed.warm_up()

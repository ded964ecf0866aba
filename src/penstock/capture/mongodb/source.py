"""MongoDB as capture reads it: a change stream, cluster times and a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from pymongo.errors import PyMongoError

from penstock.capture.mongodb.lock import LeaseLock
from penstock.capture.mongodb.log import MongoLog
from penstock.capture.mongodb.monitor import OplogMonitor
from penstock.capture.mongodb.setup import set_up
from penstock.capture.mongodb.snapshots import ClusterTimes
from penstock.capture.source import Wanted
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.errors import PositionGoneError, SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.load_record import LoadPoint
from penstock.sources.mongodb.connection import Client, connect
from penstock.sources.mongodb.control import Control
from penstock.sources.mongodb.source import require_kept
from penstock.sources.mongodb.warming import warm_up


class MongoCapture:
    """A `CaptureSource`. What is asked now and then is asked through one client, which finds a new primary
    by itself."""

    def __init__(self, source: MongoSpec, spec: CaptureSpec) -> None:
        self._source, self._spec = source, spec
        self.snapshots = ClusterTimes(self.position_now, self._ordinary)
        self._client: Client | None = None
        self._log: MongoLog | None = None
        self._connecting = threading.Lock()

    def lock(self, lease_s: float) -> LeaseLock:
        return LeaseLock(self._source.url, self._source.name, lease_s)

    def new_epoch(self) -> Lsn:
        return self.position_now()

    def position_now(self) -> Lsn:
        return Control(self._ordinary()).mark(self._source.name)

    def set_up(self, wanted: Wanted, take_lead: Callable[[], Lsn]) -> MongoLog:
        warm_up()  # before the lease is ours: a compiler takes its time
        self._log = set_up(self._source, self._spec, wanted, self._ordinary(), take_lead)
        return self._log

    def begin_at(self, points: Mapping[StreamId, LoadPoint]) -> dict[StreamId, LoadPoint]:
        """The pipeline's document says it: a set-up that finds no log reads from there on."""
        first = min(point.consistent_point for point in points.values())
        if not Control(self._ordinary()).begin_at(self._source.name, first, points):
            raise SourceBusyError(
                f"The cluster knows a pipeline {self._source.name} already.",
                remedy="Give this one a name of its own (`source.name`), or run `penstock teardown` if the "
                "other is over.",
            )
        return {stream: LoadPoint(point.consistent_point, "") for stream, point in points.items()}

    def publish(
        self, streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> tuple[StreamId, ...]:
        if self._log is not None:
            self._log.selection.add(streams, full_identity)
        return Control(self._ordinary()).select(self._source.name, streams)

    def lacking(self, streams: Sequence[StreamId]) -> Sequence[SourceError]:
        return ()

    def confirmed(self, wanted: Lsn, within_s: float, go_on: Callable[[], None]) -> Lsn:
        """The server forgets by its own rules; the pipeline's document says what it need not keep for us."""
        if wanted:
            Control(self._ordinary()).hold(self._source.name, wanted)
        return wanted

    def forget_lost(self) -> None:
        client = self._ordinary()
        control = Control(client)
        held = control.held_from(self._source.name)
        try:
            if held is not None:
                require_kept(client, self._source.database, held)
        except PositionGoneError:
            control.begin_anew(self._source.name)

    def monitor(self, note: Callable[[str], None]) -> OplogMonitor:
        return OplogMonitor(self._source.url, note)

    def heals(self, error: Exception) -> bool:
        return isinstance(error, PyMongoError)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _ordinary(self) -> Client:
        with self._connecting:
            if self._client is None:
                self._client = connect(self._source.url, application_name="penstock control")
            return self._client

"""MySQL and MariaDB as capture reads them: the binary log, as a replica would, and a named lock.

The epoch is the server's clock in microseconds. Places in its log would not do: two terms between which
nothing was written would have the same one, and a server that takes over counts from its own beginning. A
clock may be set back, so an epoch is in any case greater than those that this instance knows of: by its log,
by its state, and by what a lane found in tables that another instance has written
(`CaptureSpec.epoch_above`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from typing import TypeVar

import pymysql

from penstock.capture.mysql.beginning import begin_at, counted_place, place_at
from penstock.capture.mysql.lock import NamedLock
from penstock.capture.mysql.log import MysqlLog
from penstock.capture.mysql.monitor import BinlogMonitor
from penstock.capture.mysql.setup import require_settings, set_up
from penstock.capture.mysql.snapshots import Positions
from penstock.capture.source import Wanted
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import SourceError, StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.load_record import LoadPoint
from penstock.ledger.store import StateStore
from penstock.log.manifest import newest_manifest
from penstock.sources.mysql.binlog.warming import warm_up
from penstock.sources.mysql.connection import Connection, connect
from penstock.sources.mysql.server import (
    clock,
    read_files,
    read_server,
    require_server,
    visible_place,
    wait_until_visible,
)

Answer = TypeVar("Answer")

_CONTROL = "penstock control"
_VISIBLE_WITHIN_S = 5.0


class MysqlCapture:
    """A `CaptureSource`. What is asked now and then is asked on one ordinary session, by one at a time."""

    def __init__(self, source: MysqlSpec, spec: CaptureSpec) -> None:
        self._source, self._spec = source, spec
        self.snapshots = Positions(self._visible, lambda: self._asked(clock))
        self._connection: Connection | None = None
        self._asking = threading.RLock()
        self._numbering: Numbering | None = None
        self._server = ""

    def lock(self, lease_s: float) -> NamedLock:
        return NamedLock(self._source.url, self._source.name, lease_s)

    def new_epoch(self) -> Lsn:
        return max(self._asked(clock), *(Lsn(known + 1) for known in _known_epochs(self._spec)))

    def position_now(self) -> Lsn:
        numbering = self._numbering
        assert numbering is not None, "asked once the log is set up"
        return self._asked(lambda connection: numbering.position(read_files(connection).last))

    def _visible(self) -> tuple[Lsn, Place]:
        numbering = self._numbering
        assert numbering is not None, "asked once the log is set up"
        # On a session of its own: it may take its time, and others ask meanwhile.
        with closing(connect(self._source.url, program_name=_CONTROL)) as connection:
            require_server(connection, self._server)
            place = visible_place(connection, _VISIBLE_WITHIN_S) or self._logged_and_visible(connection)
        return numbering.position(place), Place(str(place), "", self._server)

    def _logged_and_visible(self, connection: Connection) -> BinlogPlace:
        """By what the log has, where others that are under way do not end."""
        # Of two readers of one name, the server ends the first.
        reader = f" visible {secrets.token_hex(4)}"
        logged = counted_place(self._source, connection, read_server(connection), reader)
        wait_until_visible(connection, logged.gtid_set)
        return BinlogPlace.parse(logged.text)

    def set_up(self, wanted: Wanted, take_lead: Callable[[], Lsn]) -> MysqlLog:
        warm_up()  # before the lock is ours: a compiler takes its time
        with self._asking:
            log = set_up(self._source, self._spec, wanted, self._ordinary(), take_lead)
        self._numbering, self._server = log.numbering, log.server
        return log

    def begin_at(self, points: Mapping[StreamId, LoadPoint]) -> dict[StreamId, LoadPoint]:
        """The change log has its first step from now on: there is nobody else who would keep the place."""
        texts = {point.place.text for point in points.values() if point.place is not None}
        with self._asking:
            connection = self._ordinary()
            require_settings(connection)
            server = read_server(connection)
            found = {
                text: place_at(self._source, connection, server, BinlogPlace.parse(text)) for text in texts
            }
            first = min(found.values(), key=lambda place: BinlogPlace.parse(place.text).number)
            begin_at(self._spec.log_directory, first, clock(connection))
        return {
            stream: _point_at(found[point.place.text])
            for stream, point in points.items()
            if point.place is not None
        }

    def publish(
        self, streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> tuple[StreamId, ...]:
        """The log has all tables."""
        return ()

    def lacking(self, streams: Sequence[StreamId]) -> Sequence[SourceError]:
        return ()

    def confirmed(self, wanted: Lsn, within_s: float, go_on: Callable[[], None]) -> Lsn:
        """The server is told nothing, and keeps its log by its own rules."""
        return wanted

    def forget_lost(self) -> None:
        return None

    def monitor(self, note: Callable[[str], None]) -> BinlogMonitor:
        return BinlogMonitor(self._source.url, lambda: self._numbering, note)

    def heals(self, error: Exception) -> bool:
        return isinstance(error, pymysql.err.MySQLError)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _asked(self, ask: Callable[[Connection], Answer]) -> Answer:
        with self._asking:
            connection = self._ordinary()
            try:
                return ask(connection)
            except SourceError:
                if connection.open:
                    raise
                return ask(self._ordinary())  # the session was ended while nobody used it

    def _ordinary(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = connect(self._source.url, program_name=_CONTROL)
            if self._server:
                require_server(self._connection, self._server)
        return self._connection


def _known_epochs(spec: CaptureSpec) -> list[Lsn]:
    """Of leaders before this one; 0 where there is none."""
    manifest, state = newest_manifest(spec.log_directory), None
    with suppress(StateError):  # by one that cannot be read nobody commits
        state = StateStore(spec.log_directory.parent).load()
    found = [spec.epoch_above]
    found += [each.epoch for each in (manifest, state) if each is not None]
    return [epoch or Lsn(0) for epoch in found]


def _point_at(place: Place) -> LoadPoint:
    return LoadPoint(Lsn(BinlogPlace.parse(place.text).number), "", place)

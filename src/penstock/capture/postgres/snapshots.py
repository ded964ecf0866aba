"""Keeps exported snapshots alive for the loads that read under them (correctness 8, 12).

A snapshot exported by slot creation lives as long as the session that created the slot runs no other
command, so each has a session of its own here, idle. It must not be the Spark driver: a driver that
is busy or restarted would take the snapshot with it.

Tables that are read at a replica get a snapshot of the replica, at a position R. First a slot is made at the
primary as ever, with consistent point P, its snapshot is let go at once, and the replica is waited for until
R ≥ P. What P promises holds of any such R: the log has every transaction that commits after P, whole,
because those that ran when the tables were published are before P; and the snapshot shows what commits
before R and nothing else (`sources.postgres.replica`). R is also behind all that the primary had logged
until then, so that what was read of its catalog is not newer than the snapshot.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg

from penstock.capture.postgres.marks import mark_position
from penstock.capture.spec import ExportedSnapshot
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, end_session, query_errors
from penstock.sources.postgres.replica import QUIET, Replica
from penstock.sources.postgres.slots import create_slot

#: no timeout of the server's may end a session that waits by design
PATIENT = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_CANCEL_WITHIN_S = 5.0


class SnapshotKeeper:
    """Keeps each snapshot for the lane that took it. Safe to use from several threads."""

    def __init__(self, url: str, replica: Replica | None = None) -> None:
        self._url = url
        self._replica = replica
        self._from_main_slot: tuple[Connection, ExportedSnapshot] | None = None
        self._held: dict[str, list[Connection]] = {}
        self._waiting: set[Connection] = set()  # sessions whose thread waits for the server
        self._lock = threading.Lock()
        self._closed = False

    def keep_main(self, connection: Connection, name: str, consistent_point: Lsn) -> None:
        """Take over the session that created the main slot."""
        snapshot = ExportedSnapshot(name, consistent_point, connection.info.backend_pid)
        self._from_main_slot = (connection, snapshot)

    def take(self, lane: str) -> ExportedSnapshot:
        """The main slot's own snapshot the first time, if it was created in this run; else a new one."""
        snapshot = self._take_from_slot(lane)
        if self._replica is None:
            return snapshot
        self.release(lane)
        return self._take_from(self._replica, snapshot.consistent_point, lane)

    def _take_from_slot(self, lane: str) -> ExportedSnapshot:
        with self._lock:
            main, self._from_main_slot = self._from_main_slot, None
        if main is not None:
            self._hold(main[0], lane)
            return main[1]
        connection = self._hold(connect_patiently(self._url, "penstock-snapshot", replication=True), lane)
        name = f"penstock_snapshot_{os.getpid()}_{secrets.token_hex(4)}"
        with self._wait_of(connection, lane):
            slot = create_slot(connection, name, temporary=True)
        return ExportedSnapshot(slot.snapshot_name, slot.consistent_point, connection.info.backend_pid)

    def take_plain(self, lane: str) -> ExportedSnapshot:
        """A snapshot without a slot, for loads that no changes follow."""
        if self._replica is not None:
            return self._take_from(self._replica, Lsn(0), lane)
        connection = self._hold(connect_patiently(self._url, "penstock-snapshot"), lane)
        with query_errors("exporting a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute(
                "SELECT pg_export_snapshot(), pg_current_wal_insert_lsn()::text"
            ).fetchone()
        assert row is not None
        return ExportedSnapshot(row[0], Lsn.parse(row[1]), connection.info.backend_pid)

    def _take_from(self, replica: Replica, after: Lsn, lane: str) -> ExportedSnapshot:
        with connect(self._url, application_name="penstock-control") as primary:
            reaching = max(after, mark_position(primary))
        connection = self._hold(connect_patiently(replica.url, "penstock-snapshot", settings=QUIET), lane)
        with self._wait_of(connection, lane):
            taken = replica.snapshot(connection, reaching)
        return ExportedSnapshot(taken.name, taken.position, connection.info.backend_pid)

    def _hold(self, connection: Connection, lane: str) -> Connection:
        with self._lock:
            if not self._closed:
                self._held.setdefault(lane, []).append(connection)
                return connection
        connection.close()
        raise CaptureAwayError("Capture's term is over: it keeps no snapshots any more.")

    @contextmanager
    def _wait_of(self, connection: Connection, lane: str) -> Iterator[None]:
        """While a session waits, nobody else may close it: two threads in one session break the process."""
        with self._lock:
            self._waiting.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(connection)
                released = connection not in self._held.get(lane, [])
            if released:
                connection.close()
        if released:
            raise CaptureAwayError("The snapshot was let go while the source was asked for it.")

    def release(self, lane: str) -> None:
        """Let go of the snapshots that the lane was given; temporary slots go with their sessions."""
        with self._lock:
            held = self._held.pop(lane, [])
            waiting = [connection for connection in held if connection in self._waiting]
        for connection in held:
            if connection not in waiting:
                end_session(connection)
        for connection in waiting:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_WITHIN_S)

    def release_main(self) -> None:
        """Let go of the main slot's own snapshot if nobody took it: the source cannot vacuum past it."""
        with self._lock:
            main, self._from_main_slot = self._from_main_slot, None
        if main is not None:
            main[0].close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for lane in list(self._held):
            self.release(lane)
        self.release_main()


def connect_patiently(
    url: str,
    application_name: str,
    *,
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """A session that may idle for as long as it takes."""
    connection = connect(
        url,
        application_name=application_name,
        replication=replication,
        settings={**PATIENT, **(settings or {})},
    )
    if connection.info.server_version >= 170000:
        connection.execute("SET transaction_timeout = 0")
    return connection

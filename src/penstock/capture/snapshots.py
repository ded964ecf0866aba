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
from collections.abc import Mapping

from penstock.capture.leadership import mark_position
from penstock.capture.spec import ExportedSnapshot
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_errors
from penstock.sources.postgres.replica import QUIET, Replica
from penstock.sources.postgres.slots import create_slot

#: no timeout of the server's may end a session that waits by design
PATIENT = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


class SnapshotKeeper:
    def __init__(self, url: str, replica: Replica | None = None) -> None:
        self._url = url
        self._replica = replica
        self._from_main_slot: tuple[Connection, ExportedSnapshot] | None = None
        self._held: list[Connection] = []

    def keep_main(self, connection: Connection, name: str, consistent_point: Lsn) -> None:
        """Take over the session that created the main slot."""
        snapshot = ExportedSnapshot(name, consistent_point, connection.info.backend_pid)
        self._from_main_slot = (connection, snapshot)

    def take(self) -> ExportedSnapshot:
        """The main slot's own snapshot the first time, if it was created in this run; else a new one."""
        snapshot = self._take_from_slot()
        if self._replica is None:
            return snapshot
        self.release()
        return self._take_from(self._replica, snapshot.consistent_point)

    def _take_from_slot(self) -> ExportedSnapshot:
        if self._from_main_slot is not None:
            connection, snapshot = self._from_main_slot
            self._from_main_slot = None
            self._held.append(connection)
            return snapshot
        connection = connect_patiently(self._url, "penstock-snapshot", replication=True)
        self._held.append(connection)
        name = f"penstock_snapshot_{os.getpid()}_{secrets.token_hex(4)}"
        slot = create_slot(connection, name, temporary=True)
        return ExportedSnapshot(slot.snapshot_name, slot.consistent_point, connection.info.backend_pid)

    def take_plain(self) -> ExportedSnapshot:
        """A snapshot without a slot, for loads that no changes follow."""
        if self._replica is not None:
            return self._take_from(self._replica, Lsn(0))
        connection = connect_patiently(self._url, "penstock-snapshot")
        self._held.append(connection)
        with query_errors("exporting a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute(
                "SELECT pg_export_snapshot(), pg_current_wal_insert_lsn()::text"
            ).fetchone()
        assert row is not None
        return ExportedSnapshot(row[0], Lsn.parse(row[1]), connection.info.backend_pid)

    def _take_from(self, replica: Replica, after: Lsn) -> ExportedSnapshot:
        with connect(self._url, application_name="penstock-control") as primary:
            reaching = max(after, mark_position(primary))
        connection = connect_patiently(replica.url, "penstock-snapshot", settings=QUIET)
        self._held.append(connection)
        taken = replica.snapshot(connection, reaching)
        return ExportedSnapshot(taken.name, taken.position, connection.info.backend_pid)

    def release(self) -> None:
        """Let go of the snapshots that were handed out; temporary slots go with their sessions."""
        for connection in self._held:
            connection.close()
        self._held = []

    def close(self) -> None:
        self.release()
        if self._from_main_slot is not None:
            self._from_main_slot[0].close()
            self._from_main_slot = None


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

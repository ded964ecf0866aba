"""Keeps exported snapshots alive for the loads that read under them (correctness 8, 12).

A snapshot exported by slot creation lives as long as the session that created the slot runs no other
command, so each has a session of its own here, idle. It must not be the Spark driver: a driver that
is busy or restarted would take the snapshot with it.
"""

from __future__ import annotations

import os
import secrets

from penstock.capture.spec import ExportedSnapshot
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_errors
from penstock.sources.postgres.slots import create_slot

#: no timeout of the server's may end a session that waits by design
PATIENT = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


class SnapshotKeeper:
    def __init__(self, url: str) -> None:
        self._url = url
        self._from_main_slot: tuple[Connection, ExportedSnapshot] | None = None
        self._held: list[Connection] = []

    def keep_main(self, connection: Connection, name: str, consistent_point: Lsn) -> None:
        """Take over the session that created the main slot."""
        snapshot = ExportedSnapshot(name, consistent_point, connection.info.backend_pid)
        self._from_main_slot = (connection, snapshot)

    def take(self) -> ExportedSnapshot:
        """The main slot's own snapshot the first time, if it was created in this run; else a new one."""
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
        connection = connect_patiently(self._url, "penstock-snapshot")
        self._held.append(connection)
        with query_errors("exporting a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute(
                "SELECT pg_export_snapshot(), pg_current_wal_insert_lsn()::text"
            ).fetchone()
        assert row is not None
        return ExportedSnapshot(row[0], Lsn.parse(row[1]), connection.info.backend_pid)

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


def connect_patiently(url: str, application_name: str, *, replication: bool = False) -> Connection:
    """A session that may idle for as long as it takes."""
    connection = connect(url, application_name=application_name, replication=replication, settings=PATIENT)
    if connection.info.server_version >= 170000:
        connection.execute("SET transaction_timeout = 0")
    return connection

"""An advisory lock keyed by the slot's name, on a session of its own: a `Lock`.

The server ends the session when it has been silent for the lease (`idle_session_timeout`), and the lock goes
with it. Each question is whether this very session holds this very lock, so a pooler in between, or a session
that was ended and opened again, is noticed.
"""

from __future__ import annotations

import hashlib

import psycopg

from penstock.core.errors import SourceBusyError, SourceError
from penstock.sources.postgres.connection import Connection, connect, end_session, query_errors

LOCK_APPLICATION = "penstock-lock"
_TAKING = "taking the lock on the slot's name"

_KEY = """
l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = %s AND l.objid::bigint = %s
"""
_HOLDER = f"""
SELECT a.pid, a.application_name, a.client_addr::text
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE {_KEY}
"""
_HELD = f"SELECT count(*) FROM pg_locks AS l WHERE l.pid = pg_backend_pid() AND {_KEY}"


class AdvisoryLock:
    def __init__(self, url: str, slot: str, lease_s: float) -> None:
        self._slot = slot
        self._key = int.from_bytes(hashlib.sha256(f"penstock:{slot}".encode()).digest()[:8], signed=True)
        settings = {"idle_session_timeout": str(max(1, int(lease_s * 1000)))}
        self._connection: Connection = connect(url, application_name=LOCK_APPLICATION, settings=settings)

    def take(self) -> bool:
        with query_errors(_TAKING):
            row = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
        return row is not None and bool(row[0])

    def is_held(self) -> bool:
        try:
            row = self._connection.execute(_HELD, self._key_parts()).fetchone()
        except psycopg.Error:
            return False
        return row is not None and row[0] == 1

    def busy(self) -> SourceBusyError:
        with query_errors(_TAKING):
            holder = self._connection.execute(_HOLDER, self._key_parts()).fetchone()
        by = "another session"
        if holder is not None:
            pid, application, address = holder
            place = f" from {address}" if address else ""
            by = f"process {pid} of the server ({application or 'no name'}{place})"
        return SourceBusyError(
            f"Another Penstock works with slot {self._slot}: the lock is held by {by}.",
            remedy="Wait until it has ended, or give this pipeline a slot of its own.",
        )

    def lost(self) -> SourceError:
        return SourceError(
            f"The session that holds the lock for slot {self._slot} was lost.",
            remedy="Run the same command again; it goes on where it stopped.",
        )

    def release(self) -> None:
        """A question may be under way, for as long as a network is silent."""
        end_session(self._connection)

    def _key_parts(self) -> tuple[int, int]:
        unsigned = self._key % 2**64
        return unsigned >> 32, unsigned & 0xFFFFFFFF

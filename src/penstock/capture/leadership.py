"""One capture per slot: an advisory lock keyed by the slot's name, on a session of its own.

The session is given up by the server when it has been silent for three heartbeats, so a process that
was stopped (SIGSTOP, a frozen machine) does not hold the lock for ever (correctness 17). Losing the
lock does no harm to the log: its manifests are created exclusively.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable

import psycopg

from penstock.core.errors import SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_errors

HEARTBEAT_S = 10.0
#: names how long to wait, in seconds, for what a predecessor that has just ended still holds
PATIENCE_VARIABLE = "PENSTOCK_PATIENCE_S"
_PATIENCE_S = "5"
_POLL_S = 0.1

_HOLDER = """
SELECT a.pid, a.application_name, a.client_addr::text
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = %s AND l.objid::bigint = %s
"""


def patience_s() -> float:
    return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE_S))


class Leadership:
    """Holds the lock until `release`; `on_lost` is called once if the session ends before."""

    def __init__(self, url: str, slot: str, on_lost: Callable[[SourceError], None]) -> None:
        self._slot = slot
        self._key = int.from_bytes(hashlib.sha256(f"penstock:{slot}".encode()).digest()[:8], signed=True)
        settings = {"idle_session_timeout": str(int(3 * HEARTBEAT_S * 1000))}
        self._connection: Connection = connect(url, application_name="penstock-lock", settings=settings)
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="capture-heartbeat", daemon=True)

    def acquire(self) -> None:
        deadline = time.monotonic() + patience_s()
        with query_errors("taking the lock on the slot's name"):
            while not self._try():
                if time.monotonic() > deadline:
                    raise self._held_error()
                time.sleep(_POLL_S)
        self._thread.start()

    def release(self) -> None:
        self._ended.set()
        self._connection.close()

    def _try(self) -> bool:
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
        return row is not None and bool(row[0])

    def _held_error(self) -> SourceBusyError:
        unsigned = self._key % 2**64
        holder = self._connection.execute(_HOLDER, (unsigned >> 32, unsigned & 0xFFFFFFFF)).fetchone()
        by = "another session"
        if holder is not None:
            pid, application, address = holder
            place = f" from {address}" if address else ""
            by = f"process {pid} of the server ({application or 'no name'}{place})"
        return SourceBusyError(
            f"Another Penstock works with slot {self._slot}: the lock is held by {by}.",
            remedy="Wait until it has ended, or give this pipeline a slot of its own.",
        )

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error:
                if not self._ended.is_set():
                    self._on_lost(
                        SourceError(
                            f"The session that holds the lock for slot {self._slot} was lost.",
                            remedy="Run the same command again; it goes on where it stopped.",
                        )
                    )
                return


_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES_MAX = 40


def mark_position(connection: Connection) -> Lsn:
    """A position after everything committed so far: that of a message of ours, else the insert position.

    Where the server can (17 and later), the message is flushed at once, else within its writer's delay.
    """
    modern = connection.info.server_version >= 170000
    arguments = "false, 'penstock', ''" + (", true" if modern else "")
    try:
        row = connection.execute(f"SELECT pg_logical_emit_message({arguments})::text".encode()).fetchone()
    except psycopg.Error:
        with query_errors("reading the server's log position"):
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    position = Lsn.parse(row[0])
    # At the start of a page the insert position lies behind the page's header, where no record ends.
    into_page = position % _PAGE_BYTES
    return Lsn(position - into_page) if into_page <= _PAGE_HEADER_BYTES_MAX else position

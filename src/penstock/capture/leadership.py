"""One capture per slot: an advisory lock keyed by the slot's name, on a session of its own.

The session is given up by the server when it has been silent for three heartbeats, so a process that
was stopped (SIGSTOP, a frozen machine) does not hold the lock for ever (correctness 17). Each heartbeat asks
whether this very session holds this very lock, so a pooler in between, or a session that was ended and
opened again, is noticed.

Our own count of those three heartbeats begins when the last answered question was *asked*, the server's
when it was answered: ours is over first. So a process that wakes up, or whose network is gone, knows that it
no longer leads without being told (`require`). Losing the lock between that look and a commit does no harm
either: the log's manifests are created exclusively.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable

import psycopg

from penstock.core.errors import PenstockError, SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_errors

LOCK_APPLICATION = "penstock-lock"
HEARTBEATS_MISSED_MAX = 3
#: names how long to wait, in seconds, for what a predecessor that has just ended still holds
PATIENCE_VARIABLE = "PENSTOCK_PATIENCE_S"
_PATIENCE_S = "5"
_POLL_S = 0.1
_STANDBY_POLL_S = 0.2

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


def patience_s() -> float:
    return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE_S))


class Leadership:
    """Holds the lock until `release`; `on_lost` is called once if it is lost before."""

    def __init__(
        self, url: str, slot: str, on_lost: Callable[[PenstockError], None], heartbeat_s: float
    ) -> None:
        self._slot = slot
        self._heartbeat_s = heartbeat_s
        self._lease_s = HEARTBEATS_MISSED_MAX * heartbeat_s
        self._key = int.from_bytes(hashlib.sha256(f"penstock:{slot}".encode()).digest()[:8], signed=True)
        settings = {"idle_session_timeout": str(max(1, int(self._lease_s * 1000)))}
        self._connection: Connection = connect(url, application_name=LOCK_APPLICATION, settings=settings)
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._asked_at = 0.0
        self._lost = False
        self._thread = threading.Thread(target=self._beat, name="capture-heartbeat", daemon=True)

    def acquire(self) -> None:
        """Take the lock, or say who has it."""
        deadline = time.monotonic() + patience_s()
        with query_errors("taking the lock on the slot's name"):
            while not self._try():
                if time.monotonic() > deadline:
                    raise self._held_error()
                time.sleep(_POLL_S)

    def wait(self, stop: threading.Event, on_waiting: Callable[[], None]) -> bool:
        """Take the lock, however long that takes; False if `stop` was set before.

        `on_waiting` is called once if another has it.
        """
        with query_errors("waiting for the lock on the slot's name"):
            waiting = False
            while not stop.is_set():
                if self._try():
                    return True
                if not waiting:
                    waiting = True
                    on_waiting()
                stop.wait(_STANDBY_POLL_S)
        return False

    def require(self) -> None:
        """Raise if the server may have given the lock to another by now."""
        if self.is_lost:
            raise self._lost_error()

    @property
    def is_lost(self) -> bool:
        return self._lost or _now() - self._asked_at >= self._lease_s

    def release(self) -> None:
        self._ended.set()
        self._connection.close()

    def _try(self) -> bool:
        self._asked_at = _now()
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
        if row is None or not row[0]:
            return False
        self._thread.start()
        return True

    def _key_parts(self) -> tuple[int, int]:
        unsigned = self._key % 2**64
        return unsigned >> 32, unsigned & 0xFFFFFFFF

    def _held_error(self) -> SourceBusyError:
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

    def _lost_error(self) -> SourceError:
        return SourceError(
            f"The session that holds the lock for slot {self._slot} was lost.",
            remedy="Run the same command again; it goes on where it stopped.",
        )

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            asked_at = _now()
            try:
                row = self._connection.execute(_HELD, self._key_parts()).fetchone()
                held = row is not None and row[0] == 1
            except psycopg.Error:
                held = False
            if not held:
                self._lost = True
                if not self._ended.is_set():
                    self._on_lost(self._lost_error())
                return
            self._asked_at = asked_at


def _now() -> float:
    """Goes on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


OWN_PREFIX = "penstock"  # of messages that we emit
_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES_MAX = 40


def mark_position(connection: Connection) -> Lsn:
    """A position after everything committed so far: that of a message of ours, else the insert position.

    Where the server can (17 and later), the message is flushed at once, else within its writer's delay.
    """
    modern = connection.info.server_version >= 170000
    arguments = f"false, '{OWN_PREFIX}', ''" + (", true" if modern else "")
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

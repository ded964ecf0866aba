"""A logical replication connection: start it, drain it, answer it.

Reading goes through libpq's COPY BOTH (see `inbox`). The server sends each message by itself; answering
every wake-up would cost half a million system calls per million rows, at both ends. So whoever
drains lets the socket fill for a moment (`pause_s`) between two reads: measured, 1.6 instead of 4.8
CPU-seconds per million rows, and faster in wall time, since the server is not interrupted either. A
Unix socket holds far less than a TCP one, hence its shorter pause.

`flushed` in a status message is what Postgres may forget; everything else in it is information.
"""

from __future__ import annotations

import select
import socket
import time

import psycopg
from psycopg import sql

from penstock.core.errors import PenstockError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection
from penstock.sources.postgres.inbox import Inbox, open_inbox
from penstock.sources.postgres.pgoutput import POSTGRES_EPOCH_US
from penstock.sources.postgres.slots import in_use_error, require_name

BATCH_BYTES_MAX = 8 << 20
BATCH_MESSAGES_MAX = 32 << 10
_PAUSE_TCP_S, _PAUSE_UNIX_S = 0.001, 0.0001


class ReplicationStream:
    """Messages of one slot, from `start` on. Owns its connection."""

    def __init__(self, connection: Connection, slot: str, publication: str, start: Lsn) -> None:
        self._connection = connection
        self._slot = slot
        self._pgconn = connection.pgconn
        self.pause_s = _pause(self._pgconn.socket)
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})"
        ).format(
            sql.Identifier(require_name(slot)),
            sql.SQL(str(start)),  # an Lsn prints as hexadecimal digits only
            sql.Literal(sql.Identifier(publication).as_string(connection)),
        )
        result = self._pgconn.exec_(command.as_bytes(connection))
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            raise self._start_error(result)
        self.inbox: Inbox = open_inbox(self._pgconn, BATCH_BYTES_MAX, BATCH_MESSAGES_MAX)

    def fileno(self) -> int:
        return self._pgconn.socket

    def drain(self) -> int:
        """Collect what the server has sent, without waiting; how many bytes that were."""
        try:
            size = self.inbox.drain()
        except psycopg.Error as error:
            raise _lost() from error
        if size < 0:
            raise self._ended()
        return size

    def wait(self, timeout_s: float, wake: int) -> bool:
        """Wait for the server or for `wake` to become readable; whether the server did."""
        readable, _, _ = select.select([self._pgconn.socket, wake], [], [], timeout_s)
        return self._pgconn.socket in readable

    def send_status(self, received: Lsn, flushed: Lsn, *, reply: bool = False) -> None:
        """Tell the server how far we are; with `reply` it answers with its own position at once."""
        now = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        numbers = (max(received, flushed), flushed, flushed, now)
        message = b"r" + b"".join(int(number).to_bytes(8) for number in numbers) + bytes([reply])
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise _lost() from error

    def close(self) -> None:
        self._connection.close()

    def _ended(self) -> PenstockError:
        result = self._pgconn.get_result()
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
        code = state.decode() if state else ""
        if code == "55000":  # the slot was invalidated while we read from it
            return self._lost_slot()
        return _lost(code)

    def _start_error(self, result: psycopg.pq.abc.PGresult) -> PenstockError:
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        code = state.decode() if state else ""
        if code == "55006":
            return in_use_error(self._slot, None)
        if code in ("55000", "42704"):
            return self._lost_slot()
        return SourceError(
            f"Postgres did not start sending changes from slot {self._slot}.",
            detail=f"SQLSTATE {code}" if code else "",
            remedy="Run `penstock check`.",
        )

    def _lost_slot(self) -> PositionGoneError:
        return PositionGoneError(
            f"The replication slot {self._slot} can no longer be read: "
            "it was dropped, or the server removed log it still needed.",
            remedy="Run `penstock resync` to load the tables again under a new slot.",
        )


def _pause(descriptor: int) -> float:
    with socket.socket(fileno=socket.dup(descriptor)) as same:
        return _PAUSE_UNIX_S if same.family == socket.AF_UNIX else _PAUSE_TCP_S


def _lost(code: str = "") -> SourceError:
    return SourceError(
        "The replication connection was lost.",
        detail=f"SQLSTATE {code}" if code else "",
        remedy="Run the same command again once the server answers; it goes on where it stopped.",
    )

"""A logical replication connection: start it, drain it, answer it.

Reading goes through libpq's COPY BOTH (see `inbox`). The server sends each message by itself; waking
for every one would cost half a million system calls per million rows, at both ends. So between two
reads `let_fill` waits for a good piece of data at once (SO_RCVLOWAT), or a moment at most. A piece must
not be large either: the more waits in the socket, the more the *server* pays for each send. Measured
on a busy machine, system seconds of the server per million rows: 16 KiB 3.0, 64 KiB 3.7, 256 KiB 4.1;
with a wake-up per message 1.8, but at twice the CPU on our side.
A Unix socket has no such mark and holds little; there the moment is short.

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
_PIECE_BYTES = 16 << 10
_PIECE_TIMEOUT_S = 0.002
_UNIX_SOCKET_PAUSE_S = 0.0001


class ReplicationStream:
    """Messages of one slot, from `start` on. Owns its connection.

    With `emitted`, what applications emit is among them, and transactions come after their commit only: of a
    message in a transaction that is in progress the server does not say in which sub-transaction it was
    emitted, so nobody could tell whether that is rolled back later.
    """

    def __init__(
        self, connection: Connection, slot: str, publication: str, start: Lsn, *, emitted: bool = False
    ) -> None:
        self._connection = connection
        self._slot, self._publication = slot, publication
        self._pgconn = connection.pgconn
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '2', {}, publication_names {})"
        ).format(
            sql.Identifier(require_name(slot)),
            sql.SQL(str(start)),  # an Lsn prints as hexadecimal digits only
            sql.SQL("streaming 'off', messages 'true'" if emitted else "streaming 'on'"),
            sql.Literal(sql.Identifier(publication).as_string(connection)),
        )
        result = self._pgconn.exec_(command.as_bytes(connection))
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            connection.close()
            raise self._start_error(result)
        self._socket = socket.socket(fileno=socket.dup(self._pgconn.socket))
        self._piece_bytes = 1
        self.inbox: Inbox = open_inbox(self._pgconn, BATCH_BYTES_MAX, BATCH_MESSAGES_MAX)

    def drain(self) -> int:
        """Collect what the server has sent, without waiting; how many bytes that were."""
        try:
            size = self.inbox.drain()
        except psycopg.Error as error:
            raise _lost() from error
        if size < 0:
            raise self._ended()
        return size

    def wait(self, timeout_s: float, wake: int) -> None:
        """Wait until the server sends anything or `wake` is readable."""
        self._wake_at(1)
        select.select([self._socket.fileno(), wake], [], [], timeout_s)

    def let_fill(self) -> None:
        """Wait a moment for more of what is already flowing."""
        if self._socket.family == socket.AF_UNIX:
            time.sleep(_UNIX_SOCKET_PAUSE_S)
        else:
            self._wake_at(_PIECE_BYTES)
            select.select([self._socket], [], [], _PIECE_TIMEOUT_S)

    def _wake_at(self, piece_bytes: int) -> None:
        if piece_bytes != self._piece_bytes and self._socket.family != socket.AF_UNIX:
            self._piece_bytes = piece_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, piece_bytes)

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
        self._socket.close()
        self._connection.close()

    def _ended(self) -> PenstockError:
        result = self._pgconn.get_result()
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
        code = state.decode() if state else ""
        if code == "55000":  # the slot was invalidated while we read from it
            return self._lost_slot()
        if code == "42704":
            return SourceError(
                f"The publication {self._publication} did not exist when some of the log was written.",
                remedy="Run `penstock resync --yes`: it creates the publication first and the slot after it.",
            )
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
            remedy="Run `penstock resync --diff --yes` to go on under a new slot and write only the rows "
            "that differ, or `penstock resync --yes` to load the tables again.",
        )


def _lost(code: str = "") -> SourceError:
    return SourceError(
        "The replication connection was lost.",
        detail=f"SQLSTATE {code}" if code else "",
        remedy="Run the same command again once the server answers; it goes on where it stopped.",
    )

"""A connection on which a server sends its binary log, read in batches of raw bytes.

The connection is PyMySQL's: it has logged in, over TLS if so configured. From the dump command on only its
socket is used: bytes are received to their place in a batch's buffer, and found to be events there
(`packets`). Between queries PyMySQL has read every byte of an answer, so none is missed by that.

A batch is what the server had sent when it was asked for, at most `BATCH_BYTES_MAX` or one event; what is not
a whole event is moved to the next buffer. The server sends a heartbeat when it has had nothing to send for a
while; nothing for a minute in which it was listened to (`Silence`) means that the connection is dead.
"""

from __future__ import annotations

import select
import ssl
import time
import uuid
from dataclasses import dataclass
from typing import Any, cast

import pymysql

from penstock.core.errors import SourceError
from penstock.core.gtid import GtidSet
from penstock.sources.mysql.binlog import packets
from penstock.sources.mysql.binlog.gtid_set import to_wire
from penstock.sources.mysql.binlog.packet_kernels import CHECKSUM_CRC32, CHECKSUM_NONE
from penstock.sources.mysql.binlog.packets import MEMORY, EventBatch, Framing

BATCH_BYTES_MAX = 4 << 20  # with what is made of it, a batch stays in the processor's caches
BATCH_EVENTS_MAX = 131_072
_ROOM_MIN = 64 << 10
_FULL_BYTES = BATCH_BYTES_MAX // 4 * 3
_PIECE_S = 0.001
_SILENCE_S_MAX = 60.0  # what a server's own replicas bear
_LISTENED_S_MAX = 5.0
_WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The event that begins at `offset` of `file` comes first."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class GtidPosition:
    """Transactions that are not in the set come, in the server's order. MariaDB: the set as it writes it."""

    gtid_set: str


class Silence:
    """How long the other side has said nothing, as far as it was listened to.

    Between two looks at most `_LISTENED_S_MAX` count: whoever looks may have stood still for longer, together
    with the server and its heartbeats if both are on a machine that did.
    """

    def __init__(self, now: float) -> None:
        self._looked_at, self.length_s = now, 0.0

    def note(self, received: int, now: float) -> None:
        listened_s = min(now - self._looked_at, _LISTENED_S_MAX)
        self._looked_at, self.length_s = now, 0.0 if received else self.length_s + listened_s
        if self.length_s > _SILENCE_S_MAX:
            raise SourceError(
                f"The server has sent nothing for {self.length_s:.0f} s, not even a heartbeat.",
                remedy="Run the same command again, `penstock run` does it by itself; look at the network "
                "and the server if it goes on.",
            )


class BinlogStream:
    """Registered as a replica and reading. Used from one thread; `close` may be called from any.

    A server of MySQL ends the reading of whoever has the same id and `reader`.
    """

    def __init__(
        self,
        connection: pymysql.Connection[Any],
        start: FilePosition | GtidPosition,
        server_id: int,
        heartbeat_s: float = 5.0,
        reader: str = "",
        pipeline: str = "",
    ) -> None:
        self._connection = cast("Any", connection)  # more of it is used than its stubs tell
        self._heartbeat_s = heartbeat_s
        checksum = self._prepare(start, server_id, reader, packets.report_host(pipeline))
        self._framing = Framing(checksum, BATCH_EVENTS_MAX)
        self._socket: Any = self._connection._sock
        self._socket.settimeout(None)
        self._socket.sendall(packets.command(self._dump_command(start, server_id)))
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = MEMORY.take(BATCH_BYTES_MAX)
        self._used = self._rest = 0
        self._has_whole_events = False
        self._silence = Silence(time.monotonic())

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in str(self._connection.get_server_info()).lower()

    def read(self, timeout_s: float) -> EventBatch | None:
        """What has come, at least one event; None if `timeout_s` passed without one."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._has_whole_events or self._receive(deadline):
                batch = self._take()
                if len(batch):
                    return batch
            elif time.monotonic() >= deadline:
                return None

    @property
    def waiting_bytes(self) -> int:
        """Of what was received and not looked at: the beginning of an event that is not whole was."""
        return self._used - self._rest

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= _FULL_BYTES

    def receive(self) -> int:
        """Collect what the server has sent, without waiting; how many bytes that were."""
        received = self._drain()
        self._silence.note(received, time.monotonic())
        return received

    def take(self) -> EventBatch:
        """All whole events that were received, or as many as a batch may have; perhaps none."""
        batch = self._take()
        self._rest = 0 if self._has_whole_events else self._used
        return batch

    def wait(self, timeout_s: float, wake: int) -> None:
        """Wait until the server sends anything or the file `wake` is readable."""
        select.select([self._socket, wake], [], [], timeout_s)

    def let_fill(self) -> None:
        """Wait a moment for more of what is already flowing."""
        time.sleep(_PIECE_S)

    def close(self) -> None:
        self._connection._force_close()

    def _prepare(self, start: FilePosition | GtidPosition, server_id: int, reader: str, host: str) -> int:
        """Say who we are and what we understand; the kind of checksum that events have."""
        period_ns = int(self._heartbeat_s * 1e9)
        settings = {
            "@master_binlog_checksum": "@@global.binlog_checksum",
            "@source_binlog_checksum": "@@global.binlog_checksum",
            "@master_heartbeat_period": str(period_ns),
            "@source_heartbeat_period": str(period_ns),
        }
        if self.is_mariadb:
            settings["@mariadb_slave_capability"] = "4"
            if isinstance(start, GtidPosition):
                settings |= {
                    "@slave_connect_state": str(self._connection.escape(start.gtid_set)),
                    "@slave_gtid_strict_mode": "0",
                    "@slave_gtid_ignore_duplicates": "0",
                }
        else:
            name = uuid.uuid5(uuid.NAMESPACE_URL, f"penstock:{server_id}{reader}")
            settings |= {"@slave_uuid": f"'{name}'", "@replica_uuid": f"'{name}'"}
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SET " + ", ".join(f"{name} = {value}" for name, value in settings.items()))
                cursor.execute("SELECT @source_binlog_checksum")
                [[checksum]] = cursor.fetchall()
            self._connection._execute_command(0x15, packets.register(server_id, host)[1:])
            self._connection._read_ok_packet()
        except pymysql.err.MySQLError as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            raise packets.error_of(code, b"") from error
        kind = checksum.decode() if isinstance(checksum, bytes) else str(checksum)
        return CHECKSUM_CRC32 if kind.upper() == "CRC32" else CHECKSUM_NONE

    def _dump_command(self, start: FilePosition | GtidPosition, server_id: int) -> bytes:
        if isinstance(start, FilePosition):
            return packets.dump(server_id, start.file, start.offset)
        if self.is_mariadb:
            return packets.dump(server_id, "", 4)
        return packets.dump_gtid(server_id, to_wire(GtidSet.parse(start.gtid_set)))

    def _receive(self, deadline: float) -> bool:
        """Take what the server has sent, waiting for the first byte; whether anything came."""
        received = self._drain()
        if received == 0:
            wait_s = max(0.0, deadline - time.monotonic())
            self._poll.poll(1_000 * min(wait_s, self._heartbeat_s))
            received = self._drain()
        self._silence.note(received, time.monotonic())
        return received > 0

    def _drain(self) -> int:
        self._make_room()
        before = self._used
        view = self._buffer.data
        while self._used < len(view):
            try:
                count = self._socket.recv_into(view[self._used :])
            except _WOULD_WAIT:
                break
            except OSError as error:
                raise _lost() from error
            if count == 0:
                if self._used > before:
                    break  # what came before the end is dealt with first
                raise _lost()
            self._used += count
        return self._used - before

    def _make_room(self) -> None:
        """A single event may be larger than a batch: the buffer grows with what has come of it."""
        if len(self._buffer) - self._used < _ROOM_MIN:
            larger = MEMORY.take(2 * len(self._buffer))
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger

    def _take(self) -> EventBatch:
        batch, done, self._has_whole_events = self._framing.frame(self._buffer, self._used)
        if done:
            rest = self._used - done
            fresh = MEMORY.take(max(BATCH_BYTES_MAX, rest + _ROOM_MIN))
            fresh[:rest] = self._buffer[done : self._used]
            self._buffer, self._used = fresh, rest
        return batch


def _lost() -> SourceError:
    return SourceError(
        "The connection on which the binary log is read was lost.",
        remedy="Run the same command again, `penstock run` does it by itself; if it goes on, look into the "
        "server's error log.",
    )

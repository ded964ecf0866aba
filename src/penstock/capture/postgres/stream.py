"""A replication connection as the loop reads it: a `LogStream` of pgoutput messages.

The server wants to hear from us at less than its `wal_sender_timeout`, and what it hears is what it may
forget; asked, it answers with its own position, which otherwise it says every half of that timeout.
"""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.sources.postgres.pgoutput import MessageBatch
from penstock.sources.postgres.replication import ReplicationStream

_REPORT_EVERY_MAX_S = 10.0


class PostgresStream:
    """`sender_timeout_s`: of this connection, at the server; 0 if it has none."""

    def __init__(self, stream: ReplicationStream, sender_timeout_s: float) -> None:
        self._stream = stream
        self._inbox = stream.inbox
        self.receive, self.wait, self.let_fill = stream.drain, stream.wait, stream.let_fill
        quarter_s = sender_timeout_s / 4
        self.report_every_s = min(_REPORT_EVERY_MAX_S, quarter_s) if quarter_s else _REPORT_EVERY_MAX_S

    @property
    def waiting_bytes(self) -> int:
        return self._inbox.bytes

    @property
    def is_full(self) -> bool:
        return self._inbox.full

    def take(self) -> MessageBatch:
        return self._inbox.take()

    def report(self, received: Lsn, acknowledged: Lsn, *, ask: bool = False) -> None:
        self._stream.send_status(received, acknowledged, reply=ask)

    def close(self) -> None:
        self._stream.close()

"""A binary log connection as the loop reads it: a `LogStream` of events.

There is nothing to tell the server: it keeps its log as long as it likes. It says by itself where it is when
it has had nothing to send for a while (`HEARTBEAT_S`), and each event says where it ends.
"""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.sources.mysql.binlog.stream import BinlogStream

HEARTBEAT_S = 1.0
_REPORT_EVERY_S = 10.0


class MysqlStream:
    report_every_s = _REPORT_EVERY_S

    def __init__(self, stream: BinlogStream) -> None:
        self._stream = stream
        self.receive, self.wait, self.let_fill = stream.receive, stream.wait, stream.let_fill
        self.take, self.close = stream.take, stream.close

    @property
    def waiting_bytes(self) -> int:
        return self._stream.waiting_bytes

    @property
    def is_full(self) -> bool:
        return self._stream.is_full

    def report(self, received: Lsn, acknowledged: Lsn, *, ask: bool = False) -> None:
        return None

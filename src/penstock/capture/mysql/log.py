"""The server's log from where the change log ends: a `LogReading`, as the set-up found it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.capture.mysql.decoder import BinlogDecoder
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.stream import HEARTBEAT_S, MysqlStream
from penstock.capture.mysql.tables import MappedTables
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import Started
from penstock.core.binlog_place import Numbering
from penstock.core.failover import Flavor
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition, GtidPosition
from penstock.sources.mysql.connection import connect
from penstock.sources.mysql.server import require_server

CAPTURE_PROGRAM = "penstock capture"


@dataclass(frozen=True, slots=True)
class MysqlLog:
    """`start` is the place of `read_from`, or one before it in the same file, `file`. `gtid_set`: what was
    logged before `start`."""

    started: Started
    newest: Manifest | None
    read_from: Lsn
    source: MysqlSpec
    streams: tuple[StreamId, ...]
    flavor: Flavor
    server: str
    numbering: Numbering
    start: FilePosition | GtidPosition
    file: str
    gtid_set: str
    awaited: str = ""
    folds_names: bool = False

    def decoder(self) -> BinlogDecoder:
        url = self.source.url
        return BinlogDecoder(
            MappedTables(
                self.streams,
                lambda: connect(url, program_name="penstock catalog"),
                folds_names=self.folds_names,
            ),
            self.numbering,
            SeenGtids(self.flavor, self.gtid_set, self.awaited),
            self.file,
            self.server,
            mariadb=self.flavor == "mariadb",
        )

    def stream(self) -> MysqlStream:
        connection = connect(self.source.url, program_name=CAPTURE_PROGRAM)
        require_server(connection, self.server)
        return MysqlStream(
            BinlogStream(
                connection, self.start, self.source.server_id, HEARTBEAT_S, pipeline=self.source.name
            )
        )

"""Where a change log begins: its first step, empty, sealed where the server is now.

What it must know is the place *and* exactly the transactions before it, or another server could not go on
from there. MariaDB says the set of a place. MySQL says it of the place where a file begins, so from there on
transactions are counted, and nothing is kept of them, until the place is passed that was the end when it was
asked for. The log then begins where the counting stopped: at the end of a transaction, which nobody has been
told of yet, so that every position that is taken later lies behind it.

The step begins one before that place, where no transaction can begin.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from penstock import failpoints
from penstock.capture.log_reading import CapturedTable, Truncation
from penstock.capture.mysql.decoder import BinlogDecoder
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.log import CAPTURE_PROGRAM
from penstock.capture.mysql.tables import MappedTables
from penstock.capture.source_spec import MysqlSpec
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import SourceError
from penstock.core.failover import Server
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.log.writer import open_writer
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition
from penstock.sources.mysql.connection import Connection, connect
from penstock.sources.mysql.server import gtid_position, logged_before, read_server, require_server

FIRST_TIMELINE = 1
_NOTHING_IS_NEW = Lsn(2**63 - 1)
_FILE_BEGINS = 4
_WAIT_S, _SILENCE_S_MAX = 1.0, 60.0


def begin(source: MysqlSpec, directory: Path, connection: Connection, epoch: Lsn) -> Manifest:
    """Seal the first step of a change log that has none."""
    server = read_server(connection)
    place = (
        Place(str(server.last), gtid_position(connection, server.last.name, server.last.pos), server.uuid)
        if server.flavor == "mariadb"
        else counted_place(source, connection, server)
    )
    at = BinlogPlace.parse(place.text)
    end = Numbering.beginning_at(at).position(at)
    manifest = _sealed(directory, None, server.uuid, FIRST_TIMELINE, epoch, end, place)
    failpoints.reach("capture.slot_created")
    return manifest


def go_on_at(
    directory: Path, newest: Manifest, first: BinlogPlace, server: str, timeline: int, epoch: Lsn
) -> Manifest:
    """Seal where another server goes on: `first` is numbered right behind the log's end, for good."""
    assert newest.place is not None, "whoever goes on by a set has one"
    place = Place(str(first), newest.place.gtid_set, server)
    return _sealed(directory, newest, newest.system_id, timeline, epoch, Lsn(newest.end + 1), place)


def _sealed(
    directory: Path,
    newest: Manifest | None,
    system_id: str,
    timeline: int,
    epoch: Lsn,
    end: Lsn,
    place: Place,
) -> Manifest:
    """A step of one position, without changes, behind the newest or as the first."""
    writer = open_writer(
        directory, system_id=system_id, timeline=timeline, epoch=epoch, newest=newest, start=Lsn(end - 1)
    )
    manifest = writer.seal(end, place)
    assert manifest is not None, "the step has a range"
    return manifest


def counted_place(source: MysqlSpec, connection: Connection, server: Server, reader: str = "") -> Place:
    """MySQL's: the end of the last transaction up to the server's end or a little later, with its set.

    `reader`: under this name, beside another who reads.
    """
    last = server.last
    seen = SeenGtids("mysql", logged_before(connection, last.name))
    numbering = Numbering.beginning_at(last)
    target = numbering.position(last)
    tables = MappedTables((), _never)
    decoder = BinlogDecoder(tables, numbering, seen, last.name, server.uuid, mariadb=False)
    start = FilePosition(last.name, _FILE_BEGINS)
    reading = connect(source.url, program_name=CAPTURE_PROGRAM)
    require_server(reading, server.uuid)
    with closing(BinlogStream(reading, start, source.server_id, _WAIT_S, reader)) as stream:
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < _SILENCE_S_MAX:
            batch = stream.read(_WAIT_S)
            if batch is None:
                continue
            heard_at = time.monotonic()
            for part in decoder.parts(batch):
                first: int | None = 0
                while first is not None:
                    decoded = decoder.decode(part, first, _NOTHING_IS_NEW, lambda _: True, _NothingKept())
                    if decoded.position >= target and decoded.place is not None:
                        return decoded.place
                    first = decoded.rest
    raise SourceError(
        "The server does not send its binary log up to where it says that it ends.",
        remedy="Run the same command again; if it happens again, report it with the server's version.",
    )


class _NothingKept:
    """A `ChangeSink` to which no change is new."""

    def schema_of(self, table: CapturedTable) -> pa.Schema:
        _never()

    def write(self, table: CapturedTable, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        _never()

    def truncate(self, table: CapturedTable, at: Truncation, *, whole: bool) -> None:
        _never()

    def alter(self, stream: StreamId, tx: int, op_index: int) -> None:
        _never()


def _never() -> NoReturn:
    raise AssertionError("nothing is kept of what lies before the log")

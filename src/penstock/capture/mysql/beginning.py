"""Where a change log begins: its first step, empty, sealed where the server is now.

What it must know is the place *and* exactly the transactions before it, or another server could not go on
from there. MariaDB says the set of a place. MySQL says it of the place where a file begins, so from there on
transactions are counted, and nothing is kept of them, until the place is passed that was the end when it was
asked for. The log then begins where the counting stopped: at the end of a transaction, which nobody has been
told of yet, so that every position that is taken later lies behind it.

A log that takes over from another tool begins at a place that is given (`place_at`). The file that it is in
is read from its beginning, so that its transactions are known too, and that it is between two of them.

The step begins one before that place, where no transaction can begin.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.capture.log_reading import CapturedTable, Truncation
from penstock.capture.mysql.decoder import BinlogDecoder
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.log import CAPTURE_PROGRAM
from penstock.capture.mysql.tables import MappedTables
from penstock.capture.source_spec import MysqlSpec
from penstock.core.alteration import Alteration
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import SourceError, StateError
from penstock.core.failover import Server
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.log.writer import open_writer
from penstock.sources.mysql.binlog.packet_kernels import POSITION_AT
from penstock.sources.mysql.binlog.packets import EventBatch
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
    manifest = begin_at(directory, place, epoch)
    failpoints.reach("capture.slot_created")
    return manifest


def begin_at(directory: Path, place: Place, epoch: Lsn) -> Manifest:
    """The same at a place with its set, where one server's log is between two transactions."""
    at = BinlogPlace.parse(place.text)
    end = Numbering.beginning_at(at).position(at)
    return _sealed(directory, None, place.server, FIRST_TIMELINE, epoch, end, place)


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
    counting = _Counting(connection, server, server.last.name)
    target = counting.position(server.last)
    for part in counting.parts(source, reader):
        for reached, place in counting.passed(part):
            if reached >= target:
                return place
    raise AssertionError("a log that ends before it does is an error")


def place_at(source: MysqlSpec, connection: Connection, server: Server, at: BinlogPlace) -> Place:
    """A place that lies in one of this server's files, with its set. Where a file ends, the next begins."""
    counting = _Counting(connection, server, at.name)
    if at.pos <= _FILE_BEGINS:
        return counting.beginning()
    target = counting.position(at)
    for part in counting.parts(source):
        last, is_passed = _up_to(part, at.pos)
        for reached, place in counting.passed(EventBatch(part.buffer, part.starts[:last], part.ends[:last])):
            if reached >= target:  # beyond it is the beginning of the next file, where this one ends
                return place
        if is_passed:
            break
    raise StateError(
        f"The binlog place {at} is not between two transactions of this server's log.",
        remedy="Connect to the server that OLake read from, and give the state.json that it wrote last; or "
        "set `mode: cdc` to load the tables anew.",
    )


class _Counting:
    """Reads a file of the log from its beginning, and counts its transactions."""

    def __init__(self, connection: Connection, server: Server, file: str) -> None:
        self._server, self._file = server, file
        self._numbering = Numbering.beginning_at(BinlogPlace(file, _FILE_BEGINS))
        is_mariadb = server.flavor == "mariadb"
        self._before = (
            gtid_position(connection, file, _FILE_BEGINS) if is_mariadb else logged_before(connection, file)
        )
        self._decoder = BinlogDecoder(
            MappedTables((), _never),
            self._numbering,
            SeenGtids(server.flavor, self._before),
            file,
            server.uuid,
            mariadb=is_mariadb,
        )

    def position(self, place: BinlogPlace) -> Lsn:
        return self._numbering.position(place)

    def beginning(self) -> Place:
        """Where the file begins."""
        return Place(str(BinlogPlace(self._file, _FILE_BEGINS)), self._before, self._server.uuid)

    def parts(self, source: MysqlSpec, reader: str = "") -> Iterator[EventBatch]:
        """Events as they are decoded, for as long as the server says anything."""
        reading = connect(source.url, program_name=CAPTURE_PROGRAM)
        require_server(reading, self._server.uuid)
        start = FilePosition(self._file, _FILE_BEGINS)
        with closing(BinlogStream(reading, start, source.server_id, _WAIT_S, reader, source.name)) as stream:
            heard_at = time.monotonic()
            while time.monotonic() - heard_at < _SILENCE_S_MAX:
                batch = stream.read(_WAIT_S)
                if batch is not None:
                    heard_at = time.monotonic()
                    yield from self._decoder.parts(batch)
        raise SourceError(
            "The server does not send its binary log up to where it says that it ends.",
            remedy="Run the same command again; if it happens again, report it with the server's version.",
        )

    def passed(self, part: EventBatch) -> Iterator[tuple[Lsn, Place]]:
        """Places outside of any transaction: the last ones of what is decoded at a time."""
        first: int | None = 0 if len(part) else None
        while first is not None:
            decoded = self._decoder.decode(part, first, _NOTHING_IS_NEW, lambda _: True, _NothingKept())
            if decoded.place is not None:
                yield decoded.position, decoded.place
            first = decoded.rest


def _up_to(part: EventBatch, offset: int) -> tuple[int, bool]:
    """How many events end at or before `offset` of the file, with those behind them that end there too: all
    of a compressed transaction do. And whether one ends beyond it, so that no more of them come."""
    at = part.starts + POSITION_AT
    ends = np.zeros(len(part), np.int64)  # of events that are in no file, it stays so
    for byte in range(4):
        ends |= part.buffer[at + byte].astype(np.int64) << 8 * byte
    reached = np.flatnonzero(ends >= offset)
    if not len(reached):
        return len(part), False
    others = np.flatnonzero(ends[reached[0] :] != offset)
    last = int(reached[0] + others[0]) if len(others) else len(part)
    return last, last < len(part)


class _NothingKept:
    """A `ChangeSink` to which no change is new."""

    def schema_of(self, table: CapturedTable) -> pa.Schema:
        _never()

    def write(self, table: CapturedTable, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        _never()

    def truncate(self, table: CapturedTable, at: Truncation, *, whole: bool) -> None:
        _never()

    def alter(
        self,
        stream: StreamId,
        tx: int,
        op_index: int,
        *,
        is_untold: bool = False,
        alteration: Alteration | None = None,
    ) -> None:
        _never()


def _never() -> NoReturn:
    raise AssertionError("nothing is kept of what lies before the log")

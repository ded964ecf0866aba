"""What tests read from a binary log: every change as a plain value, up to where the log ends now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from penstock.sources.mysql.binlog.charsets import read_collations
from penstock.sources.mysql.binlog.events import Carry, Ending, Rare, Rotation, Scan, Tables, scan
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import Absent, RowLayout, decode_rows
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition, GtidPosition
from penstock.sources.mysql.binlog.unwrapping import unwrap
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MysqlServer

SERVER_ID = 4242

Values = dict[str, str | None]


@dataclass(frozen=True)
class Change:
    stream: str
    kind: str
    new: Values
    old: Values
    old_kind: str
    gtid: str
    ordinal: int
    commit_ts_us: int


@dataclass
class Read:
    """All there was, in order."""

    changes: list[Change] = field(default_factory=list)
    rare: list[Rare] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)
    position: FilePosition | None = None

    def of(self, stream: str) -> list[Change]:
        return [change for change in self.changes if change.stream == stream]


class Decoder:
    """Batches to changes; what is open at the end of one goes on in the next."""

    def __init__(self, collations: dict[int, str], mariadb: bool = False) -> None:
        self.tables = Tables(mariadb)
        self.carry = Carry()
        self.read = Read()
        self._collations = collations
        self._layouts: dict[int, RowLayout] = {}
        self._file = ""

    def take(self, batch: EventBatch) -> None:
        for plain in unwrap(batch):
            found = scan(plain, 0, len(plain), self.carry, self.tables)
            changes: list[tuple[int, Change]] = []
            for table in found.tables.tolist():
                changes += self._decoded(plain, found, table)
            self.read.changes += [change for _, change in sorted(changes, key=lambda pair: pair[0])]
            self.read.rare += [rare.event for rare in found.rare]
            self.read.endings += [Ending(how) for how in found.end_how.tolist()]
            self.read.gtids += [self._gtid(found, tx) for tx in found.end_transaction.tolist()]
            self._note_position(found)

    def _note_position(self, found: Scan) -> None:
        offset = int(found.end_position[-1]) if len(found.end_position) else 0
        for rare in found.rare:
            if isinstance(rare.event, Rotation):
                self._file = rare.event.file
                later = found.end_event > rare.number
                offset = int(found.end_position[-1]) if later.any() else rare.event.offset
        if offset:
            self.read.position = FilePosition(self._file, offset)

    def _gtid(self, found: Scan, transaction: int) -> str:
        source = int(found.source[transaction])
        return f"{self.tables.sources[source]}:{found.number[transaction]}" if source >= 0 else ""

    def _decoded(self, batch: EventBatch, found: Scan, table: int) -> Iterator[tuple[int, Change]]:
        if table not in self._layouts:
            self._layouts[table] = RowLayout.of(self.tables.maps[table], self._collations)
        described = self.tables.maps[table]
        rows = np.flatnonzero(found.table == table)
        images = decode_rows(
            batch, found.kind[rows], found.row_at[rows], found.present_at[rows], self._layouts[table]
        )
        names = [column.name or str(number) for number, column in enumerate(described.columns)]
        new = [column.to_pylist() for column in images.columns]
        old = [column.to_pylist() for column in images.old]
        for column in (*images.columns, *images.old):
            column.validate(full=True)
        for index, row in enumerate(rows.tolist()):
            transaction = int(found.transaction[row])
            yield (
                row,
                Change(
                    described.stream,
                    chr(found.kind[row]),
                    _values(names, new, index, images.absent),
                    _values(names, old, index, images.absent_old)
                    if images.old_kind[index] != ord("n")
                    else {},
                    chr(images.old_kind[index]),
                    self._gtid(found, transaction),
                    int(found.ordinal[row]),
                    int(found.commit_ts_us[transaction]),
                ),
            )


def _values(names: list[str], columns: list[list[str | None]], row: int, absent: Absent | None) -> Values:
    """Without what the server left out."""
    left_out: set[int] = set()
    if absent is not None:
        offsets, numbers, _ = absent
        left_out = set(numbers[offsets[row] : offsets[row + 1]].tolist())
    return {
        name: column[row]
        for number, (name, column) in enumerate(zip(names, columns, strict=False))
        if number not in left_out
    }


def collations_of(server: MysqlServer) -> dict[int, str]:
    with server.connect() as connection:
        return read_collations(connection)


def read_all(server: MysqlServer, start: FilePosition | GtidPosition, *, tls: bool = False) -> Read:
    """From `start` to where the log ends at this moment."""
    file, offset = server.position()
    decoder = Decoder(collations_of(server), server.kind is MARIADB)

    def reached() -> bool:
        batch = stream.read(0.2)
        if batch is not None:
            decoder.take(batch)
        position = decoder.read.position
        return position is not None and (position.file, position.offset) >= (file, offset)

    with closing(BinlogStream(server.connect(tls=tls), start, SERVER_ID, heartbeat_s=1.0)) as stream:
        wait_until(reached, f"the binary log to be read to {file}:{offset}", timeout_s=120)
    return decoder.read

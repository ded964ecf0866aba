"""Batches of binary log events to rows of the change log: a `Decoder`.

A position is a place's number plus the numbering's offset (`core.binlog_place`). A transaction's `_tx` is
where its first event begins, which is at or behind the end of the one before, and below its own end: it is
the same whichever way and however often the log is read. Beside positions the decoder counts the transactions
that have ended (`SeenGtids`), so that each place is known by its GTID set as well, on any server. Another
server may have logged them in another order: what was read before is left out wherever it comes.

Rows between two statements are decoded together, table by table. Each table map is a table's version of its
own, so pieces of one table are in their order and of one schema each. A statement that empties a table is a
row of its own; one that alters tables is noted in the step, for no row tells what became of theirs, and has
the catalog asked anew.

What cannot be told exactly ends the reading with an error before a row of it counts: transactions prepared in
two phases (XA), whose rows would count or not by what comes later; rows of a transaction that was rolled
back, which tables without transactions keep and others do not; changes that were logged as statements of
which it cannot be read whose rows they change, or that set off triggers; and inserts that leave columns to
their defaults (`binlog_row_image`). A statement that changes rows of one table is as one that alters it if the
table is kept, and nothing if it is not: one session, or a tool of the server's own, does not stop the others.

The one transaction that a server may write over the 4 GiB that its places can say is refused too. Each event
has four bytes for the place where it ends, so behind that they begin anew at 0, and may be beyond the place
where the transaction began when it ends. An event and a batch are smaller than half of that: from one batch
to the next a place that is far less than the one before tells it. Newer servers of MariaDB leave places out
of events inside of a transaction: there bytes are counted.

Table maps of the whole server come by. Those of `MAPS_MAX` tables are known; when there are more, all are
forgotten between two transactions, for each transaction describes its tables anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.capture.log_reading import ChangeSink, Decoded, Truncation
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.statements import read_statement
from penstock.capture.mysql.tables import MappedTable, MappedTables
from penstock.capture.rows import Absent, Changes, log_rows
from penstock.core.binlog_place import OFFSET_MAX, BinlogPlace, Numbering
from penstock.core.errors import SourceError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.mysql.binlog.events import (
    Carry,
    Ending,
    RareEvent,
    Rotation,
    Scan,
    Statement,
    Tables,
    bytes_in_file,
    position_of,
    scan,
)
from penstock.sources.mysql.binlog.packet_kernels import Ints
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowImages, decode_rows
from penstock.sources.mysql.binlog.unwrapping import unwrap
from penstock.sources.mysql.catalog import SYSTEM_DATABASES

Flags = npt.NDArray[np.bool_]
MAPS_MAX = 4096
_FAR = 1 << 31  # more than an event or a batch has


class BinlogDecoder:
    """`file`: in which reading begins. `server`: its uuid, for whoever goes on from what was read."""

    def __init__(
        self,
        tables: MappedTables,
        numbering: Numbering,
        seen: SeenGtids,
        file: str,
        server: str,
        *,
        mariadb: bool,
    ) -> None:
        self._mapped = tables
        self._numbering = numbering
        self._seen = seen
        self._file = file
        self._server = server
        self._tables = Tables(mariadb)
        self._carry = Carry()
        self._open_tx = 0
        self._open_offset = 0
        self._open_has_rows = False  # that would be kept, of the transaction that goes on
        self.spilled_bytes = 0

    @property
    def open_tx(self) -> int | None:
        return self._open_tx if self._carry.in_transaction else None

    def parts(self, batch: EventBatch) -> Iterator[EventBatch]:
        """One at a time: a compressed transaction is unpacked as it is written."""
        return unwrap(batch) if len(batch) else iter(())

    def decode(
        self,
        part: EventBatch,
        first: int,
        log_end: Lsn,
        must_end: Callable[[Lsn], bool],
        sink: ChangeSink,
    ) -> Decoded:
        if len(self._tables.maps) > MAPS_MAX and not self._carry.in_transaction:
            self._tables.forget_maps()
            self._mapped.renumber()
        before = self._carry.values.copy()
        found = scan(part, first, len(part), self._carry, self._tables)
        last = len(part)
        if self._carry.in_transaction and len(found.end_event):
            files = self._files(found)
            if must_end(self._position(files, int(found.end_transaction[-1]), int(found.end_position[-1]))):
                last = int(found.end_event[-1]) + 1
                self._carry.values = before
                found = scan(part, first, last, self._carry, self._tables)
        files = self._files(found)
        tx = self._begins(found, files)
        new = (tx >= log_end) & ~self._seen.had(self._tables.sources, found.source, found.number)
        self._require_places(part, found, new, first, last)
        self._require_plain_endings(found, new)
        self._write(part, found, tx, new, sink)
        self._seen.add(
            self._tables.sources, found.source[found.end_transaction], found.number[found.end_transaction]
        )
        self._open_has_rows = self._carry.in_transaction and self._has_rows(found, len(tx) - 1)
        self._file = files[-1][1]
        self._open_tx = int(tx[-1])
        position = self._reached(part, found, files, last)
        return Decoded(
            rest=last if last < len(part) else None,
            position=position,
            messages=int(np.count_nonzero(new[found.transaction])),
            transactions=int(np.count_nonzero(new[found.end_transaction])),
            bytes=int(part.ends[last - 1]) - (int(part.ends[first - 1]) if first else 0),
            place=self._place(position) if position else None,
        )

    def add(self, streams: Sequence[StreamId]) -> None:
        self._mapped.add(streams)

    def close(self) -> None:
        return None

    # Positions

    def _files(self, found: Scan) -> list[tuple[int, str]]:
        """The file that each transaction is in: from this number on, that file."""
        files = [(0, self._file)]
        for rare in found.rare:
            if isinstance(rare.event, Rotation):
                files.append((rare.transaction + 1, rare.event.file))
        return files

    def _begins(self, found: Scan, files: Sequence[tuple[int, str]]) -> Ints:
        """`_tx` of every transaction; the first is the one that was open."""
        tx = found.begins_at.copy()
        for begin, file in files:
            first = int(self._numbering.position(BinlogPlace(file, 0)))
            tx[begin:] = found.begins_at[begin:] + first
        tx[0] = self._open_tx
        return tx

    def _position(self, files: Sequence[tuple[int, str]], transaction: int, offset: int) -> Lsn:
        file = next(name for begin, name in reversed(files) if begin <= transaction)
        return self._numbering.position(BinlogPlace(file, offset))

    def _reached(self, part: EventBatch, found: Scan, files: Sequence[tuple[int, str]], last: int) -> Lsn:
        """The end of the last transaction; outside of any, of the last event, which may be a heartbeat."""
        position = Lsn(0)
        if len(found.end_event):
            end = int(found.end_transaction[-1]), int(found.end_position[-1])
            position = self._position(files, *end)
        if not self._carry.in_transaction and last:
            rotation = found.rare[-1] if found.rare else None
            event = rotation.event if rotation is not None else None
            if rotation is not None and isinstance(event, Rotation) and rotation.number == last - 1:
                offset = event.offset
            else:
                offset = position_of(part.event(last - 1))
            if offset:  # events that are in no file have none
                position = max(position, self._numbering.position(BinlogPlace(self._file, offset)))
        return position

    def _place(self, position: Lsn) -> Place:
        return Place(str(self._numbering.place(position)), str(self._seen), self._server)

    # What cannot be told

    def _require_places(self, part: EventBatch, found: Scan, new: Flags, first: int, last: int) -> None:
        """That no transaction goes beyond what places can say. `new`: those that the log does not have."""
        begins, ended = found.begins_at.copy(), found.end_transaction
        begins[0] = self._open_offset
        offset = int(begins[-1])
        if self._carry.in_transaction and last > first:
            offset = position_of(part.event(last - 1))
            if not offset:  # MariaDB: events inside of a transaction do not say where they end
                since = int(found.end_event[-1]) + 1 if len(found.end_event) else first
                offset = int(begins[-1]) + bytes_in_file(part, since, last)
        wrapped = begins[ended] - found.end_position > _FAR
        is_open_beyond = new[-1] and (begins[-1] - offset > _FAR or offset > OFFSET_MAX)
        if (new[ended] & wrapped).any() or (new & (begins < 0)).any() or is_open_beyond:
            raise _too_large()
        self._open_offset = offset if self._carry.in_transaction else 0

    def _require_plain_endings(self, found: Scan, new: Flags) -> None:
        counts = new[found.end_transaction]
        plain = (found.end_how == Ending.COMMITTED) | (found.end_how == Ending.STATEMENT)
        for end in np.flatnonzero(counts & ~plain).tolist():
            transaction = int(found.end_transaction[end])
            if self._has_rows(found, transaction):
                raise _prepared() if found.end_how[end] == Ending.PREPARED else _rolled_back()

    def _has_rows(self, found: Scan, transaction: int) -> bool:
        """Whether there are rows of it that would be kept; of the one that was open, before this part too."""
        if transaction == 0 and self._open_has_rows:
            return True
        tables = np.unique(found.table[found.transaction == transaction]).tolist()
        maps = (self._tables.maps[number] for number in tables)
        return any(self._mapped.wants(StreamId(each.schema, each.name)) for each in maps)

    # Rows

    def _write(self, part: EventBatch, found: Scan, tx: Ints, new: Flags, sink: ChangeSink) -> None:
        begin = 0
        for rare in found.rare:
            if not isinstance(rare.event, Statement):
                continue
            told = read_statement(rare.event)
            if told.changes_rows and new[rare.transaction]:
                self._change_by_statement(told.target, rare, tx, sink)
            if told.takes_back and new[rare.transaction] and self._has_rows(found, rare.transaction):
                raise _rolled_back()
            emptied = None if told.emptied is None else self._mapped.meant(told.emptied)
            if emptied is not None and self._mapped.wants(emptied):
                self._write_changes(part, found, tx, new, begin, rare.changes_before, sink)
                begin = rare.changes_before
                self._write_truncate(emptied, rare, found, tx, new, sink)
            if told.changed:
                self._write_changes(part, found, tx, new, begin, rare.changes_before, sink)
                begin = rare.changes_before
                self._alter([self._mapped.meant(each) for each in told.changed], rare, tx, new, sink)
        self._write_changes(part, found, tx, new, begin, len(found.kind), sink)

    def _change_by_statement(
        self, target: StreamId | None, rare: RareEvent, tx: Ints, sink: ChangeSink
    ) -> None:
        """Of a table that is kept it must be loaded again, as when it is altered: no row tells of it."""
        if target is None:
            raise _logged_as_statement()
        stream = self._mapped.meant(target)
        if stream.namespace.lower() in SYSTEM_DATABASES:
            return
        if self._mapped.has_triggers(stream):
            raise _logged_as_statement(str(stream))
        if self._mapped.wants(stream):
            sink.alter(stream, int(tx[rare.transaction]), 2 * rare.ordinal)

    def _write_truncate(
        self, stream: StreamId, rare: RareEvent, found: Scan, tx: Ints, new: Flags, sink: ChangeSink
    ) -> None:
        if not new[rare.transaction] or (table := self._mapped.current(stream)) is None:
            return
        number = rare.transaction
        at = Truncation(
            int(tx[number]), 2 * rare.ordinal, int(found.number[number]), int(found.commit_ts_us[number])
        )
        sink.truncate(table, at, whole=True)

    def _alter(
        self, changed: Sequence[StreamId], rare: RareEvent, tx: Ints, new: Flags, sink: ChangeSink
    ) -> None:
        """Loads that are later show it; whoever followed the table must load it again."""
        self._mapped.forget(changed)
        if new[rare.transaction]:
            for stream in self._mapped.among(changed):
                sink.alter(stream, int(tx[rare.transaction]), 2 * rare.ordinal)

    def _write_changes(
        self,
        part: EventBatch,
        found: Scan,
        tx: Ints,
        new: Flags,
        begin: int,
        end: int,
        sink: ChangeSink,
    ) -> None:
        if begin == end:
            return
        chosen = np.arange(begin, end)
        chosen = chosen[new[found.transaction[begin:end]]]
        tables = found.table[chosen]
        numbers = np.flatnonzero(np.bincount(tables)).tolist()
        for number in numbers:
            table = self._mapped.table(number, self._tables.maps[number])
            if table is None:
                continue
            rows = chosen if len(numbers) == 1 else chosen[tables == number]
            changes = self._changes(part, found, tx, rows, table)
            schema = table.table.schema
            sink.write(table.table, *log_rows(changes, schema, sink.schema_of(table.table)))

    def _changes(
        self, part: EventBatch, found: Scan, tx: Ints, rows: npt.NDArray[np.int64], table: MappedTable
    ) -> Changes:
        kind, transaction = found.kind[rows], found.transaction[rows]
        images = decode_rows(part, kind, found.row_at[rows], found.present_at[rows], table.layout)
        _require_whole_inserts(kind, images, table)
        return Changes(
            op=kind,
            tx=tx[transaction],
            ordinal=found.ordinal[rows],
            xid=found.number[transaction].astype(np.uint64),
            commit_ts_us=found.commit_ts_us[transaction],
            columns=[images.columns[number] for number in table.columns],
            old=[images.old[number] for number in table.columns] if images.old else [],
            old_kind=_old_kind(images, table),
            unchanged=_of_table(images.absent, table),
        )


def _of_table(absent: Absent | None, table: MappedTable) -> Absent | None:
    """The same lists by the numbers that columns have in the table, without those that it has not."""
    if absent is None:
        return None
    offsets, numbers, _ = absent
    renumbered = table.numbers[numbers]
    kept = renumbered >= 0
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)])
    places = before[offsets]
    if not places[-1]:
        return None
    validity = np.packbits(np.diff(places) > 0, bitorder="little")
    return places, renumbered[kept].astype(np.int32), validity


def _old_kind(images: RowImages, table: MappedTable) -> npt.NDArray[np.uint8]:
    """An old row is whole if it has all columns of the table: MariaDB leaves generated ones out of it."""
    lacking = _of_table(images.absent_old, table)
    parts = images.old_kind == ord("k")
    if lacking is not None:
        parts = parts & (np.diff(lacking[0]) == 0)
    return np.where(parts, np.uint8(ord("f")), images.old_kind)


def _require_whole_inserts(kind: npt.NDArray[np.uint8], images: RowImages, table: MappedTable) -> None:
    absent = _of_table(images.absent, table)
    if absent is not None and (np.diff(absent[0])[kind == ord("i")] > 0).any():
        raise SourceError(
            "An insert in the log leaves out columns that got their default (binlog_row_image).",
            stream=str(table.table.leaf),
            remedy="Set binlog_row_image = FULL at the server, let sessions begin anew, and run "
            "`penstock resync` for the stream.",
        )


def _prepared() -> SourceError:
    return SourceError(
        "The log has a transaction that was prepared before it was committed (XA), which is not followed.",
        remedy="Let the application commit in one phase; run `penstock resync` to go on behind it.",
    )


def _rolled_back() -> SourceError:
    return SourceError(
        "The log has rows of a transaction that was rolled back: it changed tables without transactions too.",
        remedy="Give those tables a transactional engine (InnoDB), and run `penstock resync`.",
    )


def _logged_as_statement(stream: str | None = None) -> SourceError:
    of_triggers = " The table has triggers, which may have changed rows of others." if stream else ""
    return SourceError(
        f"The log has a change as the statement that made it, and not as rows.{of_triggers}",
        stream=stream,
        remedy="Set binlog_format = ROW at the server, let sessions begin anew, and run `penstock resync`.",
    )


def _too_large() -> SourceError:
    return SourceError(
        "A transaction goes beyond 4 GiB of its binary log file, where places cannot be told any more.",
        remedy="Let the application change so much in several transactions, and run `penstock resync`.",
    )

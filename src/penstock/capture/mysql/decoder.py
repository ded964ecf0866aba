"""Batches of binary log events to rows of the change log: a `Decoder`.

A position is a place's number plus the numbering's offset (`core.binlog_place`). A transaction's `_tx` is
where its first event begins, which is at or behind the end of the one before, and below its own end: it is
the same whichever way and however often the log is read. Beside positions the decoder counts the transactions
that have ended (`SeenGtids`), so that each place is known by its GTID set as well, on any server. Another
server may have logged them in another order: what was read before is left out wherever it comes.

Rows between two statements are decoded together, table by table. Each table map is a table's version of its
own, so pieces of one table are in their order and of one schema each. A statement that empties a table is a
row of its own; one that alters tables is noted in the step, for no row tells what became of theirs, and has
the catalog asked anew. With it is noted what it did to the columns, where that is certain (`alterations`).

What cannot be told exactly ends the reading with an error before a row of it counts: transactions prepared in
two phases (XA), whose rows would count or not by what comes later; rows of a transaction that was rolled
back, which tables without transactions keep and others do not; changes that were logged as statements of
which it cannot be known whose rows they change, as by a view, a trigger or a function that somebody wrote.

What cannot be told of one table is as a statement that alters it, if it is kept, and nothing if it is not:
one table, one session, or a tool of the server's own does not stop the others. Such are a statement that
changes rows of one table, or lets them go with their partition; rows of types that are not known, or in a
form that cannot be read; parts of JSON values; and inserts that leave columns to their defaults
(`binlog_row_image`), which are left out. The lake loads the table again; a stream lane cannot, so its stream
stands still there (`TableEntry.untold`). It is noted twice at most for all that is decoded at a time, where
it was first and where it was last: a load must be later than the last, and a lane stops at the first.

A transaction that was cut by a crash of the server never counted: its rows are left out, its id may come
again. If some were written before its end came, their tables are as altered.

Of a versioned table of MariaDB the log has rows that are not there any more: an update is one of the row and
an insert of what it was, a delete is an update of until when it was there. Rows of the past are left out, and
an update into the past is a delete.

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
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from penstock.capture.log_reading import ChangeSink, Decoded, Truncation
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.statements import TableStatement, read_statement
from penstock.capture.mysql.tables import MappedTable, MappedTables, UnreadTable
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
    UnreadRows,
    bytes_in_file,
    position_of,
    scan,
)
from penstock.sources.mysql.binlog.packet_kernels import Ints
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowImages, decode_rows
from penstock.sources.mysql.binlog.unwrapping import unwrap

Flags = npt.NDArray[np.bool_]
_Offset = tuple[int, int]  # transaction and operation
Untold = dict[StreamId, tuple[_Offset, _Offset]]  # where it was first, and last
MAPS_MAX = 4096
_FAR = 1 << 31  # more than an event or a batch has
#: Until when rows of versioned tables are there that are there: the last moment that MariaDB knows, from 11.5
#: on and before.
_NO_END = ("2106-02-07 06:28:15.999999", "2038-01-19 03:14:07.999999")
_BY_STATEMENT = "a change was logged as the statement that made it (binlog_format)"
_NOT_TOLD = "parts of JSON values (binlog_row_value_options), or a column of a type that is not known"
_NO_DEFAULTS = "an insert leaves out columns that got their default (binlog_row_image)"
_WITH_PARTITION = "ALTER TABLE moved or removed rows (a partition, a file, IGNORE)"
_CUT = "rows of a transaction came that the server was writing when it crashed"
_logger = structlog.get_logger("penstock.capture")


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
        self._open_streams: frozenset[StreamId] = frozenset()  # with rows of the transaction that goes on
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
        self._mapped.look_anew()
        if len(self._tables.maps) > MAPS_MAX and not self._carry.in_transaction:
            self._tables.forget_maps()
            self._mapped.renumber()
        before = self._carry.values.copy()
        found = scan(part, first, len(part), self._carry, self._tables)
        last = len(part)
        ends = np.flatnonzero(found.end_how != Ending.CUT)
        if self._carry.in_transaction and len(ends):
            files, end = self._files(found), int(ends[-1])
            if must_end(self._position(files, int(found.end_transaction[end]), int(found.end_position[end]))):
                last = int(found.end_event[end]) + 1
                self._carry.values = before
                found = scan(part, first, last, self._carry, self._tables)
        files = self._files(found)
        tx = self._begins(found, files)
        new = (tx >= log_end) & ~self._seen.had(self._tables.sources, found.source, found.number)
        is_cut = found.end_how == Ending.CUT
        cut_open = bool(new[0]) and 0 in found.end_transaction[is_cut]
        new[found.end_transaction[is_cut]] = False
        self._require_places(part, found, new, first, last)
        self._require_plain_endings(found, new)
        untold: Untold = {}
        for stream in self._open_streams if cut_open else ():
            self._note(stream, int(tx[0]), 0, untold, _CUT)
        self._write(part, found, tx, new, untold, sink)
        for stream, offsets in untold.items():
            for at, op_index in sorted(set(offsets)):
                sink.alter(stream, at, op_index, is_untold=True)
        ended = found.end_transaction[~is_cut]
        self._seen.add(self._tables.sources, found.source[ended], found.number[ended])
        self._open_streams = (
            self._streams_of(found, len(tx) - 1) if self._carry.in_transaction else frozenset()
        )
        self._file = files[-1][1]
        self._open_tx = int(tx[-1])
        position = self._reached(part, found, files, tx, last)
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

    def _reached(
        self, part: EventBatch, found: Scan, files: Sequence[tuple[int, str]], tx: Ints, last: int
    ) -> Lsn:
        """The end of the last transaction; outside of any, of the last event, which may be a heartbeat."""
        position = Lsn(0)
        if len(found.end_event):
            end = int(found.end_transaction[-1]), int(found.end_position[-1])
            is_cut = (
                found.end_how[-1] == Ending.CUT
            )  # in the file before this one, and it ends where it began
            position = Lsn(int(tx[end[0]])) if is_cut else self._position(files, *end)
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
        """Whether there are rows of it that would be kept."""
        return bool(self._streams_of(found, transaction))

    def _streams_of(self, found: Scan, transaction: int) -> frozenset[StreamId]:
        """Those that are kept and have rows of it; of the one that was open, before this part too."""
        tables = np.unique(found.table[found.transaction == transaction]).tolist()
        streams = {StreamId(self._tables.maps[each].schema, self._tables.maps[each].name) for each in tables}
        before = self._open_streams if transaction == 0 else frozenset()
        return before | {stream for stream in streams if self._mapped.wants(stream)}

    # Rows

    def _write(
        self, part: EventBatch, found: Scan, tx: Ints, new: Flags, untold: Untold, sink: ChangeSink
    ) -> None:
        begin = 0
        for rare in found.rare:
            if isinstance(rare.event, UnreadRows) and new[rare.transaction]:
                stream = StreamId(rare.event.schema, rare.event.name)
                if self._mapped.wants(stream):
                    at = int(tx[rare.transaction])
                    self._note(stream, at, rare.ordinal, untold, _NOT_TOLD)
            if not isinstance(rare.event, Statement):
                continue
            told = read_statement(rare.event)
            if told.changes_rows and new[rare.transaction]:
                self._change_by_statement(told, rare, tx, untold)
            if told.takes_back and new[rare.transaction] and self._has_rows(found, rare.transaction):
                raise _rolled_back()
            emptied = None if told.emptied is None else self._mapped.meant(told.emptied)
            if emptied is not None and self._mapped.wants(emptied):
                self._write_changes(part, found, tx, new, begin, rare.changes_before, untold, sink)
                begin = rare.changes_before
                self._write_truncate(emptied, rare, found, tx, new, sink)
            if told.changed:
                self._write_changes(part, found, tx, new, begin, rare.changes_before, untold, sink)
                begin = rare.changes_before
                self._alter(told, rare, tx, new, sink)
        self._write_changes(part, found, tx, new, begin, len(found.kind), untold, sink)

    def _change_by_statement(self, told: TableStatement, rare: RareEvent, tx: Ints, untold: Untold) -> None:
        """Of a table that is kept it must be loaded again, as when it is altered: no row tells of it."""
        if told.target is None:
            raise _logged_as_statement()
        stream = self._mapped.meant(told.target)
        beyond = self._mapped.reach_beyond(stream, frozenset(map(self._mapped.meant, told.reads)))
        if beyond is not None:
            raise _logged_as_statement(str(stream), beyond)
        if self._mapped.wants(stream):
            at = int(tx[rare.transaction])
            self._note(stream, at, rare.ordinal, untold, _BY_STATEMENT)

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

    def _alter(self, told: TableStatement, rare: RareEvent, tx: Ints, new: Flags, sink: ChangeSink) -> None:
        """Loads that are later show it; whoever followed the table must load it again, unless it is known
        what became of its columns."""
        changed = [self._mapped.meant(each) for each in told.changed]
        self._mapped.forget(changed)
        if new[rare.transaction]:
            for stream in self._mapped.among(changed):
                if told.moves_rows:
                    _warn(stream, _WITH_PARTITION)
                known = self._mapped.alteration(stream, told.columns) if told.columns is not None else None
                at, op_index = int(tx[rare.transaction]), 2 * rare.ordinal
                sink.alter(stream, at, op_index, is_untold=told.moves_rows, alteration=known)

    def _write_changes(
        self,
        part: EventBatch,
        found: Scan,
        tx: Ints,
        new: Flags,
        begin: int,
        end: int,
        untold: Untold,
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
            if isinstance(table, UnreadTable):
                self._note_rows(table.stream, found, tx, rows, untold, table.why.message)
                continue
            changes = self._changes(part, found, tx, rows, table, untold)
            if changes is None:
                continue
            schema = table.table.schema
            sink.write(table.table, *log_rows(changes, schema, sink.schema_of(table.table)))

    def _note_rows(
        self,
        stream: StreamId,
        found: Scan,
        tx: Ints,
        rows: npt.NDArray[np.int64],
        untold: Untold,
        why: str,
    ) -> None:
        """The first and the last of them, in the order of the log."""
        for row in (int(rows[0]), int(rows[-1])):
            self._note(stream, int(tx[found.transaction[row]]), int(found.ordinal[row]), untold, why)

    def _note(self, stream: StreamId, at: int, ordinal: int, untold: Untold, why: str) -> None:
        """That it must be loaded again from there on: the log does not tell its rows."""
        offset = (at, 2 * ordinal)
        first, last = untold.get(stream, (offset, offset))
        if stream not in untold:
            _warn(stream, why)
        untold[stream] = min(first, offset), max(last, offset)

    def _changes(
        self,
        part: EventBatch,
        found: Scan,
        tx: Ints,
        rows: npt.NDArray[np.int64],
        table: MappedTable,
        untold: Untold,
    ) -> Changes | None:
        kind = found.kind[rows]
        images = _decoded(part, found, rows, table)
        if table.row_end is not None:
            present, op = _of_the_present(kind, images, table.row_end)
            if not present.all():
                rows, op, kind = rows[present], op[present], kind[present]
                images = _decoded(part, found, rows, table)
        else:
            op = kind
        lacking = _lacks_defaults(op, images, table)
        if lacking is not None:
            self._note_rows(table.table.leaf, found, tx, rows[lacking], untold, _NO_DEFAULTS)
            rows, op, kind = rows[~lacking], op[~lacking], kind[~lacking]
            images = _decoded(part, found, rows, table)
        if not len(rows):
            return None
        transaction = found.transaction[rows]
        columns = [images.columns[number] for number in table.columns]
        if table.row_end is not None and (gone := op != kind).any():
            columns = [pc.if_else(pa.array(gone), pa.scalar(None, pa.string()), each) for each in columns]
        return Changes(
            op=op,
            tx=tx[transaction],
            ordinal=found.ordinal[rows],
            xid=found.number[transaction].astype(np.uint64),
            commit_ts_us=found.commit_ts_us[transaction],
            columns=columns,
            old=[images.old[number] for number in table.columns] if images.old else [],
            old_kind=_old_kind(images, table),
            unchanged=_of_table(images.absent, table),
        )


def _warn(stream: StreamId, why: str) -> None:
    _logger.warning("the log does not tell what became of a table", stream=str(stream), why=why)


def _decoded(part: EventBatch, found: Scan, rows: npt.NDArray[np.int64], table: MappedTable) -> RowImages:
    return decode_rows(part, found.kind[rows], found.row_at[rows], found.present_at[rows], table.layout)


def _of_the_present(
    kind: npt.NDArray[np.uint8], images: RowImages, row_end: int
) -> tuple[Flags, npt.NDArray[np.uint8]]:
    """Which changes are of rows that are there, or were until then, and what they are to these."""
    is_new = _has_no_end(images.columns[row_end])
    was = _has_no_end(images.old[row_end]) if images.old else np.ones(len(kind), np.bool_)
    present = np.where(kind == ord("i"), is_new, was)
    return present, np.where((kind == ord("u")) & ~is_new, np.uint8(ord("d")), kind)


def _has_no_end(ends: pa.StringArray) -> Flags:
    """A column that is left out has not changed, which it does when a row's time ends."""
    found = pc.or_(pc.is_null(ends), pc.is_in(ends, value_set=pa.array(_NO_END)))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


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


def _lacks_defaults(kind: npt.NDArray[np.uint8], images: RowImages, table: MappedTable) -> Flags | None:
    """Inserts without columns that got their default, which only the server knows; None: there are none."""
    absent = _of_table(images.absent, table)
    if absent is None:
        return None
    lacking = (np.diff(absent[0]) > 0) & (kind == ord("i"))
    return np.asarray(lacking) if lacking.any() else None


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


def _logged_as_statement(stream: str | None = None, beyond: str = "") -> SourceError:
    return SourceError(
        f"The log has a change as the statement that made it, and not as rows. {beyond}".rstrip(),
        stream=stream,
        remedy="Set binlog_format = ROW at the server, let sessions begin anew, and run `penstock resync`.",
    )


def _too_large() -> SourceError:
    return SourceError(
        "A transaction goes beyond 4 GiB of its binary log file, where places cannot be told any more.",
        remedy="Let the application change so much in several transactions, and run `penstock resync`.",
    )

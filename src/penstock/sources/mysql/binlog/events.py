"""Events to changes: which rows of which table, in which transaction, and what is rare.

Transactions come in the order they were committed. A batch may begin and end inside one; `Carry` takes the
open one over to the next, which makes the result independent of where batches are cut. Ordinals count every
row of a transaction, over all tables, before any filter of ours.

`Tables` holds what table maps said, by the id that rows name; an id is described anew in every transaction,
and compiled code compares that with what is known, byte by byte. So a table that was altered, and an id that
another table has after the server was started again, are noticed before their first row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import event_kernels as kernels
from penstock.sources.mysql.binlog.packet_kernels import HEADER, POSITION_AT, SIZE_AT, TYPE_AT, Bytes, Ints
from penstock.sources.mysql.binlog.packets import MEMORY, EventBatch
from penstock.sources.mysql.binlog.table_map import TableMap, parse_table_map

_TABLE_IDS_MAX = 1 << 16
_SOURCE_BYTES = 50  # length, UUID, tag
_ROWS_MIN = 1024
_CHANGE_BYTES = 6 * 8
_Matrix = npt.NDArray[np.int64]
_Piece = tuple[_Matrix, _Matrix, _Matrix, _Matrix]


class Ending(IntEnum):
    """How a transaction ended. A prepared one's rows count once a statement commits it."""

    COMMITTED = kernels.COMMITTED
    ROLLED_BACK = kernels.ROLLED_BACK
    PREPARED = kernels.PREPARED
    STATEMENT = kernels.BY_STATEMENT


@dataclass(frozen=True, slots=True)
class Statement:
    """What is not a row: DDL, XA COMMIT, or, where the server does not log rows, any change."""

    schema: str
    text: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The end of an XA transaction's first phase; `xid` is as XA COMMIT will name it."""

    xid: str


@dataclass(frozen=True, slots=True)
class Rotation:
    """Events that follow are in another file; `offset` is where in it."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class FormatDescription:
    server_version: str


Rare = Statement | Prepared | Rotation | FormatDescription


@dataclass(frozen=True, slots=True)
class RareEvent:
    """Where it stands among the changes, and in which transaction."""

    event: Rare
    number: int
    changes_before: int
    transaction: int
    ordinal: int


class Carry:
    """The transaction that is open where a batch was cut."""

    def __init__(self) -> None:
        self.values: Ints = np.array([kernels.OUTSIDE, -1, 0, 0, 0, 0], np.int64)

    @property
    def in_transaction(self) -> bool:
        return bool(self.values[kernels.CARRY_STATE] != kernels.OUTSIDE)


class Tables:
    """Table maps and sources of transactions that were seen, in the form that compiled code looks them up."""

    def __init__(self, mariadb: bool = False) -> None:
        self._mariadb = mariadb
        self.maps: list[TableMap]
        self.sources: list[str] = []
        self.rows_expected = 0  # in a batch: as many as in the last, as a rule
        self._source_names: Bytes = np.zeros((0, _SOURCE_BYTES), np.uint8)
        self.forget_maps()

    def forget_maps(self) -> None:
        """Between two transactions: the next one describes its tables, which are numbered from 0 on again."""
        self.maps = []
        self._numbers: dict[bytes, int] = {}
        self._slots = _empty_slots(1024)
        self._ids = 0
        self._rows: npt.NDArray[np.int64] = np.zeros((0, 6), np.int64)
        self._bodies: Bytes = np.zeros(0, np.uint8)
        self._widths: Ints = np.zeros(0, np.int64)
        self._steps: npt.NDArray[np.int64] = np.zeros((0, 2), np.int64)

    @property
    def arrays(self) -> tuple[_Matrix, _Matrix, Bytes, Ints, _Matrix, Bytes]:
        return self._slots, self._rows, self._bodies, self._widths, self._steps, self._source_names

    def add_table(self, event: bytes) -> None:
        body = event[HEADER + 6 :]
        number = self._numbers.get(body)
        if number is None:
            number = self._numbers[body] = len(self.maps)
            table = parse_table_map(body, self._mariadb)
            self.maps.append(table)
            widths = [column.width for column in table.columns]
            steps = strides(widths)
            first_step = len(self._steps)
            row = [
                len(self._bodies), len(body), len(self._widths), len(widths),
                first_step, first_step + len(steps) - 1,
            ]  # fmt: skip
            self._rows = np.concatenate([self._rows, np.array([row], np.int64)])
            self._bodies = np.concatenate([self._bodies, np.frombuffer(body, np.uint8)])
            self._widths = np.concatenate([self._widths, np.array(widths, np.int64)])
            self._steps = np.concatenate([self._steps, np.array(steps, np.int64)])
        self._name(int.from_bytes(event[HEADER : HEADER + 6], "little"), number)

    def _name(self, table_id: int, number: int) -> None:
        if 2 * self._ids >= len(self._slots):
            known = self._slots[self._slots[:, 1] >= 0]
            # Ids only grow: a server that goes through so many has given up the oldest long ago.
            known = known[np.argsort(known[:, 0])][-_TABLE_IDS_MAX // 2 :]
            self._slots, self._ids = _empty_slots(4 * len(known)), 0
            for other_id, other in known:
                self._name(int(other_id), int(other))
        slot = kernels.find_slot(self._slots, table_id)
        self._ids += int(self._slots[slot, 1] < 0)
        self._slots[slot] = table_id, number

    def add_source(self, event: bytes) -> None:
        name = _source_name(event)
        row = np.zeros((1, _SOURCE_BYTES), np.uint8)
        row[0, 0] = len(name)
        row[0, 1 : 1 + len(name)] = np.frombuffer(name, np.uint8)
        self._source_names = np.concatenate([self._source_names, row])
        self.sources.append(_source_text(name))


def strides(widths: Sequence[int]) -> list[tuple[int, int]]:
    """A row without nulls: so many bytes of fixed width, then so many of a length; the last has none."""
    steps, fixed = [], 0
    for width in widths:
        if width >= 0:
            fixed += width
        else:
            steps.append((fixed, -width))
            fixed = 0
    return [*steps, (fixed, 0)]


def _empty_slots(size: int) -> npt.NDArray[np.int64]:
    slots = np.zeros((1 << (size - 1).bit_length(), 2), np.int64)
    slots[:, 1] = -1
    return slots


def _source_name(event: bytes) -> bytes:
    if event[TYPE_AT] == kernels.MARIADB_GTID:
        return event[HEADER + 8 : HEADER + 12] + event[5:9]
    if event[TYPE_AT] == kernels.GTID:
        return event[HEADER + 1 : HEADER + 17]
    name = np.zeros(_SOURCE_BYTES, np.uint8)
    size, *_ = kernels.read_tagged_gtid(np.array(bytearray(event), np.uint8), HEADER, len(event), name)
    return name[:size].tobytes()


def _source_text(name: bytes) -> str:
    """`uuid`, `uuid:tag`, or MariaDB's `domain-server`: what stands before a transaction's number."""
    if len(name) == 8:
        return f"{int.from_bytes(name[:4], 'little')}-{int.from_bytes(name[4:], 'little')}"
    text = str(uuid.UUID(bytes=name[:16]))
    return f"{text}:{name[16:].decode()}" if name[16:] else text


@dataclass(frozen=True)
class Scan:
    """What a range of events holds. The first six arrays have an entry per row.

    `kind` holds the letters i, u, d; `table` an index into `Tables.maps`; `row_at` and `present_at` lead
    `rows.decode_rows` to the row. `transaction` is an index into `source` (of `Tables.sources`, -1 without
    a global id), `number`, `commit_ts_us` and `begins_at` (where in its file), whose first entry is the
    transaction that was open before.
    Of each end: the event, the transaction, the position behind it in its file, how it ended.
    """

    kind: Bytes
    table: Ints
    row_at: Ints
    present_at: Ints
    transaction: Ints
    ordinal: Ints
    source: Ints
    number: Ints
    commit_ts_us: Ints
    begins_at: Ints
    end_event: Ints
    end_transaction: Ints
    end_position: Ints
    end_how: Ints
    rare: tuple[RareEvent, ...]

    @cached_property
    def tables(self) -> Ints:
        """Those that have rows here."""
        return np.flatnonzero(np.bincount(self.table))


def scan(batch: EventBatch, first: int, last: int, carry: Carry, tables: Tables) -> Scan:
    """Scan events `first` to `last` (exclusive) and move `carry` on to `last`."""
    pieces: list[_Piece] = []
    transactions = rows = 0
    while True:
        changes, identities, finished, rare, reason, stopped = kernels.scan_events(
            batch.buffer, batch.starts, batch.ends, first, last, carry.values, *tables.arrays,
            _changes(tables.rows_expected),
        )  # fmt: skip
        tables.rows_expected = max(changes.shape[1], tables.rows_expected // 2)
        # A piece's first transaction is the last one of the piece before.
        changes[kernels.TRANSACTION] += transactions
        finished[:, 1] += transactions
        rare[:, 1] += rows
        rare[:, 2] += transactions
        pieces.append((changes, identities[1:] if pieces else identities, finished, rare))
        transactions += len(identities) - 1
        rows += changes.shape[1]
        if reason == kernels.DONE:
            break
        _make_known(reason, batch.event(stopped), tables)
        first = stopped
    if len(pieces) == 1:
        return _scan_of(batch, *pieces[0])
    changes = np.concatenate([piece[0] for piece in pieces], axis=1)
    identities, finished, rare = (np.concatenate(parts) for parts in list(zip(*pieces, strict=True))[1:])
    return _scan_of(batch, changes, identities, finished, rare)


def _changes(rows: int) -> _Matrix:
    """Room for so many, in memory that was used before."""
    rows = max(_ROWS_MIN, rows + rows // 8)
    size = _CHANGE_BYTES * rows
    return MEMORY.take(size)[:size].view(np.int64).reshape(-1, rows)


def _scan_of(
    batch: EventBatch,
    changes: npt.NDArray[np.int64],
    identities: npt.NDArray[np.int64],
    finished: npt.NDArray[np.int64],
    rare: npt.NDArray[np.int64],
) -> Scan:
    kind, table, row_at, present_at, transaction, ordinal = changes
    source, number, commit_ts_us, begins_at = identities.T.copy()
    end_event, end_transaction, end_position, end_how = finished.T.copy()
    return Scan(
        kind=kind.astype(np.uint8),
        table=table,
        row_at=row_at,
        present_at=present_at,
        transaction=transaction,
        ordinal=ordinal,
        source=source,
        number=number,
        commit_ts_us=commit_ts_us,
        begins_at=begins_at,
        end_event=end_event,
        end_transaction=end_transaction,
        end_position=end_position,
        end_how=end_how,
        rare=tuple(RareEvent(_parse_rare(batch.event(place[0])), *place) for place in rare.tolist()),
    )


def _make_known(reason: int, event: bytes, tables: Tables) -> None:
    if reason == kernels.NEW_TABLE:
        tables.add_table(event)
    elif reason == kernels.NEW_SOURCE:
        tables.add_source(event)
    elif reason == kernels.PARTIAL:
        raise SourceError(
            "The server logs only parts of changed JSON values.",
            remedy="Set binlog_row_value_options to an empty value on the server, for new connections, then "
            "run `penstock resync` for tables that were changed meanwhile.",
        )
    elif reason == kernels.UNKNOWN_TABLE:
        raise SourceError(
            "The binary log has rows of a table that it has not described.",
            remedy="Reading has to begin at the start of a transaction; run the same command again.",
        )
    elif reason == kernels.BAD_ROWS:
        raise SourceError(
            "The binary log has rows that do not fit the description of their table.",
            remedy="Run the same command again; if it happens again, report it with the server's version.",
        )
    else:
        raise SourceError(
            f"The binary log has an event that Penstock does not know (number {event[TYPE_AT]}).",
            remedy="binlog_format must be ROW; if it is, report it with the server's version.",
        )


def _parse_rare(event: bytes) -> Rare:
    kind, body = event[TYPE_AT], event[HEADER:]
    if kind == kernels.QUERY:
        return parse_query(body)
    if kind == kernels.ROTATE:
        return Rotation(body[8:].decode(), int.from_bytes(body[:8], "little"))
    if kind == kernels.XA_PREPARE:
        return Prepared(_xid(body))
    if kind == kernels.FORMAT_DESCRIPTION:
        return FormatDescription(body[2:52].rstrip(b"\0").decode())
    raise SourceError(
        "The server says that its binary log has a gap: changes were not logged.",
        remedy="Look into the server's error log, then run `penstock resync`.",
    )


def parse_query(body: bytes) -> Statement:
    schema_length, status_length = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + status_length
    text = body[at + schema_length + 1 :]
    # Its character set is the client's; names of other sets in it come out wrong, keywords never do.
    return Statement(body[at : at + schema_length].decode(), text.decode(errors="replace"))


def _xid(body: bytes) -> str:
    """As MySQL writes it in XA COMMIT: global part, branch and format."""
    form, global_length, branch_length = (
        int.from_bytes(body[1 + 4 * index : 5 + 4 * index], "little") for index in range(3)
    )
    data = body[13:]
    return f"X'{data[:global_length].hex()}',X'{data[global_length:][:branch_length].hex()}',{form}"


def position_of(event: bytes) -> int:
    """Where in its file an event ends; 0 for those that are in no file."""
    return int.from_bytes(event[POSITION_AT : POSITION_AT + 4], "little")


def bytes_in_file(batch: EventBatch, first: int, last: int) -> int:
    """How much of their file events `first` to `last` (exclusive) take, with their checksums."""
    at = batch.starts[first:last] + SIZE_AT
    return sum(int(batch.buffer[at + byte].sum(dtype=np.int64)) << 8 * byte for byte in range(4))

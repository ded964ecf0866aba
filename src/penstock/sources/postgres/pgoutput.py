"""pgoutput: raw replication messages of whole transactions to Arrow columns of text.

Transactions come after their commit, in commit order: those that the server streams while they are in
progress have been put together before (`streamed`). A `MessageBatch` may begin and end inside a
transaction; `Carry` takes the open one over to the next batch, which makes the result independent of where
batches are cut.

An ordinal counts every row change that pgoutput sent in its transaction, over all tables, before any
filter of ours; a truncate takes one per relation (correctness 35). Values stay the text the server
sent. Only messages that are rare (`Relation`, `Truncate`, `Message`) become Python objects. A message that
was emitted outside any transaction is a transaction of its own, at its own position, with the id 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.errors import SourceError
from penstock.sources.absent_kernels import list_absent
from penstock.sources.postgres import pgoutput_kernels as kernels
from penstock.sources.postgres.pgoutput_kernels import Bytes, Ints, Lengths

#: Postgres counts microseconds from the year 2000
POSTGRES_EPOCH_US = 946_684_800_000_000
_HEADER = 25


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    type_modifier: int
    part_of_key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """A table as the server describes it before its first row, and again whenever it has changed."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """What somebody emitted by `pg_logical_emit_message`; `lsn` is where its record begins."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


def parse_emitted(payload: bytes) -> EmittedMessage:
    prefix, rest = payload[10:].split(b"\0", 1)
    return EmittedMessage(bool(payload[1] & 1), int.from_bytes(payload[2:10]), prefix.decode(), rest[4:])


def parse_relation(payload: bytes) -> RelationMessage:
    oid = int.from_bytes(payload[1:5])
    namespace, name, rest = payload[5:].split(b"\0", 2)
    identity, count = chr(rest[0]), int.from_bytes(rest[1:3])
    rest = rest[3:]
    columns = []
    for _ in range(count):
        flags = rest[0]
        column, rest = rest[1:].split(b"\0", 1)
        modifier = int.from_bytes(rest[4:8], signed=True)
        columns.append(RelationColumn(column.decode(), int.from_bytes(rest[:4]), modifier, bool(flags & 1)))
        rest = rest[8:]
    # The catalog's own relations come with an empty namespace.
    return RelationMessage(oid, namespace.decode() or "pg_catalog", name.decode(), identity, tuple(columns))


def parse_truncate(payload: bytes) -> TruncateMessage:
    count = int.from_bytes(payload[1:5])
    return TruncateMessage(tuple(int.from_bytes(payload[6 + 4 * i : 10 + 4 * i]) for i in range(count)))


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """CopyData payloads of one replication connection, joined; `ends` says where each one ends."""

    buffer: Bytes
    ends: Ints

    @classmethod
    def join(cls, frames: Sequence[bytes | memoryview]) -> MessageBatch:
        ends = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
        return cls(np.frombuffer(b"".join(frames), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def payload(self, message: int) -> bytes:
        """A pgoutput message without the replication protocol's header."""
        start = int(self.ends[message - 1]) if message else 0
        return self.buffer[start + _HEADER : int(self.ends[message])].tobytes()


class Carry:
    """The transaction that is open where a batch was cut."""

    def __init__(self) -> None:
        self.values: Ints = np.zeros(5, np.int64)

    @property
    def in_transaction(self) -> bool:
        return bool(self.values[kernels.CARRY_IN_TRANSACTION])

    @property
    def open_tx(self) -> int | None:
        return int(self.values[kernels.CARRY_TX]) if self.in_transaction else None


@dataclass(frozen=True, slots=True)
class RareMessage:
    """A message that is not a row: where it stands among the changes, and in which transaction."""

    payload: bytes
    changes_before: int
    transaction: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What a range of messages holds. The first five arrays have an entry per row change.

    `transaction` is an index into `tx`, `commit_ts_us` (Unix epoch) and `xid` (32 bits), whose first
    entry is the transaction that was open before. `keepalive` is the last position the server
    reported outside any transaction, -1 if none.
    """

    kind: Bytes
    relation: Ints
    tuple_at: Ints
    transaction: Ints
    ordinal: Ints
    tx: Ints
    commit_ts_us: Ints
    xid: Ints
    commit_message: Ints
    commit_end: Ints
    rare: tuple[RareMessage, ...]
    keepalive: int
    received: int


def scan(batch: MessageBatch, first: int, last: int, carry: Carry, skip_below: int = 0) -> Scan:
    """Scan messages `first` to `last` (exclusive) and move `carry` on to `last`."""
    found = kernels.scan_messages(batch.buffer, batch.ends, first, last, carry.values, skip_below)
    rare = tuple(
        RareMessage(batch.payload(int(message)), int(changes), int(transaction), int(ordinal))
        for message, changes, transaction, ordinal in zip(*found[10:14], strict=True)
    )
    return Scan(
        kind=found[0],
        relation=found[1],
        tuple_at=found[2],
        transaction=found[3],
        ordinal=found[4],
        tx=found[5],
        commit_ts_us=found[6] + POSTGRES_EPOCH_US,
        xid=found[7],
        commit_message=found[8],
        commit_end=found[9],
        rare=rare,
        keepalive=int(found[14]),
        received=int(found[15]),
    )


@dataclass(frozen=True, slots=True)
class RowImages:
    """Rows of one relation: a text column each, the old row where one was sent, what is missing.

    `old` is empty when no row has one. `old_kind` holds the letters n, k, f. `unchanged` lists column
    numbers per row that arrived as unchanged TOAST and that the old row does not have; None if none.
    """

    columns: list[pa.StringArray]
    old: list[pa.StringArray]
    old_kind: Bytes
    unchanged: tuple[Lengths, Lengths, Bytes] | None


def decode_rows(batch: MessageBatch, kind: Bytes, tuple_at: Ints, columns: int) -> RowImages:
    """The rows whose tuples stand at `tuple_at`, all of one relation with `columns` columns."""
    rows = len(kind)
    has_old = bool((kind != ord("I")).any())
    old_rows = rows if has_old else 0
    new_offsets, old_offsets = (np.empty((columns, count), np.int64) for count in (rows, old_rows))
    new_lengths, old_lengths = (np.empty((columns, count), np.int32) for count in (rows, old_rows))
    old_kind = np.empty(rows, np.uint8)
    unchanged = kernels.locate_values(
        batch.buffer, kind, tuple_at, new_offsets, new_lengths, old_offsets, old_lengths, old_kind
    )
    if unchanged < 0:
        raise SourceError(
            "Postgres sent a row that does not fit the table description it had sent before.",
            remedy="Run the same command again; if it happens again, report it with the server's version.",
        )
    has_old = has_old and bool((old_kind != ord("n")).any())
    return RowImages(
        _string_columns(batch.buffer, new_offsets, new_lengths),
        _string_columns(batch.buffer, old_offsets, old_lengths) if has_old else [],
        old_kind,
        list_absent(new_lengths, unchanged) if unchanged else None,
    )


def _string_columns(buffer: Bytes, offsets: Ints, lengths: Lengths) -> list[pa.StringArray]:
    rows = offsets.shape[1]
    arrow_offsets, gathered, starts, validity, nulls = kernels.gather_values(buffer, offsets, lengths)
    return [
        string_array(
            rows,
            arrow_offsets[column],
            gathered[starts[column] : starts[column + 1]],
            validity[column] if nulls[column] else None,
            int(nulls[column]),
        )
        for column in range(offsets.shape[0])
    ]


def string_array(
    rows: int, offsets: Lengths, data: Bytes, validity: Bytes | None = None, nulls: int = 0
) -> pa.StringArray:
    """Arrow text over buffers of ours, without a copy."""
    bits: Any = None if validity is None else pa.py_buffer(validity)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(rows, buffers[1], buffers[2], bits, nulls)


def warm_up() -> None:
    """Compile, or load from the cache, everything that the first batch would otherwise wait for."""
    begin = b"w" + bytes(24) + b"B" + bytes(20)
    insert = b"w" + bytes(24) + b"I" + bytes(4) + b"N\0\1u"
    joined = MessageBatch.join([begin, insert])
    # What comes from the server lies in memory that is written to again, which is another type to a compiler.
    for batch in (joined, MessageBatch(joined.buffer.copy(), joined.ends)):
        found = scan(batch, 0, 2, Carry())
        decode_rows(batch, found.kind, found.tuple_at, 1)

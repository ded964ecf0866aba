"""Batches of pgoutput messages to rows of the change log: a `Decoder`.

Rows between one rare message and the next are decoded together, table by table. A Relation message, which
describes a table anew, cuts them only if it says something new; a truncate always does. So every piece has
one schema, and pieces of a table are in their order.

A message that was emitted outside of any transaction is one of its own: the position behind it is the one
that counts, since no commit of it will be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.capture.log_reading import ChangeSink, Decoded, Truncation
from penstock.capture.postgres.emitted import TABLE as MESSAGE_TABLE
from penstock.capture.postgres.emitted import EmittedMessages
from penstock.capture.postgres.relations import Relations
from penstock.capture.postgres.rows import TransactionIds, change_rows
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.postgres.pgoutput import (
    Carry,
    MessageBatch,
    RareMessage,
    Scan,
    parse_emitted,
    parse_relation,
    parse_truncate,
    scan,
)
from penstock.sources.postgres.streamed import StreamedTransactions

_OF_PREPARED = (b"b", b"P", b"K", b"r", b"p")  # only a slot made with two_phase sends these


class PgoutputDecoder:
    def __init__(
        self,
        relations: Relations,
        transaction_ids: TransactionIds,
        streamed: StreamedTransactions,
        emitted: EmittedMessages | None = None,
    ) -> None:
        self._relations = relations
        self._transaction_ids = transaction_ids
        self._streamed = streamed
        self._emitted = emitted or EmittedMessages(())
        self._carry = Carry()
        self._open_xid = np.zeros(1, np.uint64)

    @property
    def open_tx(self) -> int | None:
        return self._carry.open_tx

    @property
    def spilled_bytes(self) -> int:
        return self._streamed.waiting_bytes

    def parts(self, batch: MessageBatch) -> Iterator[MessageBatch]:
        """One at a time: a streamed transaction is read back from disk as it is written."""
        return self._streamed.whole(batch) if len(batch) else iter(())

    def decode(
        self,
        part: MessageBatch,
        first: int,
        log_end: Lsn,
        must_end: Callable[[Lsn], bool],
        sink: ChangeSink,
    ) -> Decoded:
        before = self._carry.values.copy()
        found = scan(part, first, len(part), self._carry, log_end)
        last = len(part)
        cuttable = self._carry.in_transaction and len(found.commit_end)
        if cuttable and must_end(Lsn(int(found.commit_end[-1]))):
            last = int(found.commit_message[-1]) + 1
            self._carry.values = before
            found = scan(part, first, last, self._carry, log_end)
        position, alone = self._write(part, found, log_end, sink)
        if len(found.commit_end):
            position = max(position, Lsn(int(found.commit_end[-1])))
        if found.keepalive >= 0 and not self._carry.in_transaction:
            position = max(position, Lsn(found.keepalive))
        # What the log has already was counted when it was first received.
        seen_before = int(np.count_nonzero(found.commit_end <= log_end))
        return Decoded(
            rest=last if last < len(part) else None,
            position=position,
            messages=found.received,
            transactions=len(found.commit_end) - seen_before + alone,
            bytes=int(part.ends[last - 1]) - (int(part.ends[first - 1]) if first else 0),
        )

    def add(self, streams: Sequence[StreamId]) -> None:
        self._relations.add(streams)

    def close(self) -> None:
        self._streamed.close()
        self._relations.close()

    def _write(self, batch: MessageBatch, found: Scan, log_end: Lsn, sink: ChangeSink) -> tuple[Lsn, int]:
        """Of messages that are transactions of their own: the position behind the last, and how many."""
        # The first entry is the transaction that was open before; at the very start there is none.
        xids = np.concatenate([self._open_xid, self._transaction_ids.widen(found.xid[1:])])
        self._open_xid = xids[-1:]
        begin, position, alone = 0, Lsn(0), 0
        for message in found.rare:
            letter = message.payload[:1]
            if letter == b"R":
                relation = parse_relation(message.payload)
                table = self._relations.describe(relation)
                known = self._relations.knows(relation.oid)
                if known and table != self._relations.table(relation.oid):
                    self._write_changes(batch, found, xids, begin, message.changes_before, sink)
                    begin = message.changes_before
                self._relations.remember(relation.oid, table)
            elif letter == b"T":
                self._write_changes(batch, found, xids, begin, message.changes_before, sink)
                begin = message.changes_before
                self._write_truncate(message, found, xids, log_end, sink)
            elif letter == b"M":
                if self._add_emitted(message, found, xids, log_end):
                    position = max(position, Lsn(int(found.tx[message.transaction]) + 1))
                    alone += 1
            elif letter in _OF_PREPARED:
                raise _prepared()
        self._write_changes(batch, found, xids, begin, len(found.kind), sink)
        if (emitted := self._emitted.take(sink.schema_of(MESSAGE_TABLE))) is not None:
            sink.write(MESSAGE_TABLE, emitted, {"i": emitted.num_rows})
        return position, alone

    def _write_changes(
        self,
        batch: MessageBatch,
        found: Scan,
        xids: npt.NDArray[np.uint64],
        begin: int,
        end: int,
        sink: ChangeSink,
    ) -> None:
        if begin == end:
            return
        relation = found.relation[begin:end]
        if (relation == relation[0]).all():
            groups: list[tuple[int, slice | npt.NDArray[np.int64]]] = [(int(relation[0]), slice(begin, end))]
        else:
            order = np.argsort(relation, kind="stable")
            starts = np.flatnonzero(np.diff(relation[order])) + 1
            groups = [(int(relation[part[0]]), part + begin) for part in np.split(order, starts)]
        for oid, chosen in groups:
            table = self._relations.table(oid)
            if table is None:
                continue
            rows, operations = change_rows(batch, found, xids, chosen, table.schema, sink.schema_of(table))
            sink.write(table, rows, operations)

    def _write_truncate(
        self,
        message: RareMessage,
        found: Scan,
        xids: npt.NDArray[np.uint64],
        log_end: Lsn,
        sink: ChangeSink,
    ) -> None:
        tx = int(found.tx[message.transaction])
        if tx < log_end:
            return
        xid, commit_ts_us = int(xids[message.transaction]), int(found.commit_ts_us[message.transaction])
        emptied = parse_truncate(message.payload).relations
        for index, oid in enumerate(emptied):
            table = self._relations.table(oid)
            if table is None:
                continue
            whole = table.leaf == table.schema.stream
            if not whole:
                leaves = self._relations.leaves_of_root(oid)
                # The whole table is empty once the last of its leaves is.
                whole = leaves.issubset(emptied) and not leaves.intersection(emptied[index + 1 :])
            at = Truncation(tx, 2 * (message.ordinal + index), xid, commit_ts_us)
            sink.truncate(table, at, whole=whole)

    def _add_emitted(
        self, message: RareMessage, found: Scan, xids: npt.NDArray[np.uint64], log_end: Lsn
    ) -> bool:
        """Whether it is kept, and a transaction of its own. What begins behind it is not in here."""
        tx = int(found.tx[message.transaction])
        emitted = parse_emitted(message.payload)
        if tx < log_end or not self._emitted.wants(emitted.prefix):
            return False
        commit_ts_us = int(found.commit_ts_us[message.transaction])
        self._emitted.add(emitted, tx, message.ordinal, int(xids[message.transaction]), commit_ts_us)
        return not emitted.transactional


def _prepared() -> SourceError:
    return SourceError(
        "The server sends transactions before they commit: two_phase was turned on for the replication slot.",
        remedy="Turn it off, or let Penstock make a slot of its own.",
    )

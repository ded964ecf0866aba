"""Fills the open step from raw messages and seals it at transaction ends.

The one place where positions are decided (correctness 1, 2, 3, 7):

- A transaction that begins below the log's end is in the log already and is left out.
- A range of messages that ends inside a transaction is either written as it is (the step stays open)
  or cut after its last commit; what is behind the cut waits for the next step. So a step is only
  ever sealed with whole transactions.
- `position` is the end of the last commit or a later keepalive's position, and counts only outside
  a transaction. A target is reached when it has passed it *and* everything up to it is sealed.

Bounded, it works while there is a target, and what comes after waits for the next one. Following, it works
on everything that comes, and a step ends when a target is passed, when it is large or old enough, or when
the tail can hold no more that is not in the log. A position that only keepalives moved is sealed
seldom: an empty step is as durable as another.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.postgres.emitted import TABLE as MESSAGE_TABLE
from penstock.capture.postgres.emitted import EmittedMessages
from penstock.capture.postgres.relations import CapturedTable, Relations
from penstock.capture.postgres.rows import TransactionIds, change_rows, truncate_row
from penstock.capture.tail import TailSink
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.log.columns import log_schema
from penstock.log.writer import LogWriter
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

_SCHEMAS_KEPT = 4096
_EMPTY_STEP_EVERY_S = 30.0
_OF_PREPARED = (b"b", b"P", b"K", b"r", b"p")  # only a slot made with two_phase sends these


@dataclass
class Counters:
    """Written by the builder's thread, read by any: each is one number. The last two are of this moment."""

    rows: int = 0
    bytes: int = 0
    transactions: int = 0
    steps_sealed: int = 0
    steps_with_changes: int = 0
    seal_seconds: float = 0.0
    unsealed_bytes: int = 0
    spilled_bytes: int = 0


class StepBuilder:
    """Takes batches in the order they were received. Used from one thread only, but for `abort`."""

    def __init__(
        self,
        writer: LogWriter,
        relations: Relations,
        transaction_ids: TransactionIds,
        streamed: StreamedTransactions,
        step_bytes_max: int,
        tail: TailSink | None = None,
        seal_every_s: float | None = None,
        emitted: EmittedMessages | None = None,
    ) -> None:
        self.counters = Counters()
        self.position = writer.end
        self._writer = writer
        self._relations = relations
        self._transaction_ids = transaction_ids
        self._streamed = streamed
        self._step_bytes_max = step_bytes_max
        self._carry = Carry()
        self._open_xid = np.zeros(1, np.uint64)
        self._skip_below = writer.end
        self._received: deque[MessageBatch] = deque()
        self._whole: Iterator[MessageBatch] = iter(())
        self._rest: tuple[MessageBatch, int] | None = None
        self._arrow_schemas: dict[tuple[str, str], pa.Schema] = {}
        self._tail = tail
        self._seal_every_s = seal_every_s
        self._emitted = emitted or EmittedMessages(())
        self._targets: list[Lsn] = []  # in order
        self._following = self._aborted = False
        self._first_row_at: float | None = None  # of the open step
        self._sealed_at = time.monotonic()

    def demand(self, target: Lsn) -> bool:
        """Seal as soon as `target` is passed; bounded, read on to it. Whether it is reached."""
        if target <= self._writer.end:
            return True
        bisect.insort(self._targets, target)
        return self._seal_if_due() or self._work()

    def follow(self) -> bool:
        """From now on work on everything that comes."""
        self._following = True
        return self._work()

    def take(self, batch: MessageBatch) -> bool:
        """Add a batch; whether a target is reached. Bounded, batches past it wait for the next one."""
        if len(batch):
            self._received.append(batch)
        return self._work()

    def tick(self) -> bool:
        """Seal what has become old while nothing came; whether a target is reached."""
        return self._seal_if_due()

    @property
    def due_at(self) -> float | None:
        """When, on the monotonic clock, `tick` has something to seal; for any thread."""
        return None if self._carry.in_transaction else self._old_at()

    def _old_at(self) -> float | None:
        if not self._following:
            return None
        first = self._first_row_at
        if first is not None and self._seal_every_s is not None:
            return first + self._seal_every_s
        return self._sealed_at + _EMPTY_STEP_EVERY_S if self.position > self._writer.end else None

    def abort(self) -> None:
        """Seal nothing more. May be called from any thread."""
        self._aborted = True

    def close(self) -> None:
        """Remove what waits on disk for the end of its transaction."""
        self._streamed.close()

    def _work(self) -> bool:
        reached = False
        while (self._following or self._targets) and not self._aborted:
            waiting = self._next()
            if waiting is None:
                break
            batch, first = waiting
            rest = self._process(batch, first)
            self._rest = (batch, rest) if rest < len(batch) else None
            self._tell_tail()
            reached |= self._seal_if_due()
        self.counters.unsealed_bytes = self._writer.step_bytes
        self.counters.spilled_bytes = self._streamed.waiting_bytes
        return reached

    def _tell_tail(self) -> None:
        if self._tail is not None:
            self._tail.committed(self.position, self._carry.open_tx)

    def _next(self) -> tuple[MessageBatch, int] | None:
        """What comes next of that which has not been written, one batch at a time: a streamed transaction
        is read back from disk as it is written."""
        if self._rest is not None:
            return self._rest
        while (batch := next(self._whole, None)) is None:
            if not self._received:
                return None
            self._whole = self._streamed.whole(self._received.popleft())
        return batch, 0

    def _must_seal(self, position: Lsn) -> bool:
        """Whether the step should end as soon as it may, if `position` is where that is."""
        if self._targets and position >= self._targets[0]:
            return True
        if self._writer.step_bytes >= self._step_bytes_max or (self._tail is not None and self._tail.full):
            return True
        return (old_at := self._old_at()) is not None and time.monotonic() >= old_at

    def _seal_if_due(self) -> bool:
        """Seal if it is time and no transaction is open; whether a target is reached by that."""
        if self._carry.in_transaction or self._aborted or not self._must_seal(self.position):
            return False
        self._seal()
        passed = bisect.bisect_right(self._targets, self.position)
        del self._targets[:passed]
        return passed > 0

    def _process(self, batch: MessageBatch, first: int) -> int:
        """Write messages from `first` on; the first one that is left for the next step."""
        before = self._carry.values.copy()
        found = scan(batch, first, len(batch), self._carry, self._skip_below)
        last = len(batch)
        cuttable = self._carry.in_transaction and len(found.commit_end)
        if cuttable and self._must_seal(Lsn(int(found.commit_end[-1]))):
            last = int(found.commit_message[-1]) + 1
            self._carry.values = before
            found = scan(batch, first, last, self._carry, self._skip_below)
        self._write(batch, found)
        if len(found.commit_end):
            self.position = max(self.position, Lsn(int(found.commit_end[-1])))
        if found.keepalive >= 0 and not self._carry.in_transaction:
            self.position = max(self.position, Lsn(found.keepalive))
        # What the log has already was counted when it was first received.
        seen_before = int(np.count_nonzero(found.commit_end <= self._skip_below))
        self._writer.messages += found.received
        self._writer.transactions += len(found.commit_end) - seen_before
        self.counters.transactions += len(found.commit_end) - seen_before
        self.counters.bytes += int(batch.ends[last - 1]) - (int(batch.ends[first - 1]) if first else 0)
        return last

    def _write(self, batch: MessageBatch, found: Scan) -> None:
        """Write the rows between one rare message and the next, so that each file has one schema."""
        # The first entry is the transaction that was open before; at the very start there is none.
        xids = np.concatenate([self._open_xid, self._transaction_ids.widen(found.xid[1:])])
        self._open_xid = xids[-1:]
        begin = 0
        for message in found.rare:
            letter = message.payload[:1]
            if letter == b"R":
                relation = parse_relation(message.payload)
                table = self._relations.describe(relation)
                known = self._relations.knows(relation.oid)
                if known and table != self._relations.table(relation.oid):
                    self._write_changes(batch, found, xids, begin, message.changes_before)
                    begin = message.changes_before
                self._relations.remember(relation.oid, table)
            elif letter == b"T":
                self._write_changes(batch, found, xids, begin, message.changes_before)
                begin = message.changes_before
                self._write_truncate(message, found, xids)
            elif letter == b"M":
                self._add_emitted(message, found, xids)
            elif letter in _OF_PREPARED:
                raise _prepared()
        self._write_changes(batch, found, xids, begin, len(found.kind))
        if (emitted := self._emitted.take(self._arrow_schema(MESSAGE_TABLE))) is not None:
            self._write_rows(MESSAGE_TABLE, emitted, {"i": emitted.num_rows})

    def _write_changes(
        self, batch: MessageBatch, found: Scan, xids: npt.NDArray[np.uint64], begin: int, end: int
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
            arrow_schema = self._arrow_schema(table)
            rows, operations = change_rows(batch, found, xids, chosen, table.schema, arrow_schema)
            self._write_rows(table, rows, operations)

    def _write_rows(self, table: CapturedTable, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        self._writer.write(table.schema, table.leaf, rows, operations)
        self.counters.rows += rows.num_rows
        if self._first_row_at is None:
            self._first_row_at = time.monotonic()
        if self._tail is not None:
            self._tail.rows(table.schema, table.leaf, rows)

    def _write_truncate(self, message: RareMessage, found: Scan, xids: npt.NDArray[np.uint64]) -> None:
        tx = int(found.tx[message.transaction])
        if tx < self._skip_below:
            return
        emptied = parse_truncate(message.payload).relations
        for index, oid in enumerate(emptied):
            table = self._relations.table(oid)
            if table is None:
                continue
            op_index = 2 * (message.ordinal + index)
            row = truncate_row(
                tx,
                op_index,
                int(xids[message.transaction]),
                int(found.commit_ts_us[message.transaction]),
                self._arrow_schema(table),
            )
            self._write_rows(table, row, {"t": 1})
            stream = table.schema.stream
            if table.leaf == stream:
                self._writer.truncate(stream, tx, op_index)
            else:
                self._writer.truncate_leaf(stream, table.leaf, tx, op_index)
                leaves = self._relations.leaves_of_root(oid)
                # The whole table is empty once the last of its leaves is.
                if leaves.issubset(emptied) and not leaves.intersection(emptied[index + 1 :]):
                    self._writer.truncate(stream, tx, op_index)

    def _add_emitted(self, message: RareMessage, found: Scan, xids: npt.NDArray[np.uint64]) -> None:
        tx = int(found.tx[message.transaction])
        emitted = parse_emitted(message.payload)
        if tx < self._skip_below or not self._emitted.wants(emitted.prefix):
            return
        commit_ts_us = int(found.commit_ts_us[message.transaction])
        self._emitted.add(emitted, tx, message.ordinal, int(xids[message.transaction]), commit_ts_us)
        if not emitted.transactional:
            # Its own transaction, of which no commit will be seen. What begins behind it is not in here.
            self.position = max(self.position, Lsn(tx + 1))
            self._writer.transactions += 1
            self.counters.transactions += 1

    def _arrow_schema(self, table: CapturedTable) -> pa.Schema:
        key = (table.schema.id, str(table.leaf))
        if key not in self._arrow_schemas:
            if len(self._arrow_schemas) >= _SCHEMAS_KEPT:
                self._arrow_schemas.clear()
            self._arrow_schemas[key] = log_schema(table.schema, str(table.leaf))
        return self._arrow_schemas[key]

    def _seal(self) -> None:
        began = time.monotonic()
        manifest = self._writer.seal(self.position)
        self._sealed_at = time.monotonic()
        if manifest is None:
            return
        self._first_row_at = None
        self.counters.unsealed_bytes = 0
        self._skip_below = manifest.end
        self.counters.steps_sealed += 1
        self.counters.steps_with_changes += bool(manifest.tables)
        self.counters.seal_seconds += self._sealed_at - began
        if self._tail is not None:
            self._tail.sealed(manifest.end)


def _prepared() -> SourceError:
    return SourceError(
        "The server sends transactions before they commit: two_phase was turned on for the replication slot.",
        remedy="Turn it off, or let Penstock make a slot of its own.",
    )

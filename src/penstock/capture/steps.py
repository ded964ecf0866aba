"""Fills the open step from raw messages and seals it at transaction ends.

The one place where positions are decided (correctness 1, 2, 3, 7):

- A transaction that begins below the log's end is in the log already and is left out.
- A range of messages that ends inside a transaction is either written as it is (the step stays open)
  or cut after its last commit; what is behind the cut waits for the next step. So a step is only
  ever sealed with whole transactions.
- `position` is the end of the last commit or a later keepalive's position, and counts only outside
  a transaction. The target is reached when it has passed it *and* everything up to it is sealed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.relations import CapturedTable, Relations
from penstock.capture.rows import TransactionIds, change_rows, truncate_row
from penstock.core.position import Lsn
from penstock.log.columns import log_schema
from penstock.log.manifest import Manifest
from penstock.log.writer import LogWriter
from penstock.sources.postgres.pgoutput import (
    Carry,
    MessageBatch,
    RareMessage,
    Scan,
    parse_relation,
    parse_truncate,
    scan,
)
from penstock.sources.postgres.streamed import StreamedTransactions

_SCHEMAS_KEPT = 4096


@dataclass
class Counters:
    rows: int = 0
    bytes: int = 0
    transactions: int = 0


class StepBuilder:
    """Takes batches in the order they were received. Used from one thread only."""

    def __init__(
        self,
        writer: LogWriter,
        relations: Relations,
        transaction_ids: TransactionIds,
        streamed: StreamedTransactions,
        step_bytes_max: int,
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
        self._target: Lsn | None = None

    def set_target(self, target: Lsn) -> bool:
        """Read on to `target`, beginning with what waits; whether it is reached."""
        self._target = target
        if not self._carry.in_transaction and self._reached():
            self._seal()
            self._target = None
            return True
        return self._work()

    def take(self, batch: MessageBatch) -> bool:
        """Add a batch; whether the target is reached. Past the target, batches wait for the next one."""
        if len(batch):
            self._received.append(batch)
        return self._work()

    def _work(self) -> bool:
        while self._target is not None and (waiting := self._next()) is not None:
            batch, first = waiting
            rest = self._process(batch, first)
            self._rest = (batch, rest) if rest < len(batch) else None
            if not self._carry.in_transaction and self._reached():
                self._seal()
                self._target = None
                return True
            if not self._carry.in_transaction and self._writer.step_bytes >= self._step_bytes_max:
                self._seal()
        return False

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

    def _reached(self) -> bool:
        return self._target is not None and self.position >= self._target

    def _process(self, batch: MessageBatch, first: int) -> int:
        """Write messages from `first` on; the first one that is left for the next step."""
        before = self._carry.values.copy()
        found = scan(batch, first, len(batch), self._carry, self._skip_below)
        last = len(batch)
        if self._carry.in_transaction and len(found.commit_end):
            passes_target = self._target is not None and found.commit_end[-1] >= self._target
            if passes_target or self._writer.step_bytes >= self._step_bytes_max:
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
        self._write_changes(batch, found, xids, begin, len(found.kind))

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
            self._writer.write(table.schema, table.leaf, rows, operations)
            self.counters.rows += rows.num_rows

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
            self._writer.write(table.schema, table.leaf, row, {"t": 1})
            self.counters.rows += 1
            stream = table.schema.stream
            if table.leaf == stream:
                self._writer.truncate(stream, tx, op_index)
            else:
                self._writer.truncate_leaf(stream, table.leaf, tx, op_index)
                leaves = self._relations.leaves_of_root(oid)
                # The whole table is empty once the last of its leaves is.
                if leaves.issubset(emptied) and not leaves.intersection(emptied[index + 1 :]):
                    self._writer.truncate(stream, tx, op_index)

    def _arrow_schema(self, table: CapturedTable) -> pa.Schema:
        key = (table.schema.id, str(table.leaf))
        if key not in self._arrow_schemas:
            if len(self._arrow_schemas) >= _SCHEMAS_KEPT:
                self._arrow_schemas.clear()
            self._arrow_schemas[key] = log_schema(table.schema, str(table.leaf))
        return self._arrow_schemas[key]

    def _seal(self) -> Manifest | None:
        manifest = self._writer.seal(self.position)
        if manifest is not None:
            self._skip_below = manifest.end
        return manifest

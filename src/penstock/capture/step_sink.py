"""The open step as a decoder sees it: rows go to the log's files and, in the same order, to the tail."""

from __future__ import annotations

import time

import pyarrow as pa

from penstock.capture.log_reading import CapturedTable, Truncation
from penstock.capture.rows import truncate_row
from penstock.capture.tail import TailSink
from penstock.core.alteration import Alteration
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.log.writer import LogWriter

_SCHEMAS_KEPT = 4096


class StepSink:
    """A `ChangeSink`. `rows`: all that were written. `first_row_at`: when, on the monotonic clock, the open
    step got its first; whoever seals a step sets it to None."""

    def __init__(self, writer: LogWriter, tail: TailSink | None) -> None:
        self.rows = 0
        self.first_row_at: float | None = None
        self._writer = writer
        self._tail = tail
        self._schemas: dict[tuple[str, str], pa.Schema] = {}

    def schema_of(self, table: CapturedTable) -> pa.Schema:
        key = (table.schema.id, str(table.leaf))
        if key not in self._schemas:
            if len(self._schemas) >= _SCHEMAS_KEPT:
                self._schemas.clear()
            self._schemas[key] = log_schema(table.schema, str(table.leaf))
        return self._schemas[key]

    def write(self, table: CapturedTable, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        self._writer.write(table.schema, table.leaf, rows, operations)
        self.rows += rows.num_rows
        if self.first_row_at is None:
            self.first_row_at = time.monotonic()
        if self._tail is not None:
            self._tail.rows(table.schema, table.leaf, rows)

    def truncate(self, table: CapturedTable, at: Truncation, *, whole: bool) -> None:
        self.write(table, truncate_row(at, self.schema_of(table)), {"t": 1})
        stream = table.schema.stream
        if table.leaf != stream:
            self._writer.truncate_leaf(stream, table.leaf, at.tx, at.op_index)
        if whole:
            self._writer.truncate(stream, at.tx, at.op_index)

    def alter(
        self,
        stream: StreamId,
        tx: int,
        op_index: int,
        *,
        is_untold: bool = False,
        alteration: Alteration | None = None,
    ) -> None:
        self._writer.alter(stream, tx, op_index, is_untold=is_untold, alteration=alteration)
        if is_untold and self._tail is not None:
            self._tail.untold(tx)

"""One Parquet file of an open step: rows of one leaf relation in one schema version.

Rows wait until they fill a row group (by rows or by bytes), so that a table that gets a few rows per
batch does not end up with thousands of tiny groups. Settings were chosen by measurement, per million
rows of 11 columns: zstd level 1 without dictionaries costs 0.4 CPU-seconds and is a quarter of the
size that lz4 or snappy give at the same cost; dictionaries add a quarter to the cost. Statistics
are kept for `_tx` alone, which readers select by.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import durable
from penstock.core.schema import TableSchema
from penstock.log import columns

ROW_GROUP_ROWS_MAX = 128 << 10
ROW_GROUP_BYTES_MAX = 16 << 20
_PIECES_MAX = 512  # a piece of one row takes a hundred times the memory that its values do


class StepFile:
    def __init__(self, path: Path, schema: TableSchema, leaf: str) -> None:
        self.path = path
        self.schema_id = schema.id
        self.leaf = leaf
        self.rows = 0
        self.operations: dict[str, int] = {}
        self.first_tx = self.last_tx = 0
        self._arrow_schema = columns.log_schema(schema, leaf)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self.pending_bytes = 0
        self._written = 0
        self._sink: pa.OSFile | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def bytes(self) -> int:
        if self._sink is not None and not self._sink.closed:
            self._written = self._sink.tell()
        return self._written + self.pending_bytes

    def add(self, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        tx = rows.column(columns.TX)
        if self.rows == 0:
            self.first_tx = tx[0].as_py()
        self.last_tx = tx[-1].as_py()
        self.rows += rows.num_rows
        for operation, count in operations.items():
            self.operations[operation] = self.operations.get(operation, 0) + count
        self._pending.append(rows)
        if len(self._pending) >= _PIECES_MAX:
            self._pending = pa.Table.from_batches(self._pending).combine_chunks().to_batches()
        self._pending_rows += rows.num_rows
        self.pending_bytes += rows.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS_MAX or self.pending_bytes >= ROW_GROUP_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait as one row group."""
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, self._arrow_schema)
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0
        with durable.storage_errors(f"Could not write rows of {self.leaf} to the change log."):
            self._open().write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        self.flush()
        with durable.storage_errors(f"Could not write rows of {self.leaf} to the change log."):
            if self._writer is not None:
                self._writer.close()
            if self._sink is not None and not self._sink.closed:
                self._written = self._sink.tell()
                self._sink.close()

    def discard(self) -> None:
        """Let go of the file; what is in it counts for nothing."""
        self._pending = []
        with contextlib.suppress(OSError, ValueError):
            if self._writer is not None:
                self._writer.close()
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._sink = pa.OSFile(str(self.path), "wb")
            self._writer = pq.ParquetWriter(
                self._sink,
                self._arrow_schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                write_statistics=[columns.TX, columns.COMMIT_TS],
                store_schema=True,
            )
        return self._writer

"""A file that exists only if rows were written to it, and that each attempt of a task writes anew."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.destinations.parquet_files import DataFileWriter
from penstock.destinations.records import DataFile
from penstock.lake.session import of_this_attempt


class OutputFile(AbstractContextManager["OutputFile"]):
    """Opens its writer with the first batch. `data_file` is None if there was none."""

    def __init__(
        self, path: Path, schema: pa.Schema, key: str | None = None, *, even_if_empty: bool = False
    ) -> None:
        self.schema = schema
        self.data_file: DataFile | None = None
        self._path = of_this_attempt(path)
        self._key = key
        self._writer: DataFileWriter | None = None
        if even_if_empty:
            self._open()

    @property
    def rows(self) -> int:
        return self.data_file.rows if self.data_file else 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._open().write_batch(batch)

    def write_table(self, table: pa.Table) -> None:
        for batch in batches_of(table, self.schema):
            self.write_batch(batch)

    def _open(self) -> DataFileWriter:
        if self._writer is None:
            self._writer = DataFileWriter(self._path, self.schema, self._key)
        return self._writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        if kind is not None:
            self._writer.abandon()
        else:
            self.data_file = self._writer.close()


def batches_of(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows in the order of these columns, whatever theirs are called."""
    batches: list[pa.RecordBatch] = table.rename_columns(schema.names).cast(schema).to_batches()
    return batches

"""The data files that a task writes for a table: one, or one for each partition that its rows belong to.

Rows are gathered up to `WINDOW_BYTES`, grouped by partition and put into the table's order, and each group
goes to the file of its partition. Without an order the files stay open for the next window, at most
`OPEN_FILES_MAX` of them; the one that got no rows for the longest time is closed first. With an order every
window has files of its own, so that each file is in order as a whole, and says so.

Memory: the window and a copy of it, about `3 * WINDOW_BYTES`; what is grouped goes to row groups at once. A
task whose rows belong to very many partitions writes very many files; nothing else grows with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from penstock.destinations.iceberg_schema import names_by_id
from penstock.destinations.layout import Layout
from penstock.destinations.parquet_files import DataFileWriter
from penstock.destinations.records import DataFile
from penstock.lake.keys import flat
from penstock.lake.output import OutputFile, batches_of
from penstock.lake.partition_values import transformed, values_json
from penstock.lake.session import of_this_attempt
from penstock.lake.target import Target

WINDOW_BYTES = 64 * 1024 * 1024
WINDOW_ROWS = 1024 * 1024
OPEN_FILES_MAX = 64

Numbers = NDArray[np.int64]


class TableOutput(AbstractContextManager["TableOutput"]):
    """`files` are there when the context has been left; none if no row came, unless asked for."""

    def __init__(self, path: Path, target: Target, *, even_if_empty: bool = False) -> None:
        self.schema = target.arrow_schema()
        key = target.key[0] if target.key else None
        layout = target.layout.fitting(self.schema)
        self._plain = OutputFile(path, self.schema, key, even_if_empty=even_if_empty and layout.is_plain)
        self._groups = None if layout.is_plain else _Groups(of_this_attempt(path), self.schema, key, layout)

    @property
    def files(self) -> tuple[DataFile, ...]:
        if self._groups is not None:
            return tuple(self._groups.closed)
        return () if self._plain.data_file is None else (self._plain.data_file,)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if self._groups is None:
            self._plain.write_batch(batch)
        else:
            self._groups.take(batch)

    def write_table(self, table: pa.Table) -> None:
        for batch in batches_of(table, self.schema):
            self.write_batch(batch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._groups is None:
            self._plain.__exit__(kind, error, trace)
        elif kind is None:
            self._groups.finish()
        else:
            self._groups.abandon()


class _Groups:
    """Rows on their way into the files of their partitions."""

    def __init__(self, path: Path, schema: pa.Schema, key: str | None, layout: Layout) -> None:
        self._path = path
        self._schema = schema
        self._key = key
        self._layout = layout
        self._names = names_by_id(schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0
        self._open: dict[str, DataFileWriter] = {}  # by partition; the last one got rows last
        self._begun = 0
        self.closed: list[DataFile] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= WINDOW_BYTES or self._waiting_rows >= WINDOW_ROWS:
            self._write_window()

    def finish(self) -> None:
        try:
            self._write_window()
            for partition in list(self._open):
                self._close(partition)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        for writer in self._open.values():
            writer.abandon()
        for file in self.closed:
            self._path.with_name(file.name).unlink(missing_ok=True)

    def _write_window(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
        for partition, part in self._grouped(rows):
            writer = self._writer(partition)
            writer.write_table(part)
            writer.flush()
            if self._layout.ordering:
                self._close(partition)

    def _grouped(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each partition, in order, and its values."""
        columns = [
            transformed(flat(rows.column(self._names[each.source_id])), each)
            for each in self._layout.partitions
        ]
        groups, firsts = _numbered(columns, rows.num_rows)
        order = self._order(rows, groups, len(firsts))
        if order is not None:
            rows, groups = rows.take(pa.array(order)), groups[order]
        bounds = [0, *np.flatnonzero(np.diff(groups)) + 1, rows.num_rows]
        for start, end in pairwise(bounds):
            first = int(firsts[groups[start]])
            values = values_json(self._layout.partitions, [column[first] for column in columns])
            yield values, rows.slice(start, end - start)

    def _order(self, rows: pa.Table, groups: Numbers, count: int) -> Numbers | None:
        """Where each row comes from; None: they may stay where they are."""
        if not self._layout.ordering:
            return np.argsort(groups, kind="stable") if count > 1 else None
        keys: dict[str, pa.Array] = {"group": pa.array(groups)}
        directions = [("group", "ascending")]
        for number, by in enumerate(self._layout.ordering):
            column = _sortable(flat(rows.column(self._names[by.source_id])))
            keys |= {f"null {number}": column.is_null(), f"value {number}": column}
            directions.append((f"null {number}", "descending" if by.nulls_first else "ascending"))
            directions.append((f"value {number}", "descending" if by.descending else "ascending"))
        order: Numbers = pc.sort_indices(pa.table(keys), sort_keys=directions).to_numpy().astype(np.int64)
        return order

    def _writer(self, partition: str) -> DataFileWriter:
        writer = self._open.pop(partition, None)
        if writer is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            path = self._path.with_name(f"{self._path.stem}-{self._begun}{self._path.suffix}")
            self._begun += 1
            writer = DataFileWriter(path, self._schema, self._key)
        self._open[partition] = writer
        return writer

    def _close(self, partition: str) -> None:
        file = self._open.pop(partition).close()
        layout = self._layout
        placed = None if layout.spec_id is None else partition
        self.closed.append(
            replace(file, spec_id=layout.spec_id, partition=placed, sort_order_id=layout.order_id)
        )


def _numbered(columns: list[pa.Array], rows: int) -> tuple[Numbers, Numbers]:
    """For each row the number of its group, by the values in `columns`; for each group one of its rows."""
    groups = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        # Numbered anew each time, so that they never exceed the count of rows.
        _, groups = np.unique(groups * len(encoded.dictionary) + codes, return_inverse=True)
    _, firsts = np.unique(groups, return_index=True)
    return groups.astype(np.int64), firsts.astype(np.int64)


def _sortable(column: pa.Array) -> pa.Array:
    """A column whose order in Arrow is Iceberg's: of floats, -0 is before 0, and NaN after all."""
    if not pt.is_floating(column.type):
        return column
    wide = column.cast(pa.float64())
    values = wide.fill_null(0.0).to_numpy()
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    ordered = np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits)
    return pa.array(ordered, mask=wide.is_null().to_numpy(zero_copy_only=False))

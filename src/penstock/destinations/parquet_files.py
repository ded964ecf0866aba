"""Data files: Parquet, written once, durable when closed, under names that never repeat.

Cost of encoding, measured per million rows of 11 mixed columns (half of them nearly unique): zstd level 1
without dictionaries 0.34 CPU-s and 35 MB; with dictionaries 0.73 CPU-s and 46 MB; snappy with them 0.64
CPU-s and 69 MB. Dictionaries only pay where values repeat, and there zstd finds the repetition too.
"""

from __future__ import annotations

import datetime
import os
import uuid
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import durable, failpoints
from penstock.destinations.records import DataFile, KeyBound

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL = 1
ROW_GROUP_ROWS_MAX = 256 * 1024
ROW_GROUP_BYTES_MAX = 64 * 1024 * 1024


def new_file_name(label: str = "part") -> str:
    """A name no other file of any table has had. `label` is for people, e.g. the task and its attempt."""
    return f"{label}-{uuid.uuid4().hex}.parquet"


class DataFileWriter:
    """Writes one file; batches are gathered into row groups of bounded size.

    Without `close()` nothing can be committed: leaving the context by an exception removes the file.
    """

    def __init__(self, path: Path, schema: pa.Schema, key: str | None = None) -> None:
        self.path = path
        self.schema = schema
        self.key = key
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._metadata: list[pq.FileMetaData] = []
        self._file: DataFile | None = None
        with self._storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            # O_EXCL: a name is used once, even if a task runs twice.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.close(descriptor)
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                compression=COMPRESSION,
                compression_level=COMPRESSION_LEVEL,
                use_dictionary=[field.name for field in schema if _repeats(field.type)],
                metadata_collector=self._metadata,
            )

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take rows. A batch larger than a row group is cut."""
        for start in range(0, batch.num_rows, ROW_GROUP_ROWS_MAX):
            part = batch.slice(start, ROW_GROUP_ROWS_MAX)
            if self._waiting_rows + part.num_rows > ROW_GROUP_ROWS_MAX:
                self._write_row_group()
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            if self._waiting_rows >= ROW_GROUP_ROWS_MAX or self._waiting_bytes >= ROW_GROUP_BYTES_MAX:
                self._write_row_group()

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self.write_batch(batch)

    def flush(self) -> None:
        """Have nothing wait: what was taken becomes a row group."""
        self._write_row_group()

    def close(self) -> DataFile:
        """Make the file durable (content; its name becomes durable with the commit) and describe it."""
        if self._file is None:
            self._write_row_group()
            with self._storage_errors():
                self._writer.close()
                self._sink.close()
                durable.sync_file(self.path)
                size = self.path.stat().st_size
            key_min, key_max = _key_bounds(self._metadata[-1], self.key)
            self._file = DataFile(self.path.name, self.rows, size, key_min, key_max)
        return self._file

    def abandon(self) -> None:
        """Give the file up."""
        for part in (self._writer, self._sink):
            # The disk may be full: what cannot be flushed is not wanted anyway.
            with suppress(OSError, pa.ArrowException):
                part.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._file is None:
            self.abandon()
        else:
            self.close()

    def _write_row_group(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.Table.from_batches(self._waiting, self.schema)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        with self._storage_errors():
            failpoints.reach("destination.file_write")
            self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS_MAX)
        self.rows += rows.num_rows

    def _storage_errors(self) -> AbstractContextManager[None]:
        return durable.storage_errors(f"Could not write a data file in {self.path.parent}.")


def _repeats(kind: pa.DataType) -> bool:
    """Whether values of a type are likely to repeat: a dictionary pays for those, and costs for the rest."""
    return bool(pa.types.is_string(kind) or pa.types.is_date32(kind))


def key_bound(value: object) -> KeyBound:
    """A key as it stands in a `DataFile`'s bounds; None for types whose bounds cannot be trusted.

    Floats are left out: statistics pass over NaN, and a key may be NaN. Decimals and bytes have no
    exact JSON form that compares as they do.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | str):
        return value
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None


def write_empty_like(source: Path, target: Path) -> DataFile:
    """A file without rows that has the columns of `source`, so that an emptied table can still be read."""
    with DataFileWriter(target, pq.read_schema(source)) as writer:
        return writer.close()


def _key_bounds(metadata: pq.FileMetaData, key: str | None) -> tuple[KeyBound, KeyBound]:
    if key is None or not metadata.num_rows:
        return None, None
    column = next((index for index in range(metadata.num_columns) if _is_column(metadata, index, key)), None)
    if column is None:
        return None, None
    lows: list[KeyBound] = []
    highs: list[KeyBound] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.null_count:
            return None, None
        try:
            lows.append(key_bound(statistics.min))
            highs.append(key_bound(statistics.max))
        except (ValueError, OverflowError):  # a year Python cannot hold
            return None, None
    if any(bound is None for bound in (*lows, *highs)):
        return None, None
    return min(lows), max(highs)  # type: ignore[type-var]


def _is_column(metadata: pq.FileMetaData, index: int, name: str) -> bool:
    # A leaf of a struct has the path "outer.inner", which may also be the name of a plain column.
    column = metadata.schema.column(index)
    return bool(column.name == name and column.path == name)

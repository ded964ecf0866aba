"""Stage 2 of a round where rows are deleted by position: finds touched keys in the table's files.

Each data file has an index of its keys (`key_index`), so what this costs depends on the batch. Positions that
the file's earlier deletes name are left out: a key that was changed before is in the index of every file it
ever was in. What comes back is one file of positions per data file that held a touched row. It has the
earlier deletes too where the table has deletion vectors, or the data file has `MERGED_FROM` files of them by
now, which every round that touches it opens.

Where rows must be written again (a column added with a default, a truncate of a table that keeps deleted
rows, or tables without deletes by choice), the file's successor has the remaining rows instead. Rows that
stage 1 left pending are picked up on the way: only the row groups that hold them are read. Columns are found
by their ids, whatever they were called when the file was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import feather

from penstock.destinations.deletion_vectors import Positions, read_vector, write_vector
from penstock.destinations.iceberg_schema import with_field_ids
from penstock.destinations.records import DataFile, HeldDeletes, PositionDeletes
from penstock.lake.columns_by_id import ColumnsById
from penstock.lake.evolve import ColumnSource
from penstock.lake.fold_task import Staged
from penstock.lake.key_index import KeyForm, KeyWords, find, key_words, no_keys, open_index, write_index
from penstock.lake.output import OutputFile
from penstock.lake.pending import Pending
from penstock.lake.rewrite_task import PickedRows
from penstock.lake.session import of_this_attempt
from penstock.lake.soft_fold import end_live_rows
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

Marks = NDArray[np.bool_]  # of each row of a file

ROWS_PER_READ = 128 * 1024
MERGED_FROM = 8
#: Of a file of position deletes, as the Iceberg specification numbers them.
DELETE_SCHEMA = with_field_ids(
    pa.schema(
        [pa.field("file_path", pa.string(), nullable=False), pa.field("pos", pa.int64(), nullable=False)]
    ),
    {"file_path": 2147483546, "pos": 2147483545},
)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A data file of the table, and where what becomes of it goes."""

    name: str
    location: str  # as the table's metadata has it
    path: Path
    rows: int
    index: Path
    deletes: tuple[HeldDeletes, ...]
    delete_paths: tuple[Path, ...]  # where those are
    delete_path: Path
    successor: Path | None  # the remaining rows are written again


@dataclass(frozen=True, slots=True)
class DeleteTask:
    target: Target
    files: tuple[HeldFile, ...]
    staged: tuple[Staged, ...]  # one per bucket, taken one at a time
    form: KeyForm
    fills: tuple[ColumnSource, ...]  # what existing rows hold in columns they were written without
    picked: tuple[Path, ...]  # per bucket, where the rows go that its pending ones need
    rewrites_all: bool = False  # files without a touched row too
    truncated_at_us: int | None = None  # live rows that are left were deleted then
    by_vector: bool = False  # positions are written as deletion vectors


@dataclass(frozen=True, slots=True)
class DeleteResult:
    deletes: tuple[PositionDeletes, ...]
    replaced: dict[str, tuple[DataFile, ...]]
    picked: tuple[Path | None, ...]


def delete_rows(task: DeleteTask) -> DeleteResult:
    """Stage 2, for a share of the table's files. Memory: one bucket's keys and one row group."""
    table = _TableFiles(task)
    wanted = [_bucket_keys(staged, task) for staged in task.staged]
    deletes: list[PositionDeletes] = []
    replaced: dict[str, tuple[DataFile, ...]] = {}
    with ExitStack() as stack:
        paths = [of_this_attempt(path) for path in task.picked]
        sinks = [stack.enter_context(PickedRows(path, task.target.arrow_schema())) for path in paths]
        for file in task.files:
            index, rows = table.index(file)
            hit = _marks((find(bucket.touched, index)[1] for bucket in wanted), rows)
            if not hit.any() and not task.rewrites_all:
                continue
            dead = _marks(deleted_positions(file.deletes, file.delete_paths, file.location), rows)
            for bucket, sink in zip(wanted, sinks, strict=True):
                if bucket.asked is not None:
                    asked = _marks([find(bucket.asked, index)[1]], rows)
                    table.pick(file, np.flatnonzero(asked & ~dead), sink)
            if file.successor is not None:
                replaced[file.name] = table.rewrite(file, hit | dead, file.successor)
            elif (left := np.flatnonzero(hit & ~dead)).size:
                deletes.append(
                    _write_vector(file, hit | dead) if task.by_vector else _write_deletes(file, left, rows)
                )
    picked = (path if sink.used else None for path, sink in zip(paths, sinks, strict=True))
    return DeleteResult(tuple(deletes), replaced, tuple(picked))


@dataclass(frozen=True, slots=True)
class _BucketKeys:
    touched: KeyWords
    asked: KeyWords | None  # those whose rows pending ones need


def _bucket_keys(staged: Staged, task: DeleteTask) -> _BucketKeys:
    touched, asked = no_keys(), None
    if staged.keys is not None:
        touched = key_words(feather.read_table(staged.keys).select(task.target.key), task.form)
    if staged.pending is not None:
        asked = key_words(Pending.read(staged.pending).lookup_keys, task.form)
    return _BucketKeys(touched, asked)


class _TableFiles:
    """Files of the table, read in the columns of today."""

    def __init__(self, task: DeleteTask) -> None:
        self._task = task
        self._schema = task.target.arrow_schema()
        self._key_schema = pa.schema([self._schema.field(name) for name in task.target.key])
        self._columns = ColumnsById(task.target, task.fills)

    def index(self, file: HeldFile) -> tuple[KeyWords, int]:
        """The keys of its rows, and how many there may be: more than the table's metadata says where somebody
        wrote the file anew in its place. The index of such a file is made each time."""
        found, rows = open_index(file.index, self._task.form, file.rows), file.rows
        if found is None:
            with pq.ParquetFile(file.path) as source:
                key = [self._columns.name_in(source.schema_arrow, name) for name in self._task.target.key]
                held = source.read(columns=key).select(key).rename_columns(self._task.target.key)
                found = key_words(held.cast(self._key_schema), self._task.form)
            write_index(file.index, found, self._task.form, held.num_rows)
            rows = max(rows, held.num_rows)
        return found, rows

    def pick(self, file: HeldFile, positions: Positions, sink: PickedRows) -> None:
        if not positions.size:
            return
        with pq.ParquetFile(file.path) as source:
            start = 0
            for group in range(source.num_row_groups):
                end = start + source.metadata.row_group(group).num_rows
                inside = positions[(positions >= start) & (positions < end)] - start
                if inside.size:
                    sink.write(self._columns.of_today(source.read_row_group(group).take(pa.array(inside))))
                start = end

    def rewrite(self, file: HeldFile, gone: Marks, successor: Path) -> tuple[DataFile, ...]:
        start = 0
        with (
            pq.ParquetFile(file.path) as source,
            TableOutput(successor, self._task.target) as output,
        ):
            keep = ~_marks([np.flatnonzero(gone)], source.metadata.num_rows)
            for batch in source.iter_batches(ROWS_PER_READ):
                here = keep[start : start + batch.num_rows]
                start += batch.num_rows
                if here.any():
                    rows = self._columns.of_today(pa.Table.from_batches([batch.filter(pa.array(here))]))
                    output.write_table(end_live_rows(rows, self._task.truncated_at_us))
        return output.files


def deleted_positions(
    deletes: Sequence[HeldDeletes], paths: Sequence[Path], location: str
) -> Iterator[Positions]:
    """What is deleted from the data file at `location`; `paths`: where these deletes are."""
    for held, path in zip(deletes, paths, strict=True):
        if held.vector is not None:
            yield read_vector(path, held.vector)
        else:
            yield _read_deletes(path, location if held.is_shared else None)


def _read_deletes(path: Path, of: str | None) -> Positions:
    """The positions in a file of them; of one data file alone if it has those of several.

    By `ParquetFile`: reading through a dataset, as `read_table` does, takes 17 times the CPU.
    """
    with pq.ParquetFile(path, read_dictionary=["file_path"]) as source:
        deletes = source.read(columns=["pos"] if of is None else ["file_path", "pos"], use_threads=False)
    if of is not None:
        deletes = deletes.filter(pc.equal(deletes.column("file_path"), of))
    positions: Positions = deletes.column("pos").to_numpy()
    return positions


def _write_vector(file: HeldFile, whole: Marks) -> PositionDeletes:
    vector = write_vector(of_this_attempt(file.delete_path), file.name, file.location, np.flatnonzero(whole))
    return replace(vector, replaces=file.deletes)


def _write_deletes(file: HeldFile, positions: Positions, rows: int) -> PositionDeletes:
    merged: tuple[HeldDeletes, ...] = ()
    # A file that other data files need too has to stay, and no position counts twice.
    own = [pair for pair in zip(file.deletes, file.delete_paths, strict=True) if not pair[0].is_shared]
    if len(own) >= MERGED_FROM:
        merged = tuple(held for held, _ in own)
        earlier = deleted_positions(merged, [path for _, path in own], file.location)
        positions = np.flatnonzero(_marks([*earlier, positions], rows))
    with OutputFile(file.delete_path, DELETE_SCHEMA) as output:
        arrays = [pa.repeat(pa.scalar(file.location), positions.size), pa.array(positions)]
        output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=DELETE_SCHEMA))
    assert output.data_file is not None
    return PositionDeletes(output.data_file, file.name, replaces=merged)


def _marks(parts: Iterable[Positions], rows: int) -> Marks:
    """Which of so many rows some part names; marking them takes less than sorting.

    A part may name rows that are not there: those of a file before somebody wrote it anew with fewer.
    """
    marked = np.zeros(rows, np.bool_)
    for positions in parts:
        marked[positions[positions < rows]] = True
    return marked

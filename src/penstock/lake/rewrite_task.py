"""Stage 2 of a round where files are replaced: those that may hold touched keys are written again.

The successor lacks the touched rows (and has the columns of a changed schema); a file without a touched
key stays as it is. Rows that stage 1 left pending are picked up on the way, for `complete_task`. A truncate
of a table that keeps deleted rows has all its files written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.evolve import ColumnSource
from penstock.lake.fold_task import Staged
from penstock.lake.keys import KeySet
from penstock.lake.pending import Pending
from penstock.lake.session import of_this_attempt
from penstock.lake.soft_fold import end_live_rows
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target
from penstock.sources.types import cast_text

ROWS_PER_READ = 128 * 1024


@dataclass(frozen=True, slots=True)
class RewriteTask:
    target: Target
    files: tuple[tuple[str, Path, Path], ...]  # name, where it is, where its successor goes
    staged: tuple[Staged, ...]  # one per bucket, taken one at a time
    columns: tuple[ColumnSource, ...] | None  # the schema changed: every file is written again
    picked: tuple[Path, ...]  # per bucket, where the rows go that its pending ones need
    truncated_at_us: int | None = None  # live rows that are left were deleted then


@dataclass(frozen=True, slots=True)
class RewriteResult:
    replaced: dict[str, tuple[DataFile, ...]]
    picked: tuple[Path | None, ...]


def rewrite_files(task: RewriteTask) -> RewriteResult:
    """Stage 2, for a share of the table's files. Memory: one bucket's keys and one batch of rows."""
    replaced: dict[str, tuple[DataFile, ...]] = {}
    with ExitStack() as stack:
        paths = [of_this_attempt(path) for path in task.picked]
        sinks = [stack.enter_context(PickedRows(path, task.target.arrow_schema())) for path in paths]
        for name, path, successor in task.files:
            file = stack.enter_context(pq.ParquetFile(path))
            hits = _hits(file, task)
            if task.columns is None and task.truncated_at_us is None and not hits.any():
                continue
            for staged, sink in zip(task.staged, sinks, strict=True):
                if staged.pending is not None:
                    _pick(file, Pending.read(staged.pending).lookup_keys, sink, task)
            replaced[name] = _rewrite(file, hits, successor, task)
    picked = (path if sink.used else None for path, sink in zip(paths, sinks, strict=True))
    return RewriteResult(replaced, tuple(picked))


class PickedRows(AbstractContextManager["PickedRows"]):
    """Rows on their way to stage 3, in a file that is made with the first of them."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    @property
    def used(self) -> bool:
        return self._writer is not None

    def write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        self._writer.write_table(rows)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _file_key(task: RewriteTask) -> list[str]:
    """The key's columns as the table's files call them: the schema change may have renamed them."""
    if task.columns is None:
        return task.target.key
    before = {source.name: source.from_name or source.name for source in task.columns}
    return [task.target.name(before[name]) for name in task.target.schema.key]


def _hits(file: pq.ParquetFile, task: RewriteTask) -> Flags:
    hits = np.zeros(file.metadata.num_rows, np.bool_)
    key = _file_key(task)
    paths = [staged.keys for staged in task.staged if staged.keys is not None]
    if paths and key:
        held = file.read(columns=key).select(key).rename_columns(task.target.key)
        for path in paths:
            hits |= KeySet(feather.read_table(path)).contains(held)
    return hits


def _pick(file: pq.ParquetFile, wanted: pa.Table, sink: PickedRows, task: RewriteTask) -> None:
    key = _file_key(task)
    keys = KeySet(wanted)
    for batch in file.iter_batches(ROWS_PER_READ):
        rows = pa.Table.from_batches([batch])
        found = keys.contains(rows.select(key).rename_columns(task.target.key))
        if found.any():
            sink.write(_evolve(rows.filter(pa.array(found)), task))


def _evolve(table: pa.Table, task: RewriteTask) -> pa.Table:
    return evolved(table, task.target, task.columns)


def evolved(table: pa.Table, target: Target, columns: Sequence[ColumnSource] | None) -> pa.Table:
    """Rows of an older schema in the columns of the present one."""
    schema = target.arrow_schema()
    if columns is None:
        return table.select(schema.names).cast(schema)
    arrays = []
    for source, column in zip(columns, target.schema.columns, strict=True):
        field = schema.field(target.name(column.name))
        if source.from_name is not None:
            arrays.append(table.column(target.name(source.from_name)).cast(field.type))
        elif source.fill is not None and target.write == "upsert":
            value = cast_text(pa.array([source.fill], pa.string()), column).values[0]
            arrays.append(pa.chunked_array([pa.repeat(value, table.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    extra = schema.names[len(arrays) :]
    return pa.table([*arrays, *(table.column(name) for name in extra)], schema=schema)


def _rewrite(file: pq.ParquetFile, hits: Flags, successor: Path, task: RewriteTask) -> tuple[DataFile, ...]:
    start = 0
    with TableOutput(successor, task.target) as output:
        for batch in file.iter_batches(ROWS_PER_READ):
            keep = ~hits[start : start + batch.num_rows]
            start += batch.num_rows
            if keep.any():
                rows = _evolve(pa.Table.from_batches([batch.filter(pa.array(keep))]), task)
                output.write_table(end_live_rows(rows, task.truncated_at_us))
    return output.files

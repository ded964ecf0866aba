"""Turns a range of the change log into files of a table: the bodies of the Spark tasks of a round.

Three stages, each a pure function of committed files, so that Spark may run any of them twice:

1. `fold_changes` reads one stream's changes as text, casts them by source type, and writes either the
   rows an append table gets, or the last state per key, with the set of keys it touches.
2. `rewrite_files` takes files of the table that may hold touched keys and writes them again without
   those rows (and with the columns of a changed schema). A file without a touched key stays as it is.
   Rows that stage 1 could not finish alone (unchanged TOAST) are picked up on the way.
3. `complete_rows` joins those rows and writes them.

Nothing here is visible to anyone until the driver commits the files that came back.

Cost of stage 1: about 1.4 CPU-seconds per million rows of 11 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import feather

from penstock.core.position import Lsn
from penstock.destinations.base import DataFile, KeyBound
from penstock.destinations.parquet_files import key_bound
from penstock.lake.buckets import WHOLE, Bucket, IndivisibleError, Membership
from penstock.lake.change_set import DELETE, INSERT, UPDATE, Changes, Flags
from penstock.lake.changes import ConformedChanges, conform, in_log_order
from penstock.lake.dead_letters import any_bad, dead_letter_rows
from penstock.lake.evolve import ColumnSource
from penstock.lake.fold import Completed, Pending, append_rows, complete, fold
from penstock.lake.keys import KeySet
from penstock.lake.output import OutputFile
from penstock.lake.skip import SkipRule
from penstock.lake.target import Target
from penstock.log.reader import LogFile, read_rows
from penstock.sources.postgres.types import cast_text

ROWS_PER_READ = 128 * 1024


@dataclass(frozen=True, slots=True)
class FoldTask:
    target: Target
    files: tuple[LogFile, ...]
    after: Lsn
    to: Lsn
    columns: Mapping[str, Sequence[ColumnSource]]  # by schema id: where each column of the target comes from
    truncates: tuple[tuple[int, int], ...]  # offsets at which the whole table was emptied
    skip: SkipRule | None
    path: Path
    dead_letter_path: Path
    staging: Path  # prefix of this task's staging files
    bucket: Bucket = WHOLE  # of keys, where the last change of a key counts
    share: tuple[int, int] = (0, 1)  # of row groups, where every change stands for itself


@dataclass(frozen=True, slots=True)
class Staged:
    """What a fold leaves for the next stages: files of touched keys and of unfinished rows."""

    keys: Path | None = None
    pending: Path | None = None
    key_min: KeyBound = None
    key_max: KeyBound = None


@dataclass(frozen=True, slots=True)
class FoldResult:
    file: DataFile | None
    dead_letters: DataFile | None
    staged: Staged
    truncated: bool
    operations: dict[str, int]


def stands_alone(target: Target, files: Sequence[LogFile], skip: SkipRule | None) -> bool:
    """Whether every change stands for itself: append tables, and inserts alone, which repeat no key."""
    return target.write == "append" or (skip is None and all(file.ops.keys() <= {"i"} for file in files))


def fold_changes(task: FoldTask) -> FoldResult | None:
    """Stage 1; None if the range cannot be folded bucket by bucket."""
    try:
        return _fold_changes(task)
    except IndivisibleError:
        return None


def _fold_changes(task: FoldTask) -> FoldResult:
    target = task.target
    key = target.key[0] if target.key else None
    output = OutputFile(task.path, target.arrow_schema(), key)
    dead_letters = OutputFile(task.dead_letter_path, target.dead_letter_schema())
    operations: dict[str, int] = {}
    staged, truncated = Staged(), False
    with output, dead_letters:
        parts = _read_changes(task, dead_letters, operations)
        if target.write == "append":
            for part in parts:
                output.write_table(append_rows(part, target.key))
        elif stands_alone(target, task.files, task.skip):
            staged = _stage(task, _take_inserts(task, parts, output), None)
        else:
            changes = in_log_order(list(parts))
            if changes is not None:
                folded = fold(changes, target.key, target.schema.deferrable_key)
                output.write_table(folded.rows)
                staged, truncated = _stage(task, folded.keys, folded.pending), folded.truncated
    return FoldResult(output.data_file, dead_letters.data_file, staged, truncated, operations)


def _take_inserts(task: FoldTask, parts: Iterator[Changes], output: OutputFile) -> pa.Table:
    """Inserts alone cannot repeat a key, so they go through piece by piece; their keys come back."""
    keys = []
    for part in parts:
        inserts = part.filter(part.op == INSERT)  # without those that did not fit
        output.write_table(inserts.rows)
        keys.append(inserts.rows.select(task.target.key))
    return pa.concat_tables(keys) if keys else pa.table({})


def _read_changes(task: FoldTask, dead_letters: OutputFile, operations: dict[str, int]) -> Iterator[Changes]:
    """The range's changes in order, typed, without those that are in the load already."""
    for file in task.files:
        for table in read_rows([file], task.after, task.to, share=task.share):
            conformed = conform(table, task.columns[file.schema_id], task.target.schema)
            here = task.bucket.membership(conformed.text, conformed.old, task.target.schema.key, conformed.op)
            changes = _typed(conformed.filter(here.any), here, task, dead_letters)
            left = _whole_truncates(changes, task.truncates)
            if task.skip is not None:
                changes, unseen = task.skip.apply(changes)
                left &= unseen
            changes = changes.filter(left)
            for operation, count in zip(*np.unique(changes.op, return_counts=True), strict=True):
                operations[chr(operation)] = operations.get(chr(operation), 0) + int(count)
            if len(changes):
                yield changes


def _whole_truncates(changes: Changes, truncates: Sequence[tuple[int, int]]) -> Flags:
    """All changes but the truncates of single partitions: the table's own is listed by its offset."""
    left = np.ones(len(changes), np.bool_)
    for position in np.flatnonzero(changes.op == ord("t")):
        left[position] = (int(changes.tx[position]), int(changes.op_index[position])) in truncates
    return left


def _typed(
    conformed: ConformedChanges, here: Membership, task: FoldTask, dead_letters: OutputFile
) -> Changes:
    """The changes in the table's types; rows with a value that does not fit become dead letters."""
    schema = task.target.schema
    sends_old_rows = task.target.write == "append" and schema.replica_identity == "f"
    rows, bad = _cast(conformed.text, schema.names, task.target)
    old, old_bad = _cast(conformed.old, schema.names if sends_old_rows else schema.key, task.target)
    changes = here.halve_moves(conformed.changes(rows, old, task.target, None))
    changes, keep = _without_unfit_old_keys(
        changes, [old_bad[name] for name in schema.key if name in old_bad]
    )
    if bad:
        unfit = any_bad(bad) & (changes.op != DELETE)  # of half a move only the insert's row counts
        letters = {name: mask & unfit for name, mask in bad.items()}
        if unfit.any():
            marks = {
                name: conformed.log.column(name).combine_chunks() for name in ("_op", "_tx", "_op_index")
            }
            dead_letters.write_batch(dead_letter_rows(conformed.text, letters, task.target, marks))
        changes, fits = _without_unfit_rows(changes, unfit, task.target)
        keep &= fits
    return changes.filter(keep)


def _cast(text: pa.Table, names: Sequence[str], target: Target) -> tuple[pa.Table, dict[str, Flags]]:
    """Typed columns under the table's names, and for each with values that do not fit, which."""
    arrays = []
    bad: dict[str, Flags] = {}
    for name in names:
        result = cast_text(text.column(name).combine_chunks(), target.schema.column(name))
        arrays.append(result.values)
        if result.bad is not None:
            bad[name] = result.bad.to_numpy(zero_copy_only=False)
    return pa.table(arrays, names=[target.name(name) for name in names]), bad


def _without_unfit_old_keys(changes: Changes, masks: Sequence[Flags]) -> tuple[Changes, Flags]:
    """A row whose old key does not fit was never there: its update is an insert, its delete nothing."""
    if not masks:
        return changes, np.ones(len(changes), np.bool_)
    unfit: Flags = np.any(masks, axis=0)
    op = changes.op.copy()
    op[unfit & (op == UPDATE)] = INSERT
    return changes.with_operations(op, changes.op_index), ~(unfit & (op == DELETE))


def _without_unfit_rows(changes: Changes, unfit: Flags, target: Target) -> tuple[Changes, Flags]:
    """Changes without rows that the table cannot hold, and which are left.

    An append table goes without them. In an upsert table a row whose newest version does not fit is
    gone: an older version in its place would pass for the truth, and give its values on to later changes.
    """
    if target.write == "append":
        return changes, ~unfit
    op = changes.op.copy()
    op[unfit] = DELETE
    old_key = pa.table(
        [pc.coalesce(changes.old_key.column(name), changes.rows.column(name)) for name in target.key],
        names=target.key,
    )
    # A key that does not fit itself was never in the table.
    held: Flags = np.all([column.is_valid().to_numpy() for column in old_key.columns], axis=0)
    return replace(changes, op=op, old_key=old_key), held | ~unfit


def _stage(task: FoldTask, keys: pa.Table, pending: Pending | None) -> Staged:
    if keys.num_rows == 0 and pending is None:
        return Staged()
    key_path = task.staging.with_suffix(".keys.arrow")
    feather.write_feather(keys, str(key_path), compression="uncompressed")
    pending_path = None
    if pending is not None:
        pending_path = task.staging.with_suffix(".pending.arrow")
        feather.write_feather(pending.to_table(), str(pending_path), compression="uncompressed")
    bounds = pc.min_max(keys.column(0)) if keys.num_rows else {"min": pa.scalar(None), "max": pa.scalar(None)}
    return Staged(key_path, pending_path, _bound(bounds["min"]), _bound(bounds["max"]))


def _bound(value: pa.Scalar) -> KeyBound:
    try:
        return key_bound(value.as_py())
    except (ValueError, OverflowError):  # a year Python cannot hold
        return None


def _read_pending(path: Path) -> Pending:
    return Pending.from_table(feather.read_table(path))


@dataclass(frozen=True, slots=True)
class RewriteTask:
    target: Target
    files: tuple[tuple[str, Path, Path], ...]  # name, where it is, where its successor goes
    staged: tuple[Staged, ...]  # one per bucket, taken one at a time
    columns: tuple[ColumnSource, ...] | None  # the schema changed: every file is written again
    picked: tuple[Path, ...]  # per bucket, where the rows go that its pending ones need


@dataclass(frozen=True, slots=True)
class RewriteResult:
    replaced: dict[str, DataFile | None]
    picked: tuple[Path | None, ...]


def rewrite_files(task: RewriteTask) -> RewriteResult:
    """Stage 2, for a share of the table's files. Memory: one bucket's keys and one batch of rows."""
    replaced: dict[str, DataFile | None] = {}
    with ExitStack() as stack:
        sinks = [stack.enter_context(_Picked(path, task.target.arrow_schema())) for path in task.picked]
        for name, path, successor in task.files:
            file = stack.enter_context(pq.ParquetFile(path))
            hits = _hits(file, task)
            if task.columns is None and not hits.any():
                continue
            for staged, sink in zip(task.staged, sinks, strict=True):
                if staged.pending is not None:
                    _pick(file, _read_pending(staged.pending).lookup_keys, sink, task)
            replaced[name] = _rewrite(file, hits, successor, task)
    picked = (path if sink.used else None for path, sink in zip(task.picked, sinks, strict=True))
    return RewriteResult(replaced, tuple(picked))


class _Picked(AbstractContextManager["_Picked"]):
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


def _pick(file: pq.ParquetFile, wanted: pa.Table, sink: _Picked, task: RewriteTask) -> None:
    key = _file_key(task)
    keys = KeySet(wanted)
    for batch in file.iter_batches(ROWS_PER_READ):
        rows = pa.Table.from_batches([batch])
        found = keys.contains(rows.select(key).rename_columns(task.target.key))
        if found.any():
            sink.write(_evolve(rows.filter(pa.array(found)), task))


def _evolve(table: pa.Table, task: RewriteTask) -> pa.Table:
    """Rows of an older schema in the columns of the present one."""
    schema = task.target.arrow_schema()
    if task.columns is None:
        return table.select(schema.names).cast(schema)
    arrays = []
    for source, column in zip(task.columns, task.target.schema.columns, strict=True):
        field = schema.field(task.target.name(column.name))
        if source.from_name is not None:
            arrays.append(table.column(task.target.name(source.from_name)).cast(field.type))
        elif source.fill is not None and task.target.write == "upsert":
            value = cast_text(pa.array([source.fill], pa.string()), column).values[0]
            arrays.append(pa.chunked_array([pa.repeat(value, table.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    extra = schema.names[len(arrays) :]
    return pa.table([*arrays, *(table.column(name) for name in extra)], schema=schema)


def _rewrite(file: pq.ParquetFile, hits: Flags, successor: Path, task: RewriteTask) -> DataFile | None:
    key = task.target.key[0] if task.target.key else None
    start = 0
    with OutputFile(successor, task.target.arrow_schema(), key) as output:
        for batch in file.iter_batches(ROWS_PER_READ):
            keep = ~hits[start : start + batch.num_rows]
            start += batch.num_rows
            if keep.any():
                output.write_table(_evolve(pa.Table.from_batches([batch.filter(pa.array(keep))]), task))
    return output.data_file


@dataclass(frozen=True, slots=True)
class CompleteTask:
    target: Target
    pending: Path  # of one bucket
    picked: tuple[Path, ...]
    path: Path
    dead_letter_path: Path
    position: Lsn


@dataclass(frozen=True, slots=True)
class CompleteResult:
    file: DataFile | None
    dead_letters: DataFile | None


def complete_rows(task: CompleteTask) -> CompleteResult:
    """Stage 3. A value that neither the batch nor the table has makes a dead letter, never a null."""
    target = task.target
    schema = target.arrow_schema()
    picked = [feather.read_table(path) for path in task.picked]
    rows = pa.concat_tables(picked) if picked else schema.empty_table()
    dead_letters = OutputFile(task.dead_letter_path, target.dead_letter_schema())
    with OutputFile(task.path, schema, target.key[0]) as output, dead_letters:
        completed = complete(_read_pending(task.pending), rows)
        output.write_table(completed.rows)
        dead_letters.write_batch(_unresolved_letters(completed, task))
    return CompleteResult(output.data_file, dead_letters.data_file)


def _unresolved_letters(completed: Completed, task: CompleteTask) -> pa.RecordBatch:
    rows = completed.unresolved
    count = rows.num_rows
    arrays = [_as_text(rows.column(name)) for name in task.target.names]
    arrays += [
        pa.repeat(pa.scalar("u"), count),
        pa.repeat(pa.scalar(int(task.position), pa.int64()), count),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        rows.column("_missing").combine_chunks(),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=task.target.dead_letter_schema())


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    flat = column.combine_chunks()
    if pa.types.is_binary(flat.type):
        return pa.array(
            [None if value is None else f"\\x{value.hex()}" for value in flat.to_pylist()], pa.string()
        )
    return flat.cast(pa.string())

"""Stage 1 of a round: one stream's changes become the rows its table gets, and the keys it loses.

Changes are read as text, cast by source type, and folded to the last state per key (or taken as they are,
where the table keeps every change). Rows that need a value the log does not have (unchanged TOAST) are
left pending for the next stages. A pure function of committed files, so that Spark may run it twice.

Cost: about 1.4 CPU-seconds per million rows of 11 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from penstock.core.position import Lsn
from penstock.destinations.parquet_files import key_bound
from penstock.destinations.records import DataFile, KeyBound
from penstock.lake.buckets import WHOLE, Bucket, IndivisibleError, Membership
from penstock.lake.change_set import DELETE, INSERT, UPDATE, Changes, Flags
from penstock.lake.changes import ConformedChanges, conform, in_log_order
from penstock.lake.dead_letters import DEAD_LETTERS, any_bad, dead_letter_rows
from penstock.lake.evolve import ColumnSource
from penstock.lake.filtering import only_inside
from penstock.lake.fold import Pending, append_rows, fold
from penstock.lake.output import OutputFile
from penstock.lake.session import of_this_attempt
from penstock.lake.skip import SkipRule
from penstock.lake.soft_fold import as_live, fold_softly
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target
from penstock.log.reader import LogFile, read_rows
from penstock.sources.types import cast_text


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
    again: bool = False  # the table holds the changes already


@dataclass(frozen=True, slots=True)
class Staged:
    """What a fold leaves for the next stages: files of touched keys and of unfinished rows."""

    keys: Path | None = None
    pending: Path | None = None
    key_min: KeyBound = None
    key_max: KeyBound = None


@dataclass(frozen=True, slots=True)
class FoldResult:
    files: tuple[DataFile, ...]
    dead_letters: DataFile | None
    staged: Staged
    truncated: bool
    operations: dict[str, int]
    truncated_at_us: int | None = None  # all other rows of the table are kept, as deleted then


def truncated_at(results: Sequence[FoldResult]) -> int | None:
    """When the rows that a stream's results do not name were deleted; every bucket has the truncates."""
    return next((each.truncated_at_us for each in results if each.truncated_at_us is not None), None)


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
    output = TableOutput(task.path, target)
    dead_letters = OutputFile(task.dead_letter_path, DEAD_LETTERS)
    operations: dict[str, int] = {}
    staged, truncated, truncated_at_us = Staged(), False, None
    with output, dead_letters:
        parts = _read_changes(task, dead_letters, operations)
        if target.write == "append":
            for part in parts:
                output.write_table(append_rows(part, target.key))
        elif stands_alone(target, task.files, task.skip):
            staged = stage(task.staging, _take_inserts(task, parts, output), None)
        else:
            changes = in_log_order(list(parts))
            if changes is not None:
                folding = fold_softly if target.soft_deletes else fold
                folded = folding(changes, target.key, target.schema.deferrable_key)
                output.write_table(folded.rows)
                pending = folded.pending
                if task.again and pending is not None:
                    pending = pending.at_own_keys()
                staged = stage(task.staging, folded.keys, pending)
                truncated, truncated_at_us = folded.truncated, folded.truncated_at_us
    return FoldResult(output.files, dead_letters.data_file, staged, truncated, operations, truncated_at_us)


def _take_inserts(task: FoldTask, parts: Iterator[Changes], output: TableOutput) -> pa.Table:
    """Inserts alone cannot repeat a key, so they go through piece by piece; their keys come back."""
    keys = []
    for part in parts:
        inserts = part.filter(part.op == INSERT)  # without those that did not fit
        keys.append(inserts.rows.select(task.target.key))
        if task.target.soft_deletes:
            fitting = inserts if inserts.bad is None else inserts.filter(~inserts.bad)
            output.write_table(as_live(fitting.rows))
        else:
            output.write_table(inserts.rows)
    return pa.concat_tables(keys) if keys else pa.table({})


def _read_changes(task: FoldTask, dead_letters: OutputFile, operations: dict[str, int]) -> Iterator[Changes]:
    """The range's changes in order, typed, without those that are in the load already."""
    for file in task.files:
        for table in read_rows([file], task.after, task.to, share=task.share):
            conformed = _selected(
                conform(table, task.columns[file.schema_id], task.target.schema), task.target
            )
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


def _selected(changes: ConformedChanges, target: Target) -> ConformedChanges:
    if target.condition is None:
        return changes
    return only_inside(changes, target.condition, target.schema, target.write)


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
        # The load has its own letters of what it holds.
        told = unfit if task.skip is None else unfit & ~task.skip.holds_row(changes)
        letters = {name: mask & told for name, mask in bad.items()}
        if told.any():
            marks = {
                name: conformed.log.column(name).combine_chunks()
                for name in ("_op", "_tx", "_op_index", "_commit_ts")
            }
            dead_letters.write_batch(dead_letter_rows(conformed.text, letters, task.target, marks))
        if task.target.soft_deletes:
            key_masks = [bad[name] for name in schema.key if name in bad]
            changes, fits = _with_unfit_marked(changes, unfit, key_masks)
        else:
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


def _with_unfit_marked(changes: Changes, unfit: Flags, key_masks: Sequence[Flags]) -> tuple[Changes, Flags]:
    """Changes of a table that keeps deleted rows, and which are left: rows that do not fit are bad.

    A delete of them would leave their last fitting version as one that was deleted. A row whose new key does
    not fit is nowhere in the table; under its old key, if that was another, a row has ended.
    """
    unfit_key = unfit & np.any(key_masks, axis=0) if key_masks else np.zeros(len(changes), np.bool_)
    op = changes.op.copy()
    sent = np.all([column.is_valid().to_numpy() for column in changes.old_key.columns], axis=0)
    leaves = unfit_key & sent & (op == UPDATE)
    op[leaves] = DELETE
    return replace(changes, op=op, bad=unfit & ~unfit_key), leaves | ~unfit_key


def stage(prefix: Path, keys: pa.Table, pending: Pending | None = None) -> Staged:
    """Write down what the next stages need to know."""
    if keys.num_rows == 0 and pending is None:
        return Staged()
    staging = of_this_attempt(prefix)
    key_path = staging.with_suffix(".keys.arrow")
    feather.write_feather(keys, str(key_path), compression="uncompressed")
    pending_path = None
    if pending is not None:
        pending_path = staging.with_suffix(".pending.arrow")
        pending.write(pending_path)
    bounds = pc.min_max(keys.column(0)) if keys.num_rows else {"min": pa.scalar(None), "max": pa.scalar(None)}
    return Staged(key_path, pending_path, _bound(bounds["min"]), _bound(bounds["max"]))


def _bound(value: pa.Scalar) -> KeyBound:
    try:
        return key_bound(value.as_py())
    except (ValueError, OverflowError):  # a year Python cannot hold
        return None

"""Runs the three stages of a round on Spark for all its streams at once.

`fold_task` makes rows and touched keys of each stream's changes, `rewrite_task` takes the touched rows out
of the table, `complete_task` finishes rows that needed the table. However many tables a round has, it costs
at most three Spark jobs. What comes back is, per stream, the files to add and the names to remove; nothing
is visible to anyone until the caller commits them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.base import DataFile, DestinationTable
from penstock.destinations.parquet_files import new_file_name
from penstock.lake.buckets import WHOLE, Bucket
from penstock.lake.complete_task import CompleteTask, complete_rows
from penstock.lake.evolve import ColumnSource
from penstock.lake.fold_task import FoldResult, FoldTask, Staged, fold_changes, stands_alone
from penstock.lake.output import OutputFile
from penstock.lake.rewrite_task import RewriteResult, RewriteTask, rewrite_files
from penstock.lake.session import run_tasks
from penstock.lake.skip import SkipRule
from penstock.lake.target import Target
from penstock.log.reader import LogFile

Item = TypeVar("Item")

ROWS_PER_TASK_MIN = 200_000
ROWS_PER_BUCKET_MAX = 1_000_000
BYTES_PER_BUCKET_MAX = 256 * 1024 * 1024
EXPANSION = 4  # rows in memory against rows in Parquet, roughly


@dataclass(frozen=True, slots=True)
class StreamWork:
    """One stream's part of a round: its changes in `(after, to]` onto `files` of its table."""

    stream: StreamId
    table: DestinationTable
    target: Target
    files: tuple[DataFile, ...]
    changes: tuple[LogFile, ...]
    truncates: tuple[tuple[int, int], ...]
    after: Lsn
    to: Lsn
    columns: Mapping[str, Sequence[ColumnSource]]  # by schema id of the log's files
    rewrite: tuple[ColumnSource, ...] | None  # the table's own columns change
    skip: SkipRule | None = None


@dataclass(slots=True)
class Outcome:
    """What a stream's commit adds and removes.

    `unresolved` counts rows with values that neither the log nor the table has; they are dead letters.
    """

    added: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    dead_letters: list[DataFile] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    unresolved: int = 0

    @property
    def dead_letter_count(self) -> int:
        return sum(file.rows for file in self.dead_letters)


def apply(spark: SparkSession, works: Sequence[StreamWork]) -> dict[StreamId, Outcome]:
    """Write the files of a round; nothing is visible until the caller commits them."""
    cores = spark.sparkContext.defaultParallelism
    outcomes = {work.stream: Outcome() for work in works}
    staging = {work.stream: work.table.new_staging_directory() for work in works}
    try:
        folded = _fold(spark, works, staging, outcomes, cores)
        rewritten = _rewrite(spark, works, folded, staging, outcomes, cores)
        _complete(spark, works, folded, rewritten, outcomes)
        for work in works:
            _keep_columns_of_empty_table(work, outcomes[work.stream])
    finally:
        for directory in staging.values():
            shutil.rmtree(directory, ignore_errors=True)
    return outcomes


def _keep_columns_of_empty_table(work: StreamWork, outcome: Outcome) -> None:
    """A table without rows keeps one file, so that readers find its columns."""
    if not outcome.added and outcome.removed >= {file.name for file in work.files}:
        path = work.table.files_directory / new_file_name("empty")
        with OutputFile(path, work.target.arrow_schema(), even_if_empty=True) as output:
            pass
        outcome.added += _present(output.data_file)


def _fold(
    spark: SparkSession,
    works: Sequence[StreamWork],
    staging: Mapping[StreamId, Path],
    outcomes: Mapping[StreamId, Outcome],
    cores: int,
) -> dict[StreamId, list[FoldResult]]:
    tasks = [
        (work, task)
        for work in works
        for task in _fold_tasks(work, staging[work.stream], _parts(work, cores))
    ]
    results = run_tasks(spark, fold_changes, [task for _, task in tasks], "fold changes")
    found: dict[StreamId, list[FoldResult | None]] = {work.stream: [] for work in works}
    for (work, _), result in zip(tasks, results, strict=True):
        found[work.stream].append(result)
    indivisible = [work for work in works if None in found[work.stream]]
    whole = [task for work in indivisible for task in _fold_tasks(work, staging[work.stream], 1)]
    for work, result in zip(
        indivisible, run_tasks(spark, fold_changes, whole, "fold changes whole"), strict=True
    ):
        found[work.stream] = [result]
    folded = {stream: [result for result in results if result] for stream, results in found.items()}
    for stream, stream_results in folded.items():
        outcome = outcomes[stream]
        for result in stream_results:
            outcome.added += _present(result.file)
            outcome.dead_letters += _present(result.dead_letters)
            for operation, count in result.operations.items():
                outcome.operations[operation] = outcome.operations.get(operation, 0) + count
    return folded


def _parts(work: StreamWork, cores: int) -> int:
    """Into how many tasks a stream's changes are cut: by cores, and so that each fits into memory."""
    rows = sum(file.rows for file in work.changes)
    if stands_alone(work.target, work.changes, work.skip):
        return max(1, min(cores, rows // ROWS_PER_TASK_MIN))
    # Rows that lack large values are completed from the table's, so those count too.
    table_rows = sum(file.rows for file in work.files)
    row_bytes = EXPANSION * sum(file.bytes for file in work.files) // max(1, table_rows)
    by_memory = max(rows // ROWS_PER_BUCKET_MAX, rows * row_bytes // BYTES_PER_BUCKET_MAX) + 1
    return max(min(cores, rows // ROWS_PER_TASK_MIN), by_memory)


def _fold_tasks(work: StreamWork, staging: Path, parts: int) -> list[FoldTask]:
    alone = stands_alone(work.target, work.changes, work.skip)
    return [
        FoldTask(
            target=work.target,
            files=work.changes,
            after=work.after,
            to=work.to,
            columns=work.columns,
            truncates=work.truncates,
            skip=work.skip,
            path=work.table.files_directory / new_file_name("changes"),
            dead_letter_path=work.table.dead_letters_directory / new_file_name("changes"),
            staging=staging / f"{parts}-{part}",
            bucket=WHOLE if alone else Bucket(part, parts),
            share=(part, parts) if alone else (0, 1),
        )
        for part in range(parts)
    ]


def _rewrite(
    spark: SparkSession,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    staging: Mapping[StreamId, Path],
    outcomes: Mapping[StreamId, Outcome],
    cores: int,
) -> dict[StreamId, list[RewriteResult]]:
    tasks: list[tuple[StreamId, RewriteTask]] = []
    for work in works:
        results = folded[work.stream]
        if any(result.truncated for result in results):
            outcomes[work.stream].removed |= {file.name for file in work.files}
            continue
        touched = [file for file in work.files if work.rewrite is not None or _may_hold(file, results)]
        shares = _balanced(touched, min(2 * cores, len(touched)), lambda file: file.bytes)
        for number, share in enumerate(shares):
            task = RewriteTask(
                target=work.target,
                files=tuple(_successor(work, file) for file in share),
                staged=tuple(result.staged for result in results),
                columns=work.rewrite,
                picked=tuple(
                    staging[work.stream] / f"{number}-{bucket}.picked.arrow" for bucket in range(len(results))
                ),
            )
            tasks.append((work.stream, task))
    done = run_tasks(spark, rewrite_files, [task for _, task in tasks], "rewrite touched files")
    rewritten: dict[StreamId, list[RewriteResult]] = {work.stream: [] for work in works}
    for (stream, _), result in zip(tasks, done, strict=True):
        rewritten[stream].append(result)
        for name, successor in result.replaced.items():
            outcomes[stream].removed.add(name)
            outcomes[stream].added += _present(successor)
    return rewritten


def _successor(work: StreamWork, file: DataFile) -> tuple[str, Path, Path]:
    directory = work.table.files_directory
    return file.name, work.table.path(file), directory / new_file_name("rewritten")


def _complete(
    spark: SparkSession,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    rewritten: Mapping[StreamId, Sequence[RewriteResult]],
    outcomes: Mapping[StreamId, Outcome],
) -> None:
    tasks: list[tuple[StreamId, CompleteTask]] = []
    for work in works:
        for bucket, result in enumerate(folded[work.stream]):
            if result.staged.pending is None:
                continue
            picked = (rewrite.picked[bucket] for rewrite in rewritten[work.stream])
            task = CompleteTask(
                target=work.target,
                pending=result.staged.pending,
                picked=tuple(path for path in picked if path is not None),
                path=work.table.files_directory / new_file_name("completed"),
                dead_letter_path=work.table.dead_letters_directory / new_file_name("changes"),
                position=work.to,
            )
            tasks.append((work.stream, task))
    done = run_tasks(spark, complete_rows, [task for _, task in tasks], "complete rows")
    for (stream, _), completed in zip(tasks, done, strict=True):
        outcomes[stream].added += _present(completed.file)
        outcomes[stream].dead_letters += _present(completed.dead_letters)
        outcomes[stream].unresolved += completed.dead_letters.rows if completed.dead_letters else 0


def _may_hold(file: DataFile, results: Iterable[FoldResult]) -> bool:
    """Whether the file's key range overlaps that of any touched keys; unknown bounds overlap."""
    return any(_overlap(file, result.staged) for result in results if result.staged.keys is not None)


def _overlap(file: DataFile, touched: Staged) -> bool:
    bounds = (file.key_min, file.key_max, touched.key_min, touched.key_max)
    if any(bound is None or type(bound) is not type(file.key_min) for bound in bounds):
        return True
    return file.key_min <= touched.key_max and touched.key_min <= file.key_max  # type: ignore[operator]


def _balanced(items: Sequence[Item], count: int, weight: Callable[[Item], int]) -> list[list[Item]]:
    """`items` in `count` shares of about equal weight, the heaviest first; order inside a share is kept."""
    shares: list[list[int]] = [[] for _ in range(count)]
    weights = [0] * count
    for index in sorted(range(len(items)), key=lambda index: -weight(items[index])):
        lightest = weights.index(min(weights))
        shares[lightest].append(index)
        weights[lightest] += weight(items[index])
    return [[items[index] for index in sorted(share)] for share in shares if share]


def _present(file: DataFile | None) -> list[DataFile]:
    return [] if file is None else [file]

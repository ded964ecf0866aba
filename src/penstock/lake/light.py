"""Where a stage of a round runs: as a Spark job, or in this process if it is light.

A Spark job takes tens of milliseconds and as much CPU before its first row, more than folding and looking up
some thousand changes takes; a session that is yet to be started takes seconds. So what is light runs here, in
threads: they are in Arrow, in compiled code or in an `fsync` most of the time, and none of these holds the
interpreter. The functions, the tasks and what comes of them are the same, and a round whose stages are all
light needs no session at all.

What is light is bounded by rows, bytes and files, and so is the driver's memory: it holds the changes of a
light round once, of the table the index of one file per thread, and a batch of each file that is written
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from penstock.destinations.records import DataFile
from penstock.lake.complete_task import CompleteTask
from penstock.lake.delete_task import DeleteTask
from penstock.lake.fold_task import FoldTask
from penstock.lake.session import run_tasks
from penstock.lake.settle_task import SettleTask
from penstock.log.reader import LogFile

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_MAX = 32
CHANGES_MAX = 200_000
CHANGE_BYTES_MAX = 16 * 1024 * 1024
KEY_BYTES_MAX = 16 * 1024 * 1024
PENDING_BYTES_MAX = 16 * 1024 * 1024
TABLE_FILES_MAX = 64
#: Of files that are read, to be written again without the rows that changed or to complete others.
ROWS_TO_READ_MAX = 200_000
BYTES_TO_READ_MAX = 16 * 1024 * 1024
#: Of files whose index is yet to be made from their keys: 0.15 CPU-seconds per million.
ROWS_TO_INDEX_MAX = 500_000


class Stages:
    """`pool`: the scheduler's, so that jobs of a round do not wait for others."""

    def __init__(self, spark: Callable[[], SparkSession], pool: str | None = None) -> None:
        self._spark = spark
        self._pool = pool

    @property
    def cores(self) -> int:
        """Of Spark, which is started if it is not there: to be asked for what is not light."""
        return self._spark().sparkContext.defaultParallelism

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        description: str,
        *,
        light: bool,
        weights: Sequence[int] | None = None,
    ) -> list[Result]:
        """Run `function` on each task; results in the order of `tasks`."""
        if light or not tasks:
            return run_light(function, tasks)
        spark = self._spark()
        if self._pool is not None:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)  # of this thread
        return run_tasks(spark, function, tasks, description, weights=weights)


def run_light(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """Run `function` on each task in this process; results in the order of `tasks`."""
    if len(tasks) < 2:
        return [function(task) for task in tasks]
    with ThreadPoolExecutor(os.cpu_count(), "penstock-stage") as threads:
        return list(threads.map(function, tasks))


def changes_are_light(rows: int, size: int) -> bool:
    return rows <= CHANGES_MAX and size <= CHANGE_BYTES_MAX


def folds_are_light(tasks: Sequence[FoldTask] | Sequence[SettleTask]) -> bool:
    """Of whatever reads the round's changes."""
    files: list[LogFile] = [file for task in tasks for file in task.files]
    return len(tasks) <= TASKS_MAX and changes_are_light(
        sum(file.rows for file in files), sum(file.bytes for file in files)
    )


def deletes_are_light(tasks: Sequence[DeleteTask]) -> bool:
    """However many rows the table has, unless they are read: to be written again, or to complete others."""
    files = [file for task in tasks for file in task.files]
    staged = {staged for task in tasks for staged in task.staged}
    are_read = any(file.successor for file in files) or any(each.pending for each in staged)
    return (
        len(files) <= TABLE_FILES_MAX
        and sum(each.keys.stat().st_size for each in staged if each.keys) <= KEY_BYTES_MAX
        and sum(file.rows for file in files if not file.index.exists()) <= ROWS_TO_INDEX_MAX
        and (not are_read or _reading_is_light((file.rows, file.path.stat().st_size) for file in files))
    )


def rewriting_is_light(files: Sequence[DataFile]) -> bool:
    return len(files) <= TABLE_FILES_MAX and _reading_is_light((file.rows, file.bytes) for file in files)


def merging_is_light(files: Sequence[DataFile]) -> bool:
    """Of files that are read one after the other, so that it does not matter how many they are."""
    return _reading_is_light((file.rows, file.bytes) for file in files)


def _reading_is_light(files: Iterable[tuple[int, int]]) -> bool:
    """`files`: rows and bytes of each."""
    rows = size = 0
    for rows_here, bytes_here in files:
        rows, size = rows + rows_here, size + bytes_here
    return rows <= ROWS_TO_READ_MAX and size <= BYTES_TO_READ_MAX


def letters_are_light(sizes: Sequence[int]) -> bool:
    """Of dead letters that are merged: the bytes of each stream's."""
    return len(sizes) <= TASKS_MAX and sum(sizes) <= BYTES_TO_READ_MAX


def completing_is_light(tasks: Sequence[CompleteTask]) -> bool:
    paths: Iterable[Path] = (path for task in tasks for path in (task.pending, *task.picked))
    return len(tasks) <= TASKS_MAX and sum(path.stat().st_size for path in paths) <= PENDING_BYTES_MAX

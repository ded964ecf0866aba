"""Stages of a round that are too small for a Spark job: they run in this process.

A Spark job takes tens of milliseconds and as much CPU before its first row, more than folding and looking up
some thousand changes takes. A stage that would be a single task in any case gains nothing by it; so what is
light runs here, in threads: they are in Arrow, in compiled code or in an `fsync` most of the time, and none
of these holds the interpreter. The functions, the tasks and what comes of them are the same.

What is light is bounded by rows, bytes and files, and so is the driver's memory: it holds the changes of a
light round once, and of the table the index of one file per thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.lake.delete_task import DeleteTask
from penstock.lake.fold_task import FoldTask

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_MAX = 8
CHANGES_MAX = 200_000
CHANGE_BYTES_MAX = 16 * 1024 * 1024
KEY_BYTES_MAX = 16 * 1024 * 1024
TABLE_FILES_MAX = 64
#: Of files whose index is yet to be made from their keys: 0.15 CPU-seconds per million.
ROWS_TO_INDEX_MAX = 500_000


def run_light(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """Run `function` on each task in this process; results in the order of `tasks`."""
    if len(tasks) < 2:
        return [function(task) for task in tasks]
    with ThreadPoolExecutor(os.cpu_count(), "penstock-stage") as threads:
        return list(threads.map(function, tasks))


def folds_are_light(tasks: Sequence[FoldTask]) -> bool:
    files = [file for task in tasks for file in task.files]
    return (
        len(tasks) <= TASKS_MAX
        and sum(file.rows for file in files) <= CHANGES_MAX
        and sum(file.bytes for file in files) <= CHANGE_BYTES_MAX
    )


def deletes_are_light(tasks: Sequence[DeleteTask]) -> bool:
    """If no row of the table is read: neither to be written again nor to complete others."""
    files = [file for task in tasks for file in task.files]
    staged = {staged for task in tasks for staged in task.staged}
    return (
        len(files) <= TABLE_FILES_MAX
        and not any(file.successor for file in files)
        and not any(each.pending for each in staged)
        and sum(each.keys.stat().st_size for each in staged if each.keys) <= KEY_BYTES_MAX
        and sum(file.rows for file in files if not file.index.exists()) <= ROWS_TO_INDEX_MAX
    )

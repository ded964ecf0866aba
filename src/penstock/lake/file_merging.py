"""Small files of tables whose files are replaced: rounds that only add some must not leave ever more of them.

Each round of a stream adds a file or more, however few rows it has, and each commit names all files and makes
a version with a link to each. So when a table has more than `SMALL_FILES_MAX` small files, a round writes the
smallest of them, those that it does not write again anyway, into one, as a part of its own commit: the same
rows, each once, in the order of the files. It takes a file only if those before it have as many bytes
together: each row is written again once for each doubling, until its file is no longer small.

What a round merges is bounded, and so is what an update of one of those rows costs afterwards: a file has no
more than `BYTES_MAX` by this, as little as the file of a chunk of a load. Iceberg tables have `maintenance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile
from penstock.lake.apply import Outcome, StreamWork
from penstock.lake.light import Stages, merging_is_light
from penstock.lake.rewrite_task import ROWS_PER_READ, evolved
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

_logger = structlog.get_logger("penstock.lake")

SMALL_FILES_MAX = 64
SMALL_BYTES = 16 * 1024 * 1024
#: Of what one round merges, by stream.
FILES_MAX = 256
BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileMerge:
    target: Target
    paths: tuple[Path, ...]
    successor: Path


def merge_small_files(
    stages: Stages, works: Sequence[StreamWork], outcomes: Mapping[StreamId, Outcome]
) -> None:
    """Where tables have too many small files, let the commits of these outcomes make them fewer.

    What is merged is chosen again without files that turn out not to be readable: beside one of those there
    may be none of its size, and then no round would merge anything."""
    unreadable: set[Path] = set()
    while works:
        chosen = {
            work.stream: files
            for work in works
            if (files := small_files(work, outcomes[work.stream], unreadable))
        }
        works = [work for work in works if work.stream in chosen]
        tasks = [
            FileMerge(
                work.target,
                tuple(work.table.path(file) for file in chosen[work.stream]),
                work.table.files_directory / new_file_name("merged"),
            )
            for work in works
        ]
        light = merging_is_light([file for files in chosen.values() for file in files])
        done = stages.run(merge_files, tasks, "merge small files", light=light)
        failed = []
        for work, task, merged in zip(works, tasks, done, strict=True):
            if merged is None:
                failed.append((work, task))
            else:
                outcomes[work.stream].removed |= {file.name for file in chosen[work.stream]}
                outcomes[work.stream].added += merged
        found = stages.run(
            unreadable_files, [task for _, task in failed], "look for files that cannot be read", light=light
        )
        works = [work for (work, _), paths in zip(failed, found, strict=True) if paths]
        for work, paths in zip(works, filter(None, found), strict=True):
            unreadable |= paths
            for path in sorted(paths):
                _logger.warning(
                    "a file that cannot be read is not merged", stream=str(work.stream), file=path.name
                )


def small_files(work: StreamWork, outcome: Outcome, unreadable: Set[Path] = frozenset()) -> list[DataFile]:
    """The files that a round makes one of; none if there is no need."""
    if work.table.deletes_rows:
        return []
    kept = [file for file in work.files if file.name not in outcome.removed]
    readable = (file for file in kept if file.bytes < SMALL_BYTES and work.table.path(file) not in unreadable)
    small = sorted(readable, key=lambda file: file.bytes)
    if len(small) <= SMALL_FILES_MAX:
        return []
    chosen, size = small[:2], sum(file.bytes for file in small[:2])
    for file in small[2:FILES_MAX]:
        if file.bytes > min(size, BYTES_MAX - size):
            break
        chosen.append(file)
        size += file.bytes
    names = {file.name for file in chosen}
    return [file for file in kept if file.name in names]


def merge_files(task: FileMerge) -> tuple[DataFile, ...] | None:
    """The rows of these files, a batch of one of them at a time. None: one of them cannot be read, which
    `penstock verify` tells, and no round without need to read it fails for."""
    try:
        with TableOutput(task.successor, task.target) as output:
            for path in task.paths:
                for rows in _rows(path, task.target):
                    output.write_table(rows)
    except (OSError, pa.ArrowException):
        return None
    return output.files


def unreadable_files(task: FileMerge) -> set[Path]:
    """Those whose rows cannot be merged; none if it was for something else, as a disk that is full."""
    return {path for path in task.paths if not _is_readable(path, task.target)}


def _is_readable(path: Path, target: Target) -> bool:
    try:
        for _ in _rows(path, target):
            pass
    except (OSError, pa.ArrowException):
        return False
    return True


def _rows(path: Path, target: Target) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_PER_READ):
            yield evolved(pa.Table.from_batches([batch]), target, None)

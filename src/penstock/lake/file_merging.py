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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile
from penstock.lake.apply import Outcome, StreamWork
from penstock.lake.light import Stages, merging_is_light
from penstock.lake.rewrite_task import ROWS_PER_READ, evolved
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

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
    """Where tables have too many small files, let the commits of these outcomes make them fewer."""
    chosen = {work.stream: files for work in works if (files := small_files(work, outcomes[work.stream]))}
    tasks = [
        FileMerge(
            work.target,
            tuple(work.table.path(file) for file in chosen[work.stream]),
            work.table.files_directory / new_file_name("merged"),
        )
        for work in works
        if work.stream in chosen
    ]
    light = merging_is_light([file for files in chosen.values() for file in files])
    done = stages.run(merge_files, tasks, "merge small files", light=light)
    for (stream, files), merged in zip(chosen.items(), done, strict=True):
        if merged is not None:
            outcomes[stream].removed |= {file.name for file in files}
            outcomes[stream].added += merged


def small_files(work: StreamWork, outcome: Outcome) -> list[DataFile]:
    """The files that a round makes one of; none if there is no need."""
    if work.table.deletes_rows:
        return []
    kept = [file for file in work.files if file.name not in outcome.removed]
    small = sorted((file for file in kept if file.bytes < SMALL_BYTES), key=lambda file: file.bytes)
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
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(ROWS_PER_READ):
                        output.write_table(evolved(pa.Table.from_batches([batch]), task.target, None))
    except (OSError, pa.ArrowException):
        return None
    return output.files

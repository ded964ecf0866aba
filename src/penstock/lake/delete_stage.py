"""Runs stage 2 of a round for tables whose rows are deleted by position (see `delete_task`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.deletion_vectors import new_vector_file_name
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile
from penstock.lake.delete_task import DeleteResult, DeleteTask, HeldFile, delete_rows
from penstock.lake.fold_task import FoldResult, truncated_at
from penstock.lake.key_index import KeyForm
from penstock.lake.light import Stages, deletes_are_light
from penstock.lake.session import balanced
from penstock.lake.target import Target

if TYPE_CHECKING:
    from penstock.lake.apply import StreamWork

#: Looking keys up among so many rows is worth a task of its own, which has to sort them too.
ROWS_PER_TASK = 6_000_000


def delete_touched(
    stages: Stages,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    staging: Mapping[StreamId, Path],
) -> dict[StreamId, list[DeleteResult]]:
    """Write the files of positions (or the successors) for every data file that holds a touched key."""
    tasks = [
        (work, task)
        for work in works
        for task in _tasks(work, folded[work.stream], staging[work.stream], stages)
    ]
    looks = [task for _, task in tasks]
    light, sizes = deletes_are_light(looks), [len(task.files) for task in looks]
    done = stages.run(delete_rows, looks, "find touched rows", light=light, weights=sizes)
    results: dict[StreamId, list[DeleteResult]] = {work.stream: [] for work in works}
    for (work, _), result in zip(tasks, done, strict=True):
        results[work.stream].append(result)
    return results


def _tasks(
    work: StreamWork, results: Sequence[FoldResult], staging: Path, stages: Stages
) -> list[DeleteTask]:
    truncated_at_us = truncated_at(results)
    rewrites_all = _has_fills(work) or truncated_at_us is not None
    rewrites = work.table.rewrites_rows or rewrites_all
    touches = any(result.staged.keys is not None for result in results)
    if not work.files or not (touches or rewrites_all):
        return []
    rows = [file.rows for file in work.files]
    count = min(len(rows), 1 + sum(rows) // ROWS_PER_TASK)
    shares = balanced(rows, count if count == 1 else min(count, 2 * stages.cores))
    form, by_vector = _key_form(work.target, work.table.key_secret), work.table.deletes_by_vector
    return [
        DeleteTask(
            target=work.target,
            files=tuple(_held(work, work.files[index], rewrites, by_vector) for index in share),
            staged=tuple(result.staged for result in results),
            form=form,
            fills=work.rewrite or (),
            picked=tuple(staging / f"{number}-{bucket}.picked.arrow" for bucket in range(len(results))),
            rewrites_all=rewrites_all,
            truncated_at_us=truncated_at_us,
            by_vector=by_vector,
        )
        for number, share in enumerate(shares)
    ]


def delete_paths(table: DestinationTable, file: DataFile) -> tuple[Path, ...]:
    """Where what is deleted from a data file is, in the order of its deletes."""
    return tuple(table.path(DataFile(each.location, 0, 0)) for each in file.deletes)


def _has_fills(work: StreamWork) -> bool:
    """Whether existing rows get values in a column that was added: no metadata can give them those."""
    return work.target.write == "upsert" and any(source.fill is not None for source in work.rewrite or ())


def _key_form(target: Target, secret: bytes) -> KeyForm:
    key = [target.schema.column(name) for name in target.schema.key]
    types = tuple(str(target.arrow_schema().field(name).type) for name in target.key)
    is_uuid = len(key) == 1 and key[0].type_name == "uuid" and types == ("string",)
    return KeyForm(secret, exact_uuid=is_uuid, types=types)


def _held(work: StreamWork, file: DataFile, rewrites: bool, by_vector: bool) -> HeldFile:
    table = work.table
    delete_name = new_vector_file_name() if by_vector else new_file_name("deletes")
    return HeldFile(
        name=file.name,
        location=table.file_location(file.name),
        path=table.path(file),
        rows=file.rows,
        index=table.index_path(file),
        deletes=file.deletes,
        delete_paths=delete_paths(table, file),
        delete_path=table.files_directory / delete_name,
        successor=table.files_directory / new_file_name("rewritten") if rewrites else None,
    )

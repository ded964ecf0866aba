"""Stage 3 of a round: pending rows take the values they lack from the rows picked in stage 2.

A value that neither the batch nor the table has makes a dead letter, never a null.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from penstock.core.position import Lsn
from penstock.destinations.base import DataFile
from penstock.lake.fold import Completed, complete
from penstock.lake.output import OutputFile
from penstock.lake.pending import Pending
from penstock.lake.target import Target


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
    target = task.target
    schema = target.arrow_schema()
    picked = [feather.read_table(path) for path in task.picked]
    rows = pa.concat_tables(picked) if picked else schema.empty_table()
    dead_letters = OutputFile(task.dead_letter_path, target.dead_letter_schema())
    with OutputFile(task.path, schema, target.key[0]) as output, dead_letters:
        completed = complete(Pending.read(task.pending), rows)
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

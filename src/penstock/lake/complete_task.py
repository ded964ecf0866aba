"""Stage 3 of a round: pending rows take the values they lack from the rows picked in stage 2.

A value that neither the batch nor the table has makes a dead letter, never a null.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import feather

from penstock.core.position import Lsn
from penstock.destinations.records import DataFile
from penstock.lake.dead_letters import DEAD_LETTERS, letters
from penstock.lake.fold import Completed, complete
from penstock.lake.output import OutputFile
from penstock.lake.pending import Pending
from penstock.lake.printing import print_values
from penstock.lake.soft_fold import complete_softly
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

#: Why a row was left incomplete, after the column's name.
_NOWHERE = "was not sent again by the source (unchanged TOAST), and neither the log nor the table has it"


@dataclass(frozen=True, slots=True)
class CompleteTask:
    target: Target
    pending: Path  # of one bucket
    picked: tuple[Path, ...]
    path: Path
    dead_letter_path: Path
    position: Lsn
    again: bool = False  # the table holds the changes already


@dataclass(frozen=True, slots=True)
class CompleteResult:
    files: tuple[DataFile, ...]
    dead_letters: DataFile | None


def complete_rows(task: CompleteTask) -> CompleteResult:
    target = task.target
    schema = target.arrow_schema()
    picked = [feather.read_table(path) for path in task.picked]
    rows = pa.concat_tables(picked) if picked else schema.empty_table()
    dead_letters = OutputFile(task.dead_letter_path, DEAD_LETTERS)
    with TableOutput(task.path, target) as output, dead_letters:
        finish = complete_softly if target.soft_deletes else complete
        completed = finish(Pending.read(task.pending), rows, again=task.again)
        output.write_table(completed.rows)
        if completed.unresolved.num_rows:
            dead_letters.write_batch(_unresolved_letters(completed, task))
    return CompleteResult(output.files, dead_letters.data_file)


def _unresolved_letters(completed: Completed, task: CompleteTask) -> pa.RecordBatch:
    rows, target = completed.unresolved, task.target
    count = rows.num_rows
    missing = [set(names) for names in rows.column("_missing").to_pylist()]
    names = [name for name in target.schema.names if any(target.name(name) in each for each in missing)]
    masks = np.array([[target.name(name) in each for each in missing] for name in names], np.bool_)
    marks = [
        pa.repeat(pa.scalar("u"), count),
        pa.repeat(pa.scalar(int(task.position), pa.int64()), count),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        pa.nulls(count, pa.timestamp("us", "UTC")),
    ]
    texts = [print_values(rows.column(target.name(name))) for name in target.schema.names]
    return letters(texts, target, marks, masks.reshape(len(names), count), dict.fromkeys(names, _NOWHERE))

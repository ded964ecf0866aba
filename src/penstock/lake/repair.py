"""Rows of a table that are put right: what a round does for changes, done for rows that were found wrong.

A repair is a round of its own whose first stage is not a fold of the log: the keys that are wrong lose their
rows, and get those that the source has for them at the round's end. Everything after it is the round's: rows
go by position or by writing their files anew, the table commits under its epoch, generation and position, the
state says before what is going to be done. A crash on the way leaves a round without changes to repeat.

Exact only at one position: the table must be where the source's rows are from. So rounds take it to just
before that position first. No change lies in the last number before it: commit records of Postgres begin at
multiples of eight, as positions between transactions do, an event of MySQL's is of more than a byte, and at
MongoDB it is the time of a write of ours. Where there is one after all, because numbers begin anew on another
server or two shards count the same time, nothing is repaired (`repair_round`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.lake.apply import StreamWork
from penstock.lake.fold_task import FoldResult, stage
from penstock.lake.table_output import TableOutput
from penstock.lake.target import DELETED_AT


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Rows of a table that may lie on disk, by their places; no more than a batch of it is in memory."""

    table: pa.Table
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.places.size)

    def parts(self) -> Iterator[pa.Table]:
        chosen = np.zeros(self.table.num_rows, np.bool_)
        chosen[self.places] = True
        start = 0
        for batch in self.table.to_batches():
            here = chosen[start : start + batch.num_rows]
            start += batch.num_rows
            if here.any():
                yield pa.Table.from_batches([batch.filter(pa.array(here))])

    def select(self, names: list[str]) -> pa.Table:
        """Some columns of all of them."""
        narrow = ChosenRows(self.table.select(names), self.places)
        return pa.concat_tables([narrow.table.schema.empty_table(), *narrow.parts()])


@dataclass(frozen=True, slots=True)
class Repair:
    """`keys`: whose rows in the table go. `rows`: what the source has for them. `gone`: a row of the table
    for each key that the source has none of, kept as deleted where deleted rows are. By the table's names."""

    keys: pa.Table
    rows: ChosenRows
    gone: ChosenRows


Repairs = Mapping[StreamId, Repair]


def just_before(position: Lsn) -> Lsn:
    """Where the log has the same changes as at `position`, unless there is one of that very number."""
    return Lsn(position - 1)


def repaired(work: StreamWork, repair: Repair, staging: Path) -> FoldResult:
    """The first stage of a repair."""
    target = work.target
    names = target.arrow_schema().names
    with TableOutput(work.table.files_directory / new_file_name("repaired"), target) as output:
        for rows in _rows(repair, soft_deletes=target.soft_deletes):
            output.write_table(rows.select(names))
    # Any file may hold them: what is known of its keys is from before somebody changed its rows.
    staged = replace(stage(staging / "repaired", repair.keys.select(target.key)), key_min=None, key_max=None)
    return FoldResult(output.files, None, staged, False, {"u": repair.keys.num_rows})


def _rows(repair: Repair, *, soft_deletes: bool) -> Iterator[pa.Table]:
    if not soft_deletes:
        yield from repair.rows.parts()
        return
    for rows in repair.rows.parts():
        yield _deleted(rows, None)
    # When a row was deleted that the log has no more, nobody knows: by now it is.
    now = datetime.now(UTC)
    for rows in repair.gone.parts():
        yield _deleted(rows.cast(repair.rows.table.schema), now)


def _deleted(rows: pa.Table, at: datetime | None) -> pa.Table:
    return rows.append_column(DELETED_AT, pa.repeat(pa.scalar(at, DELETED_AT.type), rows.num_rows))

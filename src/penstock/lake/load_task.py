"""Reads one chunk of a table into a Parquet file, or one for each partition: a Spark task of a load.

Promise: the files hold exactly the chunk's rows as of the load's snapshot: those that the source gives
(`sources.base`), or none, and it says so when the table was rewritten meanwhile.

A chunk with a value its column cannot hold (an infinite date) is read again as text where the source did not
print it the first time, so that its dead letters are the source's own words.

Cost: about 0.6 CPU-seconds per million rows of 11 columns, half of it in Parquet encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.core.place import Place
from penstock.core.where import Condition
from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.dead_letters import DEAD_LETTERS, any_bad, dead_letter_rows, without
from penstock.lake.output import OutputFile
from penstock.lake.table_output import TableOutput
from penstock.lake.target import DELETED_AT, Target
from penstock.sources.base import ChunkReading
from penstock.sources.chunk import TableRewrittenError
from penstock.sources.pace import Pace


@dataclass(frozen=True, slots=True)
class LoadTask:
    reading: ChunkReading
    target: Target
    path: Path
    dead_letter_path: Path
    is_first: bool = False  # of its load: it leaves a file in any case, so that an empty table can be read
    outside: Condition | None = None  # only rows for which this is not true
    position: int = 0  # at which dead letters stand
    rows_per_second: float | None = None  # this chunk's share of the limit

    def __repr__(self) -> str:
        return f"LoadTask({self.target.schema.stream}, {self.reading})"


@dataclass(frozen=True, slots=True)
class LoadResult:
    files: tuple[DataFile, ...]
    dead_letters: DataFile | None
    rows: int
    table_rewritten: bool = False  # the leaf's file node changed: the load must start again
    place: Place | None = None  # in the source's log, of a chunk that took a snapshot of its own


class Sieve(Protocol):
    """Sees every row that is read, and says which are not written. A chunk may be read, and seen, twice."""

    def drop(self, arrays: Sequence[pa.Array], unfit: Flags | None) -> Flags | None:
        """`arrays` are the source's columns of a block; rows that are `unfit` hold nulls and are dropped."""
        ...

    def letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a block's dead letters that are written."""
        ...


class _HasBadValuesError(Exception):
    """The binary read met a value that must be told in the source's own words."""


def load_chunk(task: LoadTask, sieve: Sieve | None = None) -> LoadResult:
    try:
        try:
            return _load(task, sieve, as_text=False)
        except _HasBadValuesError:
            return _load(task, sieve, as_text=True)
    except TableRewrittenError:
        return LoadResult((), None, 0, table_rewritten=True)


def _load(task: LoadTask, sieve: Sieve | None, *, as_text: bool) -> LoadResult:
    target, schema = task.target, task.target.arrow_schema()
    dead_letters = OutputFile(task.dead_letter_path, DEAD_LETTERS)
    output = TableOutput(task.path, target, even_if_empty=task.is_first and sieve is None)
    pace = Pace(task.rows_per_second)
    blocks = task.reading.blocks(target.schema, target.condition, outside=task.outside, as_text=as_text)
    place = None
    with output, dead_letters, closing(blocks):
        for block in blocks:
            place = block.place
            pace.read(block.rows)
            arrays, bad = block.values, block.bad
            if bad is not None:
                if block.printed is None:
                    raise _HasBadValuesError
                letters = dead_letter_rows(block.printed(), bad, target, _marks(task, block.rows))
                dead_letters.write_batch(letters if sieve is None else sieve.letters(letters))
            unfit = None if bad is None else any_bad(bad)
            dropped = unfit if sieve is None else sieve.drop(arrays, unfit)
            if dropped is not None:
                arrays = [without(array, dropped) for array in arrays]
            if target.write == "append":
                arrays = [*arrays, *_loaded_row_marks(len(arrays[0]) if arrays else block.rows)]
            elif target.soft_deletes:
                arrays = [*arrays, pa.nulls(len(arrays[0]), DELETED_AT.type)]
            output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return LoadResult(output.files, dead_letters.data_file, output.rows, place=place)


def _marks(task: LoadTask, rows: int) -> dict[str, pa.Array]:
    """Where rows stand that were read and did not come through the log."""
    return {
        "_op": pa.repeat(pa.scalar("r"), rows),
        "_tx": pa.repeat(pa.scalar(task.position, pa.int64()), rows),
        "_op_index": pa.repeat(pa.scalar(0, pa.int64()), rows),
        "_commit_ts": pa.nulls(rows, pa.timestamp("us", "UTC")),
    }


def _loaded_row_marks(rows: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar("r"), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.nulls(rows, pa.timestamp("us", "UTC")),
        pa.nulls(rows, pa.list_(pa.string())),
    ]

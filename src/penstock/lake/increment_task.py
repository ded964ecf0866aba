"""The first stage of a round of an incremental stream: rows of a window become rows and touched keys.

It reads as a chunk of a load is read, under the round's snapshot, with the same promises (`load_task`), and
leaves out what the table holds already (`held_rows`). Under one snapshot a key is there once, so the rows of
a round need no folding; the keys of all rows that are written go to the next stage, which takes their older
versions out of the table. So do the keys of rows that the table cannot hold, and of rows of the window that
have left the stream's filter: an older version must not stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.fold_task import FoldResult, stage
from penstock.lake.held_rows import HeldRange, HeldRows
from penstock.lake.increment_letters import KnownLetters
from penstock.lake.keys import distinct
from penstock.lake.load_task import LoadTask, load_chunk
from penstock.lake.portions import InPortions
from penstock.lake.target import Target

#: Of a chunk's rows that are compared with the table's at a time, and so in memory.
PORTION_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IncrementTask:
    load: LoadTask
    held: HeldRange
    letters: tuple[Path, ...]  # committed files of dead letters and of settled keys
    settled_path: Path
    staging: Path  # prefix of this task's staging files


@dataclass(frozen=True, slots=True)
class IncrementResult:
    folded: FoldResult
    settled: DataFile | None
    rows: int
    table_rewritten: bool = False  # the leaf's file node changed: the round must start again


def read_increment(task: IncrementTask) -> IncrementResult:
    target = task.load.target
    letters = KnownLetters(task.letters, target)
    held = HeldRows(task.held, target)
    unseen = _Unseen(target, held, letters)
    # The table's rows are read once for each block.
    reading = InPortions(task.load.reading, PORTION_BYTES) if held else task.load.reading
    result = load_chunk(replace(task.load, reading=reading), unseen)
    outside = _Outside(target, letters)
    if target.condition is not None and target.write == "upsert":
        load_chunk(_outside(task.load), outside)
    staged = stage(task.staging, _distinct([*unseen.keys, *outside.keys]))
    folded = FoldResult(result.files, result.dead_letters, staged, truncated=False, operations={})
    settled = letters.write_settled(task.settled_path, task.load.position)
    return IncrementResult(folded, settled, result.rows, result.table_rewritten)


def _outside(load: LoadTask) -> LoadTask:
    """The keys of the same chunk's rows that are outside of the stream's filter."""
    schema, condition = load.target.schema, load.target.condition
    assert condition is not None
    keys = tuple(schema.column(name) for name in schema.key)
    target = Target(replace(schema, columns=keys), "upsert", load.target.rename)
    return replace(load, target=target, outside=condition)


def _distinct(keys: Sequence[pa.Table]) -> pa.Table:
    return distinct(pa.concat_tables(keys)) if keys else pa.table({})


class _Unseen:
    """Lets rows pass that the table does not hold, and remembers their keys."""

    def __init__(self, target: Target, held: HeldRows, letters: KnownLetters) -> None:
        self._target = target
        self._held = held
        self._letters = letters
        self.keys: list[pa.Table] = []

    def drop(self, arrays: Sequence[pa.Array], unfit: Flags | None) -> Flags | None:
        held = self._held.contain(arrays)
        if held is not None and unfit is not None:
            held &= ~unfit  # its nulls are not the source's
        if self._target.write == "upsert":
            names = self._target.schema.names
            places = [names.index(name) for name in self._target.schema.key]
            keys = pa.table([arrays[place] for place in places], names=self._target.key)
            self._letters.settle(keys, None if unfit is None else ~unfit)
            self.keys.append(keys if held is None else keys.filter(pa.array(~held)))
        if held is None or unfit is None:
            return unfit if held is None else held
        dropped: Flags = np.logical_or(held, unfit)
        return dropped

    def letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        return self._letters.fresh(letters)


class _Outside:
    """Lets no row pass, and remembers their keys."""

    def __init__(self, target: Target, letters: KnownLetters) -> None:
        self._names = target.key
        self._letters = letters
        self.keys: list[pa.Table] = []

    def drop(self, arrays: Sequence[pa.Array], unfit: Flags | None) -> Flags | None:
        keys = pa.table(list(arrays), names=self._names)
        self._letters.settle(keys, None)
        self.keys.append(keys)
        return np.ones(len(arrays[0]), np.bool_)

    def letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        return letters.slice(0, 0)

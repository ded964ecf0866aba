"""Stage 4 of a round, where a stream has dead letters: which of them are history now.

A dead letter is open while it is the newest version of its key. The letters that were open before the round
and those that the round wrote are the candidates; the round's changes are read once more, only their keys,
and the newest that touches a candidate decides: it is the letter itself, or it settles it. Keys are compared
as the text that the source sent, as dead letters hold them: a change names its row by that very text.

An append table has no such thing as the present version of a key: nothing is settled there, and its history
is the table and the letters together. The cost falls on streams with dead letters alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.position import Lsn
from penstock.destinations.records import DataFile
from penstock.lake.dead_letters import (
    SETTLED_KEYS,
    key_columns,
    key_lists,
    newest_of_each,
    open_letters,
)
from penstock.lake.evolve import ColumnSource
from penstock.lake.keys import KeySet, distinct
from penstock.lake.output import OutputFile
from penstock.lake.skip import SkipRule
from penstock.lake.target import Target
from penstock.log.columns import stored_name
from penstock.log.reader import LogFile, read_rows
from penstock.sources.types import cast_text


@dataclass(frozen=True, slots=True)
class SettleTask:
    target: Target
    files: tuple[LogFile, ...]
    after: Lsn
    to: Lsn
    columns: Mapping[str, Sequence[ColumnSource]]  # by schema id, as in a fold
    truncates: tuple[tuple[int, int], ...]
    before: tuple[Path, ...]  # committed files of letters and settled keys
    written: tuple[Path, ...]  # files of letters of this round
    path: Path
    skip: SkipRule | None = None  # changes that the load holds settle none of its letters


def settle_letters(task: SettleTask) -> DataFile | None:
    """A file of the keys that this round settles; None if it settles none."""
    width = len(task.target.schema.key)
    before, written = open_letters(task.before, width), open_letters(task.written, width)
    letters = pa.concat_tables([before, written]).combine_chunks()
    with OutputFile(task.path, SETTLED_KEYS) as output:
        if letters.num_rows:
            output.write_table(_settled(task, letters, before.num_rows))
    return output.data_file


def _settled(task: SettleTask, letters: pa.Table, before: int) -> pa.Table:
    width = len(task.target.schema.key)
    keys = key_columns(letters.column("_key").combine_chunks(), width)
    candidates = KeySet(distinct(keys))
    touches = pa.concat_tables(
        [*_touches(task, candidates), _letters_as_touches(letters, candidates, before)]
    )
    touches = touches.combine_chunks()
    newest = newest_of_each(*(touches.column(name).to_numpy() for name in ("number", "_tx", "_op_index")))
    settling = newest[~touches.column("is_letter").to_numpy(zero_copy_only=False)[newest]]
    last = touches.take(pa.array(settling))
    settled = distinct(keys).take(last.column("number"))
    columns = [column.combine_chunks() for column in settled.columns]
    return pa.table(
        [last.column("_op"), last.column("_tx"), last.column("_op_index"), key_lists(columns, last.num_rows)],
        schema=SETTLED_KEYS,
    )


_TOUCHES = pa.schema(
    [
        pa.field("number", pa.int64()),  # of the candidate
        pa.field("_op", pa.string()),
        pa.field("_tx", pa.int64()),
        pa.field("_op_index", pa.int64()),
        pa.field("is_letter", pa.bool_()),
    ]
)


def _letters_as_touches(letters: pa.Table, candidates: KeySet, before: int) -> pa.Table:
    """Letters of this round at their offsets, behind the changes they are; older ones before all of them."""
    number = candidates.index(key_columns(letters.column("_key").combine_chunks(), len(candidates.names)))
    old = np.arange(letters.num_rows) < before
    tx = np.where(old, -1, letters.column("_tx").to_numpy())
    op_index = letters.column("_op_index").to_numpy()
    rows = letters.num_rows
    return pa.table(
        [number, pa.nulls(rows, pa.string()), tx, op_index, pa.repeat(pa.scalar(True), rows)], schema=_TOUCHES
    )


def _touches(task: SettleTask, candidates: KeySet) -> Iterator[pa.Table]:
    """What the round did to candidates: by the key a row has, by the key it had, and by a truncate."""
    for file in task.files:
        names = _names_in_log(task, file)
        wanted = [*names, "_old", "_op", "_tx", "_op_index"]
        for log in read_rows([file], task.after, task.to, wanted):
            is_change = pc.is_in(log.column("_op"), pa.array(["i", "u", "d"]))
            changes = log.filter(is_change)
            old = changes.column("_old").combine_chunks()
            now = [changes.column(name) for name in names]
            then = [pc.struct_field(old, name) for name in names]
            for key in (now, then):
                left = _not_in_load(task, changes, key)
                touching = pa.table(key, names=candidates.names).filter(left)
                yield _matching(changes.filter(left), touching, candidates)
    everything = np.arange(candidates.count)
    for tx, op_index in task.truncates:
        rows = len(everything)
        marks = [pa.repeat(pa.scalar(each), rows) for each in ("t", tx, op_index, False)]
        yield pa.table([everything, *marks], schema=_TOUCHES)


def _not_in_load(task: SettleTask, changes: pa.Table, key: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Array:
    if task.skip is None:
        return pa.repeat(pa.scalar(True), changes.num_rows)
    text = key[task.target.schema.key.index(task.skip.column.name)]
    flat = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    typed = cast_text(flat, task.skip.column).values
    return pa.array(~task.skip.holds(typed, changes.column("_tx").to_numpy()))


def _names_in_log(task: SettleTask, file: LogFile) -> list[str]:
    """The key's columns as a file of the log calls them."""
    sources = {source.name: source.from_name or source.name for source in task.columns[file.schema_id]}
    return [stored_name(sources[name]) for name in task.target.schema.key]


def _matching(changes: pa.Table, keys: pa.Table, candidates: KeySet) -> pa.Table:
    number = candidates.index(keys.cast(pa.schema([(name, pa.string()) for name in candidates.names])))
    found = np.flatnonzero(number >= 0)
    hits = changes.take(pa.array(found))
    columns = [hits.column(name) for name in ("_op", "_tx", "_op_index")]
    no = pa.repeat(pa.scalar(False), len(found))
    return pa.table([pa.array(number[found]), *columns, no], names=_TOUCHES.names).cast(_TOUCHES)

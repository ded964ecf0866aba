"""Dead letters of rows that are read by a cursor: each is written once, and settled when its row fits again.

A window is read again and again, and with it rows that the table cannot hold. A letter that says the same,
word by word, as one that is there already is not written a second time, unless that one is history: a row
that fitted in between and no longer does is told anew. A letter is history once its key is
read with values that fit, or has left the stream's filter. Letters and what settles them stand at the
position of the snapshot they were read under, so that the newer of the two is the later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.dead_letters import (
    DEAD_LETTERS,
    SETTLED_KEYS,
    key_columns,
    letter_batches,
    letter_files,
    letters_at,
    open_letters,
)
from penstock.lake.keys import KeySet, flat
from penstock.lake.output import OutputFile
from penstock.lake.target import Target
from penstock.sources.types import cast_text


class KnownLetters:
    """The letters that a table has before a round."""

    def __init__(self, paths: Sequence[Path], target: Target) -> None:
        self._paths = paths
        self._target = target
        self._seen: set[int] = set()  # positions in `_open` of letters whose keys were read and fit

    def fresh(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Those of `letters` that are not there yet. Few rows come here: Python compares them, with a batch
        of the others at a time, of which there may be any number."""
        words = [repr(row) for row in letters.column("_row").to_pylist()]
        sought, known = set(words), set[str]()
        for batch in self._known(letters):
            known |= sought.intersection(map(repr, batch.column("_row").to_pylist()))
        return letters.filter(pa.array([each not in known for each in words], pa.bool_()))

    def _known(self, letters: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Letters that may say the same."""
        if self._target.write == "upsert":
            yield from self._letters_of(self._open_like(letters)).to_batches()
            return
        for path in letter_files(self._paths):
            for batch in letter_batches(path, ["_key", "_row"]):
                yield _of_keys(batch, letters) if self._target.schema.key else batch

    def settle(self, keys: pa.Table, fits: Flags | None) -> None:
        """These keys were read; those that fit are no longer dead letters."""
        if self._open_keys is not None:
            found = self._open_keys.index(keys if fits is None else keys.filter(pa.array(fits)))
            self._seen.update(np.unique(found[found >= 0]).tolist())

    def write_settled(self, path: Path, position: int) -> DataFile | None:
        if not self._seen:
            return None
        with OutputFile(path, SETTLED_KEYS) as output:
            places = pa.array(sorted(self._seen), pa.int64())
            rows = len(places)
            marks = [
                pa.repeat(pa.scalar("r"), rows),
                pa.repeat(pa.scalar(position, pa.int64()), rows),
                pa.repeat(pa.scalar(0, pa.int64()), rows),
            ]
            keys = self._open.column("_key").combine_chunks().take(places)
            output.write_table(pa.table([*marks, keys], schema=SETTLED_KEYS))
        return output.data_file

    def _open_like(self, letters: pa.RecordBatch) -> pa.Table:
        """The places of open letters with these keys: no more than one for each."""
        width = len(self._target.schema.key)
        near = _of_keys(self._open, letters)
        keys = KeySet(key_columns(letters.column("_key"), width))
        return near.filter(pa.array(keys.contains(key_columns(flat(near.column("_key")), width))))

    def _letters_of(self, places: pa.Table) -> pa.Table:
        """The letters at these places; of all others no row is read, and a round's share an offset."""
        if not places.num_rows:
            return DEAD_LETTERS.empty_table()
        paths, wanted = letter_files(self._paths), KeySet(self._place(places))
        flags = [
            wanted.contains(self._place(pa.Table.from_batches([batch])))
            for path in paths
            for batch in letter_batches(path, _PLACE)
        ]
        return letters_at(paths, np.concatenate([np.empty(0, np.bool_), *flags]))

    def _place(self, letters: pa.Table) -> pa.Table:
        """Key and offset of each."""
        place = key_columns(flat(letters.column("_key")), len(self._target.schema.key))
        for name in _OFFSET:
            place = place.append_column(name, letters.column(name))
        return place

    @cached_property
    def _open(self) -> pa.Table:
        return open_letters(self._paths, len(self._target.schema.key)).combine_chunks()

    @cached_property
    def _open_keys(self) -> KeySet | None:
        """The open letters' keys in the table's types; None: there are none."""
        if self._target.write == "append" or not self._paths or not self._open.num_rows:
            return None
        schema = self._target.schema
        text = key_columns(self._open.column("_key").combine_chunks(), len(schema.key))
        typed = [
            cast_text(column.combine_chunks(), schema.column(name)).values
            for column, name in zip(text.columns, schema.key, strict=True)
        ]
        return KeySet(pa.table(typed, names=self._target.key))


Letters = TypeVar("Letters", pa.RecordBatch, pa.Table)

_OFFSET = ["_tx", "_op_index"]
_PLACE = ["_key", *_OFFSET]


def _of_keys(known: Letters, letters: pa.RecordBatch) -> Letters:
    """Those with the first part of a key in common with these."""
    first = pc.list_element(letters.column("_key"), 0)
    return known.filter(pc.is_in(pc.list_element(known.column("_key"), 0), value_set=first))

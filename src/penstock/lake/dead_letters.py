"""Rows that hold a value their table cannot: kept in the source's own words, never dropped in silence.

A row goes here whole, every column as text, with what did not fit and why, and is committed together with
the batch it came in, so it is here once whatever crashes. The pipeline goes on; `penstock status` counts.
An upsert table does not show an older version of such a row instead: the row is gone until one fits.

All dead letters of all streams have the same columns (`DEAD_LETTERS`), so that no change of a source's
columns changes theirs. Where they stand in the log is their offset (`_tx`, `_op_index`); that of a row that
was loaded is 0, and of a row for which a value was nowhere to be found the end of its batch.

A letter is *open* while it is the newest version of its key. A change that comes after it settles it, and
is written down by key and offset (`settle_task`), so that open letters can be told from the files here alone.
Of files that were merged, the open ones stand in a file of their own (`letter_merging`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.position import Lsn
from penstock.destinations.records import HISTORY, OPEN, SETTLED
from penstock.lake.change_set import Flags, Numbers
from penstock.lake.keys import KeySet
from penstock.lake.target import Target
from penstock.sources.types import why_unfit

_TIMESTAMP = pa.timestamp("us", "UTC")
_ENTRY = pa.struct([pa.field("column", pa.string()), pa.field("value", pa.string())])
_MARKS = ("_op", "_tx", "_op_index", "_commit_ts")
_OFFSET = ["_tx", "_op_index"]
_BATCH_ROWS = 10_000

#: `_row` holds the source's columns with their text; `_key` the key's text, in the order of the key.
DEAD_LETTERS = pa.schema(
    [
        pa.field("_op", pa.string()),
        pa.field("_tx", pa.int64()),
        pa.field("_op_index", pa.int64()),
        pa.field("_commit_ts", _TIMESTAMP),
        pa.field("_dead_at", _TIMESTAMP),
        pa.field("_bad_columns", pa.list_(pa.string())),
        pa.field("_reason", pa.string()),
        pa.field("_key", pa.list_(pa.string())),
        pa.field("_row", pa.list_(_ENTRY)),
    ]
)
#: Keys that are no longer dead letters, and the change that made them so.
SETTLED_KEYS = pa.schema([DEAD_LETTERS.field(name) for name in ("_op", "_tx", "_op_index", "_key")])
#: Of open letters among those that were merged.
OPEN_LETTERS = pa.schema([DEAD_LETTERS.field(name) for name in ("_tx", "_op_index", "_key")])


def any_bad(bad: Mapping[str, Flags]) -> Flags:
    """Rows with a bad value in any column."""
    marked: Flags = np.any(list(bad.values()), axis=0)
    return marked


def without(array: pa.Array, rows: Flags) -> pa.Array:
    return array.filter(pa.array(~rows))


def dead_letter_rows(
    text: pa.RecordBatch | pa.Table,
    bad: Mapping[str, Flags],
    target: Target,
    marks: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """The bad rows of `text` (the source's columns); `marks` are the log's columns of changes."""
    rows = pa.array(np.flatnonzero(any_bad(bad)))
    columns = [_flat(text.column(index).take(rows)) for index in range(len(target.schema.columns))]
    reasons = {name: why_unfit(target.schema.column(name)) for name in bad}
    masks = np.stack([mask[rows.to_numpy()] for mask in bad.values()])
    if marks is None:
        zeros = pa.repeat(pa.scalar(0, pa.int64()), len(rows))
        taken = [pa.repeat(pa.scalar("r"), len(rows)), zeros, zeros, pa.nulls(len(rows), _TIMESTAMP)]
    else:
        taken = [_flat(marks[name].take(rows)) for name in _MARKS]
    return letters(columns, target, taken, masks, reasons)


def letters(
    columns: Sequence[pa.Array],
    target: Target,
    marks: Sequence[pa.Array],
    masks: Flags,
    reasons: Mapping[str, str],
) -> pa.RecordBatch:
    """Rows of text as dead letters; `masks` tells for each column of `reasons` in which rows it is unfit."""
    rows = masks.shape[1]
    # Few combinations of columns are unfit together, however many rows are.
    patterns, pattern_of = np.unique(masks, axis=1, return_inverse=True)
    unfit = [[name for name, hit in zip(reasons, pattern, strict=True) if hit] for pattern in patterns.T]
    of_row = pa.array(pattern_of.reshape(-1))
    said = ["; ".join(f"{name} {reasons[name]}" for name in names) for names in unfit]
    key = [columns[target.schema.names.index(name)] for name in target.schema.key]
    arrays = [
        *marks,
        pa.repeat(pa.scalar(datetime.now(UTC), _TIMESTAMP), rows),
        pa.array(unfit, pa.list_(pa.string())).take(of_row),
        pa.array(said, pa.string()).take(of_row),
        key_lists(key, rows),
        _entries(target.schema.names, columns, rows),
    ]
    cast = [array.cast(field.type) for array, field in zip(arrays, DEAD_LETTERS, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=DEAD_LETTERS)


def key_lists(key: Sequence[pa.Array], rows: int) -> pa.ListArray:
    """The columns of a key, row by row."""
    return pa.ListArray.from_arrays(_offsets(rows, len(key)), _row_by_row(key, rows))


def key_columns(lists: pa.Array, width: int) -> pa.Table:
    """The inverse of `key_lists`; keys of another width become null, which matches nothing."""
    fits = pc.equal(pc.list_value_length(lists), width)
    whole = pc.if_else(fits, lists, pa.scalar([None] * width, lists.type))
    return pa.table([pc.list_element(whole, index) for index in range(width)], names=key_names(width))


def key_names(width: int) -> list[str]:
    return [str(index) for index in range(width)]


def _entries(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.ListArray:
    repeated = pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(len(names)), rows)))
    entries = pa.StructArray.from_arrays([repeated, _row_by_row(columns, rows)], fields=list(_ENTRY))
    return pa.ListArray.from_arrays(_offsets(rows, len(names)), entries)


def _row_by_row(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    if not columns:
        return pa.array([], pa.string())
    index = (np.arange(len(columns))[None, :] * rows + np.arange(rows)[:, None]).reshape(-1)
    return pa.concat_arrays([column.cast(pa.string()) for column in columns]).take(pa.array(index))


def _offsets(rows: int, width: int) -> pa.Array:
    return pa.array(np.arange(rows + 1, dtype=np.int32) * width)


def read_dead_letters(paths: Sequence[Path], columns: Sequence[str] | None = None) -> pa.Table:
    """The letters in these files, in their order; files that say which are open are passed over."""
    names = list(columns or DEAD_LETTERS.names)
    schema = pa.schema([DEAD_LETTERS.field(name) for name in names])
    tables = [_read(path, schema) for path in letter_files(paths)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def open_letters(paths: Sequence[Path], width: int) -> pa.Table:
    """The letters that are the newest version of their key: `_key`, `_tx`, `_op_index` of each.

    `width` is that of the key. A letter without a key of that width is left out: nothing can settle it.
    """
    telling = [path for path in paths if not is_history(path)]
    parts = [_read(path, OPEN_LETTERS) for path in telling]
    if not parts or not width:
        return OPEN_LETTERS.empty_table()
    settles = np.concatenate(
        [np.full(part.num_rows, is_settled(path)) for path, part in zip(telling, parts, strict=True)]
    )
    whole = pa.concat_tables(parts).combine_chunks()
    newest = _newest_of_each_key(whole, width)
    return whole.take(pa.array(newest[~settles[newest]]))


def newest_settled(paths: Sequence[Path], width: int) -> pa.Table:
    """What these files of settled keys say, once for each key."""
    whole = pa.concat_tables([_read(path, SETTLED_KEYS) for path in paths]).combine_chunks()
    return whole.take(pa.array(_newest_of_each_key(whole, width)))


def _newest_of_each_key(rows: pa.Table, width: int) -> Numbers:
    keys = key_columns(_flat(rows.column("_key")), width)
    offset = (rows.column(name).to_numpy() for name in _OFFSET)
    return newest_of_each(KeySet(keys).index(keys), *offset)


def unknown_letters(
    before: Sequence[Path], written: Sequence[Path], position: Lsn, width: int
) -> tuple[pa.Table, int]:
    """Of the letters of a batch that is applied again, up to `position`, those that were none the first time;
    and how many of them lack a value.

    A letter is known by its offset. One that lacks a value has that of its batch's end instead, as others of
    that batch may have had: it is known if its key has an open letter. Rows are read of those that are new
    alone: the range may have as many letters as changes.
    """
    marks = read_dead_letters(written, [*_OFFSET, "_commit_ts"])
    known: Flags = KeySet(read_dead_letters(before, _OFFSET)).contains(marks.select(_OFFSET))
    at_end = pc.equal(marks.column("_tx"), int(position))
    lacks: Flags = pc.and_(at_end, pc.is_null(marks.column("_commit_ts"))).to_numpy()
    if lacks.any():
        lacking = read_dead_letters(written, ["_key"]).filter(pa.array(lacks))
        keys, open_keys = (
            key_columns(_flat(each.column("_key")), width) for each in (lacking, open_letters(before, width))
        )
        known[lacks] = KeySet(open_keys).contains(keys)
    return letters_at(written, ~known), int((lacks & ~known).sum())


def letter_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The letters in a file, a batch at a time."""
    schema = pa.schema([DEAD_LETTERS.field(name) for name in columns or DEAD_LETTERS.names])
    with pq.ParquetFile(path) as file:
        if "_key" not in file.schema_arrow.names:
            yield from _of_first_format(file.read()).select(schema.names).to_batches()
            return
        for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names):
            yield batch.select(schema.names).cast(schema)


def letters_at(paths: Sequence[Path], wanted: Flags) -> pa.Table:
    """Those of the letters in these files that are wanted; of the others no more than a batch is held."""
    found, start = [], 0
    for path in paths:
        end = start + pq.read_metadata(path).num_rows
        for batch in letter_batches(path) if wanted[start:end].any() else ():
            found.append(batch.filter(pa.array(wanted[start : start + batch.num_rows])))
            start += batch.num_rows
        start = end
    return pa.Table.from_batches(found, DEAD_LETTERS)


def newest_of_each(number: Numbers, tx: Numbers, op_index: Numbers) -> Numbers:
    """Positions of the row with the greatest offset for each number, the later one of two; -1 has none."""
    order = np.lexsort((np.arange(number.size), op_index, tx, number))
    ordered = number[order]
    last = np.append(ordered[1:] != ordered[:-1], True) if ordered.size else np.empty(0, np.bool_)
    return order[last & (ordered >= 0)]


def letter_files(paths: Sequence[Path]) -> list[Path]:
    """Those that hold letters, and not only which of them are open."""
    return [path for path in paths if not path.name.startswith((SETTLED, OPEN))]


def is_settled(path: Path) -> bool:
    return path.name.startswith(SETTLED)


def is_history(path: Path) -> bool:
    """Whether its letters are no open ones, as far as it says."""
    return path.name.startswith(HISTORY)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with pq.ParquetFile(path) as file:
        if "_key" in file.schema_arrow.names:
            return file.read(columns=schema.names).select(schema.names).cast(schema)
        return _of_first_format(file.read()).select(schema.names)


def _of_first_format(table: pa.Table) -> pa.Table:
    """Files of version 0.1 had a column of text for each of the source's, and no reason and no key."""
    names = [name for name in table.column_names if name not in (*_MARKS, "_bad_columns")]
    rows = table.num_rows
    columns: dict[str, pa.Array] = {
        **{name: _flat(table.column(name)) for name in ("_op", "_tx", "_op_index", "_bad_columns")},
        "_key": pa.nulls(rows, pa.list_(pa.string())),
        "_row": _entries(names, [_flat(table.column(name)) for name in names], rows),
    }
    return pa.table(
        [columns.get(each.name, pa.nulls(rows, each.type)) for each in DEAD_LETTERS], DEAD_LETTERS
    )


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return flat.cast(pa.string()) if pa.types.is_null(flat.type) else flat

"""Rows that hold a value their table cannot: kept in the source's own words, never dropped in silence.

A row goes here whole, every column as text, with the names of the columns that did not fit, and is
committed together with the batch it came in. The pipeline goes on; `penstock status` shows the count.
An upsert table does not show an older version of such a row instead: the row is gone until one fits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from penstock.lake.change_set import Flags
from penstock.lake.target import Target


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
    """The bad rows of `text` (the source's columns); `marks` has `_op`, `_tx`, `_op_index` of changes."""
    rows = pa.array(np.flatnonzero(any_bad(bad)))
    names = np.array(list(bad))
    masks = np.stack([bad[name] for name in names])[:, rows.to_numpy()]
    arrays = [_flat(text.column(index).take(rows)) for index in range(len(target.schema.columns))]
    if marks is None:
        arrays += [
            pa.repeat(pa.scalar("r"), len(rows)),
            *[pa.repeat(pa.scalar(0, pa.int64()), len(rows))] * 2,
        ]
    else:
        arrays += [_flat(marks[name].take(rows)) for name in ("_op", "_tx", "_op_index")]
    arrays.append(pa.array([names[mask].tolist() for mask in masks.T], pa.list_(pa.string())))
    return pa.RecordBatch.from_arrays(arrays, schema=target.dead_letter_schema())


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return flat.cast(pa.string()) if pa.types.is_null(flat.type) else flat

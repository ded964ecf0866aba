"""Changes of one table to rows of the change log, a batch at a time, whichever source they are of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.log_reading import Truncation
from penstock.core.schema import TableSchema
from penstock.log import columns as log_columns

Letters = npt.NDArray[np.uint8]
#: A list of column numbers per row: offsets, numbers, validity.
Absent = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one table in their order, an entry each in every array.

    `op` has the letters i, u, d; `columns` the text of each column. `old` is empty when no change has an old
    row; `old_kind` has the letters n, k, f. `unchanged` lists columns that were not sent; None if there are
    none.
    """

    op: Letters
    tx: npt.NDArray[np.int64]
    ordinal: npt.NDArray[np.int64]
    xid: npt.NDArray[np.uint64]
    commit_ts_us: npt.NDArray[np.int64]
    columns: list[pa.StringArray]
    old: list[pa.StringArray]
    old_kind: Letters
    unchanged: Absent | None


def log_rows(
    changes: Changes, schema: TableSchema, arrow_schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The changes as rows of the log, without a copy of their values; and how many of each operation."""
    rows = len(changes.op)
    arrays = [
        *changes.columns,
        pa.array(changes.tx),
        pa.array(changes.ordinal * 2),
        _texts(changes.op),
        pa.array(changes.xid),
        pa.array(changes.commit_ts_us).view(pa.timestamp("us", "UTC")),
        _old(changes, rows, arrow_schema.field(log_columns.OLD).type),
        _texts(changes.old_kind),
        _unchanged(changes, rows, schema),
    ]
    counts = np.bincount(changes.op, minlength=128)
    operations = {letter: int(counts[ord(letter)]) for letter in "iud"}
    record_batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)
    return record_batch, {letter: count for letter, count in operations.items() if count}


def truncate_row(at: Truncation, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """The one row that stands for a truncate: no values, only its place."""
    own = {
        log_columns.TX: at.tx,
        log_columns.OP_INDEX: at.op_index,
        log_columns.OP: "t",
        log_columns.XID: at.xid,
        log_columns.COMMIT_TS: at.commit_ts_us,
        log_columns.OLD_KIND: "n",
    }
    arrays = [pa.array([own.get(field.name)], field.type) for field in arrow_schema]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _texts(letters: Letters) -> pa.StringArray:
    """Texts of one letter each."""
    rows = len(letters)
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32))
    return pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(np.ascontiguousarray(letters)), None, 0)


def _old(changes: Changes, rows: int, struct: pa.DataType) -> pa.Array:
    if not changes.old:
        return pa.nulls(rows, struct)
    absent = pa.array(changes.old_kind == ord("n"))
    fields = [struct.field(index) for index in range(struct.num_fields)]
    return pa.StructArray.from_arrays(changes.old, fields=fields, mask=absent)


def _unchanged(changes: Changes, rows: int, schema: TableSchema) -> pa.Array:
    if changes.unchanged is None:
        return pa.nulls(rows, pa.list_(pa.string()))
    offsets, numbers, validity = changes.unchanged
    names = pa.array(schema.names, pa.string()).take(pa.array(numbers))
    return pa.Array.from_buffers(
        pa.list_(pa.string()), rows, [pa.py_buffer(validity), pa.py_buffer(offsets)], children=[names]
    )

"""Decoded messages of one table to rows of the change log, a batch at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.log import columns as log_columns
from penstock.sources.postgres.pgoutput import MessageBatch, RowImages, Scan, decode_rows, string_array

_LOWER_CASE = 0x20  # I, U, D become i, u, d
_FULL_CIRCLE = 1 << 32


class TransactionIds:
    """Widens 32-bit transaction ids to the 64 bits the server counts in (correctness 10).

    Ids in the log are less than 2^31 away from the server's next one: older ones would have
    been frozen, and newer ones move the reference along.
    """

    def __init__(self, next_id: int) -> None:
        self._reference = next_id

    def widen(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        distance = (ids - self._reference) % _FULL_CIRCLE
        distance = np.where(distance >= _FULL_CIRCLE // 2, distance - _FULL_CIRCLE, distance)
        wide = np.where(ids == 0, 0, self._reference + distance)  # 0 is no transaction's
        if len(wide):
            self._reference = max(self._reference, int(wide.max()))
        return np.maximum(wide, 0).astype(np.uint64)


def change_rows(
    batch: MessageBatch,
    scan: Scan,
    xids: npt.NDArray[np.uint64],
    chosen: npt.NDArray[np.int64] | slice,
    schema: TableSchema,
    arrow_schema: pa.Schema,
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The chosen changes, all of one table, as log rows; and how many of each operation."""
    kind = scan.kind[chosen]
    transaction = scan.transaction[chosen]
    images = decode_rows(batch, kind, scan.tuple_at[chosen], len(schema.columns))
    rows = len(kind)
    arrays = [
        *images.columns,
        pa.array(scan.tx[transaction]),
        pa.array(scan.ordinal[chosen] * 2),
        _letters(kind | np.uint8(_LOWER_CASE)),
        pa.array(xids[transaction]),
        pa.array(scan.commit_ts_us[transaction]).view(pa.timestamp("us", "UTC")),
        _old(images, rows, arrow_schema.field(log_columns.OLD).type),
        _letters(images.old_kind),
        _unchanged(images, rows, schema),
    ]
    counts = np.bincount(kind, minlength=128)
    operations = {letter: int(counts[ord(letter.upper())]) for letter in "iud"}
    record_batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)
    return record_batch, {letter: count for letter, count in operations.items() if count}


def truncate_row(
    tx: int, op_index: int, xid: int, commit_ts_us: int, arrow_schema: pa.Schema
) -> pa.RecordBatch:
    """The one row that stands for a truncate: no values, only its place."""
    own = {
        log_columns.TX: tx,
        log_columns.OP_INDEX: op_index,
        log_columns.OP: "t",
        log_columns.XID: xid,
        log_columns.COMMIT_TS: commit_ts_us,
        log_columns.OLD_KIND: "n",
    }
    arrays = [pa.array([own.get(field.name)], field.type) for field in arrow_schema]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _letters(codes: npt.NDArray[np.uint8]) -> pa.StringArray:
    rows = len(codes)
    return string_array(rows, np.arange(rows + 1, dtype=np.int32), np.ascontiguousarray(codes))


def _old(images: RowImages, rows: int, struct: pa.DataType) -> pa.Array:
    if not images.old:
        return pa.nulls(rows, struct)
    absent = pa.array(images.old_kind == ord("n"))
    fields = [struct.field(index) for index in range(struct.num_fields)]
    return pa.StructArray.from_arrays(images.old, fields=fields, mask=absent)


def _unchanged(images: RowImages, rows: int, schema: TableSchema) -> pa.Array:
    if images.unchanged is None:
        return pa.nulls(rows, pa.list_(pa.string()))
    offsets, numbers, validity = images.unchanged
    names = pa.array(schema.names, pa.string()).take(pa.array(numbers))
    return pa.Array.from_buffers(
        pa.list_(pa.string()), rows, [pa.py_buffer(validity), pa.py_buffer(offsets)], children=[names]
    )

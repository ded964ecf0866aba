"""Decoded messages of one table to rows of the change log, a batch at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.rows import Changes, log_rows
from penstock.core.schema import TableSchema
from penstock.sources.postgres.pgoutput import MessageBatch, Scan, decode_rows

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
    changes = Changes(
        op=kind | np.uint8(_LOWER_CASE),
        tx=scan.tx[transaction],
        ordinal=scan.ordinal[chosen],
        xid=xids[transaction],
        commit_ts_us=scan.commit_ts_us[transaction],
        columns=images.columns,
        old=images.old,
        old_kind=images.old_kind,
        unchanged=images.unchanged,
    )
    return log_rows(changes, schema, arrow_schema)

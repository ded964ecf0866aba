"""Changes as the log has them, with columns of any type, written down in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns

Row = dict[str, str | None]
COMMIT_US = 1_769_860_800_123_456  # 2026-01-31 12:00:00.123456
COMMIT_TEXT = "2026-01-31T12:00:00.123456Z"


def column(name: str, type_name: str, modifier: int = -1, *, oid: int = 1, element: str = "") -> SourceColumn:
    return SourceColumn(name, oid, modifier, type_name, type_name, element=element)


def numeric_modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@dataclass(frozen=True)
class Change:
    """`op` i, u, d, t, or r for a loaded row; `old_kind` f, k or n, by default what there is of `old`."""

    op: str
    new: Mapping[str, str | None] | None = None
    old: Mapping[str, str | None] | None = None
    tx: int = 26_800_664
    op_index: int = 2
    xid: int = 741
    unchanged: tuple[str, ...] = ()
    old_kind: str = ""

    @property
    def told(self) -> str:
        return self.old_kind or ("n" if self.old is None else "f")


def changes_of(stream: StreamId, columns: Sequence[SourceColumn], changes: Sequence[Change]) -> ChangeRows:
    """With a row in front that is none of them, so that offsets into Arrow's buffers matter."""
    schema = TableSchema(stream, tuple(columns))
    rows = [_log_row(columns, change) for change in [Change("i", {}), *changes]]
    batch = pa.RecordBatch.from_pylist(rows, schema=log_columns.log_schema(schema, str(stream)))
    return ChangeRows(stream, stream, schema.id, batch).slice(1, len(rows))


def _log_row(columns: Sequence[SourceColumn], change: Change) -> dict[str, Any]:
    names = [each.name for each in columns]
    old = None
    if change.old is not None:
        old = {log_columns.stored_name(name): change.old.get(name) for name in names}
    return {log_columns.stored_name(name): (change.new or {}).get(name) for name in names} | {
        log_columns.TX: change.tx,
        log_columns.OP_INDEX: change.op_index,
        log_columns.OP: change.op,
        log_columns.XID: change.xid,
        log_columns.COMMIT_TS: COMMIT_US,
        log_columns.OLD: old,
        log_columns.OLD_KIND: change.told,
        log_columns.UNCHANGED: list(change.unchanged) or None,
    }

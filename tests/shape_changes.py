"""Changes as the log has them, from rows written down in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.shapes.rendering.renderer import INSERT

Row = dict[str, str | None]


@dataclass(frozen=True)
class Change:
    action: int
    old: Row | None
    new: Row | None
    tx: int = 26800664
    op: int = 2
    xid: int = 123


def changes_of(stream: StreamId, columns: Sequence[str], changes: Sequence[Change]) -> ChangeRows:
    """The changes as the log has them, with a row in front that is none of them."""
    source = tuple(SourceColumn(name, 25, -1, "text", "text") for name in columns)
    schema = TableSchema(stream, source)
    rows = [
        _log_row(columns, change) for change in [Change(INSERT, None, dict.fromkeys(columns, "?")), *changes]
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=log_columns.log_schema(schema, str(stream)))
    return ChangeRows(stream, stream, schema.id, batch).slice(1, len(rows))


def _log_row(columns: Sequence[str], change: Change) -> dict[str, Any]:
    old = {log_columns.stored_name(name): change.old[name] for name in columns} if change.old else None
    return {log_columns.stored_name(name): (change.new or {}).get(name) for name in columns} | {
        log_columns.TX: change.tx,
        log_columns.OP_INDEX: change.op,
        log_columns.OP: "u" if change.old and change.new else "i" if change.new else "d",
        log_columns.XID: change.xid,
        log_columns.COMMIT_TS: 0,
        log_columns.OLD: old,
        log_columns.OLD_KIND: "f" if old else "n",
    }

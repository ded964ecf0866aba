"""Changes as the log has them, for tests without a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema


def schema_of(stream: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> TableSchema:
    """`columns`: names and types."""
    return TableSchema(
        StreamId.parse(stream),
        tuple(
            SourceColumn(name, {"text": 25, "bytea": 17, "int4": 23}[kind], -1, kind, kind, place)
            for place, (name, kind) in enumerate(columns.items(), 1)
        ),
        tuple(key),
    )


def with_entries_beneath_a_null(names: Sequence[str]) -> pa.ListArray:
    """Lists of one of these each, but for the second: that is null, and its name lies beneath."""
    offsets = pa.array(range(len(names) + 1), pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.array(names), mask=pa.array([at == 1 for at in range(len(names))])
    )


def changes_of(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> ChangeRows:
    """Each row has `_op` and the values it needs; the others are as if nothing had been sent."""
    usual: dict[str, Any] = {"_xid": 7, "_commit_ts": 0, "_old": None, "_old_kind": "n", "_unchanged": None}
    whole = [{"_tx": 100 + at, "_op_index": 0, **usual, **row} for at, row in enumerate(rows)]
    batch = pa.RecordBatch.from_pylist(whole, schema=log_schema(schema, str(schema.stream)))
    return ChangeRows(schema.stream, schema.stream, schema.id, batch)

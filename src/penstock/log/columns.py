"""What a row of the change log looks like in Parquet.

The table's columns come first, as the text the source sent; then what we know of the change. A source
column whose name begins with an underscore is stored with one more, so no name of ours can clash with
one of the source's. Field metadata holds each column's source type: a file can be read on its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import SourceColumn, TableSchema

TX, OP_INDEX, OP, XID, COMMIT_TS = "_tx", "_op_index", "_op", "_xid", "_commit_ts"
OLD, OLD_KIND, UNCHANGED = "_old", "_old_kind", "_unchanged"

COLUMN_METADATA = b"penstock.column"
SCHEMA_ID_METADATA = b"penstock.schema_id"
LEAF_METADATA = b"penstock.leaf"
STREAM_METADATA = b"penstock.stream"


def stored_name(source_name: str) -> str:
    """The name of a source column in the log."""
    return f"_{source_name}" if source_name.startswith("_") else source_name


def source_name(stored_name: str) -> str:
    """The source's name of a column of the log (not for our own columns)."""
    return stored_name[1:] if stored_name.startswith("_") else stored_name


def source_column(field: pa.Field) -> SourceColumn | None:
    """The source column a field of a log file holds; None for columns of ours."""
    metadata = field.metadata or {}
    if COLUMN_METADATA not in metadata:
        return None
    return SourceColumn.from_json(json.loads(metadata[COLUMN_METADATA]))


def log_schema(schema: TableSchema, leaf: str) -> pa.Schema:
    """The Arrow schema of a log file of this table version."""
    columns = [
        pa.field(
            stored_name(column.name), pa.string(), metadata={COLUMN_METADATA: json.dumps(column.to_json())}
        )
        for column in schema.columns
    ]
    old = pa.struct([pa.field(column.name, pa.string()) for column in columns])
    own = [
        pa.field(TX, pa.int64(), nullable=False),
        pa.field(OP_INDEX, pa.int64(), nullable=False),
        pa.field(OP, pa.string(), nullable=False),
        pa.field(XID, pa.uint64(), nullable=False),
        pa.field(COMMIT_TS, pa.timestamp("us", "UTC"), nullable=False),
        pa.field(OLD, old),
        pa.field(OLD_KIND, pa.string(), nullable=False),
        pa.field(UNCHANGED, pa.list_(pa.string())),
    ]
    metadata = {
        SCHEMA_ID_METADATA: schema.id.encode(),
        LEAF_METADATA: leaf.encode(),
        STREAM_METADATA: str(schema.stream).encode(),
    }
    return pa.schema([*columns, *own], metadata=metadata)


def lacking(
    unchanged: pa.Array | pa.ChunkedArray, names: Collection[str] | None = None
) -> npt.NDArray[np.bool_]:
    """The rows of which one of these columns was not sent; None: any column. `unchanged`: their lists."""
    lists = unchanged.combine_chunks() if isinstance(unchanged, pa.ChunkedArray) else unchanged
    found = np.zeros(len(lists), np.bool_)
    if lists.null_count < len(lists):
        rows, entries = entries_of(lists)
        if names is not None:
            among = pc.is_in(entries, value_set=pa.array(sorted(names), pa.string()))
            rows = rows[among.to_numpy(zero_copy_only=False)]
        found[rows] = True
    return found


def entries_of(unchanged: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Of each entry of these lists the row, and the entry itself; what lies beneath a null is none."""
    rows = pc.list_parent_indices(unchanged)
    rows = rows.filter(unchanged.is_valid().take(rows))  # `flatten` leaves them out, this does not
    return rows.to_numpy(zero_copy_only=False), unchanged.flatten()

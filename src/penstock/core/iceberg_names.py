"""What Iceberg calls the types of our columns: one list for the tables and for the pages about them."""

from __future__ import annotations

import pyarrow as pa

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int16(): "int",  # it has no smaller one
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}


def iceberg_name(arrow: pa.DataType) -> str | None:
    """None: Iceberg has no such type of a single value."""
    if isinstance(arrow, pa.Decimal128Type):
        return f"decimal({arrow.precision}, {arrow.scale})"
    return _NAMES.get(arrow)

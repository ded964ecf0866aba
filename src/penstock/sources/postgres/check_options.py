"""What a stream's `iceberg` needs of its table: findings from the catalog alone, without I/O."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.core.partition_types import can_sort, fits
from penstock.core.table_options import NO_OPTIONS
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.postgres.catalog import TableInfo
from penstock.sources.postgres.types import arrow_type

#: Of the columns that Penstock adds, those that can be partitions or an order.
_ADDED = {
    "append": {
        "_op": pa.string(),
        "_tx": pa.int64(),
        "_op_index": pa.int64(),
        "_commit_ts": pa.timestamp("us", "UTC"),
    },
    "soft": {"_deleted_at": pa.timestamp("us", "UTC")},
}


def check_options(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    """Whether the table will have each column that is named, of a type that can be used so."""
    if need.options == NO_OPTIONS:
        return
    types = _types(table, need)
    for field in need.options.partition_by or ():
        if field.column not in types:
            yield from _missing(table, need, "partition_by", field.column, types)
        elif not fits(field.transform, types[field.column]):
            yield _finding(
                table,
                f"`partition_by` has {field}, which does not fit a column of type {types[field.column]}.",
                "Choose another column or transform; docs/guides/iceberg.md says which fit together.",
            )
    for by in need.options.sort_by or ():
        if by.column not in types:
            yield from _missing(table, need, "sort_by", by.column, types)
        elif not can_sort(types[by.column]):
            message = f"`sort_by` names {by.column}, which is a list and has no order."
            yield _finding(table, message, "Choose another column.")


def _types(table: TableInfo, need: StreamNeed) -> dict[str, pa.DataType]:
    schema = table.schema.held_as(need.types)
    held = {column.name: column for column in schema.columns}
    names = [name for name in need.columns or schema.names if name in held]
    types = {need.rename.get(name, name): arrow_type(held[name]) for name in names}
    return {**types, **_ADDED.get(need.write, {}), **_ADDED.get(need.deletes, {})}


def _missing(
    table: TableInfo, need: StreamNeed, key: str, column: str, types: dict[str, pa.DataType]
) -> Iterator[Finding]:
    if not need.by_pattern:
        yield _finding(
            table,
            f"`{key}` names {column}, and the table has no column of that name.",
            f"Correct it or take it out; the columns are: {', '.join(types)}.",
        )


def _finding(table: TableInfo, message: str, remedy: str) -> Finding:
    return Finding("table options", "error", message, remedy, str(table.stream))

"""The ids of a table's columns when the source's columns changed: a column keeps its own for life."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.destinations.base import DestinationTable
from penstock.destinations.iceberg_schema import INSIDE, assign_ids, ids_of, with_field_ids
from penstock.destinations.records import TableRecord
from penstock.lake.evolve import ColumnSource
from penstock.lake.target import Target


def evolved_columns(
    record: TableRecord, target: Target, sources: Sequence[ColumnSource] | None
) -> pa.Schema | None:
    """The target's columns with ids: those of the columns they come from, else new ones; None without ids."""
    if record.columns is None:
        return None
    came_from = {name: name for name in target.arrow_schema().names}
    for source in sources or ():
        came_from[target.name(source.name)] = target.name(source.from_name) if source.from_name else ""
    held = ids_of(record.columns)
    inherited = {
        path.replace(before, now, 1): number
        for now, before in came_from.items()
        for path, number in held.items()
        if before and (path == before or path.startswith(before + INSIDE))
    }
    columns = target.arrow_schema()
    return with_field_ids(columns, assign_ids(columns, inherited, record.last_field_id))


def dropped_partition(table: DestinationTable, record: TableRecord, target: Target) -> str | None:
    """A column that is not in the target any more, and by which files of the table lie in partitions.

    Without the column its partitions have no type, and Iceberg can neither list such files nor delete rows
    in them: they have to be written anew.
    """
    if record.columns is None:
        return None
    gone = {number: name for name, number in ids_of(record.columns).items()}
    for number in target.field_ids.values():
        gone.pop(number, None)
    found = gone.keys() & table.partition_columns(record) if gone else ()
    return min((gone[number] for number in found), default=None)

"""A table's partitions, order and properties: what its metadata says, and having it say what the file does.

Changes are staged on an `Attempt` like any other part of a commit. They concern files that are written from
then on: those that are there keep the partitions and the order that they were written by. What the file does
not name stays as whoever set it left it.

Columns of the table must be there first: what names one that is still to come waits until it has come.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock.core.errors import DestinationError
from penstock.core.stream import StreamId
from penstock.core.table_options import PartitionField, SortField, TableOptions
from penstock.destinations.iceberg_durable import local_path
from penstock.destinations.iceberg_java import Attempt, Java, Metadata, items
from penstock.destinations.layout import Layout, layout_from_json

_NAMED_BY = {"truncate": "trunc"}


def read_layout(java: Java, metadata: Metadata) -> Layout:
    """By which new files are to be written, whoever chose it."""
    return layout_from_json(_spec(java, metadata), _order(java, metadata))


def stage_options(
    java: Java, attempt: Attempt, options: TableOptions, properties: Mapping[str, str], stream: StreamId
) -> bool:
    """Whether there was anything to change. `properties`: of all tables, under the table's own."""
    _check_location(attempt.base, options, stream)
    ids = _ids(attempt)
    wanted = {**properties, **options.properties}
    changed = {key: value for key, value in wanted.items() if attempt.base.property(key) != value}
    if changed:
        attempt.set_properties(changed)
    upgraded = options.format_version is not None and _set_format(attempt, options.format_version, stream)
    partitions, order = options.partition_by, options.sort_by
    parted = partitions is not None and _set_partitions(java, attempt, partitions, ids)
    ordered = order is not None and _set_order(java, attempt, order, ids)
    return bool(changed) or upgraded or parted or ordered


def _set_format(attempt: Attempt, wanted: int, stream: StreamId) -> bool:
    held = attempt.base.format_version
    if held > wanted:
        raise DestinationError(
            f"The table has format version {held}, and there is no way back to {wanted}.",
            stream=str(stream),
            remedy=f"Set `format_version: {held}`, or drop the table and run `penstock resync` for it.",
        )
    if held < wanted:
        attempt.set_properties({"format-version": str(wanted)})
    return held < wanted


def let_go(java: Java, attempt: Attempt, held: Collection[int]) -> None:
    """Before columns leave the table: have it partitioned and ordered by none but those of these ids."""
    spec, order = _spec(java, attempt.staged), _order(java, attempt.staged)
    gone = [field["name"] for field in spec["fields"] if field.get("source-id") not in held]
    if gone:
        update = attempt.transaction.updateSpec()
        for name in gone:
            update.removeField(name)
        update.commit()
    if any(field.get("source-id") not in held for field in order["fields"]):
        attempt.transaction.replaceSortOrder().commit()


def check_partition_names(java: Java, attempt: Attempt, ids: Mapping[str, int], stream: StreamId) -> None:
    """Iceberg has no schema in which a column is called like a partition of another one, of any spec."""
    parser = java.iceberg("PartitionSpecParser")
    for spec in items(attempt.staged.java.specs()):
        for field in json.loads(str(parser.toJson(spec)))["fields"]:
            name, source = field["name"], field.get("source-id")
            if name in ids and ids[name] != source and source in ids.values():
                raise DestinationError(
                    f"A partition of the table is called {name}, and so is a new column.",
                    stream=str(stream),
                    remedy=f"Give the column another name in the table: `rename: {{{name}: …}}`.",
                )


def _check_location(metadata: Metadata, options: TableOptions, stream: StreamId) -> None:
    lies = local_path(metadata.location) or metadata.location
    if options.location is not None and options.location != lies:
        raise DestinationError(
            f"The table lies in {lies}, and `location` of its stream says {options.location}.",
            stream=str(stream),
            remedy=f"Set `location: {lies}`, or take it out of the file. To have the table in another place, "
            "drop it in the catalog and run `penstock resync` for this stream.",
        )


def _set_partitions(
    java: Java, attempt: Attempt, fields: Sequence[PartitionField], ids: Mapping[str, int]
) -> bool:
    if not all(field.column in ids for field in fields):
        return False
    spec = _spec(java, attempt.base)
    held = {(each.get("source-id"), each["transform"]): each["name"] for each in spec["fields"]}
    wanted = {(ids[field.column], field.iceberg_transform): field for field in fields}
    if held.keys() == wanted.keys():
        return False
    update = attempt.transaction.updateSpec()
    for key in held.keys() - wanted.keys():
        update.removeField(held[key])
    for key, field in wanted.items():
        if key not in held:
            update.addField(_name(field, ids), _term(java, field))
    update.commit()
    return True


def _name(field: PartitionField, columns: Collection[str]) -> str:
    """Of the partition, as Iceberg's own SQL would call it, unless a column has that name."""
    if field.transform == "identity":
        return field.column
    width = f"_{field.width}" if field.width else ""
    name = f"{field.column}_{_NAMED_BY.get(field.transform, field.transform)}{width}"
    while name in columns:
        name += "_partition"
    return name


def _term(java: Java, field: PartitionField) -> Any:
    expressions = java.iceberg("expressions.Expressions")
    if field.transform == "identity":
        return expressions.ref(field.column)
    make = getattr(expressions, field.transform)
    return make(field.column, field.width) if field.width else make(field.column)


def _set_order(java: Java, attempt: Attempt, fields: Sequence[SortField], ids: Mapping[str, int]) -> bool:
    if not all(field.column in ids for field in fields):
        return False
    wanted = [
        {
            "transform": "identity",
            "source-id": ids[field.column],
            "direction": "desc" if field.descending else "asc",
            "null-order": "nulls-first" if field.nulls_first else "nulls-last",
        }
        for field in fields
    ]
    if _order(java, attempt.base)["fields"] == wanted:
        return False
    update = attempt.transaction.replaceSortOrder()
    for field in fields:
        nulls = java.iceberg("NullOrder")
        term = java.iceberg("expressions.Expressions").ref(field.column)
        add = update.desc if field.descending else update.asc
        add(term, nulls.NULLS_FIRST if field.nulls_first else nulls.NULLS_LAST)
    update.commit()
    return True


def _spec(java: Java, metadata: Metadata) -> dict[str, Any]:
    """Without what is left of fields that were removed, where the format keeps that."""
    spec: dict[str, Any] = json.loads(str(java.iceberg("PartitionSpecParser").toJson(metadata.java.spec())))
    spec["fields"] = [field for field in spec["fields"] if field["transform"] != "void"]
    return spec


def _order(java: Java, metadata: Metadata) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(str(java.iceberg("SortOrderParser").toJson(metadata.java.sortOrder())))
    return order


def _ids(attempt: Attempt) -> dict[str, int]:
    columns = attempt.base.java.schema().columns()
    return {str(column.name()): int(column.fieldId()) for column in columns}

"""Decides what a range of the log means for a table whose columns may have changed on the way.

The range's files name the schema versions they were written under, in order. Each step from one to the
next must be one we can carry out on the rows we have (a column added with a known default, dropped,
renamed); the first that is not ends in a new load of the table, which is exact whatever happened.

A version whose attribute numbers are not known was read when the catalog had moved on already. By its
names it can only be the version before it, unchanged; it never becomes the table's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.core.schema import TableSchema
from penstock.lake.evolve import ColumnSource, plan_evolution
from penstock.log.reader import LogFile


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """The table's schema after the range, and how older rows get its columns.

    `columns` is by schema id, for the log's files; `rewrite` for the table's own files (None: as they are).
    """

    schema: TableSchema
    columns: Mapping[str, Sequence[ColumnSource]]
    rewrite: tuple[ColumnSource, ...] | None


@dataclass(frozen=True, slots=True)
class MustReload:
    """The table cannot follow the log through this range."""

    reason: str


def plan_schema(
    base: TableSchema, files: Sequence[LogFile], schema_of: Callable[[str], TableSchema]
) -> SchemaPlan | MustReload:
    """Pure: the same table and the same files give the same answer, also after a crash."""
    latest = base
    known: dict[str, TableSchema] = {}
    for schema_id, _ in groupby(file.schema_id for file in files):
        following = schema_of(schema_id)
        evolution = plan_evolution(latest, following)
        if evolution.kind in ("resync", "unsure"):
            return MustReload(evolution.reason)
        if _is_certain(following):
            latest = following
        elif evolution.kind != "same":
            return MustReload("its columns changed, and the catalog has moved on since and cannot tell how")
        if known.setdefault(schema_id, latest) != latest and not _is_certain(following):
            return MustReload("its columns changed and changed back")
    whole = plan_evolution(base, latest)
    if whole.kind in ("resync", "unsure"):
        return MustReload(whole.reason)
    columns = {schema_id: plan_evolution(schema, latest).columns for schema_id, schema in known.items()}
    return SchemaPlan(latest, columns, whole.columns if whole.kind == "rewrite" else None)


def _is_certain(schema: TableSchema) -> bool:
    return all(column.attribute_number for column in schema.columns)

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

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.core.selection import SelectionError
from penstock.lake.evolve import ColumnSource, plan_evolution
from penstock.log.reader import LogFile
from penstock.sources.types import cast_text


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """The table's schema after the range, and how older rows get its columns.

    `columns` is by schema id, for the log's files, with those that only the stream's filter reads at the end;
    `rewrite` is for the table's own files (None: as they are).
    """

    schema: TableSchema
    columns: Mapping[str, Sequence[ColumnSource]]
    rewrite: tuple[ColumnSource, ...] | None


@dataclass(frozen=True, slots=True)
class MustReload:
    """The table cannot follow the log through this range."""

    reason: str
    by_schema: bool = True  # because the source's table is another now, and not for what happened to its rows


def plan_schema(
    base: TableSchema, files: Sequence[LogFile], schema_of: Callable[[str], TableSchema]
) -> SchemaPlan | MustReload:
    """Pure: the same table and the same files give the same answer, also after a crash.

    `schema_of` gives the part of a version that the stream holds; a version may lack a column of it.
    """
    latest = base
    known: dict[str, TableSchema] = {}
    for schema_id, _ in groupby(file.schema_id for file in files):
        try:
            following = schema_of(schema_id)
        except SelectionError as error:
            return MustReload(str(error))
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
    plans = {schema_id: plan_evolution(schema, latest) for schema_id, schema in known.items()}
    columns = {schema_id: (*plan.columns, *plan.hidden) for schema_id, plan in plans.items()}
    return SchemaPlan(latest, columns, whole.columns if whole.kind == "rewrite" else None)


def _is_certain(schema: TableSchema) -> bool:
    return all(column.attribute_number for column in (*schema.columns, *schema.hidden))


def unfit_default(plan: SchemaPlan, schema: TableSchema) -> str | None:
    """A column that older rows read as a default which its type in the table cannot hold: its name."""
    for source in plan.rewrite or ():
        if source.fill is not None:
            cast = cast_text(pa.array([source.fill], pa.string()), schema.column(source.name))
            if cast.bad is not None:
                return source.name
    return None


def words_of(before: TableSchema, columns: Sequence[ColumnSource]) -> str:
    """A change of columns that the table can follow, for people."""
    kept = {source.from_name for source in columns}
    parts = [
        *(f"column {name} was dropped" for name in before.names if name not in kept),
        *(f"column {each.name} was added" for each in columns if each.from_name is None),
        *(
            f"column {each.from_name} was renamed to {each.name}"
            for each in columns
            if each.from_name not in (None, each.name)
        ),
    ]
    return ", ".join(parts) or "the order of its columns changed"

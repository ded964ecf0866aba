"""Decides what a range of the log means for a table whose columns may have changed on the way.

The range's files name the schema versions they were written under, in order. Each step from one to the
next must be one we can carry out on the rows we have (a column added with a known default, dropped,
renamed); the first that is not ends in a reload or, where even that cannot be told, in a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
class CannotGoOn:
    """resync: the table must be loaded again. pause: a person must decide."""

    way_out: Literal["resync", "pause"]
    reason: str


def plan_schema(
    base: TableSchema, files: Sequence[LogFile], schema_of: Callable[[str], TableSchema]
) -> SchemaPlan | CannotGoOn:
    """Pure: the same table and the same files give the same answer, also after a crash."""
    versions: dict[str, TableSchema] = {file.schema_id: schema_of(file.schema_id) for file in files}
    latest = base
    for following in versions.values():
        evolution = plan_evolution(latest, following)
        if evolution.kind == "resync":
            return CannotGoOn("resync", evolution.reason)
        if evolution.kind == "unsure":
            return CannotGoOn("pause", evolution.reason)
        latest = following
    rewrite = plan_evolution(base, latest)
    columns = {version: plan_evolution(schema, latest).columns for version, schema in versions.items()}
    return SchemaPlan(latest, columns, tuple(rewrite.columns) if rewrite.kind == "rewrite" else None)

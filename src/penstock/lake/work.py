"""Decides what a range of the log means for a table whose columns may have changed on the way.

The range's files name the schema versions they were written under, in order. Each step from one to the
next must be one we can carry out on the rows we have (a column added with a known default, dropped,
renamed); the first that is not ends in a new load of the table, which is exact whatever happened.

A version that lacks generated columns because they were not published (`TableSchema.unpublished`) tells no
end of them. A table whose rows stay as they were told (`LaneStream.keeps_older_rows`) keeps these columns,
null in the rows of that version alone; any other is loaded again.

A column that took over values of another one (`SourceColumn.moved_from`: a field that came to documents
later) is never dropped by a version that lacks it: rows of that version have those values in the other
column, and rows that the table has already, in this one. So the table has all such columns of any version
that it met, whichever order they come in, and each row has the values in one of both.

A version whose attribute numbers are not known was read when the catalog had moved on already, or is of a
source that has none. By its names it can only be the version before it, unchanged; it never becomes the
table's own. Between two of them may be statements that say what they made of the columns (`alterations`),
each at its place: a file with rows from before and after one is a version of both, and they must have the
same columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from penstock.core.alteration import Alteration
from penstock.core.schema import TableSchema
from penstock.core.selection import SelectionError
from penstock.lake.alterations import altered, fresh_numbers
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
    first: str = ""  # what to do first, or it comes again; a table that each load is appended to waits for it


def plan_schema(
    base: TableSchema,
    files: Sequence[LogFile],
    schema_of: Callable[[str], TableSchema],
    *,
    keeps_older_rows: bool = False,
    alterations: Sequence[tuple[int, int, Alteration]] = (),
) -> SchemaPlan | MustReload:
    """Pure: the same table and the same files give the same answer, also after a crash.

    `schema_of` gives the part of a version that the stream holds; a version may lack a column of it.
    `alterations`: offsets of statements and what they did, of that part too.
    """
    plan_change = partial(plan_evolution, keeps_older_rows=keeps_older_rows)
    latest = base
    known: dict[str, TableSchema] = {}
    fresh = fresh_numbers(base)
    for version in _versions(files, alterations):
        if isinstance(version, Alteration):
            following = altered(latest, version, fresh)
            if isinstance(following, str):
                return MustReload(following)
            evolution = plan_change(latest, following)
            if evolution.kind in ("resync", "unsure"):
                return MustReload(evolution.reason)
            latest = following
            continue
        schema_id = version
        try:
            written = schema_of(schema_id)
        except SelectionError as error:
            return MustReload(str(error))
        certain = is_certain(written)
        following = _held_on(latest, written) if keeps_older_rows and certain else written
        following = _with_moved(latest, following)
        evolution = plan_change(latest, following)
        if evolution.kind in ("resync", "unsure"):
            return MustReload(evolution.reason)
        if certain:
            latest = replace(following, unpublished=())
        elif evolution.kind != "same":
            return MustReload("its columns changed, and the catalog has moved on since and cannot tell how")
        else:
            written = latest
        first = known.setdefault(schema_id, written)
        # Through statements that keep values, versions may have the same rows under types of other lengths.
        if first != written and not (alterations and _numbered(first) == _numbered(written)):
            return MustReload("its columns changed and changed back")
    whole = plan_change(base, latest)
    if whole.kind in ("resync", "unsure"):
        return MustReload(whole.reason)
    plans = {schema_id: plan_change(schema, latest) for schema_id, schema in known.items()}
    columns = {schema_id: (*plan.columns, *plan.hidden) for schema_id, plan in plans.items()}
    shown = alterations[-1][2].schema if alterations else latest
    return SchemaPlan(shown, columns, whole.columns if whole.kind == "rewrite" else None)


def _versions(
    files: Sequence[LogFile], alterations: Sequence[tuple[int, int, Alteration]]
) -> Iterator[str | Alteration]:
    """Ids of the files' schemas, and statements between them. A statement is a transaction of its own."""
    left = deque(sorted(alterations, key=lambda each: each[:2]))
    before = None
    for file in files:
        while left and left[0][0] < file.first_tx:
            yield left.popleft()[2]
            before = None
        if file.schema_id != before:
            yield file.schema_id
        while left and left[0][0] < file.last_tx:
            yield left.popleft()[2]
            yield file.schema_id
        before = file.schema_id
    yield from (each for _, _, each in left)


def _numbered(schema: TableSchema) -> list[tuple[int, str]]:
    return [(column.attribute_number, column.name) for column in (*schema.columns, *schema.hidden)]


def is_certain(schema: TableSchema) -> bool:
    return all(column.attribute_number for column in (*schema.columns, *schema.hidden))


def _held_on(held: TableSchema, written: TableSchema) -> TableSchema:
    """A version with the columns that its rows lack, and the table has, at their places."""
    unpublished = {column.attribute_number: column for column in written.unpublished}
    columns = list(written.columns)
    before = 0
    for column in held.columns:
        if (kept := unpublished.get(column.attribute_number)) is not None:
            numbers = [each.attribute_number for each in columns]
            columns.insert(numbers.index(before) + 1 if before in numbers else 0, kept)
        before = column.attribute_number
    return replace(written, columns=tuple(columns), unpublished=())


def _with_moved(held: TableSchema, written: TableSchema) -> TableSchema:
    """A version with all columns that took over values of others, also those that its rows lack; at the end,
    in the table's order."""
    names = written.names
    moved = {column.attribute_number: column for column in written.columns if column.moved_from}
    kept = [column for column in held.columns if column.moved_from in names]
    if not moved and not kept:
        return written
    beside = [moved.pop(column.attribute_number, column) for column in kept]
    return replace(written, columns=(*written.lasting.columns, *beside, *moved.values()))


def unfit_default(plan: SchemaPlan, schema: TableSchema) -> str | None:
    """A column that older rows read as a default which its type in the table cannot hold: its name."""
    for source in plan.rewrite or ():
        if source.fill is not None:
            cast = cast_text(pa.array([source.fill], pa.string()), schema.column(source.name))
            if cast.bad is not None:
                return source.name
    return None


def untold(columns: Sequence[ColumnSource] | None, schema: TableSchema) -> list[str]:
    """Columns that rows get as null although the source has values there."""
    added = [each.name for each in columns or () if each.from_name is None]
    return [name for name in added if name in schema.names and schema.column(name).generated]


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

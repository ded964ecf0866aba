"""How a table's columns go through a statement of which the log says all that it did (`core.Alteration`).

Versions in such a log have no numbers for columns: rows of one are told by their names alone, and count as
rows of the table as it is held at that place. So columns are numbered here, from the table's own through each
statement: one that is kept or renamed keeps its number, one that is added gets a new one. By these numbers
versions are compared as those of a source that has them (`evolve`). They are of one range and of nobody else:
what comes out of it has the catalog's.

The catalog was asked when the statement was read, and may show what later ones did. What they made of columns
that this one does not name is compared here and in `evolve` all the same; so a type or a null that may have
changed values is met at the latest when it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.core.alteration import Alteration
from penstock.core.schema import SourceColumn, TableSchema


def fresh_numbers(held: TableSchema) -> Iterator[int]:
    """Numbers that no column of the table has."""
    number = max((each.attribute_number for each in (*held.columns, *held.hidden)), default=0)
    while True:
        number += 1
        yield number


def altered(held: TableSchema, alteration: Alteration, fresh: Iterator[int]) -> TableSchema | str:
    """The table after the statement, or why that is not certain. The alteration's schema is of the part that
    the stream holds, as `held` is."""
    before = {column.name: column for column in (*held.columns, *held.hidden)}
    after = alteration.schema
    kept = {alteration.origins.get(column.name) for column in (*after.columns, *after.hidden)}
    lost = [name for name in before if name not in kept and name not in alteration.dropped]
    if lost:
        return f"column {lost[0]} is gone, and the statements that were read do not say so"

    def numbered(column: SourceColumn) -> SourceColumn | str:
        origin = alteration.origins.get(column.name)
        if origin is None:
            if column.name in before and column.name not in alteration.dropped:
                return f"column {column.name} was added, and the table has one of that name"
            return replace(column, attribute_number=next(fresh))
        was = before.get(origin)
        if was is None:
            return f"column {origin} is altered, and the table has none of that name"
        if was.nullable and not column.nullable:
            return f"column {column.name} may not be null any more, and what nulls became is not told"
        # What rows older than it hold was said when it was added; the default may be another since.
        return replace(column, attribute_number=was.attribute_number, missing_value=was.missing_value)

    columns = [numbered(column) for column in (*after.columns, *after.hidden)]
    for column in columns:
        if isinstance(column, str):
            return column
    told = [column for column in columns if not isinstance(column, str)]
    held_columns = len(after.columns)
    return replace(after, columns=tuple(told[:held_columns]), hidden=tuple(told[held_columns:]))

"""Which part of a table a stream holds: some of its columns, and the rows that a condition is true for.

A selection turns the schema of the whole table into that of the part. The part's schema carries the selection
itself, so that a table at the destination tells what it was written with: rows that were filtered otherwise
cannot be told from right ones by looking at them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.where import Condition


class SelectionError(ValueError):
    """The table lacks columns that the selection names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """`columns` empty: all. The condition may use columns that are not among them."""

    columns: tuple[str, ...] = ()
    condition: Condition | None = None

    def of(self, schema: TableSchema) -> TableSchema:
        """The schema of the part, its columns in the table's order; `schema` is that of the whole table.

        A key that is not among the columns is none: rows of the part cannot be told by it. Columns that the
        table has and its rows in the log do not (`TableSchema.unpublished`) are not missing, but for the
        condition, which cannot be asked without them.
        """
        if not self.columns and self.condition is None:
            return schema
        read = self.condition.columns if self.condition is not None else frozenset()
        untold = {column.name for column in schema.unpublished} - read
        lacking = [name for name in self.missing(schema) if name not in untold]
        if lacking:
            raise SelectionError(f"column {lacking[0]} is gone or has another name")
        columns = tuple(column for column in schema.columns if self.holds(column))
        held = frozenset(column.name for column in columns)
        return replace(
            schema,
            columns=columns,
            key=schema.key if held.issuperset(schema.key) else (),
            chosen=tuple(sorted(self.columns)),
            where=self.condition.text if self.condition is not None else "",
            hidden=tuple(column for column in schema.columns if column.name in read - held),
            unpublished=self.unpublished(schema),
        )

    def holds(self, column: SourceColumn) -> bool:
        """Whether it is one of the part's. A column that took over values of one that is listed is: else they
        would be gone from the part."""
        return not self.columns or column.name in self.columns or column.moved_from in self.columns

    def unpublished(self, schema: TableSchema) -> tuple[SourceColumn, ...]:
        """The columns of the part, and of its condition, that rows of this version lack."""
        read = self.condition.columns if self.condition is not None else frozenset()
        return tuple(
            column
            for column in schema.unpublished
            if not self.columns or column.name in {*self.columns, *read}
        )

    def condition_on(self, part: TableSchema) -> Condition | None:
        """The condition with the types that its columns have in that version; or a `WhereError`."""
        if self.condition is None:
            return None
        return Condition.compile(self.condition.text, (*part.columns, *part.hidden))

    def missing(self, schema: TableSchema) -> list[str]:
        """Columns that it names and the table does not have."""
        read = self.condition.columns if self.condition is not None else frozenset()
        return [name for name in (*self.columns, *sorted(read)) if name not in schema.names]

    def is_of(self, part: TableSchema) -> bool:
        """Whether a table with this schema was written with this selection."""
        where = self.condition.text if self.condition is not None else ""
        return part.chosen == tuple(sorted(self.columns)) and part.where == where


WHOLE_TABLE = Selection()

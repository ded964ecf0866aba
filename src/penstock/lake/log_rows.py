"""Changes of the log as rows for a query: columns of one schema version, whichever they were written under.

The columns are those of an append table, and three more: `_old` (the old row or its key, as far as the
source sent it), `_leaf` (the relation that holds the row: the table, or a partition) and `_bad` (the names
of columns whose value the type cannot hold; null there, never in silence). A source column that begins
with an underscore has one more here, as in the log, so that no name clashes.

Typed, values are cast by source type by the same kernels as the tables' own; untyped, they are the text
that the source sent. Columns are matched by attribute number; where the catalog had moved on before it could
be asked, by name, and if that could mean two things it is an error. A row from before a column was added
reads as the source itself would read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import StateError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.lake.change_set import Flags
from penstock.lake.changes import conform
from penstock.lake.evolve import ColumnSource, plan_evolution
from penstock.lake.target import APPEND_FIELDS, Target
from penstock.log.columns import stored_name
from penstock.sources.types import arrow_type, cast_text


@dataclass(frozen=True, slots=True)
class LogShape:
    """The columns a query gets."""

    schema: TableSchema
    typed: bool

    def arrow_schema(self) -> pa.Schema:
        fields = [pa.field(stored_name(column.name), self._type(column)) for column in self.schema.columns]
        own = [
            pa.field("_old", pa.struct(fields)),
            pa.field("_leaf", pa.string(), nullable=False),
            pa.field("_bad", pa.list_(pa.string())),
        ]
        return pa.schema([*fields, *APPEND_FIELDS, *own])

    def rows(self, log: pa.Table, columns: Sequence[ColumnSource], leaf: str) -> pa.Table:
        """Rows of one log file, its columns found by `columns`."""
        conformed = conform(log, columns, self.schema)
        new, bad = self._values(conformed.text)
        old, old_bad = self._values(conformed.old)
        bad |= {f"_old.{name}": mask for name, mask in old_bad.items()}
        target = Target(self.schema, "append", {name: stored_name(name) for name in self.schema.names})
        names = [stored_name(name) for name in self.schema.names]
        changes = conformed.changes(pa.table(new, names=names), pa.table(old, names=names), target, None)
        absent = log.column("_old").combine_chunks().is_null()
        schema = self.arrow_schema()
        unchanged = pa.nulls(log.num_rows, pa.list_(pa.string()))
        arrays = [
            *new,
            *(log.column(field.name) for field in APPEND_FIELDS[:-1]),
            unchanged if changes.unchanged is None else changes.unchanged,
            pa.StructArray.from_arrays(old, fields=list(schema.field("_old").type), mask=absent),
            pa.repeat(pa.scalar(leaf), log.num_rows),
            _names_of(bad, log.num_rows),
        ]
        return pa.table(arrays, schema=schema)

    def _type(self, column: SourceColumn) -> pa.DataType:
        return arrow_type(column) if self.typed else pa.string()

    def _values(self, text: pa.Table) -> tuple[list[pa.Array], dict[str, Flags]]:
        arrays, bad = [], {}
        for column in self.schema.columns:
            array = text.column(column.name).combine_chunks()
            if self.typed:
                result = cast_text(array, column)
                array = result.values
                if result.bad is not None:
                    bad[stored_name(column.name)] = result.bad.to_numpy(zero_copy_only=False)
            arrays.append(array)
        return arrays, bad


def column_sources(written: TableSchema, wanted: TableSchema) -> tuple[ColumnSource, ...]:
    """Where each wanted column is in rows written under another version of the schema."""
    evolution = plan_evolution(written, wanted)
    if evolution.kind == "unsure":
        raise StateError(
            f"Changes from before and after a change of columns cannot be read as one: {evolution.reason}.",
            stream=str(wanted.stream),
            remedy="Read what was before it and what came after it apart, by the options `to` and `from`.",
        )
    # Another table of the same name has numbers of its own.
    return evolution.columns or tuple(
        ColumnSource(column.name, column.name if column.name in written.names else None)
        for column in wanted.columns
    )


def _names_of(bad: dict[str, Flags], rows: int) -> pa.ListArray:
    if not bad:
        return pa.nulls(rows, pa.list_(pa.string()))
    which = np.stack(list(bad.values()), axis=1)
    counts = which.sum(axis=1)
    names = pa.array(list(bad), pa.string()).take(pa.array(np.nonzero(which)[1]))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))


def between(rows: pa.Table, first: tuple[int, int], end: tuple[int, int]) -> pa.Table:
    """Rows whose `(_tx, _op_index)` is at least `first` and below `end`."""
    tx, op = rows.column("_tx"), rows.column("_op_index")
    inside = pc.and_(_not_below(tx, op, first), pc.invert(_not_below(tx, op, end)))
    return rows.filter(inside)


def _not_below(tx: pa.ChunkedArray, op: pa.ChunkedArray, place: tuple[int, int]) -> pa.ChunkedArray:
    at, index = (pa.scalar(number, pa.int64()) for number in place)
    return pc.or_(pc.greater(tx, at), pc.and_(pc.equal(tx, at), pc.greater_equal(op, index)))

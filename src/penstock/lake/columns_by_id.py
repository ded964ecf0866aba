"""Rows of a data file in the columns that its table has today, found by their ids.

A file whose columns carry ids is never written again because a column was added, renamed or dropped, so its
columns have the names of the day it was written; the same name may stand for another column today.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.destinations.iceberg_schema import names_by_id
from penstock.lake.evolve import ColumnSource
from penstock.lake.target import Target
from penstock.sources.types import cast_text


class ColumnsById:
    """Of a target whose columns have ids; `fills` are what rows hold in columns they were written without."""

    def __init__(self, target: Target, fills: Sequence[ColumnSource]) -> None:
        self._target = target
        self._schema = target.arrow_schema()
        self._ids = {name: int(number) for name, number in target.field_ids.items()}
        self._fills = {target.name(source.name): source for source in fills if target.write == "upsert"}

    def name_in(self, file: pa.Schema, column: str) -> str | None:
        """What a file calls a column of the table; None if it was written without it."""
        return names_by_id(file).get(self._ids[column])

    def of_today(self, rows: pa.Table) -> pa.Table:
        names = names_by_id(rows.schema)
        arrays = []
        for field in self._schema:
            held = names.get(self._ids[field.name])
            if held is not None:
                arrays.append(rows.column(held).cast(field.type))
            else:
                arrays.append(pa.chunked_array([self._missing(field, rows.num_rows)]))
        return pa.table(arrays, schema=self._schema)

    def _missing(self, field: pa.Field, rows: int) -> pa.Array:
        source = self._fills.get(field.name)
        if source is None or source.fill is None:
            return pa.nulls(rows, field.type)
        column = self._target.schema.column(source.name)
        return pa.repeat(cast_text(pa.array([source.fill], pa.string()), column).values[0], rows)

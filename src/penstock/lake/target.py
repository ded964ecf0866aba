"""What a table of ours looks like: the Arrow schema of a stream at its destination.

Upsert tables hold the source's columns and nothing else, unless they keep deleted rows: those have
`_deleted_at`, and it is null in all others. Append tables add `_op` (r i u d t), `_tx` (0 for loaded rows),
`_op_index`, `_commit_ts` and `_unchanged`. A source column with one of those names must be renamed in the
stream's settings; `check` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.core.errors import ConfigError
from penstock.core.schema import TableSchema
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.core.where import Condition
from penstock.destinations.iceberg_schema import ids_of, with_field_ids
from penstock.destinations.layout import PLAIN, Layout
from penstock.destinations.records import WriteMode
from penstock.sources.types import arrow_type

APPEND_FIELDS = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_tx", pa.int64(), nullable=False),
    pa.field("_op_index", pa.int64(), nullable=False),
    pa.field("_commit_ts", pa.timestamp("us", "UTC")),
    pa.field("_unchanged", pa.list_(pa.string())),
)
DELETED_AT = pa.field("_deleted_at", pa.timestamp("us", "UTC"))


@dataclass(frozen=True, slots=True)
class Target:
    """One stream's table: how it is written, and what its columns are called there."""

    schema: TableSchema
    write: WriteMode
    rename: Mapping[str, str] = field(default_factory=dict)
    condition: Condition | None = None  # rows for which it is not true are not in the table
    field_ids: Mapping[str, int] = field(default_factory=dict)  # of tables whose columns have ids
    soft_deletes: bool = False  # an upsert table keeps deleted rows
    options: TableOptions = NO_OPTIONS  # what the pipeline file says of the table
    layout: Layout = PLAIN  # what the table itself says of its files

    def name(self, source_name: str) -> str:
        return self.rename.get(source_name, source_name)

    @property
    def names(self) -> list[str]:
        """The source's columns under their names in the table."""
        return [self.name(name) for name in self.schema.names]

    @property
    def key(self) -> list[str]:
        return [self.name(name) for name in self.schema.key]

    def arrow_schema(self) -> pa.Schema:
        fields = [
            pa.field(
                self.name(column.name),
                arrow_type(column),
                metadata={
                    "penstock.source_type": column.type_text,
                    "penstock.column": json.dumps(column.to_json()),
                },
            )
            for column in self.schema.columns
        ]
        if self.write == "append":
            fields += APPEND_FIELDS
        if self.soft_deletes:
            fields.append(DELETED_AT)
        names = [each.name for each in fields]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ConfigError(
                f"Two columns of the table would be called {', '.join(doubled)}.",
                stream=str(self.schema.stream),
                remedy=f"Add to the stream in penstock.yaml: rename: {{{doubled[0]}: another_name}}",
            )
        return with_field_ids(pa.schema(fields), self.field_ids) if self.field_ids else pa.schema(fields)

    def with_ids_of(self, columns: pa.Schema | None, layout: Layout = PLAIN) -> Target:
        """The same table, its columns under the ids that `columns` carry; as it is if there are none.

        `layout`: by which its files are written; it names columns by their ids.
        """
        return self if columns is None else replace(self, field_ids=ids_of(columns), layout=layout)

"""`destination`, and `iceberg` of a stream: where tables go, and what is chosen for them there.

Whatever is chosen has a meaning: a key that is for tables of the other kind is refused, and so is a property
that Penstock or Iceberg sets itself, since the table would not keep it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.config.base import Section
from penstock.config.values import LocalPath, PartitionBy, SecretValue, SortBy, SparkValue
from penstock.core.table_options import PartitionField, SortField, TableOptions, check_partitions

_ICEBERG_ONLY = ("catalog", "upserts", "format_version", "properties", "jars_dir")


class CatalogConfig(Section):
    """The Iceberg catalog, which knows each table's newest metadata."""

    type: Literal["sqlite", "hadoop", "postgres", "rest", "hive", "glue"] = "sqlite"
    """`sqlite`: a file in the warehouse. `hadoop`: the directories themselves, for one writer on a file
    system with atomic renames."""
    name: Annotated[str, Field(min_length=1)] = "penstock"
    """Readers of a SQL catalog give the same name."""
    uri: SecretStr | None = None
    """Where it is: `postgresql://…`, `http://…` (REST) or `thrift://…` (Hive)."""
    properties: dict[str, SecretValue] = Field(default={})
    """Further settings, by Iceberg's own names. No error, log or check shows their values."""

    @model_validator(mode="after")
    def _says_where(self) -> CatalogConfig:
        if self.type in ("postgres", "rest", "hive") and self.uri is None:
            raise ValueError(f"a catalog of type {self.type} needs `uri`")
        return self


#: What Penstock keeps in a table's properties, and what Iceberg does not take for some.
_OWN_PROPERTIES = re.compile(
    r"penstock\..*|format-version|uuid|snapshot-count|current-(schema|snapshot-.*)"
    r"|default-(partition-spec|sort-order)"
)


def _free(properties: dict[str, str]) -> dict[str, str]:
    for key in properties:
        if _OWN_PROPERTIES.fullmatch(key):
            own = "set `format_version`" if key == "format-version" else "Penstock or Iceberg sets it itself"
            raise ValueError(f"`{key}` is no property to choose: {own}")
    return properties


class DestinationConfig(Section):
    """Where tables go."""

    type: Literal["parquet", "iceberg"]
    """The kind of table."""
    path: LocalPath | None = None
    """Parquet: a directory; a table is `<path>/<schema>/<table>`."""
    warehouse: LocalPath | None = None
    """Iceberg: a directory; a table is `<warehouse>/<schema>/<table>` unless the catalog decides."""
    catalog: CatalogConfig = CatalogConfig()
    upserts: Literal["merge_on_read", "copy_on_write"] = "merge_on_read"
    """Iceberg: changed rows are marked as deleted in their files, or the files are written again without
    them, for readers that cannot apply deletes."""
    format_version: Literal[2, 3] | None = None
    """Iceberg: `3` for [deletion vectors](../guides/iceberg.md#format-version-3); a table of version 2 is
    upgraded at the next sync, for good. By default new tables have 2, and others keep theirs."""
    properties: dict[str, SparkValue] = Field(default={})
    """Iceberg: table properties, by Iceberg's own names; those of a stream's own come over them."""
    jars_dir: LocalPath | None = None
    """Iceberg: a directory with the jars, for machines that cannot download them."""

    @property
    def directory(self) -> Path:
        """Where the tables lie."""
        directory = self.path if self.type == "parquet" else self.warehouse
        assert directory is not None
        return directory

    @model_validator(mode="after")
    def _says_where(self) -> DestinationConfig:
        needed, other = ("path", "warehouse") if self.type == "parquet" else ("warehouse", "path")
        if getattr(self, needed) is None:
            raise ValueError(f"needs `{needed}`")
        foreign = {other, *(_ICEBERG_ONLY if self.type == "parquet" else ())} & self.model_fields_set
        if foreign:
            raise ValueError(f"`{min(foreign)}` has no meaning for {self.type} tables")
        return self

    @field_validator("properties")
    @classmethod
    def _properties_are_free(cls, properties: dict[str, str]) -> dict[str, str]:
        return _free(properties)


class TableConfig(Section):
    """What is chosen for [one Iceberg table](../guides/iceberg.md#partitions-order-properties-place). Columns
    have the table's names. What is not named stays as it is in the table; what is changed holds from the next
    sync on, for files that are written then."""

    partition_by: list[PartitionBy] | None = None
    """Columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`, `truncate(4, c)` of them; `[]`
    for none."""
    sort_by: list[SortBy] | None = None
    """The order of rows in each file: `created_at desc`, `id`, `name asc nulls last`; `[]` for none."""
    location: LocalPath | None = None
    """A directory of its own, for catalogs that let it be chosen. It cannot be changed later."""
    properties: dict[str, SparkValue] = Field(default={})
    """Table properties by Iceberg's own names, over those of the destination."""
    format_version: Literal[2, 3] | None = None
    """Over that of the destination."""

    @property
    def options(self) -> TableOptions:
        partitions, order = self.partition_by, self.sort_by
        return TableOptions(
            None if partitions is None else tuple(map(PartitionField.parse, partitions)),
            None if order is None else tuple(map(SortField.parse, order)),
            self.location,
            dict(self.properties),
            self.format_version,
        )

    @field_validator("partition_by")
    @classmethod
    def _partitions_are_distinct(cls, fields: list[str] | None) -> list[str] | None:
        check_partitions(list(map(PartitionField.parse, fields or ())))
        return fields

    @field_validator("sort_by")
    @classmethod
    def _order_names_a_column_once(cls, fields: list[str] | None) -> list[str] | None:
        columns = [SortField.parse(field).column for field in fields or ()]
        if len(set(columns)) != len(columns):
            raise ValueError("names a column twice")
        return fields

    @field_validator("properties")
    @classmethod
    def _properties_are_free(cls, properties: dict[str, str]) -> dict[str, str]:
        return _free(properties)

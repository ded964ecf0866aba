"""The catalog in which Iceberg tables are looked up, made and dropped, through the JVM's own client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.stream import StreamId, escape_file_name, unescape_file_name
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.destinations.iceberg_java import Java, iceberg_errors
from penstock.destinations.iceberg_own_directory import OwnDirectory

NEW_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """Where tables go. `catalog` as Iceberg's `CatalogUtil` takes it; it may hold credentials."""

    catalog_name: str
    catalog: Mapping[str, str] = field(repr=False)
    warehouse: Path
    sets_location: bool = True  # some catalogs decide where a table lies
    properties: Mapping[str, str] = field(default_factory=dict)
    copy_on_write: bool = False
    format_version: int | None = None  # None: a table keeps its own, and a new one is of `NEW_FORMAT_VERSION`


class IcebergCatalog:
    """The JVM is asked for when the first table is."""

    def __init__(self, settings: IcebergSettings, java: Callable[[], Java]) -> None:
        self.settings = settings
        self._start_java = java
        self._java: Java | None = None
        self._opened: Any = None

    @property
    def java(self) -> Java:
        if self._java is None:
            self._java = self._start_java()
        return self._java

    def exists(self, stream: StreamId) -> bool:
        return bool(self._catalog.tableExists(self._identifier(stream)))

    def load(self, stream: StreamId) -> Any:
        with iceberg_errors("opening the table", stream):
            return self._catalog.loadTable(self._identifier(stream))

    def create(self, stream: StreamId, schema_json: str, options: TableOptions = NO_OPTIONS) -> None:
        """Nothing if there is a table of that name."""
        identifier = self._identifier(stream)
        with iceberg_errors("creating the table", stream):
            if self._catalog.tableExists(identifier):
                return
            if not self._catalog.namespaceExists(identifier.namespace()):
                self._catalog.createNamespace(identifier.namespace())
            schema = self.java.iceberg("SchemaParser").fromJson(schema_json)
            builder = self._catalog.buildTable(identifier, schema)
            version = options.format_version or self.settings.format_version or NEW_FORMAT_VERSION
            chosen = {**_TABLE_PROPERTIES, **self.settings.properties, **options.properties}
            builder.withProperties(self.java.map_of({**chosen, "format-version": str(version)}))
            if options.location is not None:
                builder.withLocation(str(options.location))
            elif self.settings.sets_location:
                builder.withLocation(str(self.settings.warehouse.joinpath(*names_of(stream))))
            builder.create()

    def own_directory(self, stream: StreamId) -> OwnDirectory:
        """For what is kept beside a table."""
        return OwnDirectory(self.settings.warehouse.joinpath("_penstock", *names_of(stream)))

    def drop(self, stream: StreamId) -> None:
        with iceberg_errors("dropping the table", stream):
            self._catalog.dropTable(self._identifier(stream), True)

    def streams(self) -> list[StreamId]:
        """Of every table there is, whoever made it."""
        with iceberg_errors("listing the tables"):
            return [
                StreamId(
                    unescape_file_name(str(namespace.toString())), unescape_file_name(str(identifier.name()))
                )
                for namespace in self._catalog.listNamespaces()
                for identifier in self._catalog.listTables(namespace)
            ]

    @property
    def _catalog(self) -> Any:
        if self._opened is None:
            self.settings.warehouse.mkdir(parents=True, exist_ok=True)
            java = self.java
            with iceberg_errors("opening the catalog"):
                self._opened = java.iceberg("CatalogUtil").buildIcebergCatalog(
                    self.settings.catalog_name, java.map_of(self.settings.catalog), java.hadoop_configuration
                )
        return self._opened

    def _identifier(self, stream: StreamId) -> Any:
        namespace, name = names_of(stream)
        of = self.java.iceberg("catalog.Namespace").of(self.java.strings(namespace))
        return self.java.iceberg("catalog.TableIdentifier").of(of, name)


def names_of(stream: StreamId) -> tuple[str, str]:
    """Namespace and name of a stream's table."""
    return escape_file_name(stream.namespace), escape_file_name(stream.name)


_TABLE_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

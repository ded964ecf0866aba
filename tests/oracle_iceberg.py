"""What readers of an Iceberg table are shown, by PyIceberg from the catalog's own file.

Like `tests.oracle`, this shares no code with Penstock, nor does it read through the Spark session under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table


def iceberg_rows(warehouse: Path, stream: str) -> pa.Table:
    with _opened(warehouse, stream) as table:
        return table.scan().to_arrow()


def iceberg_snapshot(warehouse: Path, stream: str) -> int | None:
    """Another one exactly if a commit changed what readers are shown."""
    with _opened(warehouse, stream) as table:
        snapshot = table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id


def iceberg_metadata(warehouse: Path, stream: str) -> str:
    """The newest metadata file, for readers that know no catalog."""
    with _opened(warehouse, stream) as table:
        return table.metadata_location


def iceberg_files(warehouse: Path, stream: str) -> set[str]:
    """The names of all files of the table, of rows and of deletes."""
    with _opened(warehouse, stream) as table:
        return {Path(path).name for path in table.inspect.files().column("file_path").to_pylist()}


def iceberg_referenced(warehouse: Path, stream: str) -> set[Path]:
    """Every file that any snapshot of the table needs: rows, deletes, manifests and lists of them."""
    with _opened(warehouse, stream) as table:
        found = {*table.inspect.all_files().column("file_path").to_pylist()}
        found |= {*table.inspect.all_manifests().column("path").to_pylist()}
        found |= {snapshot.manifest_list for snapshot in table.snapshots()}
        return {Path(path.removeprefix("file:")) for path in found}


@contextmanager
def _opened(warehouse: Path, stream: str) -> Iterator[Table]:
    catalog = SqlCatalog(
        "penstock",
        uri=f"sqlite:///{warehouse}/catalog.db",
        warehouse=str(warehouse),
        init_catalog_tables="false",
    )
    try:
        found = [
            identifier
            for namespace in catalog.list_namespaces()
            for identifier in catalog.list_tables(namespace)
            if ".".join(map(unquote, identifier)) == stream
        ]
        assert len(found) == 1, f"the catalog of {warehouse} has {len(found)} tables for {stream}"
        yield catalog.load_table(found[0])
    finally:
        catalog.engine.dispose()

"""The files of an Iceberg table: which are live in a snapshot, and how they are told to Iceberg.

Listing a snapshot's files takes about a millisecond each, so what our own commits change is kept up here,
and the manifests are read again only when somebody else committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.core.errors import DestinationError
from penstock.destinations.base import DataFile, PositionDeletes
from penstock.destinations.iceberg_java import Java


class IcebergFiles:
    """Files are named by their last part if they lie in the table's `data` directory, else in full."""

    def __init__(self, java: Java, table: Any) -> None:
        self._java = java
        self._table = table
        self._data = f"{table.location()}/data/"
        self._live: dict[str, DataFile] = {}
        self.snapshot_id: int | None = None

    def location(self, name: str) -> str:
        return name if "/" in name else self._data + name

    def name(self, location: str) -> str:
        inside = location.removeprefix(self._data)
        return location if "/" in inside else inside

    def live(self, snapshot_id: int) -> dict[str, DataFile]:
        """The data files of a snapshot by name, each with the position deletes that concern it."""
        if snapshot_id != self.snapshot_id:
            found = (self._described(task) for task in self._tasks(snapshot_id))
            self._live = {file.name: file for file in found}
            self.snapshot_id = snapshot_id
        return self._live

    def advance(
        self,
        snapshot_id: int,
        added: Sequence[DataFile],
        removed: Sequence[str],
        deletes: Sequence[PositionDeletes],
    ) -> None:
        """What a commit of ours made of the files that were live before it."""
        gone = set(removed)
        live = {name: file for name, file in self._live.items() if name not in gone}
        live |= {file.name: file for file in added if file.rows}
        for each in deletes:
            held = live[each.of]
            live[each.of] = replace(held, deletes=(*held.deletes, self.location(each.file.name)))
        self._live, self.snapshot_id = live, snapshot_id

    def java_files(self, snapshot_id: int) -> Iterator[Any]:
        for task in self._tasks(snapshot_id):
            yield task.file()

    def data_file(self, file: DataFile) -> Any:
        location = self.location(file.name)
        builder = self._java.iceberg("DataFiles").builder(self._table.spec())
        return self._finished(
            builder, location, file.bytes, self._java.iceberg("MetricsConfig").forTable(self._table)
        )

    def delete_file(self, deletes: PositionDeletes) -> Any:
        location = self.location(deletes.file.name)
        builder = self._java.iceberg("FileMetadata").deleteFileBuilder(self._table.spec()).ofPositionDeletes()
        builder.withReferencedDataFile(self.location(deletes.of))
        config = self._java.iceberg("MetricsConfig").forPositionDelete()
        return self._finished(builder, location, deletes.file.bytes, config)

    def _finished(self, builder: Any, location: str, size: int, config: Any) -> Any:
        file = self._table.io().newInputFile(location)
        metrics = self._java.iceberg("parquet.ParquetUtil").fileMetrics(file, config)
        builder.withPath(location).withFileSizeInBytes(size).withFormat("PARQUET").withMetrics(metrics)
        return builder.build()

    def _tasks(self, snapshot_id: int) -> Iterator[Any]:
        self._table.refresh()
        tasks = self._table.newScan().useSnapshot(snapshot_id).includeColumnStats().planFiles()
        try:
            each = tasks.iterator()
            while each.hasNext():
                yield each.next()
        finally:
            tasks.close()

    def _described(self, task: Any) -> DataFile:
        file = task.file()
        deletes = tuple(
            _position_deletes(each)
            for each in task.deletes()
            if str(each.content().toString()) == "POSITION_DELETES"
        )
        return DataFile(
            self.name(str(file.location())),
            int(file.recordCount()),
            int(file.fileSizeInBytes()),
            deletes=deletes,
        )


def _position_deletes(file: Any) -> str:
    if str(file.format().toString()) != "PARQUET":
        raise DestinationError(
            "The table has deletes in a form that Penstock does not write (deletion vectors).",
            remedy="Compact the table with the engine that wrote them, and keep its format version at 2.",
        )
    return str(file.location())

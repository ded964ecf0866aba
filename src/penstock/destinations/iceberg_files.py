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
        self._partitioned: dict[str, Any] = {}  # those that somebody put into partitions, as Iceberg has them
        self.snapshot_id: int | None = None

    def location(self, name: str) -> str:
        return name if "/" in name else self._data + name

    def name(self, location: str) -> str:
        inside = location.removeprefix(self._data)
        return location if "/" in inside else inside

    def live(self, snapshot_id: int) -> dict[str, DataFile]:
        """The data files of a snapshot by name, each with the position deletes that concern it."""
        if snapshot_id != self.snapshot_id:
            self.snapshot_id, self._partitioned = None, {}
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
        """A file in no partition, whatever somebody made of the table's partitions; a held one in its own."""
        if file.name in self._partitioned:
            return self._partitioned[file.name]
        location = self.location(file.name)
        builder = self._java.iceberg("DataFiles").builder(self._unpartitioned())
        return self._finished(
            builder, location, file.bytes, self._java.iceberg("MetricsConfig").forTable(self._table)
        )

    def delete_file(self, deletes: PositionDeletes) -> Any:
        location = self.location(deletes.file.name)
        held = self._partitioned.get(deletes.of)
        spec = self._unpartitioned() if held is None else self._table.specs().get(held.specId())
        builder = self._java.iceberg("FileMetadata").deleteFileBuilder(spec).ofPositionDeletes()
        if held is not None:
            builder.withPartition(held.partition())
        builder.withReferencedDataFile(self.location(deletes.of))
        config = self._java.iceberg("MetricsConfig").forPositionDelete()
        return self._finished(builder, location, deletes.file.bytes, config)

    def _unpartitioned(self) -> Any:
        for spec in self._table.specs().values():
            if spec.isUnpartitioned():
                return spec
        raise DestinationError(
            "The table has no partition spec without partitions, and Penstock writes files without.",
            remedy="Drop the table's partition fields with the engine that added them, or drop the table and "
            "run `penstock resync` for this stream.",
        )

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
        deletes = tuple(_position_deletes(each) for each in task.deletes())
        name = self.name(str(file.location()))
        if not task.spec().isUnpartitioned():
            self._partitioned[name] = file.copyWithoutStats()
        return DataFile(
            name,
            int(file.recordCount()),
            int(file.fileSizeInBytes()),
            deletes=deletes,
        )


def _position_deletes(file: Any) -> str:
    if str(file.content().toString()) != "POSITION_DELETES":
        raise DestinationError(
            "The table has deletes in a form that Penstock does not write (equality deletes).",
            remedy="Compact the table with the engine that wrote them, so that they are applied.",
        )
    if str(file.format().toString()) != "PARQUET":
        raise DestinationError(
            "The table has deletes in a form that Penstock does not write (deletion vectors).",
            remedy="Compact the table with the engine that wrote them, and keep its format version at 2.",
        )
    return str(file.location())

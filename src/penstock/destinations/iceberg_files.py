"""The files of an Iceberg table: which are live in a snapshot, and how they are told to Iceberg.

Listing a snapshot's files takes about a millisecond each, told by Java in one piece since every call costs a
part of that. What our own commits change is kept up here, and the manifests are read again only when somebody
else committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.errors import DestinationError
from penstock.destinations.iceberg_java import Java, each_of
from penstock.destinations.records import DataFile, HeldDeletes, PositionDeletes, Span

_FILE_PATH_ID = 2147483546  # of a file of position deletes, as the Iceberg specification numbers it


class IcebergFiles:
    """Files are named by their last part if they lie in the table's `data` directory, else in full."""

    def __init__(self, java: Java, table: Any) -> None:
        self._java = java
        self._table = table
        self._data = f"{table.location()}/data/"
        self._live: dict[str, DataFile] = {}
        # By id, under which there is never another; None: unpartitioned.
        self._specs: dict[int | None, Any] = {}
        self.snapshot_id: int | None = None

    @property
    def directory(self) -> Path:
        """Where ours lie."""
        return Path(self._data.removeprefix("file:"))

    def location(self, name: str) -> str:
        return name if "/" in name else self._data + name

    def name(self, location: str) -> str:
        inside = location.removeprefix(self._data)
        return location if "/" in inside else inside

    def live(self, snapshot_id: int) -> dict[str, DataFile]:
        """The data files of a snapshot by name, each with the position deletes that concern it."""
        if snapshot_id != self.snapshot_id:
            self.snapshot_id = None
            with self._tasks(snapshot_id) as tasks:
                self._live = {file.name: file for file in map(self._described, tasks)}
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
            file, held = each.file, live[each.of]
            new = HeldDeletes(self.location(file.name), file.rows, file.bytes, each.vector)
            left = () if each.vector else (old for old in held.deletes if old not in each.replaces)
            live[each.of] = replace(held, deletes=(*left, new))
        self._live, self.snapshot_id = live, snapshot_id

    def java_files(self, snapshot_id: int) -> list[Any]:
        with self._tasks(snapshot_id) as tasks:
            return [task.file() for task in tasks]

    def data_file(self, file: DataFile) -> Any:
        """In the partition that the file was written for, whatever the table's partitions are by now."""
        location, spec = self.location(file.name), self._spec(file)
        builder = self._java.iceberg("DataFiles").builder(spec)
        if file.partition is not None:
            builder.withPartition(self._values(spec, file.partition))
        if file.sort_order_id is not None:
            builder.withSortOrderId(file.sort_order_id)
        return self._finished(
            builder, location, file.bytes, self._java.iceberg("MetricsConfig").forTable(self._table)
        )

    def delete_file(self, deletes: PositionDeletes) -> Any:
        file, location = deletes.file, self.location(deletes.file.name)
        if deletes.vector is not None:
            return self._known(deletes.of, HeldDeletes(location, file.rows, file.bytes, deletes.vector))
        builder = self._delete_builder(deletes.of).withPath(location).withFileSizeInBytes(file.bytes)
        return builder.withFormat("PARQUET").withMetrics(self._metrics_of(deletes)).build()

    def _metrics_of(self, deletes: PositionDeletes) -> Any:
        """What readers look at to tell which data file deletes are of, without reading their file."""
        bounds = self._java.named("java.util.HashMap")()
        location = self.location(deletes.of).encode()
        bounds.put(_FILE_PATH_ID, self._java.named("java.nio.ByteBuffer").wrap(location))
        return self._java.iceberg("Metrics")(deletes.file.rows, None, None, None, None, bounds, bounds)

    def replaced(self, deletes: PositionDeletes) -> Iterator[Any]:
        """What deletes take the place of; a file that other data files need too has to stay."""
        for held in deletes.replaces:
            if not held.is_shared:
                yield self._known(deletes.of, held)

    def needless_deletes(self, removed: Sequence[str]) -> Any:
        """Files of deletes that concern none of the live files but these."""
        gone = set(removed)
        kept = {held for file in self._live.values() if file.name not in gone for held in file.deletes}
        found = self._java.iceberg("util.DeleteFileSet").create()
        for name in gone:
            for held in self._live[name].deletes:
                if held not in kept:
                    found.add(self._known(name, held))
        return found

    def _known(self, of: str, deletes: HeldDeletes) -> Any:
        """Deletes whose file need not be read to be told to Iceberg."""
        builder = self._delete_builder(of).withPath(deletes.location).withFileSizeInBytes(deletes.bytes)
        builder.withFormat("PARQUET" if deletes.vector is None else "PUFFIN").withRecordCount(deletes.rows)
        if deletes.vector is not None:
            builder.withContentOffset(deletes.vector.offset).withContentSizeInBytes(deletes.vector.size)
        return builder.build()

    def _delete_builder(self, of: str) -> Any:
        """In the partition of the file that the deletes concern."""
        held = self._live.get(of)
        spec = self._spec(held)
        builder = self._java.iceberg("FileMetadata").deleteFileBuilder(spec).ofPositionDeletes()
        if held is not None and held.partition is not None:
            builder.withPartition(self._values(spec, held.partition))
        return builder.withReferencedDataFile(self.location(of))

    def _spec(self, file: DataFile | None) -> Any:
        spec_id = None if file is None else file.spec_id
        if spec_id not in self._specs:
            self._specs[spec_id] = self._find_spec(spec_id)
        return self._specs[spec_id]

    def _find_spec(self, spec_id: int | None) -> Any:
        if spec_id is not None:
            return self._table.specs().get(spec_id)
        for spec in self._table.specs().values():
            if spec.isUnpartitioned():
                return spec
        raise DestinationError(
            "The table has no partition spec without partitions, and Penstock cannot write by those it has.",
            remedy="Set `partition_by` under `iceberg` of this stream, or drop the table's partition fields "
            "with the engine that added them.",
        )

    def _values(self, spec: Any, partition: str) -> Any:
        # Made by Iceberg as a whole: a number that goes through Python comes back as another type of number.
        return self._java.iceberg("SingleValueParser").fromJson(spec.partitionType(), partition)

    def _finished(self, builder: Any, location: str, size: int, config: Any) -> Any:
        file = self._table.io().newInputFile(location)
        metrics = self._java.iceberg("parquet.ParquetUtil").fileMetrics(file, config)
        builder.withPath(location).withFileSizeInBytes(size).withFormat("PARQUET").withMetrics(metrics)
        return builder.build()

    def _tasks(self, snapshot_id: int) -> AbstractContextManager[Iterator[Any]]:
        self._table.refresh()
        return each_of(self._table.newScan().useSnapshot(snapshot_id).includeColumnStats().planFiles())

    def _described(self, task: Any) -> DataFile:
        told = json.loads(str(self._java.iceberg("ScanTaskParser").toJson(task)))
        file = told["data-file"]
        name = self.name(file["file-path"])
        deletes = tuple(map(_held_deletes, told.get("delete-files", ())))
        held = DataFile(name, file["record-count"], file["file-size-in-bytes"], deletes=deletes)
        fields = [str(field["field-id"]) for field in told["spec"]["fields"]]
        if not fields:
            return held
        values = dict(zip(fields, file["partition"], strict=True))
        return replace(held, spec_id=file["spec-id"], partition=json.dumps(values))


def _held_deletes(file: Mapping[str, Any]) -> HeldDeletes:
    kind, form = file["content"], file["file-format"]
    if kind != "position-deletes" or form not in ("parquet", "puffin"):
        what = "equality deletes" if kind != "position-deletes" else f"positions in {form.upper()} files"
        raise DestinationError(
            f"The table has deletes in a form that Penstock does not write ({what}).",
            remedy="Compact the table with the engine that wrote them, so that they are applied.",
        )
    vector = Span(file["content-offset"], file["content-size-in-bytes"]) if form == "puffin" else None
    is_shared = "referenced-data-file" not in file and not _names_one_file(file)
    return HeldDeletes(file["file-path"], file["record-count"], file["file-size-in-bytes"], vector, is_shared)


def _names_one_file(deletes: Mapping[str, Any]) -> bool:
    """Whether the bounds of `file_path` say that all positions are of the same data file."""
    lower, upper = (
        dict(zip(bounds.get("keys", ()), bounds.get("values", ()), strict=True)).get(_FILE_PATH_ID)
        for bounds in (deletes.get("lower-bounds", {}), deletes.get("upper-bounds", {}))
    )
    return lower is not None and lower == upper

"""`load/<stream>.json`: under which snapshot each chunk of a load was planned or read.

Durable before any chunk is `preparing` (correctness 13): after a crash it says which consistent point
decides what the log must add to a chunk's rows, and whether the leaf was rewritten meanwhile. A load
that was resumed has several points, one for each snapshot it was read under.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from penstock import durable
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.ledger import state_json
from penstock.ledger.state import Chunk, ChunkBound

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A row is in what was read under `snapshot` ⇔ its transaction's `_tx` < `consistent_point`."""

    consistent_point: Lsn
    snapshot: str
    place: Place | None = None  # in the source's words, where those are not the number

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"consistent_point": str(self.consistent_point), "snapshot": self.snapshot}
        return fields if self.place is None else {**fields, "place": self.place.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LoadPoint:
        place = fields.get("place")
        return cls(
            Lsn.parse(fields["consistent_point"]),
            fields["snapshot"],
            None if place is None else Place.from_json(place),
        )


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """`point` is an index into the record's points; `filenode` that of the leaf when it was planned."""

    leaf: str
    min: ChunkBound
    max: ChunkBound
    filenode: int
    point: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("leaf", "min", "max", "filenode", "point")}


@dataclass(frozen=True, slots=True)
class LoadRecord:
    load_id: str
    generation: str
    stream: StreamId
    method: Literal["ctid", "key"]
    key_column: str | None
    schema: TableSchema
    settings: Mapping[str, str]  # what else the load is written by; a load under others starts again
    points: tuple[LoadPoint, ...]
    chunks: tuple[LoadChunk, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a load has at least one consistent point")
        if any(not 0 <= chunk.point < len(self.points) for chunk in self.chunks):
            raise ValueError("a chunk belongs to one of the load's points")

    @property
    def oldest_point(self) -> Lsn:
        return min(point.consistent_point for point in self.points)

    @property
    def newest_point(self) -> Lsn:
        return max(point.consistent_point for point in self.points)

    @property
    def newest_read(self) -> Lsn:
        """The newest point that a chunk was read under. A load whose chunks each have a moment of their own
        has a later one, before which it is shown to nobody (`read_until`)."""
        read = (self.point_of(chunk).consistent_point for chunk in self.chunks)
        return max(read, default=self.newest_point)

    def chunk(self, chunk: Chunk) -> LoadChunk:
        """The record's chunk for the state's; a state without leaves has one leaf, the stream."""
        leaf = chunk.leaf or str(self.stream)
        for candidate in self.chunks:
            if (candidate.leaf, candidate.min, candidate.max) == (leaf, chunk.min, chunk.max):
                return candidate
        raise KeyError(f"{self.stream}: the load record does not have this chunk")

    def point_of(self, chunk: LoadChunk) -> LoadPoint:
        return self.points[chunk.point]

    def read_until(self, point: LoadPoint) -> LoadRecord:
        """The record of a load whose chunks were all read before `point`, each at a moment of its own."""
        return replace(self, points=(*self.points, point))

    def seen_at(self, point: LoadPoint) -> LoadRecord:
        """The record of a load of one chunk, which was read under a snapshot that it took itself."""
        assert len(self.chunks) == 1, "several chunks would have a moment each"
        return replace(self, points=(point,), chunks=(replace(self.chunks[0], point=0),))

    def resumed(self, point: LoadPoint, to_read: frozenset[LoadChunk]) -> LoadRecord:
        """The record of the same load going on under another snapshot, for the chunks still to read."""
        points = (*self.points, point)
        chunks = tuple(
            replace(chunk, point=len(self.points)) if chunk in to_read else chunk for chunk in self.chunks
        )
        return replace(self, points=points, chunks=chunks)

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "load_id": self.load_id,
            "generation": self.generation,
            "stream": str(self.stream),
            "method": self.method,
            "key_column": self.key_column,
            "schema": self.schema.to_json(),
            "settings": dict(self.settings),
            "points": [point.to_json() for point in self.points],
            "chunks": [chunk.to_json() for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LoadRecord:
        points = map(LoadPoint.from_json, fields["points"])
        chunks = (
            LoadChunk(chunk["leaf"], chunk["min"], chunk["max"], chunk["filenode"], chunk["point"])
            for chunk in fields["chunks"]
        )
        return cls(
            load_id=fields["load_id"],
            generation=fields["generation"],
            stream=StreamId.parse(fields["stream"]),
            method=fields["method"],
            key_column=fields["key_column"],
            schema=TableSchema.from_json(fields["schema"]),
            settings=fields.get("settings", {}),
            points=tuple(points),
            chunks=tuple(chunks),
        )


class LoadRecords:
    """The load records of a pipeline, in `<state>/load`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, stream: StreamId) -> Path:
        return self.directory / f"{stream.file_name}.json"

    def save(self, record: LoadRecord) -> None:
        durable.replace(self.path(record.stream), durable.to_json_bytes(record.to_json()))

    def load(self, stream: StreamId) -> LoadRecord | None:
        path = self.path(stream)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return LoadRecord.from_json(state_json.decode(content))
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"The load record {path} cannot be read.",
                stream=str(stream),
                remedy="Run `penstock resync --yes`: every load starts again.",
            ) from error

    def delete(self, stream: StreamId) -> None:
        path = self.path(stream)
        if path.exists():
            path.unlink()
            durable.sync_directory(self.directory)

    def points(self) -> list[LoadPoint]:
        """Of all loads that are under way, or that the log has not passed."""
        names = sorted(self.directory.glob("*.json")) if self.directory.is_dir() else []
        found: list[LoadPoint] = []
        for name in names:
            try:
                record = LoadRecord.from_json(state_json.decode(name.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # whoever needs this load says what is wrong with it
            found += record.points
        return found

    def open_points(self, streams: set[StreamId]) -> list[Lsn]:
        """The oldest consistent point of each of these streams' loads: what the log must be kept for."""
        records = (self.load(stream) for stream in sorted(streams))
        return [record.oldest_point for record in records if record is not None]

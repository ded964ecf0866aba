"""A step's manifest: the file whose existence commits the step.

`<seq>.json` names every data file of a range `(from, to]` of whole transactions. Both bounds are ends
of commit records or keepalive positions; a transaction belongs to the step exactly if
`from <= tx < to`, where `tx` is the start of its commit record (correctness 1). A step may be empty:
it then says that nothing happened up to `to` (correctness 3).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.alteration import Alteration
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

FORMAT_VERSION = 1
DATA_DIRECTORY, SCHEMA_DIRECTORY = "data", "schemas"
OPERATIONS = "iudt"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A Parquet file of one leaf relation in one schema version; `path` is relative to the log."""

    path: str
    schema_id: str
    leaf: str
    rows: int
    bytes: int
    operations: dict[str, int]
    first_tx: int
    last_tx: int

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "schema_id": self.schema_id,
            "leaf": self.leaf,
            "rows": self.rows,
            "bytes": self.bytes,
            "ops": self.operations,
            "first_tx": self.first_tx,
            "last_tx": self.last_tx,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> FileEntry:
        return cls(
            path=fields["path"],
            schema_id=fields["schema_id"],
            leaf=fields["leaf"],
            rows=fields["rows"],
            bytes=fields["bytes"],
            operations=dict(fields["ops"]),
            first_tx=fields["first_tx"],
            last_tx=fields["last_tx"],
        )


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What a step holds of one stream.

    `truncates` are offsets at which the whole stream was emptied; `leaf_truncates` those at which only
    some of a partitioned table's leaves were. At those in `altered` a statement may have changed rows, or
    made another table of it, in a way that no row of the log tells. Those in `untold` are among them: there
    rows were changed, and the log has no change of it, or one that never counted. Whoever tells changes one
    by one lacks some from the first of these on, whereas what a statement makes of a table is none. Of others
    `alterations` has what the statement did to the columns, which is all that it did.
    """

    stream: StreamId
    files: tuple[FileEntry, ...]
    truncates: tuple[tuple[int, int], ...] = ()
    leaf_truncates: tuple[tuple[int, int, str], ...] = ()
    altered: tuple[tuple[int, int], ...] = ()
    untold: tuple[tuple[int, int], ...] = ()
    alterations: tuple[tuple[int, int, Alteration], ...] = ()

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "stream": str(self.stream),
            "files": [file.to_json() for file in self.files],
            "truncates": [list(offset) for offset in self.truncates],
        }
        if self.leaf_truncates:
            fields["leaf_truncates"] = [list(offset) for offset in self.leaf_truncates]
        if self.altered:
            fields["altered"] = [list(offset) for offset in self.altered]
        if self.untold:
            fields["untold"] = [list(offset) for offset in self.untold]
        if self.alterations:
            fields["alterations"] = [[tx, op, each.to_json()] for tx, op, each in self.alterations]
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableEntry:
        return cls(
            stream=StreamId.parse(fields["stream"]),
            files=tuple(FileEntry.from_json(file) for file in fields["files"]),
            truncates=tuple((tx, op) for tx, op in fields["truncates"]),
            leaf_truncates=tuple((tx, op, leaf) for tx, op, leaf in fields.get("leaf_truncates", [])),
            altered=tuple((tx, op) for tx, op in fields.get("altered", [])),
            untold=tuple((tx, op) for tx, op in fields.get("untold", [])),
            alterations=tuple(
                (tx, op, Alteration.from_json(each)) for tx, op, each in fields.get("alterations", [])
            ),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    seq: int
    system_id: str
    timeline: int
    epoch: Lsn
    start: Lsn  # "from"
    end: Lsn  # "to"
    sealed_at: str
    transactions: int
    messages: int
    message_count: int  # since the pipeline was created
    tables: tuple[TableEntry, ...] = field(default=())
    place: Place | None = None  # `end` in the source's words; None where the number says it

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.place is None else {"place": self.place.to_json()}),
            "format_version": FORMAT_VERSION,
            "seq": self.seq,
            "system_id": self.system_id,
            "timeline": self.timeline,
            "epoch": str(self.epoch),
            "from": str(self.start),
            "to": str(self.end),
            "sealed_at": self.sealed_at,
            "transactions": self.transactions,
            "messages": self.messages,
            "message_count": self.message_count,
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Manifest:
        return cls(
            seq=fields["seq"],
            system_id=fields["system_id"],
            timeline=fields["timeline"],
            epoch=Lsn.parse(fields["epoch"]),
            start=Lsn.parse(fields["from"]),
            end=Lsn.parse(fields["to"]),
            sealed_at=fields["sealed_at"],
            transactions=fields["transactions"],
            messages=fields["messages"],
            message_count=fields["message_count"],
            tables=tuple(TableEntry.from_json(table) for table in fields["tables"]),
            place=Place.from_json(fields["place"]) if "place" in fields else None,
        )

    def table(self, stream: StreamId) -> TableEntry | None:
        return next((table for table in self.tables if table.stream == stream), None)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for table in self.tables for file in table.files)


def manifest_path(directory: Path, seq: int) -> Path:
    return directory / f"{seq:020d}.json"


def list_sequence(directory: Path) -> list[int]:
    """The numbers of all manifests, in order."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir())
    return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())


def newest_manifest(directory: Path) -> Manifest | None:
    """The log's last step. The others are not read: there may be many, and a standby is in a hurry."""
    numbers = list_sequence(directory)
    return read_manifest(directory, numbers[-1]) if numbers else None


def read_manifest(directory: Path, seq: int) -> Manifest:
    path = manifest_path(directory, seq)
    try:
        fields = json.loads(path.read_bytes())
        if fields["format_version"] > FORMAT_VERSION:
            raise StateError(
                f"{path.name} of the change log was written by a newer Penstock.",
                remedy="Install that version of Penstock, or a later one.",
            )
        manifest = Manifest.from_json(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path) from error
    if manifest.seq != seq:
        raise _unreadable(path)
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> bool:
    """Commit the step; False if another writer has committed one under this number."""
    path = manifest_path(directory, manifest.seq)
    return durable.create_exclusively(path, durable.to_json_bytes(manifest.to_json()))


def _unreadable(path: Path) -> StateError:
    return StateError(
        f"{path.name} of the change log cannot be read: it is not a manifest.",
        remedy=f"Restore {path} from a backup, or run `penstock resync --yes`.",
    )

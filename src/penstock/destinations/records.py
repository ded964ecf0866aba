"""What a table says of itself: the record of its newest commit, with its files, marker and pending load.

The marker with thread ids and position is part of the record, so that "are the rows there?" and "does the
table say so?" cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from penstock.core.cursor import Cursors, cursors_from_json, cursors_to_json
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.destinations.layout import PLAIN, Layout

FORMAT_VERSION = 1

WriteMode = Literal["upsert", "append"]
RecordKind = Literal["load", "chunks", "swap", "publish", "changes", "fence"]
KeyBound = int | float | str | None
SETTLED = "settled-"
HISTORY = "history-"
OPEN = "open-"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class HeldDeletes:
    """Positions that are deleted from a data file, as the table has them: a file, or a vector inside one."""

    location: str
    rows: int
    bytes: int
    vector: Span | None = None
    is_shared: bool = False  # the file names rows of other data files too


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. The bounds are those of the first key column; None: not known, may hold any key."""

    name: str
    rows: int
    bytes: int
    key_min: KeyBound = None
    key_max: KeyBound = None
    deletes: tuple[HeldDeletes, ...] = ()
    spec_id: int | None = None  # of the partitions it was written by; None: it is in no partition
    partition: str | None = None  # its values there, as Iceberg's JSON
    sort_order_id: int | None = None  # the order that its rows are in, from the first to the last

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "rows": self.rows, "bytes": self.bytes}
        if self.key_min is not None and self.key_max is not None:
            fields |= {"key_min": self.key_min, "key_max": self.key_max}
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DataFile:
        bounds = fields.get("key_min"), fields.get("key_max")
        return cls(fields["name"], fields["rows"], fields["bytes"], *bounds)


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """Positions of rows that are deleted from one data file: a file of them, or a vector inside one.

    A vector holds everything that is deleted, so it takes the place of what was there before; a file may take
    the place of earlier ones of the same data file.
    """

    file: DataFile
    of: str  # the data file's name
    vector: Span | None = None
    replaces: tuple[HeldDeletes, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """What the table's rows are: all changes up to `to`, the last of them written by `thread_ids`.

    `start` is None for a table that was just loaded; `to` is None for one that follows no log.

    `cursor` is for tables that are read by a cursor, and None for all others: every row up to these values is
    in the table. Such a table has neither `start` nor `to`; its batches name the cursors they start from
    instead of a position (`commit_changes`), and one that advances no cursor leaves the marker as it is.

    `leaves` are those of a partitioned source that the rows are of, as the state had them (`lake.leaves`);
    None for other tables. `timeline` is the source's when the table got there: after a promotion the same
    `to` may be another moment. Markers that are older than these fields have neither.
    """

    generation: str
    epoch: Lsn
    start: Lsn | None
    to: Lsn | None
    thread_ids: tuple[str, ...]
    cursor: Cursors | None = None
    leaves: Mapping[str, str] | None = None
    timeline: int | None = None

    def to_json(self) -> dict[str, Any]:
        cursor = {} if self.cursor is None else {"cursor": cursors_to_json(self.cursor)}
        leaves = {} if self.leaves is None else {"leaves": dict(self.leaves)}
        timeline = {} if self.timeline is None else {"timeline": self.timeline}
        return {
            "generation": self.generation,
            "epoch": str(self.epoch),
            "from": _text(self.start),
            "to": _text(self.to),
            "thread_ids": list(self.thread_ids),
            **cursor,
            **leaves,
            **timeline,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Marker:
        start, to = _lsn(fields["from"]), _lsn(fields["to"])
        cursor = cursors_from_json(fields["cursor"]) if "cursor" in fields else None
        epoch, thread_ids = Lsn.parse(fields["epoch"]), tuple(fields["thread_ids"])
        return cls(
            fields["generation"],
            epoch,
            start,
            to,
            thread_ids,
            cursor,
            fields.get("leaves"),
            fields.get("timeline"),
        )


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Rows the destination cannot hold, kept beside the table.

    `settled` are files of keys whose dead letter a later change has made history; they are told from files
    of dead letters by their names, which begin with `SETTLED`. Files that were merged (`lake.letter_merging`)
    begin with `HISTORY`: which of their letters are still open is said by a file in `open`, of `OPEN`.
    """

    count: int = 0
    files: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all files, letters first."""
        return (*self.files, *self.open, *self.settled)

    def with_files(self, files: Sequence[DataFile]) -> DeadLetters:
        letters = [file for file in files if not file.name.startswith(SETTLED)]
        settled = [file.name for file in files if file.name.startswith(SETTLED)]
        return replace(
            self,
            count=self.count + sum(file.rows for file in letters),
            files=(*self.files, *(file.name for file in letters)),
            settled=(*self.settled, *settled),
        )

    def and_of(self, load: PendingLoad) -> DeadLetters:
        letters = load.dead_letters
        return replace(self, count=self.count + letters.count, files=(*self.files, *letters.files))

    def to_json(self) -> dict[str, Any]:
        others = {"settled": list(self.settled), "open": list(self.open)}
        present = {name: files for name, files in others.items() if files}
        return {"count": self.count, "files": list(self.files), **present}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DeadLetters:
        others = tuple(fields.get("settled", ())), tuple(fields.get("open", ()))
        return cls(fields["count"], tuple(fields["files"]), *others)


@dataclass(frozen=True, slots=True)
class MergedLetters:
    """The dead letters of a table, and what they are in fewer files."""

    before: DeadLetters
    after: DeadLetters


@dataclass(frozen=True, slots=True)
class PendingLoad:
    """A load whose chunks are committed one after the other, and which no reader sees before the swap."""

    load_id: str
    schema: TableSchema
    write: WriteMode
    thread_ids: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    columns: pa.Schema | None = None  # with the ids that its files carry, where columns have ids
    head: int | None = None  # the snapshot with its chunks, where there are snapshots and a chunk has rows

    def to_json(self) -> dict[str, Any]:
        return {
            "load_id": self.load_id,
            "schema": self.schema.to_json(),
            "write": self.write,
            "thread_ids": list(self.thread_ids),
            "files": [file.to_json() for file in self.files],
            "dead_letters": self.dead_letters.to_json(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> PendingLoad:
        return cls(
            load_id=fields["load_id"],
            schema=TableSchema.from_json(fields["schema"]),
            write=fields["write"],
            thread_ids=tuple(fields["thread_ids"]),
            files=tuple(map(DataFile.from_json, fields["files"])),
            dead_letters=DeadLetters.from_json(fields["dead_letters"]),
        )


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table as of one commit.

    `files` are the table's files as of `marker`; `directory` is the version readers see. They differ only
    while `readable_from` is set: a resumed load was read under several snapshots, and is one state of
    the source only once changes up to the newest of them are in (correctness 13).
    """

    version: int
    kind: RecordKind
    committed_at: str
    epoch: Lsn
    write: WriteMode
    schema: TableSchema
    directory: str | None = None
    files: tuple[DataFile, ...] = ()
    marker: Marker | None = None
    load: PendingLoad | None = None
    last_load_id: str | None = None
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    letters_directory: str | None = None  # the version of the dead letters that readers see
    readable_from: Lsn | None = None
    # Of tables whose columns have ids: the columns, the greatest id ever given, and the snapshot read.
    columns: pa.Schema | None = None
    last_field_id: int = 0
    snapshot_id: int | None = None
    counts: tuple[int, int] | None = None  # rows and files, where `files` is not read with the record
    layout: Layout = PLAIN  # by which new files are to be written

    def has_thread(self, thread_id: str) -> bool:
        """Whether this piece of work is in the table, or in the load that is to be it."""
        in_marker = self.marker is not None and thread_id in self.marker.thread_ids
        return in_marker or (self.load is not None and thread_id in self.load.thread_ids)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files) if self.counts is None else self.counts[0]

    @property
    def file_count(self) -> int:
        return len(self.files) if self.counts is None else self.counts[1]

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "kind": self.kind,
            "committed_at": self.committed_at,
            "epoch": str(self.epoch),
            "write": self.write,
            "schema": self.schema.to_json(),
            "directory": self.directory,
            "files": [file.to_json() for file in self.files],
            "marker": None if self.marker is None else self.marker.to_json(),
            "load": None if self.load is None else self.load.to_json(),
            "last_load_id": self.last_load_id,
            "dead_letters": self.dead_letters.to_json(),
            "letters_directory": self.letters_directory,
            "readable_from": _text(self.readable_from),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableRecord:
        if fields["format_version"] > FORMAT_VERSION:
            raise ValueError(f"format version {fields['format_version']} is newer than this Penstock")
        marker, load = fields["marker"], fields["load"]
        return cls(
            version=fields["version"],
            kind=fields["kind"],
            committed_at=fields["committed_at"],
            epoch=Lsn.parse(fields["epoch"]),
            write=fields["write"],
            schema=TableSchema.from_json(fields["schema"]),
            directory=fields["directory"],
            files=tuple(map(DataFile.from_json, fields["files"])),
            marker=None if marker is None else Marker.from_json(marker),
            load=None if load is None else PendingLoad.from_json(load),
            last_load_id=fields["last_load_id"],
            dead_letters=DeadLetters.from_json(fields["dead_letters"]),
            letters_directory=fields.get("letters_directory"),
            readable_from=_lsn(fields.get("readable_from")),
        )


def _text(position: Lsn | None) -> str | None:
    return None if position is None else str(position)


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)

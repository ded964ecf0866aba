"""What every destination promises, and the record that proves it.

A table is described whole by its newest `TableRecord`. Each operation reads the newest record, checks
what it must, and creates the next one atomically; of two writers on top of the same record one succeeds,
and the other gets `CommitConflictError` with nothing changed (correctness 16). The marker with thread ids
and position is part of the record, so that "are the rows there?" and "does the table say so?" cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from penstock.core.cursor import Cursors, cursors_from_json, cursors_to_json
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.destinations.layout import PLAIN, Layout

FORMAT_VERSION = 1

WriteMode = Literal["upsert", "append"]
RecordKind = Literal["load", "chunks", "swap", "publish", "changes"]
KeyBound = int | float | str | None
SETTLED = "settled-"


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

    A vector holds everything that is deleted, so it takes the place of what was there before.
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
    """

    generation: str
    epoch: Lsn
    start: Lsn | None
    to: Lsn | None
    thread_ids: tuple[str, ...]
    cursor: Cursors | None = None

    def to_json(self) -> dict[str, Any]:
        cursor = {} if self.cursor is None else {"cursor": cursors_to_json(self.cursor)}
        return {
            "generation": self.generation,
            "epoch": str(self.epoch),
            "from": _text(self.start),
            "to": _text(self.to),
            "thread_ids": list(self.thread_ids),
            **cursor,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Marker:
        start, to = _lsn(fields["from"]), _lsn(fields["to"])
        cursor = cursors_from_json(fields["cursor"]) if "cursor" in fields else None
        epoch, thread_ids = Lsn.parse(fields["epoch"]), tuple(fields["thread_ids"])
        return cls(fields["generation"], epoch, start, to, thread_ids, cursor)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Rows the destination cannot hold, kept beside the table.

    `settled` are files of keys whose dead letter a later change has made history; they are told from files
    of dead letters by their names, which begin with `SETTLED`.
    """

    count: int = 0
    files: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()

    def with_files(self, files: Sequence[DataFile]) -> DeadLetters:
        letters = [file for file in files if not file.name.startswith(SETTLED)]
        settled = [file.name for file in files if file.name.startswith(SETTLED)]
        return DeadLetters(
            self.count + sum(file.rows for file in letters),
            (*self.files, *(file.name for file in letters)),
            (*self.settled, *settled),
        )

    def and_of(self, load: PendingLoad) -> DeadLetters:
        letters = load.dead_letters
        return DeadLetters(self.count + letters.count, (*self.files, *letters.files), self.settled)

    def to_json(self) -> dict[str, Any]:
        settled = {"settled": list(self.settled)} if self.settled else {}
        return {"count": self.count, "files": list(self.files), **settled}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DeadLetters:
        return cls(fields["count"], tuple(fields["files"]), tuple(fields.get("settled", ())))


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


class DestinationTable(Protocol):
    """One table. A method that returns has committed durably; one that raises has changed nothing."""

    def record(self) -> TableRecord | None:
        """The newest record; None if the table was never written."""
        ...

    def is_thread_committed(self, thread_id: str) -> bool: ...

    @property
    def files_directory(self) -> Path:
        """Where tasks write data files, under names that never repeat (`new_file_name`)."""
        ...

    @property
    def dead_letters_directory(self) -> Path:
        """Where tasks write rows that the table cannot hold."""
        ...

    def dead_letter_paths(self) -> tuple[Path, ...]:
        """The committed files of dead letters and of settled keys, in the order of their commits."""
        ...

    @property
    def deletes_rows(self) -> bool:
        """Whether rows go by files of their positions (else by writing the files that hold them anew)."""
        ...

    @property
    def deletes_by_vector(self) -> bool:
        """Whether those positions are to be vectors, one for each data file (`deletion_vectors`)."""
        ...

    @property
    def rewrites_rows(self) -> bool:
        """Whether, of tables that could delete by positions, readers want files without deletes."""
        ...

    @property
    def key_secret(self) -> bytes:
        """16 bytes for hashes of keys, of this table alone."""
        ...

    def index_path(self, file: DataFile) -> Path:
        """Where tasks keep what they know of a data file; a cache, and safe to delete."""
        ...

    def file_location(self, name: str) -> str:
        """A data file's place as the table's own metadata spells it."""
        ...

    def path(self, file: DataFile) -> Path:
        """Where a file of the table is."""
        ...

    def version_path(self) -> Path | None:
        """Where readers find the table as of now; None if there is none to see."""
        ...

    def dead_letters_path(self) -> Path | None:
        """Where people find the rows that the table could not hold; None if there are none."""
        ...

    def new_staging_directory(self) -> Path:
        """A directory for what tasks of one round hand to each other; the caller removes it."""
        ...

    def files(self, record: TableRecord) -> tuple[DataFile, ...]:
        """The table's files as of a record."""
        ...

    def partition_columns(self, record: TableRecord) -> frozenset[int]:
        """The ids of columns by which files of the table lie in partitions."""
        ...

    def begin_load(
        self,
        load_id: str,
        epoch: Lsn,
        schema: TableSchema,
        write: WriteMode,
        columns: pa.Schema | None = None,
        options: TableOptions = NO_OPTIONS,
    ) -> TableRecord:
        """Open a load; another one that was pending is given up. Nothing if this one is open or done.

        `columns`: what the data files will hold; a table whose columns have ids needs it. `options`: how a
        table of Iceberg is made, or changed.
        """
        ...

    def settle_options(self, epoch: Lsn, options: TableOptions) -> None:
        """Give a table that is there these options; its rows stay as they are."""
        ...

    def commit_chunks(
        self,
        load_id: str,
        epoch: Lsn,
        thread_ids: Sequence[str],
        files: Sequence[DataFile],
        dead_letter_files: Sequence[DataFile] = (),
    ) -> TableRecord:
        """Add chunks to the pending load. Nothing if all these thread ids are there."""
        ...

    def swap(
        self,
        load_id: str,
        epoch: Lsn,
        generation: str,
        to: Lsn | None,
        readable_from: Lsn | None = None,
        *,
        keep_files: bool = False,
        cursor: Cursors | None = None,
    ) -> TableRecord:
        """Let the load be the table. Nothing if it is. Readers see it once it has reached `readable_from`.

        `keep_files`: the load is added to the table's rows instead (the history of an append table).
        `cursor`: the marker's, for a table that is read by a cursor.
        """
        ...

    def publish(self, epoch: Lsn, position: Lsn) -> TableRecord:
        """Show a table that waited for `readable_from`: the log up to `position` had nothing more for it."""
        ...

    def commit_changes(
        self,
        expected_to: Lsn | None,
        marker: Marker,
        schema: TableSchema,
        *,
        added: Sequence[DataFile],
        removed: Sequence[str],
        dead_letter_files: Sequence[DataFile] = (),
        deletes: Sequence[PositionDeletes] = (),
        columns: pa.Schema | None = None,
        read_from: int | None = None,
        expected_cursor: Cursors | None = None,
    ) -> TableRecord:
        """Take a batch if the table is at `expected_to`, of the same generation, under no newer epoch.

        A table that is read by a cursor is at no position: it must be at `expected_cursor`, and the marker's
        `cursor` says where it is then. If that is the same, `marker` has the thread ids of the one before.

        `read_from`: the snapshot in which the rows to replace were looked up. `StaleLookupError`: somebody
        changed the table's files since, so that they must be looked up again.
        """
        ...

    def sweep(self, grace_s: float) -> object:
        """Remove versions older than the grace that no reader sees, and files that belong to none."""
        ...

    def drop_all(self) -> None:
        """Remove the table with everything it holds."""
        ...


class Destination(Protocol):
    def table(self, stream: StreamId) -> DestinationTable: ...

    def streams(self) -> list[StreamId]:
        """Every stream that has a table here."""
        ...


def _text(position: Lsn | None) -> str | None:
    return None if position is None else str(position)


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)

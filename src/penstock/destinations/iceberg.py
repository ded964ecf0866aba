"""Iceberg tables, committed through the JVM's table API.

Every operation: read the table's metadata → check epoch, generation, position against it → stage files,
record and properties on top of it → compare-and-set against that very metadata (`iceberg_java`). Whoever
committed in between makes it fail. If that was a foreign commit (compaction, another writer's rows), the
checks pass again and the operation is repeated on top; if it was a newer leader, they do not. A commit whose
outcome the catalog did not tell is looked for by its record and never repeated blindly.

Each snapshot that makes a difference to the table's position carries the record of that commit, so rows and
position become visible together, and a rollback takes both back (`iceberg_history`).
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import failpoints
from penstock.core.cursor import Cursors
from penstock.core.errors import CommitConflictError, DestinationError, StaleLookupError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId, escape_file_name, unescape_file_name
from penstock.destinations import iceberg_record as text
from penstock.destinations import moves
from penstock.destinations.base import DataFile, Marker, PendingLoad, PositionDeletes, TableRecord, WriteMode
from penstock.destinations.iceberg_files import IcebergFiles
from penstock.destinations.iceberg_history import HistoryGapError, newest_commit
from penstock.destinations.iceberg_java import (
    Attempt,
    ConflictingFilesError,
    Java,
    Metadata,
    StaleMetadataError,
    UnknownOutcomeError,
    iceberg_errors,
)
from penstock.destinations.iceberg_schema import assign_ids, ids_of, same_columns, schema_json, with_field_ids
from penstock.destinations.iceberg_staging import LOAD_BRANCH, MAIN, Staging, branch_of

TRIES_MAX = 10
ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """Where tables go. `catalog` as Iceberg's `CatalogUtil` takes it; it may hold credentials."""

    catalog_name: str
    catalog: Mapping[str, str] = field(repr=False)
    warehouse: Path
    sets_location: bool = True  # some catalogs decide where a table lies
    properties: Mapping[str, str] = field(default_factory=dict)
    copy_on_write: bool = False


class IcebergDestination:
    """The JVM is asked for when the first table is."""

    def __init__(self, settings: IcebergSettings, java: Callable[[], Java]) -> None:
        self.settings = settings
        self._start_java = java
        self._java: Java | None = None
        self._catalog: Any = None
        self._tables: dict[StreamId, IcebergTable] = {}

    @property
    def java(self) -> Java:
        if self._java is None:
            self._java = self._start_java()
        return self._java

    @property
    def catalog(self) -> Any:
        if self._catalog is None:
            self.settings.warehouse.mkdir(parents=True, exist_ok=True)
            java = self.java
            with iceberg_errors("opening the catalog"):
                self._catalog = java.iceberg("CatalogUtil").buildIcebergCatalog(
                    self.settings.catalog_name, java.map_of(self.settings.catalog), java.hadoop_configuration
                )
        return self._catalog

    def table(self, stream: StreamId) -> IcebergTable:
        """The table of a stream; nothing is made before its first commit."""
        if stream not in self._tables:
            self._tables[stream] = IcebergTable(self, stream)
        return self._tables[stream]

    def streams(self) -> list[StreamId]:
        found = []
        with iceberg_errors("listing the tables"):
            for namespace in self.catalog.listNamespaces():
                for identifier in self.catalog.listTables(namespace):
                    name = StreamId(
                        unescape_file_name(str(namespace.toString())),
                        unescape_file_name(str(identifier.name())),
                    )
                    found.append(name)
        return sorted(stream for stream in found if self.table(stream).record() is not None)


class IcebergTable:
    def __init__(self, destination: IcebergDestination, stream: StreamId) -> None:
        self.stream = stream
        self._destination = destination
        self._names = escape_file_name(stream.namespace), escape_file_name(stream.name)
        self._table: Any = None
        self._files: IcebergFiles | None = None

    # Where things are

    @property
    def location(self) -> str:
        return str(self._opened().location())

    @property
    def directory(self) -> Path:
        return Path(self.location.removeprefix("file:"))

    @property
    def files_directory(self) -> Path:
        return self.directory / "data"

    @property
    def dead_letters_directory(self) -> Path:
        return self._own_directory / "dead_letters"

    @property
    def index_directory(self) -> Path:
        """Where tasks keep what they know of data files; a cache, and safe to delete."""
        return self._own_directory / "index"

    def index_path(self, file: DataFile) -> Path:
        # By all of where it lies: files of the same name may lie in several directories.
        location = hashlib.sha256(self.file_location(file.name).encode()).hexdigest()
        return self.index_directory / f"{location[:32]}.keys"

    @property
    def _own_directory(self) -> Path:
        # Not inside the table's: whoever removes orphan files there would take these for some.
        return self._destination.settings.warehouse.joinpath("_penstock", *self._names)

    def dead_letter_paths(self) -> tuple[Path, ...]:
        record = self.record()
        if record is None:
            return ()
        letters = record.dead_letters
        return tuple(self.dead_letters_directory / name for name in (*letters.files, *letters.settled))

    @property
    def deletes_rows(self) -> bool:
        return True

    @property
    def rewrites_rows(self) -> bool:
        return self._destination.settings.copy_on_write

    @property
    def key_secret(self) -> bytes:
        # Made at random when the table was, and known to nobody who chooses keys.
        return hashlib.sha256(str(self._opened().uuid()).encode()).digest()[:16]

    def path(self, file: DataFile) -> Path:
        return Path(self._known_files().location(file.name).removeprefix("file:"))

    def file_location(self, name: str) -> str:
        """A data file's name as the table's metadata has it."""
        return self._known_files().location(name)

    def version_path(self) -> Path | None:
        record = self.record()
        return None if record is None or record.directory is None else self.directory

    def dead_letters_path(self) -> Path | None:
        return self.dead_letters_directory if self.dead_letter_paths() else None

    def metadata_location(self) -> str:
        """The table's newest metadata file: what readers without a catalog are given."""
        metadata = self._metadata()
        if metadata is None:
            raise DestinationError(
                "There is no table yet.", stream=str(self.stream), remedy="Run `penstock sync` first."
            )
        return str(metadata.java.metadataFileLocation())

    def new_staging_directory(self) -> Path:
        directory = self._own_directory / "staging" / secrets.token_hex(8)
        directory.mkdir(parents=True)
        return directory

    # What it holds

    def record(self) -> TableRecord | None:
        metadata = self._metadata()
        return None if metadata is None else self._record(metadata)

    def files(self, record: TableRecord) -> tuple[DataFile, ...]:
        if record.snapshot_id is None:
            return ()
        with iceberg_errors("listing the table's files", self.stream):
            return tuple(self._known_files().live(record.snapshot_id).values())

    def is_thread_committed(self, thread_id: str) -> bool:
        record = self.record()
        return record is not None and record.has_thread(thread_id)

    # Loads

    def begin_load(
        self,
        load_id: str,
        epoch: Lsn,
        schema: TableSchema,
        write: WriteMode,
        columns: pa.Schema | None = None,
    ) -> TableRecord:
        assert columns is not None, "a table of Iceberg knows its columns by ids"
        self._create_unless_there(columns)

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            if moves.knows_load(base, load_id):
                return None
            if base is None and attempt.base.head(MAIN) is not None:
                raise DestinationError(
                    "There is a table of this name that Penstock did not write.",
                    stream=str(self.stream),
                    remedy="Give the pipeline a warehouse or a catalog of its own, or drop that table.",
                )
            held = base.columns if base is not None and base.columns is not None else pa.schema([])
            taken = last_id(attempt.base, base)
            with_ids = with_field_ids(columns, assign_ids(columns, same_columns(columns, held), taken))
            stage.start_load_branch()
            head = attempt.staged.head(LOAD_BRANCH)
            load = PendingLoad(load_id, schema, write, columns=with_ids, head=head)
            record = moves.first(epoch, write, schema, load) if base is None else replace(base, load=load)
            record = replace(record, columns=record.columns or with_ids)
            stage.set_properties(epoch, {text.LOAD: text.load_text(load)}, schema, with_ids)
            return record

        return self._commit(epoch, prepare)

    def commit_chunks(
        self,
        load_id: str,
        epoch: Lsn,
        thread_ids: Sequence[str],
        files: Sequence[DataFile],
        dead_letter_files: Sequence[DataFile] = (),
    ) -> TableRecord:
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            load = moves.with_chunks(self.stream, base, load_id, thread_ids, dead_letter_files)
            if load is None:
                return None
            assert base is not None, "a load is open"
            self._check_load_branch(attempt, load)
            stage.append(LOAD_BRANCH, files, None)
            load = replace(load, head=attempt.staged.head(LOAD_BRANCH))
            stage.set_properties(epoch, {text.LOAD: text.load_text(load)})
            return replace(base, load=load)

        return self._commit(epoch, prepare)

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
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            marker = Marker(generation, epoch, None, to, (), cursor)
            record = moves.swapped(
                self.stream, base, load_id, epoch, marker, readable_from, keep_files=keep_files
            )
            if record is None:
                return None
            assert base is not None, "a load is open"
            assert base.load is not None, "a load is open"
            self._check_load_branch(attempt, base.load)
            if keep_files:
                branch = branch_of(attempt.base)
                stage.append_load(branch, record)
            else:
                branch = LOAD_BRANCH
                stage.append(branch, (), record)
            stage.show(branch, record, ends_load=True)
            return record

        return self._commit(epoch, prepare)

    def publish(self, epoch: Lsn, position: Lsn) -> TableRecord:
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            record = moves.published(self.stream, base, epoch, position)
            if record is None:
                return None
            branch = branch_of(attempt.base)
            stage.append(branch, (), record)
            stage.show(branch, record)
            return record

        return self._commit(epoch, prepare)

    # Changes

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
        assert columns is not None, "a table of Iceberg knows its columns by ids"

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            base, record = moves.changed(
                self.stream, base, expected_to, expected_cursor, marker, schema, dead_letter_files
            )
            assert base.columns is not None
            if ids_of(columns) != ids_of(base.columns):
                self._check_new_ids(attempt, base, columns)
            record = replace(record, columns=columns)
            branch = branch_of(attempt.base)
            if deletes:
                stage.row_delta(branch, added, deletes, record, read_from)
            elif removed:
                stage.overwrite(branch, added, removed, record, read_from)
            elif base.write == "upsert":
                stage.row_delta(branch, added, (), record, read_from)
            else:
                stage.append(branch, added, record)
            stage.show(branch, record, same_columns=columns.equals(base.columns))
            return record

        before = self._known_files().snapshot_id
        record = self._commit(marker.epoch, prepare)
        if (
            before is not None
            and record.snapshot_id is not None
            and before == self._parent(record.snapshot_id)
        ):
            self._known_files().advance(record.snapshot_id, added, removed, deletes)
        return record

    def _parent(self, snapshot_id: int) -> int | None:
        """What a snapshot was made on top of: ours, unless somebody committed in between."""
        with iceberg_errors("reading the table", self.stream):
            snapshot = self._opened().operations().current().snapshot(snapshot_id)
            parent = None if snapshot is None else snapshot.parentId()
        return None if parent is None else int(parent)

    def drop_all(self) -> None:
        if self._metadata() is None:
            return
        directory = self.directory
        with iceberg_errors("dropping the table", self.stream):
            self._destination.catalog.dropTable(self._identifier(), True)
        self._table, self._files = None, None
        for leftover in (directory, self._own_directory):
            shutil.rmtree(leftover, ignore_errors=True)

    def sweep(self, grace_s: float) -> None:
        """What a round that was cut short left behind, and indexes of files that are gone.

        Data files that were never committed are Iceberg's orphans: removing those reads every directory.
        """
        record = self.record()
        if record is None:
            return
        old = time.time() - max(grace_s, ABANDONED_AFTER_S)
        for directory in (self._own_directory / "staging").glob("*"):
            if directory.stat().st_mtime < old:
                shutil.rmtree(directory, ignore_errors=True)
        indexes = [path for path in self.index_directory.glob("*") if path.stat().st_mtime < old]
        if indexes:
            live = {self.index_path(file) for file in self.files(record)}
            for path in indexes:
                if path not in live:
                    path.unlink(missing_ok=True)

    # Committing

    def _commit(
        self, epoch: Lsn, prepare: Callable[[Attempt, Staging, TableRecord | None], TableRecord | None]
    ) -> TableRecord:
        """Stage with `prepare` and commit; on top of newer metadata again, as long as its checks pass."""
        with iceberg_errors("committing", self.stream):
            operations = self._opened().operations()
            for turn in range(TRIES_MAX):
                attempt = Attempt(self._destination.java, ".".join(self._names), operations)
                base = self._record(attempt.base)
                fence = attempt.base.property(text.EPOCH)
                moves.check_epoch(self.stream, None if fence is None else Lsn.parse(fence), epoch)
                try:
                    stage = Staging(self._destination.java, attempt, self._known_files(), self.stream)
                    staged = prepare(attempt, stage, base)
                except ConflictingFilesError as error:
                    raise self._stale_lookup() from error
                if staged is None:
                    assert base is not None
                    return base
                failpoints.reach("iceberg.staged")
                try:
                    with iceberg_errors("committing", self.stream):
                        attempt.commit()
                except StaleMetadataError:
                    time.sleep(0.01 * 2**turn)  # others are committing: they get out of step with us
                    continue
                except UnknownOutcomeError as error:
                    return self._look_for(staged, error)
                failpoints.reach("iceberg.committed")
                committed = self.record()
                assert committed is not None
                return committed
        raise moves.conflict(self.stream, "other writers committed first, again and again")

    def _look_for(self, staged: TableRecord, cause: UnknownOutcomeError) -> TableRecord:
        """A commit without an answer: it was made if the table says what we staged."""
        found = self.record()
        if found is not None and (found.committed_at, found.marker, found.load) == (
            staged.committed_at,
            staged.marker,
            staged.load,
        ):
            return found
        raise DestinationError(
            "The catalog did not say whether it took a commit, and the table does not show it.",
            stream=str(self.stream),
            remedy="Run the same command again when the catalog is well: it looks for the commit first.",
        ) from cause

    def _check_load_branch(self, attempt: Attempt, load: PendingLoad) -> None:
        """The branch must hold what the load committed: a new one would hold the table's rows instead."""
        head = attempt.base.head(LOAD_BRANCH)
        if head == load.head or (load.head is not None and attempt.base.descends(head, load.head)):
            return
        raise CommitConflictError(
            f"The commit was refused: the branch {LOAD_BRANCH} does not hold the chunks of this load; "
            "somebody removed or moved it.",
            stream=str(self.stream),
            remedy="Run `penstock resync` for this stream: it begins a new load.",
        )

    def _check_new_ids(self, attempt: Attempt, base: TableRecord, columns: pa.Schema) -> None:
        held = set(ids_of(base.columns).values()) if base.columns is not None else set()
        fresh = set(ids_of(columns).values()) - held
        if fresh and min(fresh) <= last_id(attempt.base, base):
            raise self._stale_lookup()  # somebody added columns: the files carry ids that are taken

    # Reading

    def _record(self, metadata: Metadata) -> TableRecord | None:
        load = text.read_load(metadata.property)
        head = metadata.head(branch_of(metadata))
        try:
            commit = newest_commit(head, metadata.find(text.SUMMARY), text.read_mirror(metadata.property))
        except HistoryGapError as error:
            raise DestinationError(
                "Snapshots of the table expired, and whether it was rolled back before cannot be told.",
                stream=str(self.stream),
                remedy="Run `penstock resync` for this stream.",
            ) from error
        epoch = metadata.property(text.EPOCH)
        if epoch is None or (commit is None and load is None):
            return None
        if commit is None:
            assert load is not None
            record = moves.first(Lsn.parse(epoch), load.write, load.schema, load)
        else:
            record = replace(text.read_record(metadata.property, commit), load=load)
        return replace(
            record,
            epoch=Lsn.parse(epoch),
            directory=metadata.location if metadata.head(MAIN) is not None else None,
            last_field_id=last_id(metadata, record),
            snapshot_id=head,
            counts=_counts(metadata, head),
        )

    def _metadata(self) -> Metadata | None:
        with iceberg_errors("reading the table", self.stream):
            if self._table is None and not self._destination.catalog.tableExists(self._identifier()):
                return None
            operations = self._opened().operations()
            return Metadata(self._destination.java, operations.refresh(), operations.io())

    def _opened(self) -> Any:
        if self._table is None:
            with iceberg_errors("opening the table", self.stream):
                self._table = self._destination.catalog.loadTable(self._identifier())
        return self._table

    def _known_files(self) -> IcebergFiles:
        if self._files is None:
            self._files = IcebergFiles(self._destination.java, self._opened())
        return self._files

    def _identifier(self) -> Any:
        java = self._destination.java
        namespace = java.iceberg("catalog.Namespace").of(java.strings(self._names[0]))
        return java.iceberg("catalog.TableIdentifier").of(namespace, self._names[1])

    def _create_unless_there(self, columns: pa.Schema) -> None:
        java, settings = self._destination.java, self._destination.settings
        catalog, identifier = self._destination.catalog, self._identifier()
        with iceberg_errors("creating the table", self.stream):
            if catalog.tableExists(identifier):
                return
            if not catalog.namespaceExists(identifier.namespace()):
                catalog.createNamespace(identifier.namespace())
            schema = java.iceberg("SchemaParser").fromJson(schema_json(columns, assign_ids(columns, {}, 0)))
            builder = catalog.buildTable(identifier, schema)
            builder.withProperties(java.map_of({**_TABLE_PROPERTIES, **settings.properties}))
            if settings.sets_location:
                builder.withLocation(str(settings.warehouse.joinpath(*self._names)))
            builder.create()

    def _stale_lookup(self) -> StaleLookupError:
        return StaleLookupError(
            "The commit was refused: another writer changed the table's files meanwhile.",
            stream=str(self.stream),
            remedy="Run `penstock sync` again: it looks the rows up again.",
        )


_TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def last_id(metadata: Metadata, record: TableRecord | None) -> int:
    """The highest id that is taken. Iceberg does not know those of columns that nobody is shown yet: of a
    pending load, or of a table that waits to be shown. Nor may a load's come back when it is given up."""
    schemas = [] if record is None else [record.columns, record.load.columns if record.load else None]
    taken = [number for schema in schemas if schema is not None for number in ids_of(schema).values()]
    return max([metadata.last_column_id, *taken])


def _counts(metadata: Metadata, head: int | None) -> tuple[int, int]:
    if head is None:
        return 0, 0
    summary = metadata.java.snapshot(head).summary()
    rows, files, deleted = (
        int(summary.get(name) or 0)
        for name in ("total-records", "total-data-files", "total-position-deletes")
    )
    return rows - deleted, files

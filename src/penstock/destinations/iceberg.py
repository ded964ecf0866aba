"""Iceberg tables: the destination's operations as commits through the JVM's table API.

Each operation checks generation and position against the record that the table holds, and stages files,
record and properties for one atomic commit (`iceberg_handle`). Rows that come and go are a `RowChange`;
what is kept beside the table has an `OwnDirectory`.

Each snapshot that makes a difference to the table's position carries the record of that commit, so rows and
position become visible together, and a rollback takes both back (`iceberg_history`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.core.cursor import Cursors
from penstock.core.errors import CommitConflictError, DestinationError, HistoryUnknownError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.destinations import iceberg_record as text
from penstock.destinations import moves
from penstock.destinations.iceberg_catalog import IcebergCatalog, IcebergSettings
from penstock.destinations.iceberg_durable import local_path
from penstock.destinations.iceberg_handle import TableHandle, last_id
from penstock.destinations.iceberg_java import Attempt, Java, iceberg_errors
from penstock.destinations.iceberg_options import stage_options
from penstock.destinations.iceberg_row_change import RowChange
from penstock.destinations.iceberg_schema import (
    assign_ids,
    same_columns,
    same_columns_in,
    schema_json,
    with_field_ids,
)
from penstock.destinations.iceberg_staging import LOAD_BRANCH, MAIN, Staging, branch_of
from penstock.destinations.records import (
    DataFile,
    Marker,
    MergedLetters,
    PendingLoad,
    PositionDeletes,
    TableRecord,
    WriteMode,
)
from penstock.destinations.turns import in_turn


class IcebergDestination:
    def __init__(self, settings: IcebergSettings, java: Callable[[], Java]) -> None:
        self.settings = settings
        self.catalog = IcebergCatalog(settings, java)
        self._tables: dict[StreamId, IcebergTable] = {}

    def table(self, stream: StreamId) -> IcebergTable:
        """The table of a stream; nothing is made before its first commit."""
        if stream not in self._tables:
            self._tables[stream] = IcebergTable(self.catalog, stream)
        return self._tables[stream]

    def forget(self, stream: StreamId) -> None:
        """Have it opened anew when it is asked for next: somebody may have dropped it and made another."""
        self._tables.pop(stream, None)

    def streams(self) -> list[StreamId]:
        found = self.catalog.streams()
        return sorted(stream for stream in found if self.table(stream).record() is not None)


class IcebergTable:
    def __init__(self, catalog: IcebergCatalog, stream: StreamId) -> None:
        self.stream = stream
        self.catalog = catalog
        self.handle = TableHandle(catalog, stream)
        self.turn = threading.Lock()
        self._own = catalog.own_directory(stream)

    # Where things are

    @property
    def location(self) -> str:
        return str(self.handle.table.location())

    @property
    def directory(self) -> Path:
        path = local_path(self.location)
        if path is None:
            raise DestinationError(
                "The catalog put the table into a store, and Penstock writes to local directories.",
                stream=str(self.stream),
                remedy="Use a catalog whose warehouse is a directory that this machine has too.",
            )
        return path

    @property
    def files_directory(self) -> Path:
        return self.directory / "data"

    @property
    def dead_letters_directory(self) -> Path:
        return self._own.dead_letters

    def index_path(self, file: DataFile) -> Path:
        return self._own.index_path(self.file_location(file.name))

    def dead_letter_paths(self) -> tuple[Path, ...]:
        return self._own.letter_paths(self.record())

    @property
    def deletes_rows(self) -> bool:
        return True

    @property
    def deletes_by_vector(self) -> bool:
        return self.handle.known_metadata().deletes_by_vector

    @property
    def rewrites_rows(self) -> bool:
        return self.catalog.settings.copy_on_write

    @property
    def key_secret(self) -> bytes:
        # Made at random when the table was, and known to nobody who chooses keys.
        return hashlib.sha256(str(self.handle.table.uuid()).encode()).digest()[:16]

    def path(self, file: DataFile) -> Path:
        return Path(self.handle.files.location(file.name).removeprefix("file:"))

    def file_location(self, name: str) -> str:
        """A data file's name as the table's metadata has it."""
        return self.handle.files.location(name)

    def version_path(self) -> Path | None:
        record = self.record()
        return None if record is None or record.directory is None else self.directory

    def dead_letters_path(self) -> Path | None:
        return self._own.letters_for_readers(self.record())

    def metadata_location(self) -> str:
        """The table's newest metadata file: what readers without a catalog are given."""
        metadata = self.handle.metadata()
        if metadata is None:
            raise DestinationError(
                "There is no table yet.", stream=str(self.stream), remedy="Run `penstock sync` first."
            )
        return str(metadata.java.metadataFileLocation())

    def new_staging_directory(self) -> Path:
        return self._own.new_staging()

    # What it holds

    def record(self) -> TableRecord | None:
        return self.handle.record()

    def history(self) -> Iterator[TableRecord]:
        with iceberg_errors("reading the table's history", self.stream):
            yield from self.handle.history()

    def files(self, record: TableRecord) -> tuple[DataFile, ...]:
        if record.snapshot_id is None:
            return ()
        with iceberg_errors("listing the table's files", self.stream):
            return tuple(self.handle.files.live(record.snapshot_id).values())

    def partition_columns(self, record: TableRecord) -> frozenset[int]:
        specs = {file.spec_id for file in self.files(record) if file.spec_id is not None}
        with iceberg_errors("reading the table", self.stream):
            held = self.handle.table.specs()
            fields = [field for spec_id in specs for field in held.get(spec_id).fields()]
            return frozenset(int(field.sourceId()) for field in fields)

    def is_thread_committed(self, thread_id: str) -> bool:
        record = self.record()
        return record is not None and record.has_thread(thread_id)

    # Loads

    @in_turn
    def begin_load(
        self,
        load_id: str,
        epoch: Lsn,
        schema: TableSchema,
        write: WriteMode,
        columns: pa.Schema | None = None,
        options: TableOptions = NO_OPTIONS,
    ) -> TableRecord:
        assert columns is not None, "a table of Iceberg knows its columns by ids"
        self.catalog.create(self.stream, schema_json(columns, assign_ids(columns, {}, 0)), options)

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            if moves.knows_load(base, load_id):
                return None
            if base is None and attempt.base.head(MAIN) is not None:
                raise DestinationError(
                    "There is a table of this name that Penstock did not write.",
                    stream=str(self.stream),
                    remedy="Give the pipeline a warehouse or a catalog of its own, or drop that table.",
                )
            if base is not None and base.columns is not None:
                held = same_columns(columns, base.columns)
            else:
                held = same_columns_in(columns, attempt.base.schema_json)
            with_ids = with_field_ids(columns, assign_ids(columns, held, last_id(attempt.base, base)))
            self._stage_options(attempt, options)
            stage.start_load_branch()
            head = attempt.staged.head(LOAD_BRANCH)
            load = PendingLoad(load_id, schema, write, columns=with_ids, head=head)
            record = moves.first(epoch, write, schema, load) if base is None else replace(base, load=load)
            record = replace(record, columns=record.columns or with_ids)
            stage.set_properties(epoch, {text.LOAD: text.load_text(load)}, schema, with_ids)
            return record

        return self.handle.commit(epoch, prepare)

    @in_turn
    def disown(self, epoch: Lsn) -> TableRecord:
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            assert base is not None, "a table with a history that has a gap"
            if base.marker is not None:
                return None
            branch = branch_of(attempt.base)
            shown = {"readable_from": None} if branch == MAIN else {}
            record = moves.following(base, epoch, **shown)
            stage.append(branch, (), record)
            stage.show(branch, record, same_columns=True)
            return record

        return self.handle.commit(epoch, prepare, over_gap=True)

    @in_turn
    def settle_options(self, epoch: Lsn, options: TableOptions) -> None:
        settings = self.catalog.settings
        is_settled = options == NO_OPTIONS and not settings.properties and settings.format_version is None
        if is_settled or self.record() is None:
            return

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            branch = branch_of(attempt.base)
            if base is None or attempt.base.head(branch) is None or not self._stage_options(attempt, options):
                return None
            record = moves.following(base, epoch)
            stage.append(branch, (), record)
            stage.show(branch, record, same_columns=True)
            return record

        self.handle.commit(epoch, prepare)

    @in_turn
    def fence(self, epoch: Lsn) -> None:
        if self.record() is None:
            return

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            record = None if base is None else moves.fenced(base, epoch)
            if record is None:
                return None
            branch = branch_of(attempt.base)
            if attempt.base.head(branch) is not None:
                stage.append(branch, (), record)
                stage.show(branch, record, same_columns=True)
                return record
            # Nothing is there but a load.
            assert record.load is not None, "a record is of a commit or of a load"
            self._check_load_branch(attempt, record.load)
            stage.append(LOAD_BRANCH, (), None)
            load = replace(record.load, head=attempt.staged.head(LOAD_BRANCH))
            stage.set_properties(epoch, {text.LOAD: text.load_text(load)})
            return replace(record, load=load)

        self.handle.commit(epoch, prepare)

    def _stage_options(self, attempt: Attempt, options: TableOptions) -> bool:
        settings = self.catalog.settings
        options = replace(options, format_version=options.format_version or settings.format_version)
        return stage_options(self.catalog.java, attempt, options, settings.properties, self.stream)

    @in_turn
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

        return self.handle.commit(epoch, prepare)

    @in_turn
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
        leaves: Mapping[str, str] | None = None,
        timeline: int | None = None,
    ) -> TableRecord:
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            marker = Marker(generation, epoch, None, to, (), cursor, leaves, timeline)
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

        return self.handle.commit(epoch, prepare)

    @in_turn
    def publish(self, epoch: Lsn, position: Lsn) -> TableRecord:
        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            record = moves.published(self.stream, base, epoch, position)
            if record is None:
                return None
            branch = branch_of(attempt.base)
            stage.append(branch, (), record)
            stage.show(branch, record)
            return record

        return self.handle.commit(epoch, prepare)

    # Changes

    @in_turn
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
        rewinds: str | None = None,
        merged_letters: MergedLetters | None = None,
    ) -> TableRecord:
        assert columns is not None, "a table of Iceberg knows its columns by ids"
        change = RowChange(added, removed, deletes, read_from)

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            base, record = moves.changed(
                self.stream,
                base,
                expected_to,
                expected_cursor,
                marker,
                schema,
                dead_letter_files,
                rewinds,
                merged_letters,
            )
            return change.stage(self.handle, attempt, stage, base, replace(record, columns=columns))

        return change.commit(self.handle, marker.epoch, prepare)

    @in_turn
    def mend(
        self,
        load_id: str,
        expected: Marker,
        marker: Marker,
        schema: TableSchema,
        *,
        added: Sequence[DataFile],
        removed: Sequence[str],
        dead_letter_files: Sequence[DataFile] = (),
        deletes: Sequence[PositionDeletes] = (),
        columns: pa.Schema | None = None,
        read_from: int | None = None,
    ) -> TableRecord:
        assert columns is not None, "a table of Iceberg knows its columns by ids"
        change = RowChange(added, removed, deletes, read_from)

        def prepare(attempt: Attempt, stage: Staging, base: TableRecord | None) -> TableRecord | None:
            record = moves.mended(self.stream, base, load_id, expected, marker, schema, dead_letter_files)
            if record is None:
                return None
            assert base is not None, "there is a table"
            return change.stage(self.handle, attempt, stage, base, replace(record, columns=columns))

        return change.commit(self.handle, marker.epoch, prepare)

    def drop_all(self) -> None:
        if self.handle.metadata() is None:
            return
        directory = self.directory
        self.handle.drop()
        shutil.rmtree(directory, ignore_errors=True)
        self._own.remove()

    def sweep(self, grace_s: float) -> None:
        """What a round that was cut short left behind, and indexes of files that are gone.

        Data files that were never committed are Iceberg's orphans: removing those reads every directory.
        """
        record = self.record()
        if record is not None:
            self._own.sweep(record, lambda: map(self.index_path, self.files(record)), grace_s)

    def remove_orphan_letters(self, modified_before: float) -> int:
        """Remove files of dead letters that no commit names which is kept; how many they were."""
        metadata = self.handle.metadata()
        try:
            record = self.record()
        except HistoryUnknownError:
            return 0  # nobody can tell which letters are the table's
        if metadata is None or record is None:
            return 0
        with iceberg_errors("reading the table", self.stream):
            parser = self.catalog.java.iceberg("TableMetadataParser")
            document = json.loads(str(parser.toJson(metadata.java)))
        named = text.letter_names(document) | set(record.dead_letters.names)
        return self._own.sweep_letters(named, modified_before)

    def _check_load_branch(self, attempt: Attempt, load: PendingLoad) -> None:
        """The branch must hold what the load committed: a new one would hold the table's rows instead."""
        head = attempt.base.head(LOAD_BRANCH)
        if load.head is not None and attempt.base.descends(head, load.head):
            return
        raise CommitConflictError(
            f"The commit was refused: the branch {LOAD_BRANCH} does not hold the chunks of this load; "
            "somebody removed or moved it.",
            stream=str(self.stream),
            remedy="Run `penstock resync` for this stream: it begins a new load.",
        )

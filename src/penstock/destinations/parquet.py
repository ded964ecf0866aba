"""Parquet tables on a local path, committed by records.

Every operation: read the newest record → check epoch, generation, position → make the files' names durable
→ build the version directory if readers will see something new → create the next record exclusively (the
commit) → switch `current`. A crash before the record leaves an unreferenced directory and files for the
sweep; a crash after it is made good by whoever opens the table next. The check and the commit are one:
whoever committed in between has taken the number, so a writer that was asleep lands nowhere.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock import failpoints
from penstock.core.cursor import Cursors
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId, unescape_file_name
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.destinations import moves
from penstock.destinations.parquet_files import new_file_name, write_empty_like
from penstock.destinations.parquet_layout import TableLayout
from penstock.destinations.parquet_sweep import ABANDONED_AFTER_S, RECORDS_KEPT, Swept, drop, sweep
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


class ParquetDestination:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[StreamId, ParquetTable] = {}

    def table(self, stream: StreamId) -> ParquetTable:
        """The table of a stream; nothing is made before its first commit."""
        if stream not in self._tables:
            self._tables[stream] = ParquetTable(self.path, stream)
        return self._tables[stream]

    def streams(self) -> list[StreamId]:
        return sorted(
            StreamId(unescape_file_name(commits.parent.parent.name), unescape_file_name(commits.parent.name))
            for commits in self.path.glob("*/*/_commits")
            if not commits.parent.name.startswith(".")  # being dropped
        )


class ParquetTable:
    def __init__(self, root: Path, stream: StreamId) -> None:
        self.stream = stream
        self.layout = TableLayout(root, stream)
        self.turn = threading.Lock()
        self.roll_forward()

    @property
    def files_directory(self) -> Path:
        return self.layout.files

    @property
    def dead_letters_directory(self) -> Path:
        return self.layout.dead_letters

    def dead_letter_paths(self) -> tuple[Path, ...]:
        record = self.record()
        if record is None:
            return ()
        return tuple(self.layout.dead_letters / name for name in record.dead_letters.names)

    def dead_letters_path(self) -> Path | None:
        """The directory of the dead letters that readers see now; None: there are none."""
        record = self.record()
        if record is None or record.letters_directory is None:
            return None
        return self.layout.directory / record.letters_directory

    @property
    def deletes_rows(self) -> bool:
        return False

    @property
    def deletes_by_vector(self) -> bool:
        return False

    @property
    def rewrites_rows(self) -> bool:
        return True

    @property
    def key_secret(self) -> bytes:
        return bytes(16)

    def index_path(self, file: DataFile) -> Path:
        return self.layout.staging / f"{file.name}.keys"

    def file_location(self, name: str) -> str:
        return str(self.layout.files / name)

    def path(self, file: DataFile) -> Path:
        return self.layout.files / file.name

    def new_staging_directory(self) -> Path:
        directory = self.layout.staging / secrets.token_hex(8)
        directory.mkdir(parents=True)
        return directory

    @property
    def current(self) -> Path:
        """Where readers look; the table's newest version as of each look."""
        return self.layout.current

    def record(self) -> TableRecord | None:
        return self.layout.newest_record()

    def history(self) -> Iterator[TableRecord]:
        for version in reversed(self.layout.versions()):
            try:
                yield self.layout.read_record(version)
            except FileNotFoundError:  # swept since it was listed, and so are all before it
                return

    def version_path(self) -> Path | None:
        """The directory of the version readers see now. It stays as it is for the grace period."""
        record = self.record()
        if record is None or record.directory is None:
            return None
        return self.layout.directory / record.directory

    def is_thread_committed(self, thread_id: str) -> bool:
        record = self.record()
        return record is not None and record.has_thread(thread_id)

    def files(self, record: TableRecord) -> tuple[DataFile, ...]:
        return record.files

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
        base = self._base(epoch)
        if base is not None and moves.knows_load(base, load_id):
            return base
        load = PendingLoad(load_id, schema, write)
        if base is None:
            return self._commit(moves.first(epoch, write, schema, load), None)
        return self._commit(moves.following(base, epoch, kind="load", load=load), base)

    def partition_columns(self, record: TableRecord) -> frozenset[int]:
        return frozenset()

    def disown(self, epoch: Lsn) -> TableRecord:
        raise AssertionError("what a table of plain files holds is in its newest record")

    def settle_options(self, epoch: Lsn, options: TableOptions) -> None:
        """A table of plain files has none."""

    @in_turn
    def fence(self, epoch: Lsn) -> None:
        base = self._base(epoch)
        if base is not None:
            self._commit_if_new(moves.fenced(base, epoch), base)

    @in_turn
    def commit_chunks(
        self,
        load_id: str,
        epoch: Lsn,
        thread_ids: Sequence[str],
        files: Sequence[DataFile],
        dead_letter_files: Sequence[DataFile] = (),
    ) -> TableRecord:
        base = self._base(epoch)
        load = moves.with_chunks(self.stream, base, load_id, thread_ids, dead_letter_files)
        assert base is not None, "a load is open"
        if load is None:
            return base
        load = replace(load, files=(*load.files, *files))
        return self._commit(moves.following(base, epoch, kind="chunks", load=load), base)

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
        base = self._base(epoch)
        marker = Marker(generation, epoch, None, to, (), cursor, leaves, timeline)
        record = moves.swapped(
            self.stream, base, load_id, epoch, marker, readable_from, keep_files=keep_files
        )
        return self._commit_if_new(record, base)

    @in_turn
    def publish(self, epoch: Lsn, position: Lsn) -> TableRecord:
        base = self._base(epoch)
        return self._commit_if_new(moves.published(self.stream, base, epoch, position), base)

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
        assert not deletes, "rows of these tables go by rewriting their files"
        base, record = moves.changed(
            self.stream,
            self._base(marker.epoch),
            expected_to,
            expected_cursor,
            marker,
            schema,
            dead_letter_files,
            rewinds,
            merged_letters,
        )
        return self._commit(replace(record, files=self._files_after(base, added, removed)), base)

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
        assert not deletes, "rows of these tables go by rewriting their files"
        base = self._base(marker.epoch)
        record = moves.mended(self.stream, base, load_id, expected, marker, schema, dead_letter_files)
        if record is not None:
            assert base is not None, "there is a table"
            record = replace(record, files=self._files_after(base, added, removed))
        return self._commit_if_new(record, base)

    def _files_after(
        self, base: TableRecord, added: Sequence[DataFile], removed: Sequence[str]
    ) -> tuple[DataFile, ...]:
        missing = set(removed) - {file.name for file in base.files}
        if missing:
            raise moves.conflict(self.stream, f"{len(missing)} of the files to replace are not in the table")
        kept = tuple(file for file in base.files if file.name not in set(removed))
        return moves.without_needless((*kept, *added)) or self._empty_file(removed)

    def drop_all(self) -> None:
        drop(self.layout)

    def sweep(self, grace_s: float, abandoned_after_s: float | None = None) -> Swept:
        """Remove what no reader and no commit needs any more; see `parquet_sweep`."""
        if abandoned_after_s is None:  # a comparison may read files of its own for as long as other readers
            abandoned_after_s = max(grace_s, ABANDONED_AFTER_S)
        return sweep(self.layout, grace_s, abandoned_after_s)

    def roll_forward(self) -> None:
        """Let `current` show what the newest record says: a crash may have left it behind."""
        while True:
            record = self.record()
            if (
                record is None
                or record.directory is None
                or self.layout.current_version() == record.directory
            ):
                return
            self.layout.switch(record.directory)

    def _commit_if_new(self, record: TableRecord | None, base: TableRecord | None) -> TableRecord:
        if record is not None:
            return self._commit(record, base)
        assert base is not None, "only what is there was done before"
        return base

    def _commit(self, record: TableRecord, base: TableRecord | None) -> TableRecord:
        self.layout.make_directories()
        self.layout.sync_files()
        built = None
        record, letters = self._with_letters(record, base)
        if self._is_visible_change(record, base):
            built = self.layout.build_version(record.version, (file.name for file in record.files))
            record = replace(record, directory=built)
            failpoints.reach("destination.version_built")
        try:
            created = self.layout.create_record(record)
        except Exception:
            self._discard((built, letters), record)
            raise
        if not created or self.layout.versions()[-1] - record.version >= RECORDS_KEPT:
            # Taken; or we slept so long that the number had been taken and pruned again.
            if created:
                self.layout.record_path(record.version).unlink(missing_ok=True)
            self._discard((built, letters), record)
            raise moves.conflict(self.stream, "another writer committed first")
        if built is not None:
            failpoints.reach("destination.recorded")
            self.roll_forward()
            failpoints.reach("destination.switched")
        return record

    def _with_letters(self, record: TableRecord, base: TableRecord | None) -> tuple[TableRecord, str | None]:
        """The record with a version of its dead letters, if those are not what they were; and its name."""
        names = record.dead_letters.files
        before = base.dead_letters.files if base is not None and base.letters_directory is not None else ()
        if names == before:
            return record, None
        if not names:
            return replace(record, letters_directory=None), None
        built = self.layout.build_version(record.version, names, self.layout.dead_letters)
        return replace(record, letters_directory=built), built

    def _discard(self, built: Sequence[str | None], record: TableRecord) -> None:
        # Never a version that a record names: an error while syncing leaves that open.
        recorded = self.layout.record_path(record.version).exists()
        named = self._names(record.version) if recorded else set()
        for name in built:
            if name is not None and name not in named:
                self.layout.remove_version(name)

    def _names(self, version: int) -> set[str | None]:
        record = self.layout.read_record(version)
        return {record.directory, record.letters_directory}

    @staticmethod
    def _is_visible_change(record: TableRecord, base: TableRecord | None) -> bool:
        if base is None or record.marker is None or record.readable_from is not None:
            return False
        shown = base.directory is not None and base.readable_from is None
        return not (shown and {f.name for f in base.files} == {f.name for f in record.files})

    def _empty_file(self, removed: Sequence[str]) -> tuple[DataFile, ...]:
        # A version without files has no columns: readers would fail where they should see no rows.
        if not removed:
            return ()
        target = self.layout.files / new_file_name("empty")
        return (write_empty_like(self.layout.files / removed[0], target),)

    def _base(self, epoch: Lsn) -> TableRecord | None:
        record = self.record()
        moves.check_epoch(self.stream, None if record is None else record.epoch, epoch)
        return record

"""Parquet tables on a local path, committed by records.

Every operation: read the newest record → check epoch, generation, position → make the files' names durable
→ build the version directory if readers will see something new → create the next record exclusively (the
commit) → switch `current`. A crash before the record leaves an unreferenced directory and files for the
sweep; a crash after it is made good by whoever opens the table next. The check and the commit are one:
whoever committed in between has taken the number, so a writer that was asleep lands nowhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import failpoints
from penstock.core.cursor import Cursors
from penstock.core.errors import CommitConflictError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId, unescape_file_name
from penstock.destinations.base import (
    DataFile,
    Marker,
    PendingLoad,
    PositionDeletes,
    TableRecord,
    WriteMode,
    follows,
)
from penstock.destinations.parquet_files import new_file_name, write_empty_like
from penstock.destinations.parquet_layout import TableLayout
from penstock.destinations.parquet_sweep import RECORDS_KEPT, Swept, drop, sweep


class ParquetDestination:
    def __init__(self, path: Path) -> None:
        self.path = path

    def table(self, stream: StreamId) -> ParquetTable:
        """The table of a stream; nothing is made before its first commit."""
        return ParquetTable(self.path, stream)

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
        letters = record.dead_letters
        return tuple(self.layout.dead_letters / name for name in (*letters.files, *letters.settled))

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

    def version_path(self) -> Path | None:
        """The directory of the version readers see now. It stays as it is for the grace period."""
        record = self.record()
        if record is None or record.directory is None:
            return None
        return self.layout.directory / record.directory

    def is_thread_committed(self, thread_id: str) -> bool:
        record = self.record()
        if record is None:
            return False
        in_marker = record.marker is not None and thread_id in record.marker.thread_ids
        return in_marker or (record.load is not None and thread_id in record.load.thread_ids)

    def files(self, record: TableRecord) -> tuple[DataFile, ...]:
        return record.files

    def begin_load(
        self,
        load_id: str,
        epoch: Lsn,
        schema: TableSchema,
        write: WriteMode,
        columns: pa.Schema | None = None,
    ) -> TableRecord:
        base = self._base(epoch)
        if base is not None and load_id in (base.last_load_id, base.load.load_id if base.load else None):
            return base
        load = PendingLoad(load_id, schema, write)
        if base is None:
            first = TableRecord(1, "load", _now(), epoch, write, schema, load=load)
            return self._commit(first, None)
        return self._commit(self._next(base, epoch, kind="load", load=load), base)

    def commit_chunks(
        self,
        load_id: str,
        epoch: Lsn,
        thread_ids: Sequence[str],
        files: Sequence[DataFile],
        dead_letter_files: Sequence[DataFile] = (),
    ) -> TableRecord:
        base = self._base(epoch)
        if base is None or base.load is None or base.load.load_id != load_id:
            raise self._conflict("this load is not the one that is open")
        known = set(base.load.thread_ids)
        if known.issuperset(thread_ids):
            return base
        if not known.isdisjoint(thread_ids):
            raise self._conflict("some of these chunks are committed already")
        load = replace(
            base.load,
            thread_ids=(*base.load.thread_ids, *thread_ids),
            files=(*base.load.files, *files),
            dead_letters=base.load.dead_letters.with_files(dead_letter_files),
        )
        return self._commit(self._next(base, epoch, kind="chunks", load=load), base)

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
        base = self._base(epoch)
        if base is not None and base.last_load_id == load_id:
            return base
        if base is None or base.load is None or base.load.load_id != load_id:
            raise self._conflict("this load is not the one that is open")
        waits = readable_from is not None and to is not None and readable_from > to
        record = self._next(
            base,
            epoch,
            kind="swap",
            write=base.load.write,
            schema=base.load.schema,
            files=_without_needless((*(base.files if keep_files else ()), *base.load.files)),
            # The chunks' thread ids stay answerable until the state knows of the swap.
            marker=Marker(generation, epoch, None, to, base.load.thread_ids, cursor),
            load=None,
            last_load_id=load_id,
            dead_letters=base.dead_letters.and_of(base.load) if keep_files else base.load.dead_letters,
            readable_from=readable_from if waits else None,
        )
        return self._commit(record, base)

    def publish(self, epoch: Lsn, position: Lsn) -> TableRecord:
        base = self._base(epoch)
        if base is None or base.marker is None:
            raise self._conflict("there is no table to show")
        if base.readable_from is None or position < base.readable_from:
            return base
        return self._commit(self._next(base, epoch, kind="publish", readable_from=None), base)

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
        assert not deletes, "rows of these tables go by rewriting their files"
        base = self._base(marker.epoch)
        if base is None or base.marker is None:
            raise self._conflict("there is no table to change; it was never loaded")
        if base.marker.generation != marker.generation:
            raise self._conflict("the table was loaded anew since this batch was prepared")
        if base.marker.to != expected_to:
            raise self._conflict(f"the table is at {base.marker.to}, this batch follows {expected_to}")
        if base.marker.cursor != expected_cursor:
            raise self._conflict("the table is at another cursor than the one this batch starts from")
        if not follows(marker, expected_to):
            raise ValueError("a batch goes on from where the table is, or later, and advances")
        missing = set(removed) - {file.name for file in base.files}
        if missing:
            raise self._conflict(f"{len(missing)} of the files to replace are not in the table")
        kept = tuple(file for file in base.files if file.name not in set(removed))
        reached = base.readable_from is not None and (marker.to or 0) >= base.readable_from
        record = self._next(
            base,
            marker.epoch,
            kind="changes",
            schema=schema,
            files=_without_needless((*kept, *added)) or self._empty_file(removed),
            marker=marker,
            dead_letters=base.dead_letters.with_files(dead_letter_files),
            readable_from=None if reached else base.readable_from,
        )
        return self._commit(record, base)

    def drop_all(self) -> None:
        drop(self.layout)

    def sweep(self, grace_s: float, abandoned_after_s: float = 3600.0) -> Swept:
        """Remove what no reader and no commit needs any more; see `parquet_sweep`."""
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
            raise self._conflict("another writer committed first")
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
        if record is not None and epoch < record.epoch:
            raise self._conflict("a newer leader has taken over this table")
        return record

    def _next(self, base: TableRecord, epoch: Lsn, **changes: Any) -> TableRecord:
        return replace(base, version=base.version + 1, committed_at=_now(), epoch=epoch, **changes)

    def _conflict(self, reason: str) -> CommitConflictError:
        return CommitConflictError(
            f"The commit was refused: {reason}.",
            stream=str(self.stream),
            remedy="Make sure that only one Penstock runs for this table, then run `penstock sync` again; "
            "if it is refused again, run `penstock resync` for this stream.",
        )


def _without_needless(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Files with rows; if there are none, one empty file (the last, with the newest columns)."""
    return tuple(file for file in files if file.rows) or tuple(files[-1:])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

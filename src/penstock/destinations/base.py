"""What every destination promises.

A table is described whole by its newest `TableRecord`. Each operation reads the newest record, checks
what it must, and creates the next one atomically; of two writers on top of the same record one succeeds,
and the other gets `CommitConflictError` with nothing changed (correctness 16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.core.cursor import Cursors
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.destinations.records import (
    DataFile,
    Marker,
    MergedLetters,
    PositionDeletes,
    TableRecord,
    WriteMode,
)


class DestinationTable(Protocol):
    """One table. A method that returns has committed durably; one that raises has changed nothing."""

    def record(self) -> TableRecord | None:
        """The newest record; None if the table was never written."""
        ...

    def history(self) -> Iterator[TableRecord]:
        """The newest record and those before it, as far back as the table still knows them."""
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
        """The committed files of dead letters, in the order of their commits, then those that say which of
        them are open: of open letters and of settled keys."""
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

    def disown(self, epoch: Lsn) -> TableRecord:
        """After a `HistoryUnknownError`: let the rows that are there be of no known position, so that a load
        can replace them; readers see them until then."""
        ...

    def settle_options(self, epoch: Lsn, options: TableOptions) -> None:
        """Give a table that is there these options; its rows stay as they are."""
        ...

    def fence(self, epoch: Lsn) -> None:
        """Have the table, if it is there, refuse every older leader from now on; its rows stay."""
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
        leaves: Mapping[str, str] | None = None,
        timeline: int | None = None,
    ) -> TableRecord:
        """Let the load be the table. Nothing if it is. Readers see it once it has reached `readable_from`.

        `keep_files`: the load is added to the table's rows instead (the history of an append table).
        `cursor`: the marker's, for a table that is read by a cursor. `leaves`: the marker's, of a partitioned
        source. `timeline`: the source's, if the table follows its log.
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
        rewinds: str | None = None,
        merged_letters: MergedLetters | None = None,
    ) -> TableRecord:
        """Take a batch if the table is at `expected_to`, of the same generation, under no newer epoch.

        `rewinds`: the table's generation, of changes that it holds already and takes once more; it stays at
        `expected_to`, and is of the marker's generation from then on.

        A table that is read by a cursor is at no position: it must be at `expected_cursor`, and the marker's
        `cursor` says where it is then. If that is the same, `marker` has the thread ids of the one before.

        `read_from`: the snapshot in which the rows to replace were looked up. `StaleLookupError`: somebody
        changed the table's files since, so that they must be looked up again.

        `merged_letters`: what takes the place of the table's dead letters, before the batch's come to them.
        """
        ...

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
        """Let the table be what the load would make of it, by rows that come and go: its swap without its
        chunks. Nothing if it is. The table must have the marker `expected`; a load that is open is given up.

        `read_from`: as for `commit_changes`.
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

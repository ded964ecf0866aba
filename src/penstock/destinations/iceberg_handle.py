"""One Iceberg table as the catalog has it: what it says now, and the commit that replaces exactly that.

Every commit: read the table's metadata → check the epoch against it → let the caller check position and
generation and stage its updates → compare-and-set against that very metadata (`iceberg_java`). Whoever
committed in between makes it fail. If that was a foreign commit (compaction, another writer's rows), the
checks pass again and the operation is repeated on top; if it was a newer leader, they do not. A commit whose
outcome the catalog did not tell is looked for by its record and never repeated blindly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from penstock import failpoints
from penstock.core.errors import (
    DestinationAwayError,
    DestinationError,
    HistoryUnknownError,
    StaleLookupError,
)
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations import iceberg_record as text
from penstock.destinations import moves
from penstock.destinations.iceberg_catalog import IcebergCatalog, names_of
from penstock.destinations.iceberg_durable import sync_files, sync_names
from penstock.destinations.iceberg_files import IcebergFiles
from penstock.destinations.iceberg_history import HistoryGapError, newest_commit
from penstock.destinations.iceberg_java import (
    Attempt,
    ConflictingFilesError,
    Metadata,
    StaleMetadataError,
    UnknownOutcomeError,
    commit_outcomes,
    iceberg_errors,
)
from penstock.destinations.iceberg_options import read_layout
from penstock.destinations.iceberg_schema import ids_of
from penstock.destinations.iceberg_staging import MAIN, Staging, branch_of
from penstock.destinations.records import TableRecord

TRIES_MAX = 10

#: Stages an operation on top of the record it is given; None: there is nothing to do.
Prepare = Callable[[Attempt, Staging, TableRecord | None], TableRecord | None]


class TableHandle:
    def __init__(self, catalog: IcebergCatalog, stream: StreamId) -> None:
        self._catalog = catalog
        self._stream = stream
        self._table: Any = None
        self._files: IcebergFiles | None = None
        self._read: tuple[str, TableRecord | None] | None = None  # by the metadata file it is from

    @property
    def table(self) -> Any:
        """Iceberg's own object."""
        if self._table is None:
            self._table = self._catalog.load(self._stream)
        return self._table

    @property
    def files(self) -> IcebergFiles:
        if self._files is None:
            self._files = IcebergFiles(self._catalog.java, self.table)
        return self._files

    def metadata(self) -> Metadata | None:
        """The table's newest metadata; None if there is no table."""
        with iceberg_errors("reading the table", self._stream):
            if self._table is None and not self._catalog.exists(self._stream):
                return None
            operations = self.table.operations()
            return Metadata(self._catalog.java, operations.refresh(), operations.io())

    def known_metadata(self) -> Metadata:
        """The table's metadata as last read."""
        with iceberg_errors("reading the table", self._stream):
            operations = self.table.operations()
            return Metadata(self._catalog.java, operations.current(), operations.io())

    def record(self) -> TableRecord | None:
        """What the table says now. A metadata file never changes, so each is read for it once."""
        metadata = self.metadata()
        if metadata is None:
            return None
        location = str(metadata.java.metadataFileLocation())
        read = self._read
        if read is None or read[0] != location:
            self._read = read = location, self._record(metadata)
        return read[1]

    def history(self) -> Iterator[TableRecord]:
        """What the table said at each commit of ours, the newest first, as far as snapshots are known."""
        metadata = self.metadata()
        at = None if metadata is None else metadata.head(branch_of(metadata))
        while metadata is not None and at is not None:
            snapshot = metadata.find(text.SUMMARY)(at)
            if snapshot is None:
                return
            if snapshot.commit is not None:
                try:
                    record = text.read_record(metadata.property, snapshot.commit)
                except ValueError:
                    return  # its columns are written down no more
                layout = read_layout(self._catalog.java, metadata)
                yield replace(record, snapshot_id=at, layout=layout)
            at = snapshot.parent_id

    def parent(self, snapshot_id: int) -> int | None:
        """What a snapshot was made on top of: ours, unless somebody committed in between."""
        with iceberg_errors("reading the table", self._stream):
            snapshot = self.table.operations().current().snapshot(snapshot_id)
            parent = None if snapshot is None else snapshot.parentId()
        return None if parent is None else int(parent)

    def drop(self) -> None:
        self._catalog.drop(self._stream)
        self._table, self._files, self._read = None, None, None

    def commit(self, epoch: Lsn, prepare: Prepare, *, over_gap: bool = False) -> TableRecord:
        """Stage with `prepare` and commit; on top of newer metadata again, as long as its checks pass.

        `over_gap`: where nobody can tell what the table holds, `prepare` is given a record without a marker.
        """
        with iceberg_errors("committing", self._stream):
            operations = self.table.operations()
            for turn in range(TRIES_MAX):
                attempt = Attempt(self._catalog.java, ".".join(names_of(self._stream)), operations)
                base = self._record(attempt.base, over_gap=over_gap)
                fence = attempt.base.property(text.EPOCH)
                moves.check_epoch(self._stream, None if fence is None else Lsn.parse(fence), epoch)
                try:
                    stage = Staging(self._catalog.java, attempt, self.files, self._stream)
                    staged = prepare(attempt, stage, base)
                    if staged is not None:
                        stage.move_fence()
                except ConflictingFilesError as error:
                    raise self.stale_lookup() from error
                if staged is None:
                    assert base is not None
                    return base
                sync_files(stage.new_files())
                sync_names((self.files.directory, self._catalog.own_directory(self._stream).dead_letters))
                failpoints.reach("iceberg.staged")
                committed = self._hand_over(attempt, staged)
                if committed is not None:
                    sync_files([str(operations.current().metadataFileLocation())])
                    failpoints.reach("iceberg.committed")
                    return committed
                time.sleep(0.01 * 2**turn)  # others are committing: they get out of step with us
        raise moves.conflict(self._stream, "other writers committed first, again and again")

    def _hand_over(self, attempt: Attempt, staged: TableRecord) -> TableRecord | None:
        """The table once the catalog has taken the commit; None if somebody else was first."""
        try:
            with commit_outcomes(self._stream):
                attempt.commit()
        except (StaleMetadataError, ConflictingFilesError) as error:
            if isinstance(error, ConflictingFilesError) and not attempt.is_outdated():
                raise self._refused() from error
            return self._find(staged)  # it was us, if the client sent it again for want of an answer
        except UnknownOutcomeError as error:
            return self._look_for(staged, error)
        return self.record()

    def _refused(self) -> DestinationError:
        return DestinationError(
            "The catalog refused a commit although nobody else had made one.",
            stream=str(self._stream),
            remedy="See that the catalog allows this table to be changed; the Spark log in the state "
            "directory has its words.",
        )

    def stale_lookup(self) -> StaleLookupError:
        return StaleLookupError(
            "The commit was refused: another writer changed the table's files meanwhile.",
            stream=str(self._stream),
            remedy="Run `penstock sync` again: it looks the rows up again.",
        )

    def _find(self, staged: TableRecord) -> TableRecord | None:
        """The commit was made if the table says what we staged."""
        found = self.record()
        return found if found is not None and _says(found) == _says(staged) else None

    def _look_for(self, staged: TableRecord, cause: UnknownOutcomeError) -> TableRecord:
        """A commit without an answer."""
        if (found := self._find(staged)) is not None:
            return found
        raise DestinationAwayError(
            "The catalog did not say whether it took a commit, and the table does not show it.",
            stream=str(self._stream),
            remedy="Run the same command again when the catalog is well: it looks for the commit first.",
        ) from cause

    def _record(self, metadata: Metadata, *, over_gap: bool = False) -> TableRecord | None:
        load = text.read_load(metadata.property)
        head = metadata.head(branch_of(metadata))
        try:
            commit = newest_commit(head, metadata.find(text.SUMMARY), text.Known(metadata.property))
        except HistoryGapError as error:
            latest = list(text.read_mirror(metadata.property).values())[-1:]
            if not over_gap or not latest:
                raise HistoryUnknownError(
                    "Snapshots of the table expired, and whether it was rolled back before cannot be told.",
                    stream=str(self._stream),
                    remedy=f"Run `penstock resync {self._stream}`: it is loaded anew, in its place.",
                ) from error
            commit = text.without_marker(metadata.property, latest[0])
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
            layout=read_layout(self._catalog.java, metadata),
        )


def last_id(metadata: Metadata, record: TableRecord | None) -> int:
    """The highest id that is taken. Iceberg does not know those of columns that nobody is shown yet: of a
    pending load, or of a table that waits to be shown. Nor may a load's come back when it is given up."""
    schemas = [] if record is None else [record.columns, record.load.columns if record.load else None]
    taken = [number for schema in schemas if schema is not None for number in ids_of(schema).values()]
    return max([metadata.last_column_id, *taken])


def _says(record: TableRecord) -> tuple[object, ...]:
    """What no two commits have in common. Before the first swap there is no record but that of the load."""
    return record.load, record.marker, record.committed_at if record.marker is not None else None


def _counts(metadata: Metadata, head: int | None) -> tuple[int, int]:
    if head is None:
        return 0, 0
    summary = metadata.java.snapshot(head).summary()
    rows, files, deleted = (
        int(summary.get(name) or 0)
        for name in ("total-records", "total-data-files", "total-position-deletes")
    )
    return rows - deleted, files

"""What a commit to an Iceberg table is made of, staged on an `Attempt`: files, record, references.

Nothing here is visible before the attempt commits, and then all of it is at once.

    main            what readers see
    penstock_load   chunks of a pending load; nobody reads it
    penstock_next   a resumed load that is not yet one state of the source (correctness 13); changes go to
                    it, and when it has reached `readable_from` it becomes `main`
    penstock_fence  a tag on the newest snapshot of ours, on whichever branch

The tag is for REST catalogs. They do not compare the metadata that a commit was made on top of, but only
that the references it moves are where they were. So every commit of ours makes a snapshot and moves the tag
to it, whatever else it does: of two on top of the same metadata, the second is refused. Who expires snapshots
may drop the tag after a day, so that it keeps no data alive; the next commit makes it again. To slip through,
a commit would have to be under way for longer than that, with the tag dropped before it and again meanwhile.

The branches have an age of their own, which is without end: the table's `history.expire.max-ref-age-ms` is
for the user's branches and tags, and would let whoever expires snapshots drop ours under a load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations import iceberg_record as text
from penstock.destinations.iceberg_files import IcebergFiles
from penstock.destinations.iceberg_java import (
    STAGING,
    Attempt,
    ConflictingFilesError,
    Java,
    Metadata,
    commit_outcomes,
)
from penstock.destinations.iceberg_options import check_partition_names, let_go
from penstock.destinations.iceberg_schema import ids_of, schema_json
from penstock.destinations.records import DataFile, PositionDeletes, TableRecord

MAIN = "main"
LOAD_BRANCH = "penstock_load"
NEXT_BRANCH = "penstock_next"
FENCE = "penstock_fence"
FENCE_AGE_MAX_MS = 24 * 3600 * 1000
FOR_EVER_MS = 2**63 - 1


def branch_of(metadata: Metadata) -> str:
    """The branch that changes go to."""
    return MAIN if metadata.head(NEXT_BRANCH) is None else NEXT_BRANCH


class Staging:
    def __init__(self, java: Java, attempt: Attempt, files: IcebergFiles, stream: StreamId) -> None:
        self._java = java
        self._attempt = attempt
        self._files = files
        self._stream = stream
        self._every = java.iceberg("expressions.Expressions").alwaysTrue()
        self._list = java.jvm.java.util.ArrayList
        self._data_files = java.iceberg("util.DataFileSet")
        self._landed: list[int] = []

    def start_load_branch(self) -> None:
        """A branch without rows."""
        if self._attempt.base.head(LOAD_BRANCH) is not None:
            self._attempt.transaction.manageSnapshots().removeBranch(LOAD_BRANCH).commit()
        if self._attempt.base.head(MAIN) is not None:
            update = self._attempt.transaction.newDelete().deleteFromRowFilter(self._every)
        else:
            update = self._attempt.transaction.newAppend()
        self._land(update, LOAD_BRANCH, None)
        self._attempt.transaction.manageSnapshots().setMaxRefAgeMs(LOAD_BRANCH, FOR_EVER_MS).commit()

    def append(self, branch: str, files: Sequence[DataFile], record: TableRecord | None) -> None:
        update = self._attempt.transaction.newAppend()
        for file in files:
            if file.rows:
                update.appendFile(self._files.data_file(file))
        self._land(update, branch, record)

    def append_load(self, branch: str, record: TableRecord) -> None:
        """The rows of the pending load besides those that are there."""
        update = self._attempt.transaction.newAppend()
        head = self._attempt.base.head(LOAD_BRANCH)
        if head is not None:
            for data_file in self._files.java_files(head):
                update.appendFile(data_file)
        self._land(update, branch, record)

    def row_delta(
        self,
        branch: str,
        added: Sequence[DataFile],
        deletes: Sequence[PositionDeletes],
        record: TableRecord,
        read_from: int | None,
    ) -> None:
        """Rows and deletes; refused if the files they were looked up in are not what they were."""
        update = self._attempt.transaction.newRowDelta()
        if deletes and read_from is not None:
            self._files.live(read_from)  # deletes lie in the partitions of the files they concern
        for file in added:
            if file.rows:
                update.addRows(self._files.data_file(file))
        touched = self._list()
        for each in deletes:
            update.addDeletes(self._files.delete_file(each))
            for replaced in self._files.replaced(each):
                update.removeDeletes(replaced)
            touched.add(self._files.location(each.of))
        if any(each.vector or each.replaces for each in deletes):
            # Iceberg refuses a second vector of a data file that came since; without this, since ever. What
            # deletes take the place of has to be there: somebody may have merged it.
            assert read_from is not None, "rows to delete were found in some snapshot"
            update.validateFromSnapshot(read_from)
            update.validateDeletedFiles()
        if self._is_stale(branch, read_from):
            update.validateFromSnapshot(read_from)
            update.validateDataFilesExist(touched)
            update.validateDeletedFiles()
            update.conflictDetectionFilter(self._every)
            update.validateNoConflictingDataFiles()
            update.validateNoConflictingDeleteFiles()
        self._land(update, branch, record)

    def overwrite(
        self,
        branch: str,
        added: Sequence[DataFile],
        removed: Sequence[str],
        record: TableRecord,
        read_from: int | None,
    ) -> None:
        """Files in place of others; refused if anything came between."""
        assert read_from is not None, "files to replace were found in some snapshot"
        update = self._attempt.transaction.newOverwrite()
        held = self._files.live(read_from)
        for name in removed:
            update.deleteFile(self._files.data_file(held[name]))
        update.deleteFiles(self._data_files.create(), self._files.needless_deletes(removed))
        for file in added:
            if file.rows:
                update.addFile(self._files.data_file(file))
        if self._is_stale(branch, read_from):
            update.validateFromSnapshot(read_from)
            update.conflictDetectionFilter(self._every)
            update.validateNoConflictingData()
            update.validateNoConflictingDeletes()
        self._land(update, branch, record)

    def show(
        self, branch: str, record: TableRecord, *, same_columns: bool = False, ends_load: bool = False
    ) -> None:
        """Let the branch's new head be the table, or wait to be it, and say so."""
        head = self._attempt.staged.head(branch)
        assert head is not None, "the commit's own snapshot"
        assert record.columns is not None
        shown = record.readable_from is None
        self._move_branches(branch, MAIN if shown else NEXT_BRANCH, head, ends_load)
        if shown and not (same_columns and branch == MAIN):
            ids = ids_of(record.columns)
            let_go(self._java, self._attempt, ids.values())
            check_partition_names(self._java, self._attempt, ids, self._stream)
            self._attempt.set_schema(schema_json(record.columns, ids))
        mirror = text.read_mirror(self._attempt.base.property)
        properties: dict[str, str | None] = {
            text.COMMITS: text.mirror_text(mirror, head, text.record_text(record))
        }
        if ends_load:
            properties[text.LOAD] = None
        if record.marker is not None and record.marker.leaves is not None:
            properties[text.LEAVES] = text.leaves_text(record.marker.leaves)
        self.set_properties(record.epoch, properties, record.schema, record.columns)

    def set_properties(
        self,
        epoch: Lsn,
        properties: Mapping[str, str | None],
        schema: TableSchema | None = None,
        columns: pa.Schema | None = None,
    ) -> None:
        staged = {**properties, text.EPOCH: str(epoch)}
        if schema is not None and columns is not None:
            key = text.SCHEMA + text.schema_key(schema, columns)
            if self._attempt.base.property(key) is None:
                staged[key] = text.schema_text(schema, columns)
        self._attempt.set_properties(staged)

    def new_files(self) -> list[str]:
        """Where Iceberg wrote manifests and lists of them for this attempt."""
        return [place for head in self._landed for place in self._attempt.staged.written_for(head)]

    def move_fence(self) -> None:
        """Have the commit refused if any other of ours came between; every commit does this."""
        assert self._landed, "a commit makes a snapshot"
        references = self._attempt.transaction.manageSnapshots()
        exists = self._attempt.base.head(FENCE) is not None
        (references.replaceTag if exists else references.createTag)(FENCE, self._landed[-1])
        references.setMaxRefAgeMs(FENCE, FENCE_AGE_MAX_MS).commit()

    def _move_branches(self, branch: str, goes_to: str, head: int, ends_load: bool) -> None:
        staged = self._attempt.staged
        gone = [LOAD_BRANCH] if ends_load else []
        gone += [NEXT_BRANCH] if goes_to == MAIN else []
        gone = [name for name in gone if staged.head(name) is not None]
        if goes_to == branch and not gone:
            return
        references = self._attempt.transaction.manageSnapshots()
        if goes_to != branch:
            exists = staged.head(goes_to) is not None
            (references.replaceBranch if exists else references.createBranch)(goes_to, head)
            if goes_to == NEXT_BRANCH:
                references.setMaxRefAgeMs(NEXT_BRANCH, FOR_EVER_MS)
        for name in gone:
            references.removeBranch(name)
        references.commit()

    def _is_stale(self, branch: str, read_from: int | None) -> bool:
        """Whether others committed since rows were looked up; refused if that is no longer behind us."""
        head = self._attempt.base.head(branch)
        if read_from is None or read_from == head:
            return False
        if not self._attempt.base.descends(head, read_from):
            raise ConflictingFilesError
        return True

    def _land(self, update: Any, branch: str, record: TableRecord | None) -> None:
        update.toBranch(branch)
        if record is not None:
            update.set(text.SUMMARY, text.record_text(record))
        with commit_outcomes(self._stream, STAGING):
            update.commit()
        head = self._attempt.staged.head(branch)
        assert head is not None, "the update's own snapshot"
        self._landed.append(head)

"""What a commit to an Iceberg table is made of, staged on an `Attempt`: files, record, references.

Nothing here is visible before the attempt commits, and then all of it is at once.

    main            what readers see
    penstock_load   chunks of a pending load; nobody reads it
    penstock_next   a resumed load that is not yet one state of the source (correctness 13); changes go to
                    it, and when it has reached `readable_from` it becomes `main`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations import iceberg_record as text
from penstock.destinations.base import DataFile, PositionDeletes, TableRecord
from penstock.destinations.iceberg_files import IcebergFiles
from penstock.destinations.iceberg_java import Attempt, Java, Metadata, iceberg_errors
from penstock.destinations.iceberg_schema import ids_of, schema_json

MAIN = "main"
LOAD_BRANCH = "penstock_load"
NEXT_BRANCH = "penstock_next"


def branch_of(metadata: Metadata) -> str:
    """The branch that changes go to."""
    return MAIN if metadata.head(NEXT_BRANCH) is None else NEXT_BRANCH


class Staging:
    def __init__(self, java: Java, attempt: Attempt, files: IcebergFiles, stream: StreamId) -> None:
        self._attempt = attempt
        self._files = files
        self._stream = stream
        self._every = java.iceberg("expressions.Expressions").alwaysTrue()
        self._list = java.jvm.java.util.ArrayList

    def start_load_branch(self) -> None:
        """A branch without rows. Without a table to branch from, the first chunk makes it."""
        if self._attempt.base.head(LOAD_BRANCH) is not None:
            self._attempt.transaction.manageSnapshots().removeBranch(LOAD_BRANCH).commit()
        if self._attempt.base.head(MAIN) is not None:
            update = self._attempt.transaction.newDelete().deleteFromRowFilter(self._every)
            update.toBranch(LOAD_BRANCH).commit()

    def append(self, branch: str, files: Sequence[DataFile], record: TableRecord | None) -> None:
        held = [file for file in files if file.rows]
        if not held and record is None:
            return
        if branch == LOAD_BRANCH and self._attempt.staged.head(LOAD_BRANCH) is None:
            self.start_load_branch()  # else Iceberg would branch from a table that was shown meanwhile
        update = self._attempt.transaction.newAppend()
        for file in held:
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
        for file in added:
            if file.rows:
                update.addRows(self._files.data_file(file))
        touched = self._list()
        for each in deletes:
            update.addDeletes(self._files.delete_file(each))
            touched.add(self._files.location(each.of))
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
            self._attempt.set_schema(schema_json(record.columns, ids_of(record.columns)))
        mirror = text.read_mirror(self._attempt.base.property)
        properties = {text.COMMITS: text.mirror_text(mirror, head, text.record_text(record))}
        load = {text.LOAD: None} if ends_load else {}
        self.set_properties(record.epoch, {**properties, **load}, record.schema, record.columns)

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
        for name in gone:
            references.removeBranch(name)
        references.commit()

    def _is_stale(self, branch: str, read_from: int | None) -> bool:
        return read_from is not None and read_from != self._attempt.base.head(branch)

    def _land(self, update: Any, branch: str, record: TableRecord | None) -> None:
        update.toBranch(branch)
        if record is not None:
            update.set(text.SUMMARY, text.record_text(record))
        with iceberg_errors("staging a commit", self._stream):
            update.commit()

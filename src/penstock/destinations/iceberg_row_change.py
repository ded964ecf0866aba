"""`RowChange`: the files by which rows of an Iceberg table come and go in one commit.

Rows that go were looked up in a snapshot (`read_from`), and what is staged holds for that one: files of
deletes concern positions in its files, files that replace others were made of them. So a commit on top of
another state is refused with a `StaleLookupError`, with nothing changed, if that state differs where it
matters: in those files (`iceberg_staging`), in the kind of deletes that the table takes, or in column ids
that the files carry and that somebody else has taken meanwhile.

After a commit that came directly on top of the files we knew, they are known again by what was changed,
without being listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.position import Lsn
from penstock.destinations.iceberg_handle import Prepare, TableHandle, last_id
from penstock.destinations.iceberg_java import Attempt
from penstock.destinations.iceberg_schema import ids_of
from penstock.destinations.iceberg_staging import Staging, branch_of
from penstock.destinations.records import DataFile, PositionDeletes, TableRecord


@dataclass(frozen=True, slots=True)
class RowChange:
    added: Sequence[DataFile]
    removed: Sequence[str]
    deletes: Sequence[PositionDeletes]
    read_from: int | None

    def stage(
        self, handle: TableHandle, attempt: Attempt, stage: Staging, base: TableRecord, record: TableRecord
    ) -> TableRecord:
        """`record`: what the table is then, on top of `base`."""
        assert base.columns is not None
        assert record.columns is not None
        if ids_of(record.columns) != ids_of(base.columns) and _takes_ids(attempt, base, record.columns):
            raise handle.stale_lookup()  # somebody added columns: the files carry ids that are taken
        branch = branch_of(attempt.base)
        if any((each.vector is not None) != attempt.base.deletes_by_vector for each in self.deletes):
            raise handle.stale_lookup()  # somebody upgraded the table meanwhile
        if self.deletes:
            stage.row_delta(branch, self.added, self.deletes, record, self.read_from)
        elif self.removed:
            stage.overwrite(branch, self.added, self.removed, record, self.read_from)
        elif base.write == "upsert":
            stage.row_delta(branch, self.added, (), record, self.read_from)
        else:
            stage.append(branch, self.added, record)
        ends_load = base.load is not None and record.load is None
        stage.show(branch, record, same_columns=record.columns.equals(base.columns), ends_load=ends_load)
        return record

    def commit(self, handle: TableHandle, epoch: Lsn, prepare: Prepare) -> TableRecord:
        """Commit what `prepare` stages of this change, and know the table's files after it."""
        before = handle.files.snapshot_id
        record = handle.commit(epoch, prepare)
        if (
            before is not None
            and record.snapshot_id is not None
            and before == handle.parent(record.snapshot_id)
        ):
            handle.files.advance(record.snapshot_id, self.added, self.removed, self.deletes)
        return record


def _takes_ids(attempt: Attempt, base: TableRecord, columns: pa.Schema) -> bool:
    """Whether columns that are new have ids that are not."""
    assert base.columns is not None
    fresh = set(ids_of(columns).values()) - set(ids_of(base.columns).values())
    return bool(fresh) and min(fresh) <= last_id(attempt.base, base)

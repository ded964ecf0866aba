"""What each operation makes of a table's record, for every destination alike.

A destination reads the newest record, asks here what follows it, and commits that atomically on top of what
it read. So whether a commit is taken does not depend on the format of the table: not twice, not out of order,
not from another load, not from another position or cursor than the table's own (correctness 15, 16, 18).

Moves are pure. None says that the operation was done before; `CommitConflictError` that it must not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.core.cursor import Cursors
from penstock.core.errors import CommitConflictError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.records import (
    DataFile,
    DeadLetters,
    Marker,
    MergedLetters,
    PendingLoad,
    TableRecord,
    WriteMode,
)


def conflict(stream: StreamId, reason: str) -> CommitConflictError:
    return CommitConflictError(
        f"The commit was refused: {reason}.",
        stream=str(stream),
        remedy="Make sure that only one Penstock runs for this table, then run `penstock sync` again; "
        "if it is refused again, run `penstock resync` for this stream.",
    )


def check_epoch(stream: StreamId, newest: Lsn | None, ours: Lsn) -> None:
    """A leader may commit as long as no newer one has."""
    if newest is not None and ours < newest:
        raise conflict(stream, "a newer leader has taken over this table")


def first(epoch: Lsn, write: WriteMode, schema: TableSchema, load: PendingLoad) -> TableRecord:
    """A table of which nothing is there but a load."""
    return TableRecord(1, "load", _now(), epoch, write, schema, load=load)


def following(base: TableRecord, epoch: Lsn, **changes: Any) -> TableRecord:
    return replace(base, version=base.version + 1, committed_at=_now(), epoch=epoch, **changes)


def knows_load(base: TableRecord | None, load_id: str) -> bool:
    """Whether the load is open, or done."""
    return base is not None and load_id in (base.last_load_id, base.load.load_id if base.load else None)


def with_chunks(
    stream: StreamId,
    base: TableRecord | None,
    load_id: str,
    thread_ids: Sequence[str],
    dead_letter_files: Sequence[DataFile],
) -> PendingLoad | None:
    """The open load with these chunks, but for their files."""
    load = _open_load(stream, base, load_id)
    known = set(load.thread_ids)
    if known.issuperset(thread_ids):
        return None
    if not known.isdisjoint(thread_ids):
        raise conflict(stream, "some of these chunks are committed already")
    return replace(
        load,
        thread_ids=(*load.thread_ids, *thread_ids),
        dead_letters=load.dead_letters.with_files(dead_letter_files),
    )


def swapped(
    stream: StreamId,
    base: TableRecord | None,
    load_id: str,
    epoch: Lsn,
    marker: Marker,
    readable_from: Lsn | None,
    *,
    keep_files: bool,
) -> TableRecord | None:
    """The table as the load has it, or with it; `marker` without the load's thread ids."""
    if base is not None and base.last_load_id == load_id:
        return None
    load = _open_load(stream, base, load_id)
    assert base is not None
    waits = readable_from is not None and marker.to is not None and readable_from > marker.to
    return following(
        base,
        epoch,
        kind="swap",
        write=load.write,
        schema=load.schema,
        columns=load.columns,
        files=without_needless((*(base.files if keep_files else ()), *load.files)),
        # The chunks' thread ids stay answerable until the state knows of the swap.
        marker=replace(marker, thread_ids=load.thread_ids),
        load=None,
        last_load_id=load_id,
        dead_letters=base.dead_letters.and_of(load) if keep_files else load.dead_letters,
        readable_from=readable_from if waits else None,
    )


def published(stream: StreamId, base: TableRecord | None, epoch: Lsn, position: Lsn) -> TableRecord | None:
    """The table shown, if it waited for a position up to this one."""
    if base is None or base.marker is None:
        raise conflict(stream, "there is no table to show")
    if base.readable_from is None or position < base.readable_from:
        return None
    return following(base, epoch, kind="publish", readable_from=None)


def fenced(base: TableRecord, epoch: Lsn) -> TableRecord | None:
    """The table as it is, under a leader who has not written to it yet."""
    return following(base, epoch, kind="fence") if base.epoch < epoch else None


def changed(
    stream: StreamId,
    base: TableRecord | None,
    expected_to: Lsn | None,
    expected_cursor: Cursors | None,
    marker: Marker,
    schema: TableSchema,
    dead_letter_files: Sequence[DataFile],
    rewinds: str | None = None,
    merged_letters: MergedLetters | None = None,
) -> tuple[TableRecord, TableRecord]:
    """The table that takes the batch, and what it is then, but for its files.

    `rewinds`: the generation of the table, which takes again what it holds and is of the marker's then.
    """
    if base is None or base.marker is None:
        raise conflict(stream, "there is no table to change; it was never loaded")
    if base.marker.generation != (rewinds or marker.generation):
        raise conflict(stream, "the table was loaded anew since this batch was prepared")
    if base.marker.to != expected_to:
        raise conflict(stream, f"the table is at {base.marker.to}, this batch follows {expected_to}")
    if base.marker.cursor != expected_cursor:
        raise conflict(stream, "the table is at another cursor than the one this batch starts from")
    if rewinds is not None and not repeats(marker, expected_to):
        raise ValueError("what is applied again ends where the table is")
    if rewinds is None and not follows(marker, expected_to):
        raise ValueError("a batch goes on from where the table is, or later, and advances")
    if merged_letters is not None and merged_letters.before != base.dead_letters:
        raise conflict(stream, "its dead letters are not those that were merged")
    letters = base.dead_letters if merged_letters is None else merged_letters.after
    reached = base.readable_from is not None and marker.to is not None and marker.to >= base.readable_from
    return base, following(
        base,
        marker.epoch,
        kind="changes",
        schema=schema,
        marker=marker,
        dead_letters=letters.with_files(dead_letter_files),
        readable_from=None if reached else base.readable_from,
    )


def mended(
    stream: StreamId,
    base: TableRecord | None,
    load_id: str,
    expected: Marker,
    marker: Marker,
    schema: TableSchema,
    dead_letter_files: Sequence[DataFile],
) -> TableRecord | None:
    """The table as a load would have it, made of what it is, but for its files; `expected`: its marker.

    Its dead letters are those given and no others: what did not fit before fits now, or is among them.
    """
    if base is not None and base.last_load_id == load_id:
        return None
    if base is None or base.marker != expected:
        raise conflict(stream, "the table is not the one that was compared with the source")
    return following(
        base,
        marker.epoch,
        kind="swap",
        schema=schema,
        marker=marker,
        load=None,
        last_load_id=load_id,
        dead_letters=DeadLetters().with_files(dead_letter_files),
        readable_from=None,
    )


def follows(marker: Marker, expected_to: Lsn | None) -> bool:
    """Whether a batch's marker goes on from a table at `expected_to`; one with a cursor has no positions."""
    if marker.cursor is not None:
        return marker.start is None and marker.to is None and expected_to is None
    if marker.start is None or marker.to is None:
        return False
    return (expected_to or 0) <= marker.start < marker.to


def repeats(marker: Marker, expected_to: Lsn | None) -> bool:
    """Whether a batch's marker is of changes that a table at `expected_to` holds already, to the last."""
    return marker.start is not None and marker.to == expected_to and marker.start < (expected_to or 0)


def without_needless(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Files with rows; if there are none, one empty file (the last, with the newest columns)."""
    return tuple(file for file in files if file.rows) or tuple(files[-1:])


def _open_load(stream: StreamId, base: TableRecord | None, load_id: str) -> PendingLoad:
    if base is None or base.load is None or base.load.load_id != load_id:
        raise conflict(stream, "this load is not the one that is open")
    return base.load


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

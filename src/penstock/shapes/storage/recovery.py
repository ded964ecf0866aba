"""What a process that ended, however it did, left of the shapes.

1. Every shape's files are cut to what its boundary speaks of (`shape_files`). What cannot be read is
   removed.
2. The commit log is read. Items that a shape's files have are recognised by their offsets; the others go to
   its buffer, as if they had just been committed.
3. Parts of transactions whose end is nowhere are cut off. Shapes that were never ready, or whose snapshot
   is incomplete, are removed.

Nothing that was reported durable is lost: it is in the commit log unless it is in the files and behind no
boundary (segments are removed only then). Nothing is doubled: offsets ascend, and an append drops what is
not new. Nothing else is left: step 3. If a record of the commit log is missing, which no crash brings
about, all shapes are removed, because none can be known to be whole; their clients fetch them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.core.offset import LogOffset
from penstock.shapes.storage.commit_log import CommitRecord, read_segment, segments, sizes_that_count
from penstock.shapes.storage.shape_files import Metadata, read_metadata, recover_files
from penstock.shapes.storage.shape_storage import ShapeStorage
from penstock.shapes.storage.snapshots import find_extent

if TYPE_CHECKING:
    from penstock.shapes.storage.store import ShapeStore

_logger = structlog.get_logger("penstock.shapes.storage")


@dataclass(frozen=True, slots=True)
class RecoveredShape:
    handle: str
    definition_json: str
    facts: str
    last_offset: LogOffset


def recover(store: ShapeStore) -> tuple[dict[str, RecoveredShape], dict[str, ShapeStorage]]:
    storages, metadata = _from_files(store)
    replay = _Replay(store, storages, metadata)
    if not replay.all_segments():
        _logger.warning("the commit log of shapes is damaged: all shapes are made anew", shapes=len(storages))
        metadata.clear()
    found: dict[str, RecoveredShape] = {}
    for handle, storage in list(storages.items()):
        if _is_whole(storage, metadata.get(handle), in_commit_log=handle in replay.ready):
            known = metadata[handle]
            last = storage.last_seen_txn_offset
            found[handle] = RecoveredShape(handle, known.definition, known.facts, last)
        else:
            del storages[handle]
            store.loop.forget(storage)
            store.remove_directory(handle)
    store.loop.queued_bytes = sum(storage.committed_bytes for storage in storages.values())
    store.loop.written_bytes = 0
    return found, storages


def _from_files(store: ShapeStore) -> tuple[dict[str, ShapeStorage], dict[str, Metadata]]:
    storages: dict[str, ShapeStorage] = {}
    metadata: dict[str, Metadata] = {}
    for handle in [path.name for path in (store.files / "shapes").iterdir()]:
        directory = store.shape_directory(handle)
        try:
            known = read_metadata(directory)
            storage = store.new_storage(handle)
            storage.restore(*recover_files(directory))
        except OSError:
            store.remove_directory(handle)
            continue
        storages[handle] = storage
        if known is not None:
            metadata[handle] = known
    return storages, metadata


def _is_whole(storage: ShapeStorage, metadata: Metadata | None, *, in_commit_log: bool) -> bool:
    if metadata is None:
        return False
    snapshot = find_extent(Path(storage.directory, "snapshot"), metadata.chunks)
    if snapshot is None:
        return False
    try:
        storage.cut_unfinished()
    except OSError:
        return False
    storage.restore_ready(snapshot, metadata if in_commit_log else None)
    return True


class _Replay:
    """Reads the commit log into shapes' buffers."""

    def __init__(
        self, store: ShapeStore, storages: dict[str, ShapeStorage], metadata: dict[str, Metadata]
    ) -> None:
        self._store = store
        self._storages = storages
        self._metadata = metadata
        self._names: dict[int, str] = {}
        self.ready: set[str] = set()  #: shapes whose metadata may be in the commit log alone

    def all_segments(self) -> bool:
        """False if a record is missing."""
        loop, sequence = self._store.loop, None
        found = segments(loop.log.directory)
        sizes = sizes_that_count(found)
        for number, path in found:
            self._names.clear()
            loop.log.counts_to(number, 0)
            for place, (record, end) in enumerate(read_segment(path, sizes.get(number, math.inf))):
                if sequence is not None and record.sequence > sequence + (place > 0):
                    return False
                loop.sequence = sequence = max(loop.sequence, record.sequence)
                # A segment may begin below the one before it: `begin_at`.
                loop.position = max(loop.position, record.end) if place else record.end
                self._apply(record, number)
                loop.log.counts_to(number, end)
        return True

    def _apply(self, record: CommitRecord, segment: int) -> None:
        for name in record.names:
            self._names[name.number] = name.handle
            storage = self._storages.get(name.handle)
            if name.definition is not None and storage is not None:
                self.ready.add(name.handle)
                self._metadata[name.handle] = Metadata(name.definition, name.facts, name.chunks)
                self._store.loop.backlog.remember(storage, segment)
        for part in record.parts:
            storage = self._storages.get(self._names[part.number])
            if storage is None:
                continue
            boundary = LogOffset(part.tx, part.op) if part.tx >= 0 else None
            if storage.replay(part.items, boundary):
                self._store.loop.backlog.remember(storage, segment)

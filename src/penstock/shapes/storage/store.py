"""Where shapes are kept: one directory for the lane, written by one process.

    held.N/shapes/<handle>/    the files of a shape (`shape_files`)
    held.N/commits/            the commit log (`commit_log`)
    held.N/removed/            directories of shapes that are gone, on their way out
    lock, claim                held by the process that has the store open (`place`)

The engine appends, and calls `commit(end)` when all that it read up to `end` is appended; `on_flushed`
reports when that is durable. What `position` says is never ahead of what every shape has: a commit record
holds the items of all shapes and the position together. So after a crash the engine goes on from
`position`, and what it is given twice is dropped by its offset.

Transactions larger than memory: what is appended is handed to the write loop piece by piece, and is moved
on to shapes' files, before the commit comes; nothing of it is readable until its boundary is.

Memory: buffers of all shapes together hold at most `buffer_bytes_max`; beyond it `append` waits for the disk.

Measured on two cores that other work shared, with 10,000 shapes that each get one item of 286 bytes per
commit: 40,000 to 66,000 items a second, durable, files of shapes included; 14 us of CPU for each, 7 of them
in the engine's thread. A shape's first write, which makes its files, takes 0.4 to 1.5 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from penstock import failpoints
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.durable import sync_directory
from penstock.shapes.storage import recovery
from penstock.shapes.storage.chunk_index import ItemColumns
from penstock.shapes.storage.commit_log import SEGMENT_BYTES_MAX, CommitLog
from penstock.shapes.storage.items import ShapeItems
from penstock.shapes.storage.place import Place
from penstock.shapes.storage.records import encode
from penstock.shapes.storage.recovery import RecoveredShape
from penstock.shapes.storage.shape_files import Metadata
from penstock.shapes.storage.shape_storage import Piece, ShapeStorage
from penstock.shapes.storage.write_loop import Commit, OnFailed, OnFlushed, WriteLoop

CHUNK_BYTES: Final = 10 * 1024 * 1024
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
_HAND_OVER_BYTES = 4 * 1024 * 1024


class ShapeStore:
    """`recover`, `open` what was recovered, `start`; then `open`, append and commit in the engine's
    thread."""

    def __init__(
        self,
        directory: Path,
        *,
        on_flushed: OnFlushed = lambda end, offsets: None,
        on_failed: OnFailed = lambda slot, error: None,
        chunk_bytes: int = CHUNK_BYTES,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.chunk_bytes = chunk_bytes
        directory.mkdir(parents=True, exist_ok=True)
        self.place = Place(directory)
        self.files = self.place.files
        (self.files / "shapes").mkdir(exist_ok=True)
        (self.files / "removed").mkdir(exist_ok=True)
        log = CommitLog(self.files / "commits", segment_bytes_max=segment_bytes_max)
        self.loop = WriteLoop(
            log, on_flushed, on_failed, self.place.require, buffer_bytes_max=buffer_bytes_max
        )
        self._by_slot: dict[int, ShapeStorage] = {}
        self._recovered: dict[str, ShapeStorage] = {}
        self._numbers = itertools.count(1)
        self._pending: list[tuple[ShapeStorage, Piece]] = []
        self._pending_bytes = 0
        self._ready: list[tuple[ShapeStorage, Metadata]] = []
        self._is_together = False
        self.compacting = threading.Lock()  #: one at a time

    def recover(self) -> dict[str, RecoveredShape]:
        """What a predecessor left, by handle; to be called first. Shapes that are not whole are removed."""
        shutil.rmtree(self.files / "removed", ignore_errors=True)
        (self.files / "removed").mkdir()
        found, self._recovered = recovery.recover(self)
        sync_directory(self.files / "shapes")  # what was removed does not come back at a later position
        return found

    def open(self, handle: str, slot: int) -> ShapeStorage:
        """Go on with a recovered shape, or begin a new one, whose directory is made with its snapshot."""
        storage = self._recovered.pop(handle, None) or self.new_storage(handle)
        storage.slot = slot
        self._by_slot[slot] = storage
        return storage

    def discard_unopened(self) -> None:
        """Remove recovered shapes that nobody wants."""
        for storage in list(self._recovered.values()):
            self.remove(storage)
        self._recovered.clear()

    def start(self) -> None:
        self.loop.start()

    def take_last(self) -> None:
        """Whoever commits does not wait for the disk any more; `close` follows soon."""
        self.loop.take_last()

    def close(self) -> None:
        """Make durable what was committed. What was appended since is left to be replayed."""
        if self.place.is_open:
            self.loop.stop()
            self.place.close()

    @property
    def position(self) -> Lsn | None:
        """Every shape durably has everything up to here; None if nothing was ever committed."""
        return Lsn(self.loop.position) if self.loop.position else None

    @property
    def problem(self) -> Exception | None:
        """Why nothing can be made durable at the moment."""
        return self.loop.problem

    @property
    def failures(self) -> int:
        """How often it was tried in vain to make something durable."""
        return self.loop.failures

    @property
    def bytes_on_disk(self) -> int:
        return self.loop.log.bytes_on_disk + sum(
            storage.bytes_on_disk for storage in list(self._by_slot.values())
        )

    def append(self, items: ShapeItems) -> None:
        """Append to many shapes at once."""
        records, record_ends = encode(items)
        columns = ItemColumns(items.tx, items.op, record_ends, items.key_ends, items.json_ends)
        content, stops = records.data, items.item_ends
        lasts = stops - 1
        firsts = np.concatenate([[0], stops])[:-1]
        record_start = key_start = json_start = 0
        for slot, first, stop, tx, op, last_tx, last_op, record_end, key_end, json_end in zip(
            items.slots.tolist(),
            firsts.tolist(),
            stops.tolist(),
            items.tx[firsts].tolist(),
            items.op[firsts].tolist(),
            items.tx[lasts].tolist(),
            items.op[lasts].tolist(),
            record_ends[lasts].tolist(),
            items.key_ends[lasts].tolist(),
            items.json_ends[lasts].tolist(),
            strict=True,
        ):
            storage = self._by_slot.get(slot)
            if storage is not None and not storage.is_gone:
                mine, last = bytes(content[record_start:record_end]), LogOffset(last_tx, last_op)
                piece = None
                if items.whole:
                    keys, json = key_end - key_start, json_end - json_start
                    piece = storage.append_small(tx, op, mine, last, keys, json)
                if piece is None:
                    boundary = last if items.whole else None
                    piece = storage.append_records(mine, columns.slice(first, stop), boundary)
                if piece is not None:
                    self.pend(storage, piece)
            record_start, key_start, json_start = record_end, key_end, json_end

    def commit(self, end: Lsn) -> None:
        """All that was appended since the last commit belongs to the source's changes up to `end`."""
        self._hand_over(end)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is appended in here is durable with the commit that follows, or none of it is."""
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False

    def begin_at(self, position: Lsn) -> None:
        """What comes is not what came before: `position` may lie below the last one. Shapes that are open
        have been given nothing yet."""
        empty = LogOffset.LAST_BEFORE_REAL
        assert all(storage.last_seen_offset == empty for storage in list(self._by_slot.values())), (
            "shapes of another source are cleaned up first"
        )
        self._pending, self._ready, self._pending_bytes = [], [], 0
        self.loop.run_now(lambda: self.loop.begin_at(position))

    def wait_flushed(self, end: Lsn, timeout_s: float) -> bool:
        return self.loop.wait_for(lambda: self.loop.position >= end, timeout_s)

    def shape_directory(self, handle: str) -> str:
        return f"{self.files}/shapes/{handle}"

    # For storages and recovery.

    def new_storage(self, handle: str, slot: int = -1) -> ShapeStorage:
        return ShapeStorage(self, handle, next(self._numbers), slot)

    def pend(self, storage: ShapeStorage, piece: Piece) -> None:
        self._pending.append((storage, piece))
        self._pending_bytes += len(piece.records)
        if self._pending_bytes >= _HAND_OVER_BYTES and not self._is_together:
            self._hand_over(0)

    def pend_ready(self, storage: ShapeStorage, metadata: Metadata) -> None:
        self._ready.append((storage, metadata))

    def remove(self, storage: ShapeStorage) -> None:
        """In any thread. Its directory is moved away by the write loop, and removed when there is time."""
        if self._by_slot.get(storage.slot) is storage:
            del self._by_slot[storage.slot]
        self.loop.remove(storage)

    def wait_removed(self) -> None:
        """Return when no crash brings back what was removed before."""
        self.loop.wait_removed()

    def remove_directory(self, handle: str) -> None:
        removed = self.files / "removed" / f"{handle}.{uuid.uuid4().hex}"
        try:
            Path(self.shape_directory(handle)).rename(removed)
        except FileNotFoundError:
            return
        failpoints.reach("shapes.cleanup_renamed")
        self.loop.remove_later(lambda: shutil.rmtree(removed, ignore_errors=True))

    def _hand_over(self, end: int) -> None:
        commit = Commit(end, self._pending, self._ready, self._pending_bytes)
        self.loop.queued_bytes += self._pending_bytes
        self._pending, self._ready, self._pending_bytes = [], [], 0
        self.loop.submit(commit)

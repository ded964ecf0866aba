"""`Backlog`: what is committed and not yet in shapes' own files, and when it gets there.

What is promised: nothing here is needed for durability, since the commit log has all of it; and a segment of
that log goes only when nothing is left here that is as old. So shapes' files are written when it suits: those
with 64 KiB or a chunk's end in their buffer; the oldest, if all buffers together hold more than half of what
they may, or if the oldest segment is due to be removed; and all, some at a time, once nothing was committed
for a second.

Many that are due are written together, with one sync of the file system; before a segment goes, what such a
sync has not seen yet is synced once more: a power cut might bring old boundaries back.

A shape whose files cannot be written is given up: it alone. For want of room it is tried again instead, until
the buffers are half full: then it goes before others have to wait.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import structlog

from penstock.shapes.storage.commit_log import CommitLog
from penstock.shapes.storage.file_system import FileSystem
from penstock.shapes.storage.shape_storage import ShapeStorage, Staged

SHAPE_BUFFER_BYTES: Final = 64 * 1024
SEGMENTS_KEPT: Final = 3
TOGETHER_MIN: Final = 8  # so many are put on disk by a sync of the file system
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_Result = TypeVar("_Result")
_logger = structlog.get_logger("penstock.shapes.storage")


class Backlog:
    """Belongs to the write loop's thread. `buffered_bytes`: of all shapes; `freed` is told of those that are
    in files now, `failed` of a shape whose files cannot be written."""

    def __init__(
        self,
        log: CommitLog,
        file_system: FileSystem,
        buffer_bytes_max: int,
        buffered_bytes: Callable[[], int],
        freed: Callable[[int], None],
        failed: Callable[[ShapeStorage, OSError], None],
    ) -> None:
        self._log = log
        self._file_system = file_system
        self._buffer_bytes_max = buffer_bytes_max
        self._buffered_bytes = buffered_bytes
        self._freed = freed
        self._failed = failed
        self._shapes: dict[ShapeStorage, None] = {}  # with something to write, the oldest first
        self._without_room: set[ShapeStorage] = set()  # for their files
        self._unsynced = False  # boundaries: a power cut might bring the old ones back

    @property
    def is_empty(self) -> bool:
        return not self._shapes

    def remember(self, storage: ShapeStorage, segment: int) -> None:
        """It has something that is in the commit log, from that segment on, and not in its files."""
        if not storage.buffered_since:
            storage.buffered_since = segment
            self._shapes[storage] = None

    def forget(self, storage: ShapeStorage) -> None:
        """It is gone, or all it had is in its files."""
        self._shapes.pop(storage, None)
        self._without_room.discard(storage)
        storage.buffered_since = 0

    def due(self, committed: Iterable[ShapeStorage], *, idle: bool) -> list[ShapeStorage]:
        """Those whose files should be written by now. `committed`: just now something of theirs was."""
        due: dict[ShapeStorage, None] = {}
        for storage in committed:
            if storage.committed_bytes >= SHAPE_BUFFER_BYTES or storage.has_chunk_end:
                due[storage] = None
        if idle:
            due |= self._shapes
        elif self._is_half_full():
            excess = self._buffered_bytes() - self._buffer_bytes_max // 4
            for storage in self._shapes:
                if excess <= 0:
                    break
                due[storage] = None
                excess -= storage.committed_bytes
        if self._log.number - self._log.oldest >= SEGMENTS_KEPT:
            for storage in self._shapes:
                if storage.buffered_since > self._log.oldest:
                    break
                due[storage] = None
        return list(due)

    def write(self, storages: Sequence[ShapeStorage]) -> None:
        if len(storages) < TOGETHER_MIN or not self._write_together(storages):
            for storage in storages:
                staged = tried(storage, lambda storage: storage.stage_files(sync=True))
                self._publish(storage, staged, sync=True)

    def _write_together(self, storages: Sequence[ShapeStorage]) -> bool:
        """Many with one sync of the file system; False if that failed, and it is not known for which."""
        staged = [tried(storage, lambda storage: storage.stage_files(sync=False)) for storage in storages]
        try:
            self._file_system.sync()
        except OSError:
            return False
        self._unsynced = True
        for storage, result in zip(storages, staged, strict=True):
            self._publish(storage, result, sync=False)
        return True

    def _publish(self, storage: ShapeStorage, staged: Staged | OSError, *, sync: bool) -> None:
        result: object = staged
        if isinstance(staged, Staged):
            result = tried(storage, lambda storage: storage.publish_files(staged, sync=sync))
        if isinstance(result, OSError):
            if not self._waits_for_room(storage, result):
                self._failed(storage, result)
            return
        self.forget(storage)
        self._freed(staged.size if isinstance(staged, Staged) else 0)

    def _waits_for_room(self, storage: ShapeStorage, error: OSError) -> bool:
        if error.errno not in _NO_ROOM or storage.is_gone:
            return False
        if self._is_half_full():
            return False
        if storage not in self._without_room:
            self._without_room.add(storage)
            _logger.warning("no room for the files of a shape: tried again", handle=storage.handle)
        return True

    def _is_half_full(self) -> bool:
        return self._buffered_bytes() > self._buffer_bytes_max // 2

    def remove_segments(self) -> None:
        """All that nothing in a buffer needs any more; the newest stays, it knows the position."""
        oldest = next((storage.buffered_since for storage in self._shapes), self._log.number)
        if oldest <= self._log.oldest:
            return
        if self._unsynced:
            try:
                self._file_system.sync()
            except OSError:
                return  # they stay for now
            self._unsynced = False
        self._log.remove_before(oldest)


def tried(storage: ShapeStorage, call: Callable[[ShapeStorage], _Result]) -> _Result | OSError:
    """What it gives, or why it could not: one shape's trouble is its own."""
    try:
        return call(storage)
    except OSError as error:
        return error

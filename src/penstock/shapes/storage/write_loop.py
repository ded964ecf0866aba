"""The thread that makes things durable: commits first, shapes' own files when it suits.

A turn takes all commits that wait, writes them to the commit log as one datasync, and reports them. Then it
may write some shapes' files: those with 64 KiB or a chunk's end in their buffer; the oldest, if all buffers
together hold more than half of what they may, or if the oldest segment of the commit log is due to be
removed; and all, some at a time, once nothing was committed for a second. Never more than `FILES_PER_TURN`,
so that commits do not wait for long.

A shape whose files cannot be written is reported and given up: it alone. For want of room it is tried again
instead, for what is committed is durable without them, until the buffers are half full: then it goes before
others have to wait. A commit log that cannot be written is tried again, in a new segment, until it can:
meanwhile nothing is reported durable, readers go on, and the engine waits once the buffers are full.

A shape that is gone gets nothing more, so it must not be there after a crash at any later position. Its
directory is out of the way, durably, before the next commit is written; if it cannot be moved, that is tried
again like the commit itself.

Nothing is written, moved or removed unless the fence, asked in each turn, lets it pass: what it raises ends
the loop.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import structlog

from penstock import failpoints
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.durable import sync_directory
from penstock.shapes.storage.commit_log import CommitLog, CommitRecord, Name, Part
from penstock.shapes.storage.file_system import FileSystem
from penstock.shapes.storage.shape_files import Metadata
from penstock.shapes.storage.shape_storage import Piece, ShapeStorage, Staged

SHAPE_BUFFER_BYTES: Final = 64 * 1024
FILES_PER_TURN: Final = 512
IDLE_S: Final = 1.0
SEGMENTS_KEPT: Final = 3
_RETRY_S_MIN, _RETRY_S_MAX = 0.05, 5.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_TOGETHER_MIN = 8
_TURN_BYTES_MAX = 8 * 1024 * 1024
_Result = TypeVar("_Result")

OnFlushed = Callable[[Lsn, Mapping[int, LogOffset]], None]
OnFailed = Callable[[int, OSError], None]
_logger = structlog.get_logger("penstock.shapes.storage")


class Commit(NamedTuple):
    """What was appended since the one before. `end` is 0 if more belongs to it."""

    end: int
    parts: Sequence[tuple[ShapeStorage, Piece]]
    ready: Sequence[tuple[ShapeStorage, Metadata]]
    size: int


class WriteLoop:
    def __init__(
        self,
        log: CommitLog,
        on_flushed: OnFlushed,
        on_failed: OnFailed,
        fence: Callable[[], None],
        *,
        buffer_bytes_max: int,
    ) -> None:
        self.log = log
        self.position = 0  #: everything up to here is durable
        self.sequence = 0  #: of the last record
        self.problem: Exception | None = None  #: why nothing can be made durable at the moment
        self.failures = 0  #: of attempts to write commits
        self.written_bytes = 0  #: that have left the buffers
        self.queued_bytes = 0  #: that have entered them; the engine counts it
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._fence = fence
        self._buffer_bytes_max = buffer_bytes_max
        self._buffered: dict[ShapeStorage, None] = {}  # with something to write, the oldest first
        self._flushed: dict[int, LogOffset] = {}  # not reported yet: of parts of a commit
        self._gone: list[ShapeStorage] = []  # whose directories are to be moved out of the way
        self._without_room: set[ShapeStorage] = set()  # for their files
        self._changed = threading.Condition()
        self._commits: list[Commit] = []
        self._jobs: list[tuple[Callable[[], None], Future[None]]] = []
        self._stopping = self._ended = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._file_system = FileSystem(log.directory)
        self._unsynced = False  # boundaries: a power cut might bring the old ones back
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="shape-remover")

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="shape-write-loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits, if it can be, and end."""
        with self._changed:
            self._stopping = True
            self._stopped.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        while self._thread is None and self._commits:
            self.turn()
        self._remover.shutdown()
        self._file_system.close()
        self.log.close()

    @property
    def buffered_bytes(self) -> int:
        return self.queued_bytes - self.written_bytes

    def submit(self, commit: Commit) -> None:
        """Have it made durable. Waits while the buffers are full."""
        with self._changed:
            if self.problem is not None and self._stopping:
                raise self.problem
            self._commits.append(commit)
            self._changed.notify_all()
            while self._thread and self.buffered_bytes > self._buffer_bytes_max and not self._stopping:
                self._changed.wait(_RETRY_S_MAX)

    def run(self, job: Callable[[], None]) -> Future[None]:
        """Have it called between turns, in the loop's thread."""
        future: Future[None] = Future()
        with self._changed:
            if self._ended:
                future.set_exception(_ended())
            else:
                self._jobs.append((job, future))
            self._changed.notify_all()
        return future

    def run_now(self, job: Callable[[], None]) -> None:
        """The same, and wait for it."""
        if self._thread is None:
            job()
        else:
            self.run(job).result()

    def wait_for(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def begin_at(self, position: int) -> None:
        """In the loop's thread: nothing that was written before counts any more."""
        self._move_gone()
        try:
            self.log.begin_segment(self.sequence, position)
        except OSError:
            self.log.give_up_segment()
            raise
        self.position = position
        self.log.remove_before(self.log.number)

    def remember(self, storage: ShapeStorage, segment: int) -> None:
        """It has something that is in the commit log, from that segment on, and not in its files."""
        if not storage.buffered_since:
            storage.buffered_since = segment
            self._buffered[storage] = None

    def forget(self, storage: ShapeStorage) -> None:
        """It is gone."""
        storage.is_gone = True
        self._buffered.pop(storage, None)
        self._without_room.discard(storage)
        storage.buffered_since = 0
        self._freed(storage.drop_buffer())

    def remove(self, storage: ShapeStorage) -> None:
        """In any thread: it is gone, and no commit that is submitted from now on is durable before its
        directory is out of the way."""
        storage.is_gone = True
        with self._changed:
            self._gone.append(storage)
        if self._thread is None:
            self.forget(storage)
            with suppress(OSError):  # it is tried again
                self._move_gone()
        else:
            self.run(lambda: self.forget(storage))

    def wait_removed(self) -> None:
        """Return when no crash brings back what was removed before."""
        self.run_now(self._move_gone)

    def remove_later(self, remove: Callable[[], None]) -> None:
        """Files that nobody reads any more."""
        self._remover.submit(remove)

    def turn(self, *, idle: bool = False) -> bool:
        """One round; whether there are files that should be written by now."""
        self._fence()
        with self._changed:
            commits = self._some_commits()
        if commits:
            self._commit(commits)
        with self._changed:
            jobs, self._jobs = ([], self._jobs) if self._commits else (self._jobs, [])
        for job, future in jobs:
            try:
                job()
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)
        with suppress(OSError):  # it is tried again, by the next commit at the latest
            self._move_gone()
        due = self._due(commits, idle=idle)
        self._write_files(due[:FILES_PER_TURN])
        self._remove_segments()
        return len(due) > FILES_PER_TURN

    def _run(self) -> None:
        try:
            self._turns()
        except Exception as error:  # the fence, or a fault of ours: whoever commits next is told
            _logger.exception("shapes can no longer be made durable")
            with self._changed:
                self.problem, self._stopping = error, True
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            for _, future in self._jobs:
                future.set_exception(_ended())
            self._jobs.clear()

    def _turns(self) -> None:
        idle = more = False
        while True:
            with self._changed:
                if self._commits:
                    idle = False
                elif not (more or self._jobs or self._stopping):
                    idle = not self._changed.wait(IDLE_S if self._buffered else None)
                if self._stopping and not self._commits and not self._jobs:
                    return
            more = self.turn(idle=idle)

    # Commits

    def _some_commits(self) -> Sequence[Commit]:
        """The oldest that wait, no more than are written at once: packing takes memory."""
        size = count = 0
        while count < len(self._commits) and size < _TURN_BYTES_MAX:
            size += self._commits[count].size
            count += 1
        commits, self._commits = self._commits[:count], self._commits[count:]
        return commits

    def _sync_snapshots(self, commits: Sequence[Commit]) -> None:
        """What becomes ready must be on disk before a record says that it is: many at once, unless that
        fails, and it is to be found out for which of them; few one by one, since somebody waits for their
        first rows, and others may have written much to the same file system."""
        ready = [
            storage
            for commit in commits
            for storage, _ in commit.ready
            if not storage.is_gone and not storage.is_kept
        ]
        if not ready:
            return
        if len(ready) >= _TOGETHER_MIN:
            with suppress(OSError):
                self._file_system.sync()
                return
        for storage in ready:
            result = _tried(storage, ShapeStorage.sync_snapshot)
            if isinstance(result, OSError):
                self._give_up(storage)
                self._on_failed(storage.slot, result)

    def _commit(self, commits: Sequence[Commit]) -> None:
        self._sync_snapshots(commits)
        if not self._write_commits(commits):
            return
        failpoints.reach("shapes.committed")
        end = self.position
        for commit in commits:
            for storage, piece in commit.parts:
                if storage.is_gone:
                    self._freed(storage.drop_buffer())
                    continue
                storage.note_committed(piece)
                self.remember(storage, self.log.number)
                if piece.boundary is not None:
                    self._flushed[storage.slot] = piece.boundary
            for storage, metadata in commit.ready:
                if not storage.is_gone:
                    storage.note_ready(metadata)
                    self.remember(storage, self.log.number)
            end = max(end, commit.end)
        with self._changed:
            self.position = end
            self._changed.notify_all()
        if any(commit.end for commit in commits):
            flushed, self._flushed = self._flushed, {}
            self._on_flushed(Lsn(end), flushed)

    def _write_commits(self, commits: Sequence[Commit]) -> bool:
        """False if it was stopped before it could."""
        pause_s = _RETRY_S_MIN
        while True:
            try:
                self._fence()
                self._move_gone()
                if self.log.is_full:
                    self.log.begin_segment(self.sequence, self.position)
                packed = [self._packed(commit, self.sequence + 1 + n) for n, commit in enumerate(commits)]
                self.log.write(b"".join(packed))
            except OSError as error:
                if self.problem is None:
                    _logger.warning("shapes are not durable at the moment", error=error.strerror)
                self.problem = error
                self.failures += 1
                self.log.give_up_segment()
                if self._stopped.wait(pause_s):
                    return False
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
            else:
                self.problem = None
                self.sequence += len(commits)
                return True

    def _packed(self, commit: Commit, sequence: int) -> bytes:
        segment, names, parts = self.log.number, [], []
        for storage, piece in commit.parts:
            if storage.named_in != segment:
                storage.named_in = segment
                names.append(Name(storage.number, storage.handle))
            tx, op = (-1, 0) if piece.boundary is None else (piece.boundary.tx, int(piece.boundary.op))
            parts.append(Part(storage.number, tx, op, piece.records))
        names += [
            Name(storage.number, storage.handle, *metadata)
            for storage, metadata in commit.ready
            if not storage.is_gone
        ]
        return CommitRecord(sequence, commit.end, names, parts).pack()

    # Shapes that are gone

    def _give_up(self, storage: ShapeStorage) -> None:
        self.forget(storage)
        with self._changed:
            self._gone.append(storage)

    def _move_gone(self) -> None:
        """Have recovery not find them, whatever happens from now on."""
        with self._changed:
            gone = list(self._gone)
        if not gone:
            return
        for storage in gone:
            storage.move_away()
        sync_directory(Path(gone[0].directory).parent)
        with self._changed:
            del self._gone[: len(gone)]

    # Shapes' files

    def _due(self, commits: Sequence[Commit], *, idle: bool) -> list[ShapeStorage]:
        due: dict[ShapeStorage, None] = {}
        for commit in commits:
            for storage, _ in commit.parts:
                if storage.committed_bytes >= SHAPE_BUFFER_BYTES or storage.has_chunk_end:
                    due[storage] = None
        if idle:
            due |= self._buffered
        elif self.buffered_bytes > self._buffer_bytes_max // 2:
            excess = self.buffered_bytes - self._buffer_bytes_max // 4
            for storage in self._buffered:
                if excess <= 0:
                    break
                due[storage] = None
                excess -= storage.committed_bytes
        if self.log.number - self.log.oldest >= SEGMENTS_KEPT:
            for storage in self._buffered:
                if storage.buffered_since > self.log.oldest:
                    break
                due[storage] = None
        return list(due)

    def _write_files(self, storages: Sequence[ShapeStorage]) -> None:
        if len(storages) < _TOGETHER_MIN or not self._write_together(storages):
            for storage in storages:
                staged = _tried(storage, lambda storage: storage.stage_files(sync=True))
                self._publish(storage, staged, sync=True)

    def _write_together(self, storages: Sequence[ShapeStorage]) -> bool:
        """Many with one sync of the file system; False if that failed, and it is not known for which."""
        staged = [_tried(storage, lambda storage: storage.stage_files(sync=False)) for storage in storages]
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
            result = _tried(storage, lambda storage: storage.publish_files(staged, sync=sync))
        if isinstance(result, OSError):
            if self._waits_for_room(storage, result):
                return
            was_gone = storage.is_gone
            self._give_up(storage)
            if not was_gone:
                self._on_failed(storage.slot, result)
            return
        self._buffered.pop(storage, None)
        self._without_room.discard(storage)
        storage.buffered_since = 0
        self._freed(staged.size if isinstance(staged, Staged) else 0)

    def _waits_for_room(self, storage: ShapeStorage, error: OSError) -> bool:
        if error.errno not in _NO_ROOM or storage.is_gone:
            return False
        if self.buffered_bytes > self._buffer_bytes_max // 2:
            return False
        if storage not in self._without_room:
            self._without_room.add(storage)
            _logger.warning("no room for the files of a shape: tried again", handle=storage.handle)
        return True

    def _remove_segments(self) -> None:
        """All that nothing in a buffer needs any more; the newest stays, it knows the position."""
        oldest = next((storage.buffered_since for storage in self._buffered), self.log.number)
        if oldest <= self.log.oldest:
            return
        if self._unsynced:
            try:
                self._file_system.sync()
            except OSError:
                return  # they stay for now
            self._unsynced = False
        self.log.remove_before(oldest)

    def _freed(self, size: int) -> None:
        if size:
            with self._changed:
                self.written_bytes += size
                self._changed.notify_all()


def _ended() -> OSError:
    return OSError("the store is closed")


def _tried(storage: ShapeStorage, call: Callable[[ShapeStorage], _Result]) -> _Result | OSError:
    try:
        return call(storage)
    except OSError as error:
        return error

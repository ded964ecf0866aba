"""The thread that makes things durable: commits first, shapes' own files when it suits.

A turn takes all commits that wait, writes them to the commit log as one datasync, and reports them. Then it
may write some shapes' files (`backlog` says which, and what happens to one whose files cannot be written).
Never more than `FILES_PER_TURN`, so that commits do not wait for long.

A commit log that cannot be written is tried again, in a new segment, until it can: meanwhile nothing is
reported durable, readers go on, and the engine waits once the buffers are full. Before each commit, shapes
that are gone are out of the way (`gone_shapes`).

Nothing is written, moved or removed unless the fence lets it pass, asked in each turn, before and after the
commit log is written, and when a file cannot be: what it raises ends the loop. Whoever was stopped behind
such a look, and has a successor when it wakes, does no harm to its files (`place`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from penstock import failpoints
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.shapes.storage.backlog import TOGETHER_MIN, Backlog, tried
from penstock.shapes.storage.commit_log import CommitLog, CommitRecord, Name, Part
from penstock.shapes.storage.file_system import FileSystem
from penstock.shapes.storage.gone_shapes import GoneShapes
from penstock.shapes.storage.shape_files import Metadata
from penstock.shapes.storage.shape_storage import Piece, ShapeStorage

FILES_PER_TURN: Final = 512
IDLE_S: Final = 1.0
_RETRY_S_MIN, _RETRY_S_MAX = 0.05, 5.0
_TURN_BYTES_MAX = 8 * 1024 * 1024

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
        self._flushed: dict[int, LogOffset] = {}  # not reported yet: of parts of a commit
        self._gone = GoneShapes()
        self._changed = threading.Condition()
        self._commits: list[Commit] = []
        self._jobs: list[tuple[Callable[[], None], Future[None]]] = []
        self._stopping = self._ended = self._has_last = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._file_system = FileSystem(log.directory)
        self.backlog = Backlog(
            log,
            self._file_system,
            buffer_bytes_max,
            lambda: self.buffered_bytes,
            self._freed,
            self._files_failed,
        )
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="shape-remover")

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="shape-write-loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits, if it can be, and end."""
        with self._changed:
            self._stopping = self._has_last = True
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
            while self._thread and self.buffered_bytes > self._buffer_bytes_max and not self._has_last:
                self._changed.wait(_RETRY_S_MAX)

    def take_last(self) -> None:
        """Little more comes, and then the end: nobody is to wait for room any more."""
        with self._changed:
            self._has_last = True
            self._changed.notify_all()

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
        self._gone.move_away()
        try:
            self.log.begin_segment(self.sequence, position)
        except OSError:
            self.log.give_up_segment()
            raise
        self.position = position
        self.log.remove_before(self.log.number)

    def forget(self, storage: ShapeStorage) -> None:
        """It is gone."""
        storage.is_gone = True
        self.backlog.forget(storage)
        self._freed(storage.drop_buffer())

    def remove(self, storage: ShapeStorage) -> None:
        """In any thread: it is gone, and no commit that is submitted from now on is durable before its
        directory is out of the way."""
        storage.is_gone = True
        self._gone.add(storage)
        if self._thread is None:
            self.forget(storage)
            with suppress(OSError):  # it is tried again
                self._gone.move_away()
        else:
            self.run(lambda: self.forget(storage))

    def wait_removed(self) -> None:
        """Return when no crash brings back what was removed before."""
        self.run_now(self._gone.move_away)

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
            self._gone.move_away()
        committed = (storage for commit in commits for storage, _ in commit.parts)
        due = self.backlog.due(committed, idle=idle)
        self.backlog.write(due[:FILES_PER_TURN])
        self.backlog.remove_segments()
        return len(due) > FILES_PER_TURN

    def _run(self) -> None:
        try:
            self._turns()
        except Exception as error:  # the fence, or a fault of ours: whoever commits next is told
            _logger.exception("shapes can no longer be made durable")
            with self._changed:
                self.problem, self._stopping, self._has_last = error, True, True
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
                    idle = not self._changed.wait(None if self.backlog.is_empty else IDLE_S)
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
        if len(ready) >= TOGETHER_MIN:
            with suppress(OSError):
                self._file_system.sync()
                return
        for storage in ready:
            result = tried(storage, ShapeStorage.sync_snapshot)
            if isinstance(result, OSError):
                self._give_up(storage)
                self._on_failed(storage.slot, result)

    def _commit(self, commits: Sequence[Commit]) -> None:
        self._sync_snapshots(commits)
        if not self._write_commits(commits):
            with self._changed:  # a later one that can be written would say that these are durable
                self._commits.clear()
            return
        failpoints.reach("shapes.committed")
        self._fence()
        end = self.position
        for commit in commits:
            for storage, piece in commit.parts:
                if storage.is_gone:
                    self._freed(storage.drop_buffer())
                    continue
                storage.note_committed(piece)
                self.backlog.remember(storage, self.log.number)
                if piece.boundary is not None:
                    self._flushed[storage.slot] = piece.boundary
            for storage, metadata in commit.ready:
                if not storage.is_gone:
                    storage.note_ready(metadata)
                    self.backlog.remember(storage, self.log.number)
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
                self._gone.move_away()
                if self.log.is_full:
                    self.log.begin_segment(self.sequence, self.position)
                packed = [self._packed(commit, self.sequence + 1 + n) for n, commit in enumerate(commits)]
                self.log.write(b"".join(packed))
            except OSError as error:
                self._fence()
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

    # Shapes

    def _give_up(self, storage: ShapeStorage) -> None:
        self.forget(storage)
        self._gone.add(storage)

    def _files_failed(self, storage: ShapeStorage, error: OSError) -> None:
        self._fence()
        was_gone = storage.is_gone
        self._give_up(storage)
        if not was_gone:
            self._on_failed(storage.slot, error)

    def _freed(self, size: int) -> None:
        if size:
            with self._changed:
                self.written_bytes += size
                self._changed.notify_all()


def _ended() -> OSError:
    return OSError("the store is closed")

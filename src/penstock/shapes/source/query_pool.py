"""`QueryPool`: threads for work that needs a connection, as many as there are connections.

Each is started when it is first needed. Work is done in the order it came, and refused when it has waited and
no thread has become free for a while: a queue that moves, however long, is waited in.

Work of the same kind that waits may be taken together by one thread (`submit_together`), so that what it
costs once, a transaction for instance, is shared: no more of it than no other thread would take at once.
Whoever works on it says after each how it went, and may leave the rest: that goes back to the head of the
queue. An error is of the one that was worked on alone, the rest goes back then too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.shapes.source.connection_pool import ConnectionPool, Open
from penstock.shapes.source.problems import no_connection, unreachable
from penstock.sources.postgres.connection import Connection

TOGETHER_MAX = 16
_QUEUED_MAX = 10_000
_STOP_WITHIN_S = 5.0

T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[Connection, Sequence[Any]], Iterator[Any]]
    item: Any
    kind: Hashable
    outcome: Future[Any]
    since: float

    def begin(self) -> bool:
        """False if nobody wants it any more. One that was put back has begun before."""
        return self.outcome.running() or self.outcome.set_running_or_notify_cancel()

    def fail(self, error: BaseException) -> None:
        if self.begin():
            self.outcome.set_exception(error)


class QueryPool:
    """In any thread."""

    def __init__(self, open_connection: Open, size: int, wait_s: float, name: str) -> None:
        self._connections = ConnectionPool(open_connection, size, wait_s)
        self._size = size
        self._wait_s = wait_s
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)  # for those who work
        self._began = threading.Condition(self._lock)  # for the watch: somebody waits
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._taken_at = 0.0
        self._closed = False

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Fails with a `SnapshotProblem` if no thread is free in time, or no connection can be had."""

        def alone(connection: Connection, _items: Sequence[None]) -> Iterator[T]:
            yield work(connection)

        return self._submit(alone, None, None)

    def submit_together(
        self, work: Callable[[Connection, Sequence[Item]], Iterator[T]], item: Item, kind: Hashable
    ) -> Future[T]:
        """The same for one item of many. `work` is given some of the same kind, and yields a result for each
        in turn; it may end after the first."""
        return self._submit(work, item, kind)

    def _submit(
        self, work: Callable[[Connection, Sequence[Any]], Iterator[T]], item: Any, kind: Hashable
    ) -> Future[T]:
        outcome: Future[T] = Future()
        with self._lock:
            if self._closed:
                outcome.set_exception(unreachable())
            elif len(self._jobs) >= _QUEUED_MAX:
                outcome.set_exception(no_connection(0))
            else:
                self._jobs.append(_Job(work, item, kind, outcome, time.monotonic()))
                self._start_threads()
                self._came.notify()
                if len(self._jobs) == 1:
                    self._began.notify()
        return outcome

    @property
    def queued(self) -> int:
        return len(self._jobs)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            jobs, self._jobs = self._jobs, deque()
            self._came.notify_all()
            self._began.notify()
        for job in jobs:
            job.fail(unreachable())
        self._connections.close()
        for thread in self._threads:
            thread.join(_STOP_WITHIN_S)

    def _start_threads(self) -> None:
        if not self._threads:
            self._start(self._watch, "watch")
        if self._idle < len(self._jobs) and len(self._threads) <= self._size:
            self._start(self._work, str(len(self._threads)))

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"shapes-{self._name}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while taken := self._next():
            jobs = deque(job for job in taken if job.begin())
            if not jobs:
                continue
            try:
                with self._connections.connection() as connection:
                    items = [job.item for job in jobs]
                    for found in jobs[0].work(connection, items):
                        jobs.popleft().outcome.set_result(found)
                    assert len(jobs) < len(items), "work ends after the first at the earliest"
            except BaseException as error:  # whoever waits for it is told, whatever it is
                if jobs:
                    jobs.popleft().outcome.set_exception(error)
            if jobs:
                self._put_back(jobs)

    def _next(self) -> list[_Job]:
        """What a thread does next; nothing at the end."""
        with self._lock:
            self._idle += 1
            self._came.wait_for(lambda: self._jobs or self._closed)
            self._idle -= 1
            self._taken_at = time.monotonic()
            if not self._jobs:
                return []
            first = self._jobs.popleft()
            taken, more = [first], min(TOGETHER_MAX - 1, len(self._jobs) // self._size)
            while more and first.kind is not None and self._jobs and self._jobs[0].kind == first.kind:
                taken.append(self._jobs.popleft())
                more -= 1
            return taken

    def _put_back(self, jobs: deque[_Job]) -> None:
        with self._lock:
            if not self._closed:
                self._jobs.extendleft(reversed(jobs))
                self._came.notify(len(jobs))
                self._began.notify()
                return
        for job in jobs:
            job.fail(unreachable())

    def _watch(self) -> None:
        while not self._closed:
            with self._lock:
                self._began.wait_for(lambda: self._jobs or self._closed)
                late = []
                while self._jobs and self._left_s(self._jobs[0]) <= 0:
                    late.append(self._jobs.popleft())
                if not late and self._jobs:
                    self._began.wait(self._left_s(self._jobs[0]))
            for job in late:
                job.fail(no_connection(self._wait_s))

    def _left_s(self, job: _Job) -> float:
        return max(job.since, self._taken_at) + self._wait_s - time.monotonic()

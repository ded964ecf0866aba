"""Connections for reading rows and catalogs: never more than the configured number.

`split` divides them: *admin* for catalogs and publishing, straight to the source; *snapshots* for first
answers, which may take hours; *queries* for subsets and for rows that subqueries bring in, which must not
wait behind those. The last two may go through a pooler in transaction mode: nothing they rely on outlives a
transaction (`row_reader` sets what it needs inside).

A `QueryPool` has as many threads as connections, each started when it is first needed. Work is refused when
it has waited and none has become free for a while: a queue that moves, however long, is waited in.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from penstock.core.errors import SourceError
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.source.problems import no_connection, unreachable
from penstock.sources.postgres.connection import (
    CONNECT_TIMEOUT_S,
    Connection,
    connect,
    connection_error,
    connection_parameters,
)

APPLICATION = "penstock shapes"
_QUEUED_MAX = 10_000
_STOP_WITHIN_S = 5.0

T = TypeVar("T")
Open = Callable[[], Connection]


class ConnectionPool:
    """At most `size` connections, opened when needed and kept. Any thread."""

    def __init__(self, open_connection: Open, size: int, wait_s: float) -> None:
        self._open = open_connection
        self._wait_s = wait_s
        self._free = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._closed = False

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """One that is in no transaction; a `SnapshotProblem` if there is none to be had."""
        if not self._free.acquire(timeout=self._wait_s):
            raise no_connection(self._wait_s)
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close those that are idle, and have the others fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            used = list(self._used)
        for connection in idle:
            connection.close()
        for connection in used:
            if connection.info.transaction_status == TransactionStatus.ACTIVE:
                with contextlib.suppress(psycopg.Error):
                    connection.cancel_safe(timeout=_STOP_WITHIN_S)

    def _take(self) -> Connection:
        while True:
            with self._lock:
                if self._closed:
                    raise unreachable()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                try:
                    connection = self._open()
                except SourceError as error:
                    raise unreachable() from error
            elif not _is_alive(connection):
                connection.close()
                continue
            with self._lock:
                self._used.add(connection)
            return connection

    def _give_back(self, connection: Connection) -> None:
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
        with self._lock:
            self._used.discard(connection)
            if connection.info.transaction_status == TransactionStatus.IDLE and not self._closed:
                self._idle.append(connection)
                return
        connection.close()  # in the midst of a query, or broken


def _is_alive(connection: Connection) -> bool:
    """A server that went away has said so by now, unless the network did: then the query says it."""
    if connection.closed or connection.pgconn.status != ConnStatus.OK:
        return False
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    if not poll.poll(0):
        return True
    try:
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return connection.pgconn.status == ConnStatus.OK and not poll.poll(0)


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[Connection], Any]
    outcome: Future[Any]
    since: float


class QueryPool:
    """Runs work that needs a connection, in threads of its own, in the order it came."""

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
        outcome: Future[T] = Future()
        with self._lock:
            if self._closed:
                outcome.set_exception(unreachable())
            elif len(self._jobs) >= _QUEUED_MAX:
                outcome.set_exception(no_connection(0))
            else:
                self._jobs.append(_Job(work, outcome, time.monotonic()))
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
            _fail(job.outcome, unreachable())
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
        while (job := self._next()) is not None:
            if not job.outcome.set_running_or_notify_cancel():
                continue
            try:
                with self._connections.connection() as connection:
                    found = job.work(connection)
            except BaseException as error:  # whoever waits for it is told, whatever it is
                job.outcome.set_exception(error)
            else:
                job.outcome.set_result(found)

    def _next(self) -> _Job | None:
        with self._lock:
            self._idle += 1
            self._came.wait_for(lambda: self._jobs or self._closed)
            self._idle -= 1
            self._taken_at = time.monotonic()
            return self._jobs.popleft() if self._jobs else None

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
                _fail(job.outcome, no_connection(self._wait_s))

    def _left_s(self, job: _Job) -> float:
        return max(job.since, self._taken_at) + self._wait_s - time.monotonic()


def _fail(outcome: Future[Any], error: Exception) -> None:
    if outcome.set_running_or_notify_cancel():
        outcome.set_exception(error)


@dataclass(frozen=True, slots=True)
class Sizes:
    admin: int
    snapshots: int
    queries: int


def split(size: int) -> Sizes:
    """A quarter for admin, at most 5; a third of the rest for queries. Each has one at least."""
    admin = min(max(size // 4, 1), 5)
    queries = max((size - admin) // 3, 1)
    return Sizes(admin, max(size - admin - queries, 1), queries)


@dataclass(frozen=True, slots=True)
class Pools:
    admin: ConnectionPool
    snapshots: QueryPool
    queries: QueryPool

    @classmethod
    def open(cls, settings: ShapeSettings) -> Pools:
        sizes = split(settings.db_pool_size)
        wait_s = settings.snapshot_queue_timeout.total_seconds()
        query_url, is_pooled = settings.query_url, settings.pooled_url is not None

        def straight() -> Connection:
            return connect(settings.source_url, application_name=APPLICATION)

        def for_rows() -> Connection:
            return connect_to_pooler(query_url) if is_pooled else straight()

        return cls(
            ConnectionPool(straight, sizes.admin, wait_s),
            QueryPool(for_rows, sizes.snapshots, wait_s, "snapshot"),
            QueryPool(for_rows, sizes.queries, wait_s, "query"),
        )

    def close(self) -> None:
        for pool in (self.snapshots, self.queries, self.admin):
            pool.close()


def connect_to_pooler(url: str) -> Connection:
    """Without settings in the start-up packet, which poolers refuse."""
    parameters = connection_parameters(url, application_name=APPLICATION)
    parameters.pop("options")
    parameters.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    try:
        opened: Connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        return opened
    except psycopg.Error as error:
        raise connection_error(error, url) from error

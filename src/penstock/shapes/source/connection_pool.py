"""`ConnectionPool`: connections that are opened when needed, kept, and given out in no transaction."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from penstock.core.errors import SourceError
from penstock.shapes.source.problems import no_connection, unreachable
from penstock.sources.postgres.connection import Connection

_STOP_WITHIN_S = 5.0

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

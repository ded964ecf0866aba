"""`TablePublisher`: has capture publish the tables of shapes, with the old rows of changes.

Capture alone changes the publication (correctness 37); this asks it to, by joining it with the tables that
this lane follows. However many shapes of new tables are made at once, one join serves them all, and a table
that is refused keeps none of the others out.

A table that a join has put into the publication is *fresh*: a transaction that wrote to it before shows only
its later changes in the log. So nobody takes a snapshot of it until the transactions that hold a writer's
lock on it, as of any moment after the join, have ended: then a snapshot shows them whole. Until that is done
for a table, whether it has a shape meanwhile or not, capture is not told that the lane has heard of it, and
says so again with every join, of this process and of the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import structlog

from penstock.capture.spec import Started
from penstock.core.errors import CaptureAwayError, PenstockError
from penstock.core.stream import StreamId
from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source.connection_pool import ConnectionPool
from penstock.shapes.source.problems import locked, problem_of, unreachable
from penstock.sources.postgres.connection import Connection
from penstock.sources.postgres.publication import quoted

WAIT_S = 5.0
_CONFIRM_AFTER_S = 0.5
LOOK_EVERY_S = 0.05
_SETTLING_MAX = 3  # each takes a connection of the admin part meanwhile
_logger = structlog.get_logger("penstock.shapes")

# Prepared transactions have a virtual transaction of their own here, too.
_WRITERS = """
WITH RECURSIVE tree AS (
    SELECT to_regclass(%(table)s)::oid AS oid
    UNION ALL
    SELECT i.inhrelid
    FROM tree
    JOIN pg_class AS c ON c.oid = tree.oid AND c.relkind = 'p'
    JOIN pg_inherits AS i ON i.inhparent = tree.oid
)
SELECT DISTINCT l.virtualtransaction
FROM pg_locks AS l JOIN tree ON tree.oid = l.relation LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND NOT (%(committing)s AND coalesce(
      a.state LIKE 'idle in transaction%%', current_setting('synchronous_standby_names') = ''))
"""


class Joining(Protocol):
    """What is asked of capture (`RemoteCapture`)."""

    def join(self, streams: list[StreamId], full_identity: Collection[StreamId] = ()) -> Started: ...

    def heard(self, streams: Collection[StreamId] | None = None) -> None: ...


class Joined(NamedTuple):
    """`refused`: tables that are not followed, and why."""

    started: Started
    refused: dict[StreamId, SnapshotProblem]


@dataclass(frozen=True, slots=True)
class _Wish:
    outcome: Future[None]
    timer: threading.Timer


class TablePublisher:
    """`on_joined` is told of every join: the lane must say anew how far it is, and shapes of tables in
    `Started.published` may lack changes. With `manual` nobody says when a table was published: each is taken
    for fresh once."""

    def __init__(
        self,
        capture: Joining,
        connections: ConnectionPool,
        on_joined: Callable[[Started, frozenset[StreamId]], None],
        *,
        manual: bool = False,
        wait_s: float = WAIT_S,
    ) -> None:
        self._capture = capture
        self._connections = connections
        self._on_joined = on_joined
        self._manual = manual
        self._wait_s = wait_s
        self._joining = threading.Lock()  # one join at a time
        self._lock = threading.Lock()  # of what follows; never held for long
        self._tables: frozenset[StreamId] = frozenset()  # that were joined
        self._oids: dict[StreamId, int] = {}  # which table was last asked for by that name
        self._fresh: set[StreamId] = set()  # whether they have shapes or not
        # Published for us, and capture does not know that we heard: `on_joined` is told of each once.
        self._told: frozenset[StreamId] = frozenset()
        self._wishes: dict[StreamId, _Wish] = {}
        self._settled_soon: set[StreamId] = set()
        self._joins = ThreadPoolExecutor(1, "shapes-publishing")
        self._settling = ThreadPoolExecutor(_SETTLING_MAX, "shapes-settling")

    def join(self, tables: Iterable[StreamId]) -> Joined:
        """Begin a term with the tables of all shapes. Raises if capture cannot be asked."""
        with self._joining:
            return self._join(frozenset(tables))

    def ensure(self, table: StreamId, oid: int = 0) -> Future[None]:
        """Done when a snapshot of the table may be taken; fails with a `SnapshotProblem`. Returns at once.

        A name with another oid is joined again: the publication lost it with the table that was dropped.
        """
        with self._lock:
            if self._oids.get(table) != oid:
                self._oids[table] = oid
                self._tables -= {table}
            if table in self._tables and table not in self._fresh:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            if (wish := self._wishes.get(table)) is None:
                timer = threading.Timer(2 * self._wait_s, lambda: self._fail(table, locked()))
                timer.daemon = True
                wish = self._wishes[table] = _Wish(Future(), timer)
                timer.start()
        try:
            self._joins.submit(self._grant)
        except RuntimeError:  # closed
            self._fail(table, unreachable())
        return wish.outcome

    def forget(self, table: StreamId) -> None:
        """Its partitions or its replica identity may be others now: the next shape has it joined again."""
        with self._lock:
            self._oids.pop(table, None)
            self._tables -= {table}

    def close(self) -> None:
        for executor in (self._joins, self._settling):
            executor.shutdown(wait=False, cancel_futures=True)
        for table in list(self._wishes):
            self._fail(table, unreachable())

    def _grant(self) -> None:
        """Join for all that is wished for by now."""
        with self._joining:
            with self._lock:
                wished = frozenset(self._wishes)
                missing = wished - self._tables
            if missing:
                try:
                    joined = self._join(self._tables | missing)
                except Exception as error:
                    for table in missing:
                        self._fail(table, problem_of(error, table))
                else:
                    for table in joined.refused.keys() & missing:
                        self._fail(table, joined.refused[table])
        with self._lock:
            granted = wished & self._tables
            fresh = granted & self._fresh
            unsettled = fresh - self._settled_soon
            self._settled_soon |= unsettled
            forgotten = (self._wishes.keys() & wished) - self._tables  # during the join
        for table in granted - fresh:
            self._resolve(table)
        for table in unsettled:
            self._settling.submit(self._settle, table)
        if forgotten:
            self._joins.submit(self._grant)

    def _join(self, tables: frozenset[StreamId]) -> Joined:
        with self._lock:
            oids = dict(self._oids)
        started, refused = self._ask(tables)
        published = frozenset(started.published)
        with self._lock:
            accepted = tables - refused.keys()
            self._fresh |= published | (accepted - self._tables if self._manual else frozenset())
            self._tables = frozenset(each for each in accepted if self._oids.get(each) == oids.get(each))
        news = tuple(sorted(published - self._told))
        self._on_joined(replace(started, published=news), accepted)
        self._told = published
        return Joined(started, refused)

    def _ask(self, tables: frozenset[StreamId]) -> Joined:
        """Join with as many of these tables as capture takes."""
        wanted, refused = set(tables), dict[StreamId, SnapshotProblem]()
        while True:
            try:
                return Joined(self._capture.join(sorted(wanted), wanted), refused)
            except CaptureAwayError:
                raise
            except PenstockError as error:
                refusals = self._refusals(wanted, error)
                if not refusals:
                    raise
                refused |= refusals
                wanted -= refusals.keys()

    def _refusals(self, wanted: set[StreamId], error: PenstockError) -> dict[StreamId, SnapshotProblem]:
        """Which tables are in the way: those that fail alone, too. An error may be of the moment."""
        suspects = [table for table in wanted if str(table) == error.stream]
        if not suspects and self._manual:  # by hand, several tables may have to be published
            suspects = sorted(wanted)
        found = {}
        for table in suspects:
            time.sleep(_CONFIRM_AFTER_S / len(suspects))
            try:
                self._capture.join([table], {table})
            except CaptureAwayError:
                raise
            except PenstockError as again:
                if again.stream == str(table):
                    found[table] = problem_of(again, table)
        return found

    def _settle(self, table: StreamId) -> None:
        try:
            with self._connections.connection() as connection:
                wait_for_writers(connection, table, self._wait_s)
        except Exception as error:
            with self._lock:
                self._settled_soon.discard(table)
            self._fail(table, problem_of(error, table))
            return
        with self._lock:
            self._settled_soon.discard(table)
            self._fresh.discard(table)
        self._resolve(table)
        with self._joining:
            if table in self._told:
                try:
                    self._capture.heard([table])
                    self._told -= {table}
                except PenstockError as error:  # it says so again
                    _logger.warning("capture could not be told", reason=error.message)

    def _resolve(self, table: StreamId) -> None:
        if (wish := self._take(table)) is not None:
            wish.outcome.set_result(None)

    def _fail(self, table: StreamId, problem: SnapshotProblem) -> None:
        if (wish := self._take(table)) is not None:
            wish.outcome.set_exception(problem)

    def _take(self, table: StreamId) -> _Wish | None:
        with self._lock:
            wish = self._wishes.pop(table, None)
        if wish is not None:
            wish.timer.cancel()
        return wish


def wait_for_writers(connection: Connection, table: StreamId, wait_s: float) -> None:
    """Return when all transactions have ended that have written to the table, or may have, by now."""
    deadline = time.monotonic() + wait_s
    first = found = writers(connection, table)
    while first & found:
        if time.monotonic() > deadline:
            raise locked()
        time.sleep(LOOK_EVERY_S)
        found = writers(connection, table)


def writers(connection: Connection, table: StreamId, *, committing: bool = False) -> set[str]:
    """Transactions that have written to the table, or may have; `committing`: and that may have committed."""
    given = {"table": quoted(table), "committing": committing}
    return {row[0] for row in connection.execute(_WRITERS, given)}

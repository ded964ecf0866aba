"""`EarlierWriters`: those whose commits were handed out before the engine remembered them.

A commit is in the log before it is visible, for as long as it waits for a standby. The engine remembers what
it hands out of the tables that have had shapes (`engine.consumer`), and refuses a snapshot that does not show
it. Of what was handed out before, by the last process or before all shapes were made anew, it remembers
nothing, while shapes that outlived the restart have it: the sets of subqueries, too. So before the first
query of each table, those are waited for that may be such: who holds a writer's lock on the table, since that
is kept until the commit is visible, and is not idle in a transaction, since then it has not committed.
Whoever begins later commits later, and is remembered or buffered.

A first snapshot waits for all the tables that it reads; if that takes too long, clients come again. Rows that
move in are asked for again by the engine, so they wait in no thread of the pool that subsets need too. Only
those are waited for then that were there at the first look, which is at the start for the tables that rows of
kept shapes move in from: who writes for hours later on is none of them.
Of prepared transactions, and of sessions that our role may not look at, it is not known whether they commit:
they count as long as they are there, unless no commit waits for a standby on this server.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from penstock.core.stream import StreamId
from penstock.shapes.source.problems import locked
from penstock.shapes.source.publishing import LOOK_EVERY_S, writers
from penstock.sources.postgres.connection import Connection

# No setting of the role's ends it, and a pooler takes none at connect.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = 0"


class EarlierWriters:
    """In any thread."""

    def __init__(self) -> None:
        self._left: dict[StreamId, set[str]] = {}  # of tables that were looked at; empty: none is left

    def start_over(self) -> None:
        """Nothing is remembered any more."""
        self._left = {}

    def look(self, connection: Connection, tables: Collection[StreamId]) -> None:
        """Who is there now, of tables that nobody has asked for yet."""
        known = self._left
        for table in tables:
            if table not in known:
                found = _look(connection, table)
                known.setdefault(table, found)

    def wait(self, connection: Connection, table: StreamId, within_s: float) -> None:
        """Return when a snapshot of the table may be taken. A `SnapshotProblem` if it takes too long."""
        known = self._left  # as it was before the look
        left = known.get(table)
        if left is not None and not left:
            return
        deadline = time.monotonic() + within_s
        while True:
            found = _look(connection, table)
            left = known[table] = found if left is None else found & left
            if not left:
                return
            if time.monotonic() >= deadline:
                raise locked()
            time.sleep(LOOK_EVERY_S)


def _look(connection: Connection, table: StreamId) -> set[str]:
    connection.execute(_BEGIN)
    found = writers(connection, table, committing=True)
    connection.execute("COMMIT")
    return found

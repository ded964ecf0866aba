"""A snapshot of one connection, with the place in the log that it shows: every transaction that changed the
table and ends at or before it, and none that begins there or later (correctness 54).

MariaDB says that place by itself. MySQL does not, but it writes a transaction to the log before anybody can
see it, and its session lets go of the table only after that. So there are two ways, each exact:

- *by looking twice*: a place up to which all can be seen (`server.visible_place`), then the snapshot, and the
  log still ends at that place. What the snapshot shows was logged before it, and nothing was logged since.
- *by a lock of the table*, where writers leave no such moment: another session holds it for reading, so no
  transaction that has changed it is open, and all that have are in the log and can be seen. The snapshot and
  the end of the log are asked for under it, and it is let go: writers wait for some milliseconds. Waiting for
  the lock would hold up writers behind us as well, so that is given up after a second, and tried again.

Other tables may have changed in between: the place is exact for this table alone. A table without
transactions has no snapshots.

A transaction keeps tables that it has read from being altered until it ends, or goes back to a savepoint from
before; what it shows stays the same (`let_go`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import SourceError
from penstock.core.place import Place
from penstock.core.stream import StreamId
from penstock.sources.mysql.catalog import TRANSACTIONAL_ENGINES
from penstock.sources.mysql.connection import Connection, code_of, connect, is_mariadb, quoted, rows
from penstock.sources.mysql.server import log_end, place_of, server_uuid, visible_place

_TAKING = "taking a snapshot"
_BEFORE = "SAVEPOINT penstock"
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_ENGINE = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_LOOKS, _VISIBLE_WITHIN_S = 20, 1.0
_LOCK_WAIT_S, _LOCK_WITHIN_S = 1, 120.0
_LOCK_TIMED_OUT = (1205, 3572)
_DENIED = (1044, 1142, 1227)


def begin_snapshot(connection: Connection, url: str, table: StreamId) -> Place:
    """Open a transaction in which the table is as it was at the place."""
    _require_transactions(connection, table)
    place = _begin_on_mariadb(connection) if is_mariadb(connection) else _begin(connection, url, table)
    rows(connection, _BEFORE, doing=_TAKING)
    return Place(str(place), "", server_uuid(connection))


def let_go(connection: Connection) -> None:
    """Tables that were read under the snapshot may be altered again."""
    rows(connection, f"ROLLBACK TO {_BEFORE}", doing="reading the table")


def keep_described(connection: Connection, table: StreamId) -> str:
    """How the server would make the table as it is now; it stays so until `let_go`."""
    name = f"{quoted(table.namespace)}.{quoted(table.name)}"
    rows(connection, f"SELECT 1 FROM {name} LIMIT 0", doing="reading the table")  # what follows keeps nothing
    [(_, text, *_)] = rows(connection, f"SHOW CREATE TABLE {name}", doing="reading the table")
    return _COUNTER.sub("", str(text))


def _begin_on_mariadb(connection: Connection) -> BinlogPlace:
    rows(connection, _SNAPSHOT, doing=_TAKING)
    found = rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'", doing=_TAKING)
    named = {str(name).lower(): value for name, value in found}
    return place_of(str(named["binlog_snapshot_file"]), int(named["binlog_snapshot_position"]))


def _begin(connection: Connection, url: str, table: StreamId) -> BinlogPlace:
    for _ in range(_LOOKS):
        if (place := _by_looking_twice(connection)) is not None:
            return place
    with closing(connect(url, program_name="penstock snapshot")) as other, _locked(other, table):
        rows(connection, _SNAPSHOT, doing=_TAKING)
        return log_end(connection)


def _by_looking_twice(connection: Connection) -> BinlogPlace | None:
    place = visible_place(connection, _VISIBLE_WITHIN_S)
    if place is None:
        return None
    rows(connection, _SNAPSHOT, doing=_TAKING)
    if log_end(connection) == place:
        return place
    rows(connection, "ROLLBACK", doing=_TAKING)
    return None


@contextmanager
def _locked(connection: Connection, table: StreamId) -> Iterator[None]:
    rows(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}", doing=_TAKING)
    name = f"{quoted(table.namespace)}.{quoted(table.name)}"
    deadline = time.monotonic() + _LOCK_WITHIN_S
    while True:
        try:
            rows(connection, f"LOCK TABLES {name} READ", doing=_TAKING)
            break
        except SourceError as error:
            code = 0 if error.__cause__ is None else code_of(error.__cause__)
            if code in _DENIED:
                raise _may_not_lock(table) from error
            if code not in _LOCK_TIMED_OUT or time.monotonic() > deadline:
                error.stream = error.stream or str(table)
                raise
        time.sleep(_LOCK_WAIT_S)
    yield
    rows(connection, "UNLOCK TABLES", doing=_TAKING)


def _require_transactions(connection: Connection, table: StreamId) -> None:
    found = rows(connection, _ENGINE, (table.namespace, table.name), doing=_TAKING)
    if found and str(found[0][0]).lower() not in TRANSACTIONAL_ENGINES:
        raise SourceError(
            f"The engine {found[0][0]} has no snapshots: nobody could tell which changes a load has.",
            stream=str(table),
            remedy="Give the table a transactional engine (InnoDB), or set `write: upsert` for the stream; a "
            "stream lane has `snapshot: never`.",
        )


def _may_not_lock(table: StreamId) -> SourceError:
    return SourceError(
        "The table is written to all the time, and the user may not lock it for the moment in which it is "
        "read with its place in the log.",
        stream=str(table),
        remedy=f"Run: GRANT LOCK TABLES ON {quoted(table.namespace)}.* TO the user of the source's url.",
    )

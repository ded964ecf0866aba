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

Several connections have the same snapshot in the same ways: all of them are taken between two looks, or under
one lock. MariaDB says a place for each; those that say the first one's are of use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import NoSnapshotError, SourceError
from penstock.core.place import Place
from penstock.core.stream import StreamId
from penstock.sources.mysql.catalog import TRANSACTIONAL_ENGINES
from penstock.sources.mysql.connection import Connection, code_of, connect, is_mariadb, quoted, rows
from penstock.sources.mysql.server import log_end, place_of, server_uuid, visible_place

_TAKING = "taking a snapshot"
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_ENGINE = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_LOOKS, _VISIBLE_WITHIN_S = 20, 1.0
_LOOKS_OF_ALL = 5
_LOCK_WAIT_S, _LOCK_WITHIN_S = 1, 120.0
_LOCK_TIMED_OUT = (1205, 3572)
_DENIED = (1044, 1142, 1227)


def begin_snapshot(connection: Connection, url: str, table: StreamId) -> Place:
    """Open a transaction in which the table is as it was at the place."""
    return begin_snapshots([connection], url, table)[0]


def begin_snapshots(
    connections: Sequence[Connection], url: str, table: StreamId
) -> tuple[Place, list[Connection]]:
    """Open transactions in which the table is as it was at the place; the first connection's, and those of
    others as far as they show the same. In the rest nothing is open."""
    first = connections[0]
    _require_transactions(first, table)
    if is_mariadb(first):
        place, same = _begin_on_mariadb(connections)
    else:
        place, same = _begin(connections, url, table), list(connections)
    return Place(str(place), "", server_uuid(first)), same


def _begin_on_mariadb(connections: Sequence[Connection]) -> tuple[BinlogPlace, list[Connection]]:
    """Writers are never held up: where they leave no moment for all, there are fewer connections."""
    looks = 0
    while True:
        looks += 1
        places = [_place_on_mariadb(connection) for connection in connections]
        same = [each for each, place in zip(connections, places, strict=True) if place == places[0]]
        if len(same) == len(connections) or looks == _LOOKS_OF_ALL:
            _roll_back([each for each in connections if each not in same])
            return places[0], same
        _roll_back(connections)


def _place_on_mariadb(connection: Connection) -> BinlogPlace:
    rows(connection, _SNAPSHOT, doing=_TAKING)
    found = rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'", doing=_TAKING)
    named = {str(name).lower(): value for name, value in found}
    return place_of(str(named["binlog_snapshot_file"]), int(named["binlog_snapshot_position"]))


def _begin(connections: Sequence[Connection], url: str, table: StreamId) -> BinlogPlace:
    for _ in range(_LOOKS):
        if (place := _by_looking_twice(connections)) is not None:
            return place
    with closing(connect(url, program_name="penstock snapshot")) as other, _locked(other, table):
        for connection in connections:
            rows(connection, _SNAPSHOT, doing=_TAKING)
        return log_end(connections[0])


def _by_looking_twice(connections: Sequence[Connection]) -> BinlogPlace | None:
    place = visible_place(connections[0], _VISIBLE_WITHIN_S)
    if place is None:
        return None
    for connection in connections:
        rows(connection, _SNAPSHOT, doing=_TAKING)
    if log_end(connections[0]) == place:
        return place
    _roll_back(connections)
    return None


def _roll_back(connections: Sequence[Connection]) -> None:
    for connection in connections:
        rows(connection, "ROLLBACK", doing=_TAKING)


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
            if code not in _LOCK_TIMED_OUT:
                error.stream = error.stream or str(table)
                raise
            if time.monotonic() > deadline:
                raise _is_in_use(table) from error
        time.sleep(_LOCK_WAIT_S)
    yield
    rows(connection, "UNLOCK TABLES", doing=_TAKING)


def _require_transactions(connection: Connection, table: StreamId) -> None:
    found = rows(connection, _ENGINE, (table.namespace, table.name), doing=_TAKING)
    if found and str(found[0][0]).lower() not in TRANSACTIONAL_ENGINES:
        raise NoSnapshotError(
            f"The engine {found[0][0]} has no snapshots: nobody could tell which changes a load has.",
            stream=str(table),
            remedy="Give the table a transactional engine (InnoDB), or set `write: upsert` for the stream; a "
            "stream lane has `snapshot: never`.",
        )


def _may_not_lock(table: StreamId) -> NoSnapshotError:
    return NoSnapshotError(
        "The table is written to all the time, and the user may not lock it for the moment in which it is "
        "read with its place in the log.",
        stream=str(table),
        remedy=f"Run: GRANT LOCK TABLES ON {quoted(table.namespace)}.* TO the user of the source's url.",
    )


def _is_in_use(table: StreamId) -> NoSnapshotError:
    return NoSnapshotError(
        "The table is written to all the time, and could not be locked for the moment in which it is read "
        f"with its place in the log: for {_LOCK_WITHIN_S:.0f} seconds some transaction had it.",
        stream=str(table),
        remedy="Run the same command again when no long transaction uses the table.",
    )

"""Timelines of a server: after a failover positions repeat, and mean something else (correctness 6).

A standby that lagged is promoted at a position before those that its predecessor gave out. Where a number
must only ever grow, as that of a term does, the timeline goes before the position.
"""

from __future__ import annotations

import psycopg

from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_errors

_POSITION_BITS = 56  # 64 PiB of log
_TIMELINES_MAX = 127
#: The timeline that the server writes; what the control file says is as old as the last checkpoint.
WRITTEN_TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"


def epoch_at(timeline: int, position: Lsn) -> Lsn:
    """The number of a term that began there; on the first timeline, the position itself.

    There is room for so many timelines; from the last of them on, only positions tell terms apart.
    """
    before = min(timeline, _TIMELINES_MAX + 1) - 1
    return Lsn(before << _POSITION_BITS | position)


def written_timeline(connection: Connection) -> int:
    with query_errors("reading the server's timeline"):
        row = connection.execute(f"SELECT {WRITTEN_TIMELINE}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def switch_point_at(url: str, before: int, now: int) -> Lsn | None:
    """`switch_point` for one who has no replication connection."""
    with connect(url, application_name="penstock lane", replication=True) as source:
        return switch_point(source, before, now)


def switch_point(replication: Connection, before: int, now: int) -> Lsn | None:
    """Where timeline `before` was left on the way to `now`; None if it is not an ancestor."""
    if now < before:
        return None
    try:
        row = replication.execute(f"TIMELINE_HISTORY {now:d}".encode()).fetchone()
    except psycopg.Error:
        return None
    content = row[1] if row is not None else ""
    if not isinstance(content, str):  # its type differs between versions of the server
        content = bytes(content).decode(errors="replace")
    for line in content.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == str(before):
            return Lsn.parse(fields[1])
    return None

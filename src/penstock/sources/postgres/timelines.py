"""Timelines of a server: after a failover positions repeat, and mean something else (correctness 6)."""

from __future__ import annotations

import psycopg

from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect


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

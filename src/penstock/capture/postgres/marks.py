"""Positions that we have the server say: after everything that is committed by then.

A message of ours in the log has such a position (`pg_logical_emit_message`). No table is needed at the source
for that, and the next one's is greater: with the timeline before it, it is a term's epoch too
(correctness 17).
"""

from __future__ import annotations

import psycopg

from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, query_errors

OWN_PREFIX = "penstock"  # of messages that we emit
_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES_MAX = 40


def mark_position(connection: Connection) -> Lsn:
    """A position after everything committed so far: that of a message of ours, else the insert position.

    Where the server can (17 and later), the message is flushed at once, else within its writer's delay.
    """
    modern = connection.info.server_version >= 170000
    arguments = f"false, '{OWN_PREFIX}', ''" + (", true" if modern else "")
    try:
        row = connection.execute(f"SELECT pg_logical_emit_message({arguments})::text".encode()).fetchone()
    except psycopg.Error:
        with query_errors("reading the server's log position"):
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    position = Lsn.parse(row[0])
    # At the start of a page the insert position lies behind the page's header, where no record ends.
    into_page = position % _PAGE_BYTES
    return Lsn(position - into_page) if into_page <= _PAGE_HEADER_BYTES_MAX else position

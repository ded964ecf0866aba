"""Positions that we have the server say: after everything that is committed by then.

A message of ours in the log has such a position (`pg_logical_emit_message`). No table is needed at the source
for that, and the next one's is greater: with the timeline before it, it is a term's epoch too
(correctness 17). The insert position does instead where it is only to be reached; as an epoch it would not,
since it stays where it is while nobody writes.
"""

from __future__ import annotations

import psycopg

from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, query_errors

OWN_PREFIX = "penstock"  # of messages that we emit
_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES_MAX = 40


def emitted_position(connection: Connection) -> Lsn:
    """The position of a message of ours, emitted now.

    Where the server can (17 and later), the message is flushed at once, else within its writer's delay.
    """
    modern = connection.info.server_version >= 170000
    arguments = f"false, '{OWN_PREFIX}', ''" + (", true" if modern else "")
    try:
        with query_errors("emitting a message into the server's log"):
            row = connection.execute(f"SELECT pg_logical_emit_message({arguments})::text".encode()).fetchone()
    except SourceError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise SourceError(
                f"The role {connection.info.user} may not emit messages into the server's log, by whose "
                "positions leaders are told from those before them.",
                remedy="`penstock check` says what grants it that.",
            ) from error
        raise
    assert row is not None
    return _end_of_record(Lsn.parse(row[0]))


def mark_position(connection: Connection) -> Lsn:
    """A position after everything committed so far: that of a message of ours, else the insert position."""
    try:
        return emitted_position(connection)
    except SourceError:
        with query_errors("reading the server's log position"):
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return _end_of_record(Lsn.parse(row[0]))


def _end_of_record(position: Lsn) -> Lsn:
    """At the start of a page the insert position lies behind the page's header, where no record ends."""
    into_page = position % _PAGE_BYTES
    return Lsn(position - into_page) if into_page <= _PAGE_HEADER_BYTES_MAX else position

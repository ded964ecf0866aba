"""Reads the rows of one consistent moment.

`consistent` opens the transaction. Its order matters:

1. the table is locked in ACCESS SHARE mode. From then on it can be neither rewritten nor truncated, which
   would make a snapshot taken before show no rows at all;
2. the first query takes the snapshot, and *then* reads the position up to which the log is written: both in
   one statement, whose snapshot is taken before its expressions are evaluated. A transaction that commits
   at or beyond that position is not in the snapshot (correctness 10). With them come the versions of the
   catalog's rows, which say which table that is (`present`).

All of it is one message, and its text is made once for each table: shapes may be made by the thousand.

Texts come by COPY in binary format, are taken out of libpq by compiled code in blocks, and become lines by
compiled code (`row_lines`): no value, and no row, is ever an object of its own.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.shapes.rendering.row_lines import Lines, RowLines
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.catalog import TableCard
from penstock.shapes.source.present import Versions, versions_of
from penstock.shapes.source.problems import slow
from penstock.shapes.source.sql import table_name
from penstock.sources.postgres.connection import SESSION_SETTINGS, Connection, load_connection_settings
from penstock.sources.postgres.copy_binary import CopyBlock, CopyStream, open_source

BLOCK_BYTES = 256 << 10
_CANCEL_WITHIN_S = 5.0

_BEGIN = sql.SQL(
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}; SET LOCAL lock_timeout = {lock_timeout}; "
    "LOCK TABLE {tables} IN ACCESS SHARE MODE; "
    "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, {versions}"
)


class Moment(NamedTuple):
    """What a transaction reads: `point` is its snapshot; `versions`, of the catalog's rows, tell which table
    its first one is."""

    point: SnapshotPoint
    versions: Versions | None


@contextlib.contextmanager
def consistent(
    connection: Connection, tables: Sequence[TableCard], lock_timeout_s: float
) -> Iterator[Moment]:
    """A transaction that reads these tables as of one moment. Raises what psycopg does."""
    names = ", ".join(table_name(card).as_string() for card in tables)
    cursor = connection.execute(
        _opening(names, tables[0].stream, lock_timeout_s, connection.info.server_version)
    )
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    snapshot, position, versions = row
    yield Moment(parse_point(snapshot, position), versions and tuple(versions))
    with contextlib.suppress(psycopg.Error):  # all has been read, and the pool looks at what it gets back
        connection.execute("COMMIT")


@lru_cache(maxsize=1024)
def _opening(names: str, first: StreamId, lock_timeout_s: float, server_version: int) -> bytes:
    settings = {**SESSION_SETTINGS, **load_connection_settings(server_version)}
    local = sql.SQL("; ").join(
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in settings.items()
    )
    statements = _BEGIN.format(
        settings=local,
        lock_timeout=sql.Literal(f"{lock_timeout_s * 1000:.0f}ms"),
        tables=sql.SQL(names),
        versions=versions_of(first),
    )
    return statements.as_bytes()


def parse_point(snapshot: str, position: str) -> SnapshotPoint:
    xmin, xmax, running = snapshot.split(":")
    return SnapshotPoint(
        int(xmin), int(xmax), tuple(map(int, running.split(","))) if running else (), int(Lsn.parse(position))
    )


def read_lines(connection: Connection, rows: RowLines, first_data_s: float) -> Iterator[Lines]:
    """The rows, a block at a time. See `read_blocks`."""
    return map(rows.render, read_blocks(connection, rows.query, rows.fields, first_data_s))


def read_blocks(
    connection: Connection, query: sql.Composable, fields: int, first_data_s: float
) -> Iterator[CopyBlock]:
    """The rows of a query with so many fields, which are texts.

    Raises what psycopg does, or a `SnapshotProblem` if nothing comes in `first_data_s`. Left before its end,
    the connection is in the midst of the copy and can only be closed.
    """
    pgconn = connection.pgconn
    pgconn.send_query(sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(connection))
    _await_result(connection, first_data_s)
    _expect(pgconn.get_result(), ExecStatus.COPY_OUT)
    stream = CopyStream(open_source(pgconn), fields, BLOCK_BYTES)
    yield from stream.blocks()
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    _expect(result, ExecStatus.COMMAND_OK)
    if not stream.complete:
        raise psycopg.DataError("the rows that arrived are not those that were sent")


def _await_result(connection: Connection, within_s: float) -> None:
    """Wait for the first rows, or for the end of a query that has few."""
    pgconn = connection.pgconn
    deadline = time.monotonic() + within_s
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
    poll.modify(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        left = deadline - time.monotonic()
        if left <= 0:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_WITHIN_S)
            raise slow(within_s)
        if poll.poll(left * 1000):
            pgconn.consume_input()


def _expect(result: psycopg.pq.abc.PGresult | None, status: ExecStatus) -> None:
    assert result is not None
    if result.status != status:
        raise errors.error_from_result(result)

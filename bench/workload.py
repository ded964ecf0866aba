"""The server, the table and the rows that every benchmark uses.

One Postgres (the embedded one) on this machine with `fsync` off, autovacuum off and room for the write-ahead
log, so that neither a disk flush nor a background worker falls into one side of a comparison and not the
other. The table has 11 columns of the types that make up most tables; half of them are nearly unique. Rows
are made by a formula of their number, so that every run has the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import psycopg
from psycopg import sql

from penstock.sources.postgres.embedded import EmbeddedPostgres

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

SERVER_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_replication_slots": "40",
    "max_wal_senders": "20",
}
#: Rows of one transaction when changes are made.
TRANSACTION_ROWS = 10_000

_COLUMNS = """
    id bigint PRIMARY KEY, quantity integer, reference bigint, price numeric(12,2), label text, token text,
    changed_at timestamptz, day date, active boolean, weight double precision, details jsonb
"""
_ROWS = """
    SELECT i, i % 1000, i * 123456789::bigint, ((i % 100000) * 1.37)::numeric(12,2),
           'some text value ' || i % 1000, md5(i::text),
           timestamptz '2026-01-01Z' + i * interval '1.234567 s', date '2020-01-01' + (i % 2000)::int,
           i % 2 = 0, i * 3.14159, jsonb_build_object('k', i % 1000, 'v', 'abc')
    FROM generate_series({first}::bigint, {last}::bigint) AS i
"""


def new_server() -> EmbeddedPostgres:
    return EmbeddedPostgres(settings=SERVER_SETTINGS)


def connect(server: EmbeddedPostgres) -> Connection:
    return psycopg.connect(server.url(), autocommit=True)


def create_table(connection: Connection, table: str) -> None:
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(_name(table), sql.SQL(_COLUMNS)))


def drop_table(connection: Connection, table: str) -> None:
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_name(table)))


def drop_slots(connection: Connection) -> None:
    """Of everything that was measured: a slot that nobody reads keeps all that is written after it."""
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    )


def insert_rows(connection: Connection, table: str, first: int, last: int) -> None:
    """Rows `first` to `last`, in transactions of TRANSACTION_ROWS."""
    for start in range(first, last + 1, TRANSACTION_ROWS):
        end = min(start + TRANSACTION_ROWS - 1, last)
        rows = sql.SQL(_ROWS).format(first=sql.Literal(start), last=sql.Literal(end))
        connection.execute(sql.SQL("INSERT INTO {} {}").format(_name(table), rows))


def settle(connection: Connection, table: str) -> None:
    """Statistics are fresh and no later reader has to write hint bits for us."""
    connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(_name(table)))
    connection.execute("CHECKPOINT")


def log_end(connection: Connection) -> str:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))

"""Reading tables as an exported snapshot shows them (correctness 11, 12), and values as the log prints them.

A lock on the table, which any reading takes, keeps VACUUM FULL and rewriting ALTERs away while we read. One
that ran before moved the rows to another file, which no query can tell: the file node is compared afterwards.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from penstock.core.schema import SourceColumn
from penstock.sources.postgres.connection import Connection, snapshot_lost

#: what versions of the server say of a snapshot whose session has ended
_NO_SUCH_SNAPSHOT = ("22023", "42704", "55000")
#: Built-in types whose cast to text is not what they print; others of the system have no cast of their own.
_OTHERWISE_CAST = frozenset({"bool", "bpchar", "inet", "cidr", "char"})
_FIRST_OWN_OID = 16384


def take_over_snapshot(connection: Connection, snapshot: str) -> None:
    """Begin a transaction that sees what an exported snapshot shows."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except psycopg.Error as error:
        if error.sqlstate in _NO_SUCH_SNAPSHOT:
            raise snapshot_lost("reading the tables") from error
        raise


def file_node(connection: Connection, oid: int) -> int:
    """The file that holds a relation's rows now; 0: there is none."""
    query = "SELECT coalesce(pg_relation_filenode(%s::bigint::oid), 0)::bigint"
    row = connection.execute(query, (oid,)).fetchone()
    return int(row[0]) if row else 0


def printed(column: SourceColumn) -> sql.Composable:
    """A value as the log prints it; null for null."""
    name = sql.Identifier(column.name)
    if column.type_oid < _FIRST_OWN_OID and column.type_name not in _OTHERWISE_CAST:
        return sql.SQL("{}::pg_catalog.text").format(name)
    # IS NULL is true of a composite value whose fields are all null.
    return sql.SQL("CASE WHEN pg_catalog.num_nonnulls({0}) = 1 THEN pg_catalog.concat({0}) END").format(name)

"""Postgres' own clients, as the measure: COPY, binary or of JSON, and `pg_recvlogical`, all to /dev/null.

Each runs as one client process on one connection over TCP, the way Penstock connects. psql's `\\copy` is used
for COPY because it was the fastest of the clients tried: psycopg's copy loop took about a tenth longer.
Starting the client (some milliseconds) is part of the measured time.
"""

from __future__ import annotations

import os
from typing import Protocol

from psycopg import sql

from bench.comparison import Run
from bench.resources import Usage, run_measured
from bench.workload import Connection
from penstock.sources.postgres.embedded import EmbeddedPostgres


class LoadReference(Protocol):
    """Something that reads a whole table."""

    @property
    def name(self) -> str: ...

    def load(self, table: str, rows: int) -> Run: ...


class ChangeReference(Protocol):
    """Something that reads a slot. Slots are made before the changes, one for each reading."""

    @property
    def name(self) -> str: ...

    def create_slot(self, slot: str) -> None: ...

    def read(self, slot: str, end: str, rows: int) -> Run:
        """Read everything in the slot, which ends at position `end` and holds `rows` changes."""


class BinaryCopy:
    name = "COPY binary to /dev/null"

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server

    def load(self, table: str, rows: int) -> Run:
        command = rf"\copy (SELECT * FROM {table}) TO /dev/null WITH (FORMAT binary)"
        return Run(rows, _run(self._server, "psql", "--no-psqlrc", "--quiet", "--command", command))


class JsonCopy:
    name = "COPY of to_json to /dev/null"

    def __init__(self, server: EmbeddedPostgres, database: str) -> None:
        self._server = server
        self._database = database

    def load(self, table: str, rows: int) -> Run:
        command = rf"\copy (SELECT to_json(t) FROM {table} AS t) TO /dev/null"
        arguments = ("--no-psqlrc", "--quiet", "--command", command)
        return Run(rows, _run(self._server, "psql", *arguments, database=self._database))


class ReceiveLogical:
    name = "pg_recvlogical to /dev/null"

    def __init__(
        self,
        server: EmbeddedPostgres,
        connection: Connection,
        publication: str,
    ) -> None:
        self._server = server
        self._connection = connection
        self._publication = publication

    def create_slot(self, slot: str) -> None:
        self._connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])

    def read(self, slot: str, end: str, rows: int) -> Run:
        usage = _run(
            self._server, "pg_recvlogical", "--slot", slot, "--start", "--file", "/dev/null",
            "--endpos", end, "--no-loop",
            "--option", "proto_version=1", "--option", f"publication_names={self._publication}",
        )  # fmt: skip
        return Run(rows, usage)


def create_publication(connection: Connection, publication: str, table: str) -> None:
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    connection.execute(
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
            sql.Identifier(publication), sql.Identifier(*table.split(".", 1))
        )
    )


def _run(server: EmbeddedPostgres, program: str, *arguments: str, database: str = "postgres") -> Usage:
    target = ("--host", "127.0.0.1", "--port", str(server.port), "--username", "postgres")
    command = [str(server.bin(program)), *target, "--dbname", database, *arguments]
    return run_measured(command, {**os.environ, "PGPASSWORD": server.password})

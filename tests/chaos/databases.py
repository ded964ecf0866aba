"""A database for a whole module: chains of crashes go on in one and the same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database


@contextmanager
def new_database(server: EmbeddedPostgres) -> Iterator[Database]:
    name = f"chaos_{secrets.token_hex(4)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    created = Database(name, server)
    try:
        yield created
    finally:
        created.drop()

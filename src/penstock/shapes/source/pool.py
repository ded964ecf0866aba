"""Connections for reading rows and catalogs: never more than the configured number.

`split` divides them: *admin* for catalogs and publishing, straight to the source; *snapshots* for first
answers, which may take hours; *queries* for subsets and for rows that subqueries bring in, which must not
wait behind those. The last two may go through a pooler in transaction mode: nothing they rely on outlives a
transaction (`row_reader` sets what it needs inside). Both are worked by threads of their own (`query_pool`).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.shapes.settings import ShapeSettings
from penstock.shapes.source.connection_pool import ConnectionPool
from penstock.shapes.source.query_pool import QueryPool
from penstock.sources.postgres.connection import (
    CONNECT_TIMEOUT_S,
    Connection,
    connect,
    connection_error,
    connection_parameters,
)

APPLICATION = "penstock shapes"


@dataclass(frozen=True, slots=True)
class Sizes:
    admin: int
    snapshots: int
    queries: int


def split(size: int) -> Sizes:
    """A quarter for admin, at most 5; a third of the rest for queries. Each has one at least."""
    admin = min(max(size // 4, 1), 5)
    queries = max((size - admin) // 3, 1)
    return Sizes(admin, max(size - admin - queries, 1), queries)


@dataclass(frozen=True, slots=True)
class Pools:
    admin: ConnectionPool
    snapshots: QueryPool
    queries: QueryPool

    @classmethod
    def open(cls, settings: ShapeSettings) -> Pools:
        sizes = split(settings.db_pool_size)
        wait_s = settings.snapshot_queue_timeout.total_seconds()
        query_url, is_pooled = settings.query_url, settings.pooled_url is not None

        def straight() -> Connection:
            return connect(settings.source_url, application_name=APPLICATION)

        def for_rows() -> Connection:
            return connect_to_pooler(query_url) if is_pooled else straight()

        return cls(
            ConnectionPool(straight, sizes.admin, wait_s),
            QueryPool(for_rows, sizes.snapshots, wait_s, "snapshot"),
            QueryPool(for_rows, sizes.queries, wait_s, "query"),
        )

    def close(self) -> None:
        for pool in (self.snapshots, self.queries, self.admin):
            pool.close()


def connect_to_pooler(url: str) -> Connection:
    """Without settings in the start-up packet, which poolers refuse."""
    parameters = connection_parameters(url, application_name=APPLICATION)
    parameters.pop("options")
    parameters.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    try:
        opened: Connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        return opened
    except psycopg.Error as error:
        raise connection_error(error, url) from error

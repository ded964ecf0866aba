"""Chunks of real tables: together they hold every row once, and they are about even."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.chunks import chunk_query, plan_chunks
from penstock.sources.postgres.connection import connect
from tests.conftest import Database

pytestmark = pytest.mark.integration


def plan(
    database: Database, name: str, method: ChunkMethod, rows: int
) -> tuple[TableInfo, list[PlannedChunk]]:
    with connect(database.url) as connection:
        (table,) = discover(connection, [StreamId.parse(name)])
        return table, plan_chunks(connection, table, method, rows_per_chunk=rows)


def read(
    database: Database, table: TableInfo, chunks: list[PlannedChunk], method: ChunkMethod
) -> list[list[tuple[Any, ...]]]:
    with connect(database.url) as connection:
        columns = sql.SQL(", ").join(map(sql.Identifier, table.schema.names))
        return [
            connection.execute(chunk_query(table.schema, chunk, method, columns)).fetchall()
            for chunk in chunks
        ]


def assert_every_row_once(database: Database, table: str, parts: list[list[tuple[Any, ...]]]) -> None:
    read_rows = sorted(row for part in parts for row in part)
    assert read_rows == sorted(database.query(f"SELECT * FROM {table}"))


def test_ctid_chunks_come_from_the_size_of_the_file_not_from_old_statistics(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    database.execute("ANALYZE t")  # statistics say: empty
    database.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) AS n")
    table, chunks = plan(database, "public.t", "ctid", 2000)
    assert len(chunks) >= 5
    assert chunks[0].min is None
    assert chunks[-1].max is None
    assert all(low.max == high.min for low, high in itertools.pairwise(chunks))
    parts = read(database, table, chunks, "ctid")
    assert_every_row_once(database, "t", parts)
    assert max(map(len, parts)) < 2 * 20000 / len(chunks)


def test_rows_that_come_after_planning_fall_into_the_last_chunk(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    table, chunks = plan(database, "public.t", "ctid", 1000)
    assert [(chunk.min, chunk.max) for chunk in chunks] == [(None, None)]
    database.execute("INSERT INTO t SELECT generate_series(1, 5000)")
    assert_every_row_once(database, "t", read(database, table, chunks, "ctid"))


@pytest.mark.parametrize(
    ("type_name", "expression"),
    [
        ("int8", "n * n - 5000"),
        ("int2", "n % 1000 - 500"),
        ("numeric", "n * 1.5 - 300"),
        ("date", "date '0044-03-15 BC' + n"),
        ("timestamptz", "timestamptz '2026-01-01' + n * interval '1.000001 s'"),
        ("uuid", "md5(n::text)::uuid"),
    ],
)
def test_key_chunks_hold_every_row_once_and_are_even(
    database: Database, type_name: str, expression: str
) -> None:
    database.execute(f'CREATE TABLE t ("Key" {type_name}, n int, PRIMARY KEY ("Key", n))')
    database.execute(f"INSERT INTO t SELECT {expression}, n FROM generate_series(1, 10000) AS n")
    database.execute("ANALYZE t")
    table, chunks = plan(database, "public.t", "key", 2000)
    assert len(chunks) == 5
    with connect(database.url) as connection:
        counts = []
        for chunk in chunks:
            row = connection.execute(chunk_query(table.schema, chunk, "key", sql.SQL("count(*)"))).fetchone()
            assert row is not None
            counts.append(row[0])
    assert sum(counts) == 10000
    assert max(counts) < 2 * 2000


def test_a_key_with_few_values_gives_fewer_chunks_and_loses_nothing(database: Database) -> None:
    database.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    database.execute("INSERT INTO t SELECT n % 2, n FROM generate_series(1, 5000) AS n; ")
    database.execute("ANALYZE t")
    table, chunks = plan(database, "public.t", "key", 500)
    assert 1 <= len(chunks) <= 3
    assert_every_row_once(database, "t", read(database, table, chunks, "key"))


def test_chunks_of_a_partitioned_table_are_chunks_of_its_leaves(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (5000);"
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (5000) TO (MAXVALUE) PARTITION BY RANGE (id);"
        "CREATE TABLE t_high_1 PARTITION OF t_high FOR VALUES FROM (5000) TO (MAXVALUE);"
        "INSERT INTO t SELECT n, n FROM generate_series(1, 10000) AS n;"
        "ANALYZE t"
    )
    table, chunks = plan(database, "public.t", "ctid", 2000)
    assert {chunk.leaf for chunk in chunks} == {"public.t_low", "public.t_high_1"}
    assert_every_row_once(database, "t", read(database, table, chunks, "ctid"))


def test_rows_of_inheriting_tables_are_not_read_with_their_parent(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE child () INHERITS (t)")
    database.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (2)")
    table, chunks = plan(database, "public.t", "ctid", 1000)
    assert read(database, table, chunks, "ctid") == [[(1,)]]


def test_a_rewrite_between_chunks_shows_in_the_filenode(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")

    def filenode() -> int:
        _, [chunk] = plan(database, "public.t", "ctid", 1000)
        return chunk.filenode

    before = filenode()
    database.execute("UPDATE t SET id = 2")
    assert filenode() == before
    database.execute("VACUUM FULL t")
    assert filenode() != before


def test_key_ranges_are_refused_for_text_keys_with_a_remedy(database: Database) -> None:
    database.execute("CREATE TABLE t (id text PRIMARY KEY)")
    with pytest.raises(SourceError, match="text key") as raised:
        plan(database, "public.t", "key", 1000)
    assert "ctid" in raised.value.remedy

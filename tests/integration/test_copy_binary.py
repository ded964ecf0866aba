"""A binary COPY of a real server, read on both ways (compiled code and psycopg), in all its odd shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.lake.load_task import LoadTask, load_chunk
from penstock.lake.target import Target
from penstock.sources.postgres import binary_values, copy_binary, copy_binary_kernels, libpq
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.chunk_reading import PostgresChunk
from penstock.sources.postgres.chunks import plan_chunks
from penstock.sources.postgres.connection import Connection, connect, load_connection_settings
from penstock.sources.postgres.copy_binary import CopyFormatError, MessageSource, NativeSource, read_copy
from tests.conftest import Database

pytestmark = pytest.mark.integration


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    opened = connect(database.url)
    yield opened
    opened.close()


@pytest.fixture(params=[NativeSource, MessageSource])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[copy_binary.Source]:
    """Each test that takes it runs once with compiled code and once without."""
    chosen: type[copy_binary.Source] = request.param
    monkeypatch.setattr(copy_binary, "open_source", chosen)
    return chosen


def texts(connection: Connection, query: str, columns: int, block_bytes: int = 1 << 20) -> list[list[object]]:
    """Columns of a query all of whose columns are text."""
    found: list[list[object]] = [[] for _ in range(columns)]
    for block in read_copy(connection, sql.SQL(query), columns, block_bytes=block_bytes):
        for index in range(columns):
            found[index] += binary_values.text(block.column(index)).to_pylist()
    return found


def test_compiled_code_is_what_reads_here(connection: Connection) -> None:
    assert libpq.is_usable(connection.pgconn)
    assert isinstance(copy_binary.open_source(connection.pgconn), NativeSource)


def test_nothing_is_left_to_compile_for_the_first_block_after_the_warm_up(connection: Connection) -> None:
    reading: list[Any] = [copy_binary._fill, copy_binary_kernels.locate_fields]
    for compiled in reading:
        compiled._reset_overloads()
    copy_binary.warm_up()
    before = [list(compiled.overloads) for compiled in reading]
    assert all(before)
    assert texts(connection, "SELECT 'a'", 1) == [["a"]]
    assert [list(compiled.overloads) for compiled in reading] == before


@pytest.mark.usefixtures("way")
def test_rows_larger_and_smaller_than_a_block_come_out_in_order(connection: Connection) -> None:
    query = "SELECT n::text, repeat(chr(97 + n % 26), n * 37 % 5000) FROM generate_series(1, 3000) AS n"
    numbers, long = texts(connection, query, 2, block_bytes=1000)
    assert numbers == [str(n) for n in range(1, 3001)]
    assert long == [chr(97 + n % 26) * (n * 37 % 5000) for n in range(1, 3001)]
    assert connection.execute("SELECT 1").fetchone() == (1,), "the connection can be used after the copy"


def test_a_text_of_200_megabytes_comes_out_whole(connection: Connection) -> None:
    query = "SELECT repeat('0123456789', n) FROM (VALUES (1), (20000000), (2)) AS v (n)"
    lengths, ends = [], []
    for block in read_copy(connection, sql.SQL(query), 1):
        for value in binary_values.text(block.column(0)):
            lengths.append(len(value.as_buffer()))
            ends.append(value.as_buffer()[-10:].to_pybytes())
    assert lengths == [10, 200_000_000, 20]
    assert ends == [b"0123456789"] * 3


@pytest.mark.usefixtures("way")
def test_1600_columns_with_nulls_everywhere(connection: Connection) -> None:
    selected = ", ".join(
        f"CASE WHEN (n + {c}) % 3 > 0 THEN (n * {c})::text END" if c % 2 else "NULL::text"
        for c in range(1, 1601)
    )
    found = texts(connection, f"SELECT {selected} FROM generate_series(1, 40) AS n", 1600, 100_000)
    for c, column in enumerate(found, start=1):
        expected = [str(n * c) if c % 2 and (n + c) % 3 else None for n in range(1, 41)]
        assert column == expected


@pytest.mark.usefixtures("way")
def test_no_columns_and_no_rows(connection: Connection) -> None:
    blocks = read_copy(connection, sql.SQL("SELECT FROM generate_series(1, 70000)"), 0, block_bytes=1000)
    assert sum(block.rows for block in blocks) == 70_000
    assert texts(connection, "SELECT 'x'::text WHERE false", 1) == [[]]


@pytest.mark.usefixtures("way")
def test_an_error_of_the_server_in_the_midst_is_raised_as_itself(connection: Connection) -> None:
    query = sql.SQL("SELECT (1 / (50000 - n))::text FROM generate_series(1, 100000) AS n")
    with pytest.raises(psycopg.errors.DivisionByZero):
        for _ in read_copy(connection, query, 1, block_bytes=10_000):
            pass
    with pytest.raises(psycopg.errors.UndefinedTable):
        list(read_copy(connection, sql.SQL("SELECT * FROM nowhere"), 1))
    assert texts(connection, "SELECT 'x'::text", 1) == [["x"]]


@pytest.mark.usefixtures("way")
def test_a_connection_that_is_lost_in_the_midst_is_an_error(
    connection: Connection, database: Database
) -> None:
    query = sql.SQL("SELECT repeat('x', 1000) FROM generate_series(1, 1000000)")
    blocks = read_copy(connection, query, 1)
    next(blocks)
    database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    with pytest.raises(psycopg.OperationalError):
        for _ in blocks:
            pass


def test_another_number_of_columns_is_refused(connection: Connection) -> None:
    with pytest.raises(CopyFormatError):
        list(read_copy(connection, sql.SQL("SELECT 1, 2"), 1))


class Table:
    """A table that a load was planned for, and a session that holds the snapshot it is read in."""

    def __init__(self, database: Database, directory: Path, create: str) -> None:
        database.execute(create)
        self.holder = connect(database.url, autocommit=False)
        with connect(database.url) as connection:
            self.info: TableInfo = next(
                each for each in discover(connection) if str(each.stream) == "public.t"
            )
            (chunk,) = plan_chunks(connection, self.info)
            settings = load_connection_settings(connection.info.server_version)
        self.reading = PostgresChunk(
            url=database.url,
            application_name="test",
            settings=settings,
            snapshot=self.export_snapshot(),
            chunk=chunk,
            leaf_oid=self.info.leaves[0].oid,
            method="ctid",
        )
        self.task = LoadTask(
            self.reading,
            target=Target(self.info.schema, "upsert"),
            path=directory / "rows.parquet",
            dead_letter_path=directory / "dead.parquet",
            is_first=True,
        )

    def export_snapshot(self) -> str:
        self.holder.rollback()
        self.holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = self.holder.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        return str(row[0])

    def close(self) -> None:
        self.holder.close()


def test_a_chunk_holds_the_rows_of_the_snapshot(database: Database, tmp_path: Path) -> None:
    table = Table(
        database,
        tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY, price numeric(9,2), tags text[], doc jsonb);"
        """INSERT INTO t SELECT n, n / 7.0, ARRAY['a', n::text], jsonb_build_object('n', n)
           FROM generate_series(1, 5000) AS n""",
    )
    database.execute("DELETE FROM t WHERE id % 2 = 0")
    result = load_chunk(table.task)
    table.close()
    assert (result.rows, result.dead_letters, result.table_rewritten) == (5000, None, False)
    found = pq.read_table(table.task.path).sort_by("id")
    assert found.column("id").to_pylist() == list(range(1, 5001))
    assert found.column("price").type == pa.decimal128(9, 2)
    assert found.column("price")[6].as_py() == 1
    assert found.column("doc")[4999].as_py() == '{"n": 5000}'
    assert "{a,5000}" in str(found.column("tags")[4999])


def test_a_chunk_with_a_value_that_does_not_fit_is_read_again_for_its_dead_letter(
    database: Database, tmp_path: Path
) -> None:
    table = Table(
        database,
        tmp_path,
        "CREATE TABLE t AS SELECT n AS id, CASE n WHEN 70000 THEN 'infinity' ELSE date '2024-01-01' + n END "
        "AS day FROM generate_series(1, 100000) AS n",
    )
    result = load_chunk(table.task)
    table.close()
    assert result.dead_letters is not None
    assert (result.rows, result.dead_letters.rows) == (99_999, 1)
    found = pq.read_table(table.task.path)
    assert sorted(found.column("id").to_pylist()) == [n for n in range(1, 100_001) if n != 70_000]
    assert found.column("day").null_count == 0


def test_a_column_whose_type_was_altered_meanwhile_starts_the_load_again(
    database: Database, tmp_path: Path
) -> None:
    table = Table(database, tmp_path, "CREATE TABLE t AS SELECT n FROM generate_series(1, 10) AS n")
    database.execute("ALTER TABLE t ALTER n TYPE bigint")
    # The rows it wrote anew are not in the older snapshot, so nothing would be read.
    reading = replace(table.reading, snapshot=table.export_snapshot())
    result = load_chunk(replace(table.task, reading=reading))
    table.close()
    assert result.table_rewritten
    assert not table.task.path.exists()


def test_bytes_of_another_type_are_an_error_that_shows_no_value(database: Database, tmp_path: Path) -> None:
    table = Table(database, tmp_path, "CREATE TABLE t AS SELECT 8123456789123456789 AS n")
    (column,) = table.info.schema.columns
    wrong = replace(table.info.schema, columns=(replace(column, type_oid=23, type_name="int4"),))
    with pytest.raises(SourceError) as raised:
        load_chunk(replace(table.task, target=Target(wrong, "upsert")))
    table.close()
    assert raised.value.stream == "public.t"
    assert "8123456789123456789" not in str(raised.value)
    assert not table.task.path.exists()

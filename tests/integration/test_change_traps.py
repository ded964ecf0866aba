"""Ways to lose or falsify rows while following a table: keys that collide, columns that come with values."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE INITIALLY IMMEDIATE"])
def test_keys_that_move_onto_each_other_lose_no_row(
    database: Database, make: MakePipeline, timing: str
) -> None:
    """In mid-transaction two rows hold the same key; the last operation of a key may be a delete."""
    for table in ("state", "history"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY {timing}, v text)")
        database.execute(f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, 50) n")
    pipeline = make(
        [
            {"table": "public.state", "replica_identity": "full"},
            {"table": "public.history", "write": "append", "replica_identity": "full"},
        ]
    )
    pipeline.sync()
    for shuffle in ("id = id + 1", "id = id - 1, v = v || '!'", "id = 51 - id", "id = (id + 5) % 50 + 1"):
        database.execute(f"UPDATE state SET {shuffle}; UPDATE history SET {shuffle}")
        pipeline.sync()
        pipeline.assert_same("public.state")
    with database.connect() as connection, connection.transaction():
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute("UPDATE state SET v = 'row ' || id")
        connection.execute("UPDATE state SET id = id + 1")
        connection.execute("DELETE FROM state WHERE id = 7")
        connection.execute("INSERT INTO state VALUES (1, 'new'), (7, 'newer')")
        connection.execute("UPDATE state SET id = 1000 WHERE id = 19")
        connection.execute("UPDATE state SET id = id + 1 WHERE id < 19")
        connection.execute("UPDATE state SET id = 31 WHERE v = 'row 29'")  # two rows have key 31 now
        connection.execute("UPDATE state SET id = 30 WHERE v = 'row 30'")
        connection.execute("INSERT INTO state VALUES (40, 'second')")
        connection.execute("DELETE FROM state WHERE v = 'row 39'")  # the other one with key 40
    pipeline.sync()
    pipeline.assert_same("public.state")


def assert_same_now_and_later(tables: Database, pipeline: PipelineUnderTest) -> None:
    pipeline.sync()
    pipeline.assert_same("public.state")
    tables.execute("UPDATE state SET v = 'much later' WHERE id < 5")
    pipeline.sync()
    pipeline.assert_same("public.state")


COLUMNS = (
    "c int NOT NULL DEFAULT 7",
    "c text DEFAULT 'it''s {\"quoted\", too}'",
    "c numeric(8,3) DEFAULT 1.5",
    "c timestamptz DEFAULT now()",
    "c int",
    "c uuid DEFAULT gen_random_uuid()",
    "c bigint GENERATED ALWAYS AS IDENTITY",
    "c int GENERATED ALWAYS AS (id * 2) STORED",
    "c int DEFAULT 1 CHECK (c > 0)",
)
ADDED_COLUMNS = pytest.mark.parametrize("column", COLUMNS)


def test_columns_added_with_defaults_one_after_the_other_are_right_in_old_rows_too(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    for number, column in enumerate(COLUMNS):
        tables.execute("UPDATE state SET v = v || ' before' WHERE id = %s", (number,))
        named = column.replace("c ", f"c{number} ", 1).replace("(c > 0)", f"(c{number} > 0)")
        tables.execute(f"ALTER TABLE state ADD COLUMN {named}")
        tables.execute("INSERT INTO state (id, v) VALUES (%s, 'new')", (1000 + number,))
    assert_same_now_and_later(tables, pipeline)


@pytest.mark.slow
@ADDED_COLUMNS
def test_a_column_added_with_a_default_is_right_in_old_rows_too(
    tables: Database, make: MakePipeline, column: str
) -> None:
    """A constant default rewrites no row and logs nothing; any other rewrites them all, and logs nothing."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before' WHERE id = 1")
    tables.execute(f"ALTER TABLE state ADD COLUMN {column}")
    tables.execute(
        "UPDATE state SET v = 'after' WHERE id = 2; INSERT INTO state (id, v) VALUES (1000, 'new')"
    )
    assert_same_now_and_later(tables, pipeline)


@pytest.mark.slow
@ADDED_COLUMNS
def test_a_column_added_before_older_changes_were_read_is_right_in_old_rows_too(
    tables: Database, make: MakePipeline, column: str
) -> None:
    """The catalog has moved on when the log is read: what it says belongs to rows that come later."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before' WHERE id = 1")
    tables.execute(f"ALTER TABLE state ADD COLUMN {column}")
    pipeline.sync()
    tables.execute("INSERT INTO state (id, v) VALUES (1000, 'new')")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_constant_default_that_was_changed_meanwhile_is_right_in_every_row(
    tables: Database, make: MakePipeline
) -> None:
    """What old rows read as is the default of the moment the column was added, not today's."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("ALTER TABLE state ADD COLUMN c int DEFAULT 1")
    tables.execute("INSERT INTO state (id) VALUES (1000)")
    tables.execute("ALTER TABLE state ALTER COLUMN c SET DEFAULT 2")
    tables.execute("INSERT INTO state (id) VALUES (1001); UPDATE state SET c = NULL WHERE id = 3")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_generated_columns_are_left_out_of_load_and_log_alike(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE state (id int PRIMARY KEY, v text, w text GENERATED ALWAYS AS (v || '!') STORED)"
    )
    database.execute("INSERT INTO state SELECT n, 'v' FROM generate_series(1, 10) n")
    pipeline = make(["public.state"])
    pipeline.sync()
    database.execute("UPDATE state SET v = 'w' WHERE id < 5; INSERT INTO state VALUES (11, 'x')")
    pipeline.sync()
    pipeline.assert_same("public.state")
    assert_columns(pipeline, ["id", "v"])


def assert_columns(pipeline: PipelineUnderTest, names: list[str]) -> None:
    file = next(iter(sorted(pipeline.path("public.state").glob("*.parquet"))))
    assert pq.read_schema(file).names == names

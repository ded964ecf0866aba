"""Streams that hold a part of their table: the rows of a condition, and some of the columns.

The oracle reads the part from the source through a view, which is the same SELECT … WHERE that a person would
write; so it knows nothing of how Penstock filters.
"""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock.core.errors import PenstockError, SourceError
from penstock.core.stream import StreamId
from penstock.sources.finding import StreamNeed
from penstock.sources.postgres.check import Finding, check
from tests.conftest import Database
from tests.oracle import assert_same
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("loads_by_spark")]

WHERE = "region = 'eu' AND status <> 'void'"
ORDERS = """
CREATE TABLE {name} (id int PRIMARY KEY, region text, status text, note text, secret int);
INSERT INTO {name} SELECT n, (ARRAY['eu', 'us', NULL])[n % 3 + 1], (ARRAY['open', 'void'])[n % 2 + 1],
    CASE n % 4 WHEN 0 THEN (SELECT string_agg(md5(n * g || ''), '') FROM generate_series(1, 300) g) END, n
    FROM generate_series(1, 60) n;
CREATE VIEW {name}_part AS SELECT id, status, note FROM {name} WHERE region = 'eu' AND status <> 'void';
"""
#: Each line is a transaction: rows go in and out by either column, stay in, stay out, move with their key.
CHANGES = [
    "UPDATE {name} SET region = 'eu' WHERE id BETWEEN 1 AND 12",
    "UPDATE {name} SET region = 'us' WHERE id BETWEEN 10 AND 16",
    "UPDATE {name} SET region = NULL WHERE id IN (20, 21)",
    "UPDATE {name} SET status = CASE status WHEN 'void' THEN 'open' ELSE 'void' END WHERE id % 10 = 5",
    "UPDATE {name} SET id = id + 1000 WHERE id % 5 = 0",
    "UPDATE {name} SET id = id + 1000, region = 'us' WHERE id IN (3, 4, 6)",
    "UPDATE {name} SET id = id + 2000, region = 'eu', status = 'open' WHERE region = 'us' AND id % 7 = 1",
    "DELETE FROM {name} WHERE id % 11 = 2",
    "INSERT INTO {name} SELECT n, (ARRAY['eu', 'us'])[n % 2 + 1], 'open' FROM generate_series(99, 120) n",
    "UPDATE {name} SET secret = -secret",
    "UPDATE {name} SET region = 'eu' WHERE id = 101; UPDATE {name} SET region = 'us' WHERE id IN (101, 103)",
    "DELETE FROM {name} WHERE id = 100; INSERT INTO {name} VALUES (100, 'eu', 'open', 'again', 1)",
]


def make_orders(database: Database, name: str = "orders") -> None:
    database.execute(ORDERS.format(name=name))


def change_orders(database: Database, name: str = "orders") -> None:
    with database.connect(autocommit=False) as connection:
        for change in CHANGES:
            connection.execute(change.format(name=name).encode())
            connection.commit()


def orders(name: str = "orders", **settings: Any) -> dict[str, Any]:
    part = {"columns": ["note", "id", "status"], "where": WHERE, "replica_identity": "full"}
    return {"table": f"public.{name}", **part, **settings}


def assert_part(pipeline: PipelineUnderTest, name: str = "orders") -> int:
    return assert_same(pipeline.url, f"public.{name}_part", pipeline.path(f"public.{name}"))


@pytest.mark.parametrize(("make", "method"), [("parquet", "ctid"), ("iceberg", "key")], indirect=["make"])
def test_a_filtered_table_equals_the_filtered_source(
    database: Database, make: MakePipeline, method: str
) -> None:
    make_orders(database)
    make_orders(database, "history")
    streams = [orders(), orders("history", write="append")]
    pipeline = make(streams, load={"method": method, "rows_per_chunk": 20})
    pipeline.sync()
    assert assert_part(pipeline) > 5
    assert assert_part(pipeline, "history") > 5
    change_orders(database)
    change_orders(database, "history")
    pipeline.sync()
    assert_part(pipeline)
    assert_part_is_told(database, pipeline, "history")
    assert not [note for note in pipeline.notes if "loaded again" in note]


def test_a_truncate_empties_the_part(database: Database, make: MakePipeline) -> None:
    make_orders(database)
    pipeline = make([orders()])
    pipeline.sync()
    assert assert_part(pipeline)
    database.execute("TRUNCATE orders; INSERT INTO orders VALUES (1, 'eu', 'open'), (2, 'us', 'open')")
    pipeline.sync()
    assert assert_part(pipeline) == 1


def assert_part_is_told(database: Database, pipeline: PipelineUnderTest, name: str) -> None:
    wanted = database.query(f"SELECT id, status, note FROM {name}_part")
    assert replayed(pipeline, f"public.{name}") == {row[0]: row for row in wanted}


def replayed(pipeline: PipelineUnderTest, stream: str) -> dict[int, tuple[Any, ...]]:
    """The rows an append table leads to, if it tells of each row's coming before anything else of it."""
    table = ds.dataset(pipeline.path(stream), format="parquet").to_table()
    rows = sorted(table.to_pylist(), key=lambda row: (row["_tx"], row["_op_index"]))
    assert len({(row["_tx"], row["_op_index"]) for row in rows if row["_tx"]}) == sum(
        row["_tx"] > 0 for row in rows
    )
    held: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        assert (row["id"] in held) == (row["_op"] in "ud"), row
        if row["_op"] == "d":
            del held[row["id"]]
        else:
            held[row["id"]] = (row["id"], row["status"], row["note"])
    return held


def test_keys_alone_are_enough_for_a_filter_on_the_key_or_on_columns_that_are_never_large(
    database: Database, make: MakePipeline
) -> None:
    where = "n BETWEEN 3 AND 6 AND (at < '2024-03-01 00:00:00Z' OR price > 25.0)"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, at timestamptz, price numeric(8,2));"
        "INSERT INTO t SELECT n, n % 10, '2024-01-01 00:00:00Z'::timestamptz + n * interval '1 day', n / 3.0"
        "  FROM generate_series(1, 100) n;"
        f"CREATE VIEW t_part AS SELECT * FROM t WHERE {where};"
        "CREATE TABLE keyed (id int PRIMARY KEY, status text, note text);"
        "INSERT INTO keyed SELECT n, 's' || n, 'n' FROM generate_series(1, 40) n;"
        "CREATE VIEW keyed_part AS SELECT * FROM keyed WHERE id % 2 = 0"
    )
    keyed = {"table": "public.keyed", "where": "id % 2 = 0", "write": "append"}
    pipeline = make([{"table": "public.t", "where": where}, keyed])
    pipeline.sync()
    assert assert_part(pipeline, "t")
    database.execute("UPDATE t SET n = n + 2 WHERE id % 2 = 0")
    database.execute("UPDATE t SET id = id + 500, price = price + 10 WHERE id % 3 = 0")
    database.execute("DELETE FROM t WHERE id % 5 = 0")
    database.execute("UPDATE t SET at = at + interval '20 days', n = NULLIF(n, 4)")
    database.execute("UPDATE keyed SET status = 'x' WHERE id < 10")
    database.execute("UPDATE keyed SET id = id + 101 WHERE id BETWEEN 5 AND 20")
    database.execute("UPDATE keyed SET id = id + 202 WHERE id BETWEEN 21 AND 30")
    database.execute("DELETE FROM keyed WHERE id > 225")
    pipeline.sync()
    assert assert_part(pipeline, "t")
    assert_part_is_told(database, pipeline, "keyed")


@pytest.mark.slow
def test_a_row_that_comes_in_without_its_large_value_has_the_table_loaded_again(
    database: Database, make: MakePipeline
) -> None:
    large = "(SELECT string_agg(md5(g || ''), '') FROM generate_series(1, 3000) g)"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text);"
        f"INSERT INTO t SELECT n, n, {large} FROM generate_series(1, 4) n;"
        "CREATE VIEW t_part AS SELECT * FROM t WHERE n > 2"
    )
    pipeline = make([{"table": "public.t", "where": "n > 2"}])
    pipeline.sync()
    database.execute("UPDATE t SET n = 4 WHERE id = 3")  # inside before and after: the table has the value
    pipeline.sync()
    assert assert_part(pipeline, "t") == 2
    assert not any("loaded again" in note for note in pipeline.notes)
    database.execute("UPDATE t SET n = 5 WHERE id = 1")
    pipeline.sync()
    assert assert_part(pipeline, "t") == 3
    assert any("came into its filter" in note for note in pipeline.notes), pipeline.notes


def test_another_filter_or_another_list_of_columns_means_a_new_load(
    database: Database, make: MakePipeline
) -> None:
    make_orders(database)
    make_orders(database, "history")
    pipeline = make([orders(), orders("history", write="append")])
    pipeline.sync()
    database.execute("UPDATE orders SET region = 'us' WHERE id % 4 = 1")
    pipeline.streams = [
        orders(where="region = 'us'"),
        {"table": "public.history", "write": "append", "replica_identity": "full"},
    ]
    pipeline.write_file()
    database.execute(
        "DROP VIEW orders_part, history_part;"
        "CREATE VIEW orders_part AS SELECT id, status, note FROM orders WHERE region = 'us';"
        "CREATE VIEW history_part AS SELECT * FROM history"
    )
    pipeline.sync()
    for name in ("orders", "history"):
        assert any(f"public.{name} is loaded again" in note for note in pipeline.notes)
        assert assert_part(pipeline, name)
    pipeline.notes.clear()
    database.execute("UPDATE orders SET region = 'us' WHERE id % 4 = 2")
    pipeline.sync()
    assert_part(pipeline)
    assert not any("loaded again" in note for note in pipeline.notes)


def test_columns_outside_the_list_may_come_go_and_change(database: Database, make: MakePipeline) -> None:
    make_orders(database)
    pipeline = make([orders()])
    pipeline.sync()
    for change in (
        "ALTER TABLE orders DROP COLUMN secret",
        "ALTER TABLE orders ADD COLUMN extra text DEFAULT md5(random()::text)",
        "ALTER TABLE orders RENAME COLUMN extra TO more; ALTER TABLE orders ALTER more DROP DEFAULT",
        "ALTER TABLE orders ALTER more TYPE int USING length(more)",
    ):
        database.execute(change)
        database.execute(
            "UPDATE orders SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id % 3 < 2"
        )
        database.execute("UPDATE orders SET status = 'open' WHERE id % 5 = 1")
    pipeline.sync()
    assert_part(pipeline)
    assert not any("loaded again" in note for note in pipeline.notes)


def test_a_column_of_the_filter_that_is_rewritten_has_the_table_loaded_again(
    database: Database, make: MakePipeline
) -> None:
    make_orders(database)
    pipeline = make([orders()])
    pipeline.sync()
    definition = "SELECT id, status, note FROM orders WHERE region = 'eu' AND status <> 'void'"
    database.execute("DROP VIEW orders_part")
    database.execute(
        "ALTER TABLE orders ALTER region TYPE varchar(9) USING CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END"
    )
    database.execute(f"CREATE VIEW orders_part AS {definition}")
    pipeline.sync()
    assert assert_part(pipeline)
    assert any("loaded again" in note for note in pipeline.notes)


def test_a_listed_column_that_is_renamed_stops_the_stream_with_the_reason(
    database: Database, make: MakePipeline
) -> None:
    make_orders(database)
    pipeline = make([orders()])
    pipeline.sync()
    database.execute("ALTER TABLE orders RENAME COLUMN status TO state")
    with pytest.raises(PenstockError, match="status"):
        pipeline.sync()
    pipeline.streams[0] |= {"columns": ["id", "state", "note"], "where": "region = 'eu'"}
    pipeline.write_file()
    database.execute("DROP VIEW orders_part")
    database.execute("CREATE VIEW orders_part AS SELECT id, state, note FROM orders WHERE region = 'eu'")
    pipeline.sync()
    assert assert_part(pipeline)


def test_text_is_compared_in_the_same_collation_in_load_and_changes(
    database: Database, make: MakePipeline
) -> None:
    """The column's own knows that Ä is a capital ä; COLLATE "C" does not."""
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, name text COLLATE "pg_c_utf8");'
        "INSERT INTO t VALUES (1, 'äx'), (2, 'Äx'), (3, 'Bx'), (4, 'bx'), (5, 'zx'), (6, NULL);"
        "CREATE VIEW t_part AS SELECT * FROM t"
        " WHERE name COLLATE \"C\" ILIKE 'ä%' OR lower(name COLLATE \"C\") = 'bx'"
    )
    where = "name ILIKE 'ä%' OR lower(name) = 'bx'"
    pipeline = make([{"table": "public.t", "where": where, "replica_identity": "full"}])
    pipeline.sync()
    assert assert_part(pipeline, "t") == 3
    database.execute("INSERT INTO t SELECT id + 100, name FROM t")
    pipeline.sync()
    assert assert_part(pipeline, "t") == 6


def test_a_full_refresh_takes_a_part_without_its_key(database: Database, make: MakePipeline) -> None:
    make_orders(database)
    database.execute("CREATE VIEW part AS SELECT status, secret FROM orders WHERE secret > 30")
    pipeline = make(
        [
            {
                "table": "public.orders",
                "mode": "full_refresh",
                "columns": ["status", "secret"],
                "where": "secret > 30",
            }
        ]
    )
    for _ in range(2):
        pipeline.sync()
        assert_same(pipeline.url, "public.part", pipeline.path("public.orders"))
        database.execute("UPDATE orders SET secret = secret + 7")


def found(database: Database, **fields: Any) -> list[Finding]:
    need = StreamNeed(StreamId("public", "t"), **fields)
    findings = check(database.url, f"slot_{database.name}", "penstock", [need])
    return [finding for finding in findings if finding.level != "ok" and finding.name == "selection"]


def test_check_says_what_a_part_needs(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, n int, price numeric(20,6), code varchar(5), "
        "twice int GENERATED ALWAYS AS (n * 2) VIRTUAL)"
    )

    def says(expected: str, level: str = "error", **fields: Any) -> None:
        [finding] = found(database, **fields)
        assert expected in f"{finding.message} {finding.remedy}", finding
        assert finding.level == level

    says("Did you mean name?", columns=("id", "nmae"))
    says("generated", columns=("id", "twice"))
    says("lacks id of the key", columns=("name",))
    says("lacks id of the key", columns=("name",), write="append")
    says("at character 5: unknown reference m", where="NOT m = 1")
    says("`where` reads name", where="name = 'x'")
    says("replica_identity: full", where="n = 1", write="append")
    says("loaded again", level="warning", where="n = 1")
    assert not found(database, where="n = 1", columns=("id", "n"))
    assert not found(database, where="price > 1 AND code = 'eu'", columns=("id", "n"))
    assert not found(database, where="name = 'x' AND n = 1", replica_identity="full", write="append")
    assert not found(database, where="id > 1", columns=("id",), write="append")
    assert not found(database, where="name = 'x'", columns=("name",), mode="full_refresh")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert not found(database, where="name = 'x'", write="append")


def test_a_sync_refuses_what_check_refuses(database: Database, make: MakePipeline) -> None:
    make_orders(database)
    pipeline = make([orders(replica_identity="none")])
    with pytest.raises(SourceError, match="replica_identity: full"):
        pipeline.sync()

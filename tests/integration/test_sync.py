"""`penstock sync` against a real Postgres: what is loaded and followed equals the source, value by value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline
from penstock.capture.client import CaptureProcess
from penstock.core.errors import ConfigError, PenstockError, PositionGoneError, SourceError
from penstock.lake.following import Following
from penstock.ledger.store import StateStore
from tests.conftest import Database
from tests.oracle import assert_same
from tests.oracle_history import assert_append_is_history, install_audit
from tests.traps import MakePipeline, of_parquet


def in_order(path: Path) -> list[dict[str, Any]]:
    """Rows of an append table in the order of the log."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return sorted(rows, key=lambda row: (row["_tx"], row["_op_index"]))


def orders(database: Database, rows: int = 1000) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(12,2), note text, at timestamptz, "
        "tags text[], body jsonb, paid boolean, rate double precision, day date, raw bytea)"
    )
    database.execute(
        "INSERT INTO orders SELECT i, i * 1.37, CASE WHEN i % 3 = 0 THEN NULL ELSE 'note ' || i END, "
        "timestamptz '2026-01-01 00:00+00' + i * interval '1 minute', ARRAY['a', 'b,c'], "
        "jsonb_build_object('k', i), i % 2 = 0, i / 7.0, date '2026-01-01' + (i % 400), "
        f"decode(md5(i::text), 'hex') FROM generate_series(1, {rows}) AS i"
    )


@pytest.mark.parametrize("in_spark", [False, True], ids=["light", "spark"])
def test_a_loaded_table_and_its_changes_equal_the_source(
    database: Database, make: MakePipeline, request: pytest.FixtureRequest, in_spark: bool
) -> None:
    if in_spark:
        request.getfixturevalue("loads_by_spark")
    orders(database)
    pipeline = make(["public.orders"], load={"rows_per_chunk": 250})
    assert pipeline.sync().streams[0].rows_loaded == 1000
    pipeline.assert_same("public.orders")

    database.execute("UPDATE orders SET amount = amount + 0.01, note = 'x' WHERE id % 10 = 0")
    database.execute("DELETE FROM orders WHERE id % 10 = 1")
    database.execute("UPDATE orders SET id = id + 100000 WHERE id % 10 = 2")
    database.execute("INSERT INTO orders (id, amount) SELECT i, -i FROM generate_series(5000, 5100) AS i")
    database.execute("BEGIN; DELETE FROM orders WHERE id = 13; INSERT INTO orders (id) VALUES (13); COMMIT")
    report = pipeline.sync().streams[0]
    assert (report.inserts, report.updates, report.deletes) == (102, 200, 101)
    pipeline.assert_same("public.orders")


@pytest.mark.slow
def test_rounds_run_while_the_log_is_still_read(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts are applied from sealed steps before the target is reached; updates wait to fill a round."""
    ahead: list[str] = []
    follow_ahead, reached = Following.follow_ahead, CaptureProcess.reached
    monkeypatch.setattr("penstock.lake.following.EARLY_ROUND_BYTES", 1)

    def look(self: Following) -> None:
        before = self._lane.ledger.document.lsn
        follow_ahead(self)
        if self._lane.ledger.document.lsn != before:
            ahead.append(str(self._lane.ledger.document.lsn))

    asked: set[object] = set()

    def not_yet(self: CaptureProcess, within_s: float | None = None) -> object:
        if self._target not in asked:
            asked.add(self._target)
            reached(self)  # sealed, but not told yet
            return None
        return reached(self, within_s)

    monkeypatch.setattr(Following, "follow_ahead", look)
    monkeypatch.setattr(CaptureProcess, "reached", not_yet)
    orders(database, 10)
    pipeline = make(["public.orders", {"table": "public.orders_history", "write": "append"}])
    database.execute("CREATE TABLE orders_history (id int PRIMARY KEY, v text)")
    pipeline.sync()
    database.execute("INSERT INTO orders (id) SELECT i FROM generate_series(11, 500) AS i")
    database.execute("INSERT INTO orders_history VALUES (1, 'a'); UPDATE orders_history SET v = 'b'")
    ahead.clear()
    assert sum(stream.changes for stream in pipeline.sync().streams) == 492
    assert len(ahead) == 1
    database.execute("UPDATE orders SET note = 'changed'")
    pipeline.sync()
    assert len(ahead) == 1, "rows of the table are replaced once, at the end"
    pipeline.assert_same("public.orders")


def test_a_sync_without_changes_commits_nothing(database: Database, make: MakePipeline) -> None:
    orders(database, 10)
    pipeline = make(["public.orders"])
    pipeline.sync()

    def commits() -> list[Path]:
        return sorted(
            path for name in ("_commits", "metadata") for path in pipeline.warehouse.rglob(f"{name}/*")
        )

    before = commits()
    assert before
    pipeline.sync()
    assert commits() == before


def test_an_empty_table_can_be_read_and_followed(database: Database, make: MakePipeline) -> None:
    orders(database, 0)
    pipeline = make(["public.orders"])
    pipeline.sync()
    assert pq.read_table(pipeline.path("public.orders")).num_rows == 0
    database.execute("INSERT INTO orders (id) VALUES (1)")
    pipeline.sync()
    pipeline.assert_same("public.orders")
    database.execute("DELETE FROM orders")
    pipeline.sync()
    assert pq.read_table(pipeline.path("public.orders")).num_rows == 0


def test_an_append_table_holds_every_change_once(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE events (id int PRIMARY KEY, v text)")
    install_audit(database.url, ["public.events"])
    database.execute("INSERT INTO events SELECT i, 'v' FROM generate_series(1, 50) AS i")
    pipeline = make([{"table": "public.events", "write": "append"}])
    pipeline.sync()
    for turn in range(3):
        database.execute(f"INSERT INTO events VALUES ({100 + turn}, 'new')")
        database.execute("UPDATE events SET v = v || '!' WHERE id < 5")
        database.execute(f"UPDATE events SET id = id + 1000 WHERE id = {10 + turn}")
        database.execute(f"DELETE FROM events WHERE id = {20 + turn}")
        pipeline.sync()
        assert_append_is_history(database.url, "public.events", pipeline.path("public.events"))


def test_a_truncate_empties_an_upsert_table_and_is_one_row_of_an_append_table(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (1), (2)")
    pipeline = make(["public.a", {"table": "public.b", "write": "append"}])
    pipeline.sync()
    database.execute("BEGIN; INSERT INTO a VALUES (3); TRUNCATE a, b; INSERT INTO a VALUES (4); COMMIT")
    pipeline.sync()
    pipeline.assert_same("public.a")
    assert [row["_op"] for row in in_order(pipeline.path("public.b"))] == ["r", "r", "t"]


BIG = "repeat(md5(id::text), 400)"


def test_values_that_were_not_sent_are_kept(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, title text, body text)")
    database.execute("ALTER TABLE docs ALTER body SET STORAGE EXTERNAL")
    database.execute(f"INSERT INTO docs SELECT id, 't', {BIG} FROM generate_series(1, 60) AS id")
    pipeline = make(["public.docs"])
    pipeline.sync()
    database.execute("UPDATE docs SET title = 'plain update' WHERE id <= 10")
    database.execute("UPDATE docs SET id = id + 100 WHERE id BETWEEN 11 AND 20")
    database.execute("UPDATE docs SET id = id + 1000 WHERE id BETWEEN 111 AND 115")
    database.execute(
        "UPDATE docs SET body = 'short', title = 'u' WHERE id = 21; UPDATE docs SET title = 'v' WHERE id = 21"
    )
    database.execute(f"INSERT INTO docs SELECT id, 'n', {BIG} FROM generate_series(200, 205) AS id")
    database.execute("UPDATE docs SET title = 'after insert', id = id + 50 WHERE id BETWEEN 200 AND 205")
    report = pipeline.sync()
    pipeline.assert_same("public.docs")
    assert report.streams[0].dead_letters == 0


def test_an_append_table_names_the_columns_that_were_not_sent(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, title text, body text)")
    database.execute("ALTER TABLE docs ALTER body SET STORAGE EXTERNAL")
    database.execute(f"INSERT INTO docs SELECT id, 't', {BIG} FROM generate_series(1, 2) AS id")
    pipeline = make([{"table": "public.docs", "write": "append"}])
    pipeline.sync()
    database.execute("UPDATE docs SET title = 'u' WHERE id = 1")
    pipeline.sync()
    rows = pq.read_table(pipeline.path("public.docs")).to_pylist()
    [update] = [row for row in rows if row["_op"] == "u"]
    assert update["body"] is None
    assert update["_unchanged"] == ["body"]


def test_partitions_load_and_follow_as_one_table(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE m (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)"
    )
    database.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    # A partition that numbers its columns otherwise.
    database.execute("CREATE TABLE m2 (gone int, v text, day date NOT NULL, id int NOT NULL)")
    database.execute("ALTER TABLE m2 DROP gone")
    database.execute("ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
    fill = "INSERT INTO m SELECT i, date '2026-01-01' + (i % 58), 'v' || i FROM generate_series({}, {}) AS i"
    database.execute(fill.format(1, 500))
    pipeline = make(["public.m"])
    pipeline.sync()
    pipeline.assert_same("public.m")

    database.execute("UPDATE m SET day = day + 31 WHERE id <= 20 AND day < '2026-01-25'")  # moves
    database.execute("UPDATE m SET v = 'u' WHERE id BETWEEN 50 AND 60; DELETE FROM m WHERE id = 70")
    database.execute("CREATE TABLE m3 PARTITION OF m FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
    database.execute("INSERT INTO m VALUES (1000, '2026-03-05', 'in the new one')")
    report = pipeline.sync()
    assert report.streams[0].rows_loaded == 0, "a partition created as such needs no new load"
    pipeline.assert_same("public.m")

    database.execute("TRUNCATE m; INSERT INTO m VALUES (1, '2026-01-05', 'again')")
    pipeline.sync()
    pipeline.assert_same("public.m")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE m DETACH PARTITION m1",
        "DROP TABLE m1",
        "TRUNCATE m1",
        "CREATE TABLE m3 (LIKE m INCLUDING ALL); INSERT INTO m3 VALUES (900, '2026-03-03'); "
        "ALTER TABLE m ATTACH PARTITION m3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",
    ],
)
def test_partitions_that_change_without_row_events_are_reconciled(
    database: Database, make: MakePipeline, statement: str
) -> None:
    database.execute("CREATE TABLE m (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    database.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    database.execute("CREATE TABLE m2 PARTITION OF m FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
    database.execute("INSERT INTO m SELECT i, date '2026-01-01' + (i % 50) FROM generate_series(1, 100) AS i")
    pipeline = make(["public.m"])
    pipeline.sync()
    database.execute(statement)
    pipeline.sync()
    pipeline.assert_same("public.m")
    database.execute("INSERT INTO m VALUES (5000, '2026-02-02')")
    pipeline.sync()
    pipeline.assert_same("public.m")


def test_a_value_that_does_not_fit_becomes_a_dead_letter_and_nothing_stops(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE v (id int PRIMARY KEY, day date, amount numeric(6,2))")
    database.execute(
        "INSERT INTO v VALUES (1, 'infinity', 1), (2, '2026-01-01', 'NaN'), (3, '2026-01-02', 3)"
    )
    pipeline = make(["public.v"])
    report = pipeline.sync().streams[0]
    assert (report.rows_loaded, report.dead_letters) == (1, 2)
    database.execute("INSERT INTO v VALUES (4, '-infinity', 4), (5, '0044-03-15 BC', 5)")
    database.execute("UPDATE v SET day = 'infinity' WHERE id = 3")
    report = pipeline.sync().streams[0]
    assert report.dead_letters == 2
    table = Pipeline.from_yaml(pipeline.file).table("public.v").to_arrow()
    assert table.column("id").to_pylist() == [5]
    letters = Pipeline.from_yaml(pipeline.file).dead_letters("public.v").to_arrow().to_pylist()
    rows = [{each["column"]: each["value"] for each in letter["_row"]} for letter in letters]
    found = {
        (row["id"], row["day"], *letter["_bad_columns"]) for row, letter in zip(rows, letters, strict=True)
    }
    assert found == {
        ("1", "infinity", "day"),
        ("2", "2026-01-01", "amount"),
        ("4", "-infinity", "day"),
        ("3", "infinity", "day"),
    }
    [status] = Pipeline.from_yaml(pipeline.file).status().streams
    assert status.dead_letters == 4


def test_a_full_refresh_replaces_the_table_each_time_and_needs_no_slot(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 100)
    pipeline = make([{"table": "public.orders", "mode": "full_refresh"}])
    pipeline.sync()
    pipeline.assert_same("public.orders")
    old, before = pipeline.path("public.orders"), pipeline.version("public.orders")
    database.execute("DELETE FROM orders WHERE id <= 50; UPDATE orders SET note = 'again'")
    pipeline.sync()
    pipeline.assert_same("public.orders")
    assert pipeline.version("public.orders") != before
    assert pq.read_table(old).num_rows == 100, "a reader of the old version is not disturbed"
    assert database.query(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    document = json.loads((pipeline.state / "state.json").read_text())
    assert document["type"] == "STREAM"
    assert document["streams"][0]["state"]["chunks"] == []


def test_a_table_without_a_key_can_be_appended_once_full_identity_is_allowed(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE nokey (a int, b text); INSERT INTO nokey VALUES (1, 'x'), (1, 'x')")
    refused = make(["public.nokey"])
    with pytest.raises(SourceError, match="no primary key"):
        refused.sync()
    refused = make([{"table": "public.nokey", "write": "append"}])
    with pytest.raises(SourceError, match="UPDATE and DELETE would fail"):
        refused.sync()
    pipeline = make([{"table": "public.nokey", "write": "append", "replica_identity": "full"}])
    pipeline.sync()
    database.execute("UPDATE nokey SET b = 'y'; DELETE FROM nokey WHERE ctid = (SELECT min(ctid) FROM nokey)")
    pipeline.sync()
    rows = in_order(pipeline.path("public.nokey"))
    assert [(row["_op"], row["a"], row["b"]) for row in rows] == [
        ("r", 1, "x"),
        ("r", 1, "x"),
        ("u", 1, "y"),
        ("u", 1, "y"),
        ("d", 1, "y"),
    ]


def test_a_stream_added_later_is_loaded_while_the_others_go_on(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 200)
    database.execute("CREATE TABLE late (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO late SELECT i, 'v' FROM generate_series(1, 300) AS i")
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'n' WHERE id < 20; UPDATE late SET v = 'w' WHERE id < 20")
    pipeline.streams.append("public.late")
    pipeline.write_file()
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'm' WHERE id < 10; DELETE FROM late WHERE id < 10")
    pipeline.sync()
    pipeline.assert_same("public.orders", "public.late")
    document = StateStore(pipeline.state).load()
    assert document is not None
    assert {str(stream) for stream in document.global_streams} == {"public.orders", "public.late"}


def test_a_stream_removed_from_the_file_is_forgotten_and_holds_nothing(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    pipeline = make(["public.a", "public.b"])
    pipeline.sync()
    pipeline.streams.remove("public.b")
    pipeline.write_file()
    database.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    pipeline.sync()
    pipeline.assert_same("public.a")
    document = StateStore(pipeline.state).load()
    assert document is not None
    assert [str(stream) for stream in document.streams] == ["public.a"]


def test_wildcards_choose_tables_and_exclude_leaves_some_out(database: Database, make: MakePipeline) -> None:
    database.execute(
        'CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "Weird Name.x" (id int PRIMARY KEY);'
        "CREATE TABLE skipped (id int PRIMARY KEY); CREATE UNLOGGED TABLE u (id int PRIMARY KEY)"
    )
    database.execute('INSERT INTO a VALUES (1); INSERT INTO "Weird Name.x" VALUES (2)')
    pipeline = make(["public.*"], exclude=["public.skip*"])
    report = pipeline.sync()
    assert {stream.stream for stream in report.streams} == {"public.a", "public.Weird Name.x"}
    pipeline.assert_same("public.a", "public.Weird Name.x")


def test_a_column_with_one_of_our_names_is_an_error_with_a_way_out(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        'CREATE TABLE e (id int PRIMARY KEY, "_op" text, "_x" int); INSERT INTO e VALUES (1, \'o\', 2)'
    )
    with pytest.raises(PenstockError, match="_op"):
        make([{"table": "public.e", "write": "append"}]).sync()
    pipeline = make([{"table": "public.e", "write": "append", "rename": {"_op": "operation"}}])
    pipeline.sync()
    database.execute("INSERT INTO e VALUES (2, 'p', 3)")
    pipeline.sync()
    rows = in_order(pipeline.path("public.e"))
    assert [(row["operation"], row["_op"], row["_x"]) for row in rows] == [("o", "r", 2), ("p", "i", 3)]


@of_parquet("other readers are given files; those of Iceberg tables are in test_iceberg_sync")
def test_readers_of_every_kind_see_the_committed_version(database: Database, make: MakePipeline) -> None:
    orders(database, 500)
    pipeline = make(["public.orders"], load={"rows_per_chunk": 100})
    pipeline.sync()
    table = Pipeline.from_yaml(pipeline.file).table("public.orders")
    session = SparkSession.builder.getOrCreate()
    assert table.spark(session).count() == 500
    [total] = session.read.parquet(str(table.path)).agg({"amount": "sum"}).collect()
    assert total[0] == database.query("SELECT sum(amount) FROM orders")[0][0]
    [count] = duckdb.connect().execute(f"SELECT count(*) FROM '{table.path}/*.parquet'").fetchall()
    assert count == (500,)
    assert len(pd.read_parquet(table.path)) == 500
    current = table.path.parent / "current"
    assert len(pd.read_parquet(current)) == 500
    assert current.resolve() == table.path.resolve()


@pytest.mark.slow
def test_key_ranges_load_and_resume_exactly(database: Database, make: MakePipeline) -> None:
    """Cut short, with changes in between: append gets each change once, upsert is not turned back."""
    for name in ("up", "ap"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    install_audit(database.url, ["public.ap"])
    for name in ("up", "ap"):
        database.execute(
            f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 4000) AS i; ANALYZE {name}"
        )
    pipeline = make(
        ["public.up", {"table": "public.ap", "write": "append"}],
        load={"method": "key", "rows_per_chunk": 100},
    )
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    for name in ("up", "ap"):
        database.execute(
            f"UPDATE {name} SET v = 'changed' WHERE id % 7 = 0; DELETE FROM {name} WHERE id % 11 = 0"
        )
        database.execute(f"UPDATE {name} SET id = 10000 - id WHERE id % 13 = 0")
        database.execute(f"INSERT INTO {name} SELECT i, 'n' FROM generate_series(20000, 20010) AS i")
    left = StateStore(pipeline.state).load()
    assert left is not None
    assert any(state.is_loading and len(state.chunks or ()) < 40 for state in left.stream_states)
    pipeline.sync()
    for name in ("up", "ap"):
        database.execute(f"UPDATE {name} SET v = 'last' WHERE id % 17 = 0")
    pipeline.sync()
    pipeline.assert_same("public.up")
    assert_append_is_history(database.url, "public.ap", pipeline.path("public.ap"), one_moment=False)


@pytest.mark.slow
def test_a_resumed_load_by_pages_equals_the_source(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE up (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO up SELECT i, 0 FROM generate_series(1, 20000) AS i; ANALYZE up")
    pipeline = make(["public.up"], load={"rows_per_chunk": 500})
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    database.execute("UPDATE up SET v = 1 WHERE id % 3 = 0; DELETE FROM up WHERE id % 5 = 0")
    pipeline.sync()
    pipeline.assert_same("public.up")


def test_a_slot_dropped_between_syncs_is_an_error_and_no_silent_restart(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 10)
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    database.execute("DELETE FROM orders WHERE id = 1")
    with pytest.raises(PositionGoneError) as caught:
        pipeline.sync()
    assert caught.value.remedy
    assert len(Pipeline.from_yaml(pipeline.file).table("public.orders").to_arrow()) == 10


def test_a_table_that_is_not_there_is_named_with_the_nearest_one(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 1)
    with pytest.raises(ConfigError, match=r"public.order\b") as caught:
        make(["public.order"]).sync()
    assert "public.orders" in str(caught.value)


def test_the_log_shows_every_change_with_its_offset(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    pipeline = make(["public.a"])
    pipeline.sync()
    database.execute("INSERT INTO a VALUES (1, 'x'); UPDATE a SET v = 'y'; DELETE FROM a")
    pipeline.sync()
    log = Pipeline.from_yaml(pipeline.file).log("public.a")
    assert log.to_arrow().column("_op").to_pylist() == ["i", "u", "d"]
    assert_same(database.url, "public.a", pipeline.path("public.a"))


@pytest.mark.slow
def test_a_table_configured_otherwise_is_loaded_again(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x'), (2, 'y')")
    pipeline = make(["public.a"])
    pipeline.sync()
    database.execute("UPDATE a SET v = 'z' WHERE id = 1")
    for settings in ({"rename": {"v": "w"}}, {"write": "append"}, {"mode": "full_refresh"}, {}):
        pipeline.streams = [{"table": "public.a", **settings}]
        pipeline.write_file()
        assert pipeline.sync().streams[0].rows_loaded == 2
        database.execute(
            "INSERT INTO a SELECT max(id) + 1, 'n' FROM a; DELETE FROM a WHERE id = (SELECT min(id) FROM a)"
        )
        pipeline.sync()
    pipeline.assert_same("public.a")


@pytest.mark.slow
def test_a_log_that_lost_its_beginning_is_an_error_and_not_a_gap(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline = make(["public.a"])
    pipeline.sync()
    database.execute("INSERT INTO a VALUES (1)")
    ended = pipeline.sync_apart("cdc.preparing=kill")  # captured, not applied
    assert ended.killed, str(ended)
    for manifest in sorted((pipeline.state / "log").glob("*.json"))[:-1]:
        manifest.unlink()
    database.execute("INSERT INTO a VALUES (2)")
    pipeline.sync_apart("cdc.preparing=kill")
    for manifest in sorted((pipeline.state / "log").glob("*.json"))[:-1]:
        manifest.unlink()
    with pytest.raises(PenstockError, match="begins at"):
        pipeline.sync()


def test_resync_loads_one_table_again_and_leaves_no_gap(database: Database, make: MakePipeline) -> None:
    orders(database, 300)
    database.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    pipeline = make(["public.orders", "public.other"])
    pipeline.sync()
    database.execute("DELETE FROM orders WHERE id < 50; INSERT INTO other VALUES (2)")
    report = Pipeline.from_yaml(pipeline.file).resync(["public.orders"])
    assert {stream.stream: stream.rows_loaded for stream in report.streams} == {
        "public.orders": 251,
        "public.other": 0,
    }
    database.execute("DELETE FROM orders WHERE id < 60; INSERT INTO other VALUES (3)")
    pipeline.sync()
    pipeline.assert_same("public.orders", "public.other")


def test_resync_of_everything_is_the_way_out_of_a_lost_slot(database: Database, make: MakePipeline) -> None:
    orders(database, 100)
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    database.execute("DELETE FROM orders WHERE id < 50")
    with pytest.raises(PositionGoneError, match="slot") as caught:
        pipeline.sync()
    assert "penstock resync --yes" in caught.value.remedy
    assert pq.read_table(pipeline.path("public.orders")).num_rows == 100
    Pipeline.from_yaml(pipeline.file).resync()
    database.execute("DELETE FROM orders WHERE id < 60")
    pipeline.sync()
    pipeline.assert_same("public.orders")

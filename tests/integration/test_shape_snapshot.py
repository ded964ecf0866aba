"""First rows of a shape, as real Postgres gives them: what they show, what they look like, what can fail."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql

from penstock.shapes.shape import SnapshotPoint, SnapshotProblem
from penstock.shapes.source.moving import MovedRows, MoveIns
from penstock.shapes.source.row_reader import consistent, read_blocks
from penstock.sources.postgres.connection import connect
from tests.conftest import WAIT_S, Database, wait_until
from tests.shape_source import Outcome, Snapshots, definition_of, items_of, settings_for, snapshots

HOSTILE = (
    "DateStyle = 'German'",
    "IntervalStyle = 'postgres_verbose'",
    "bytea_output = 'escape'",
    "extra_float_digits = -15",
    "TimeZone = 'Asia/Kathmandu'",
    "default_transaction_isolation = 'serializable'",
)


@pytest.fixture
def taking(database: Database, tmp_path: Path) -> Iterator[Snapshots]:
    with snapshots(database.url, tmp_path / "shapes") as taken:
        yield taken


def value_of(item: dict[str, Any]) -> dict[str, str | None]:
    value: dict[str, str | None] = item["value"]
    return value


def test_a_row_is_printed_as_the_log_prints_it_whatever_its_types(
    database: Database, taking: Snapshots
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE TYPE pair AS (a int, b text)")
    database.execute("CREATE DOMAIN flag AS boolean")
    database.execute(
        'CREATE TABLE "Odd.Name/s" (id int8 PRIMARY KEY, "a,""b" text, b bool, c char(5), d date, '
        "e numeric(8,3), f float8, g bytea, h interval, i inet, j jsonb, k int[], l mood, m pair, n flag, "
        "o timestamptz, p bool[])"
    )
    database.execute(
        """INSERT INTO "Odd.Name/s" VALUES
        (1, E'a\\n\\t\\r\\x01\\x02"\\\\/ü😀', true, 'ab', '2026-02-01', 1.5, 'NaN', '\\x0001ff', '1 day 2 h',
         '10.0.0.1', '{"b": 1,"a": [null]}', '{1,NULL}', 'ok', (1, 'x,y'), false, '2026-01-01 12:00+02',
         '{t,f}')"""
    )
    database.execute('INSERT INTO "Odd.Name/s" (id, m) VALUES (2, (NULL, NULL))')
    first, second = sorted(taking.items(definition_of(database.url, '"Odd.Name/s"')), key=lambda i: i["key"])
    assert first["key"] == '"public"."Odd..Name//s"/"1"'
    assert first["headers"] == {"operation": "insert", "relation": ["public", "Odd.Name/s"]}
    assert value_of(first) == {
        "id": "1",
        'a,"b': 'a\n\t\r\x01\x02"\\/ü😀',
        "b": "true",
        "c": "ab   ",
        "d": "2026-02-01",
        "e": "1.500",
        "f": "NaN",
        "g": "\\x0001ff",
        "h": "P1DT2H",
        "i": "10.0.0.1",
        "j": '{"a": [null], "b": 1}',
        "k": "{1,NULL}",
        "l": "ok",
        "m": '(1,"x,y")',
        "n": "false",
        "o": "2026-01-01 10:00:00+00",
        "p": "{t,f}",
    }
    assert value_of(second) == {**dict.fromkeys(value_of(first)), "id": "2", "m": "(,)"}


def test_what_is_printed_does_not_depend_on_the_role_or_on_a_pooler(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date DEFAULT '2026-02-01', i interval DEFAULT '1 day', "
        "b bytea DEFAULT '\\x00', f float8 DEFAULT 0.1, t timestamptz DEFAULT '2026-01-01 00:00+00')"
    )
    database.execute("INSERT INTO t (id) VALUES (1)")
    role, url = database.create_role()
    database.execute(f"GRANT SELECT ON t TO {role}")
    definition = definition_of(database.url, "t")
    with snapshots(database.url, tmp_path / "plain") as taken:
        expected = taken.items(definition)
    for setting in HOSTILE:
        database.execute(f"ALTER ROLE {role} SET {setting}")
    with snapshots(url, tmp_path / "role") as taken:
        assert taken.items(definition) == expected
    # A pooler takes no settings at connect: all of them are made inside the transaction.
    with snapshots(database.url, tmp_path / "pooled", pooled_url=url) as taken:
        assert taken.items(definition) == expected


def test_a_table_may_have_more_columns_than_a_function_has_arguments(
    database: Database, taking: Snapshots
) -> None:
    names = [f"c{number}" for number in range(700)]
    database.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{name} int' for name in names)})")
    database.execute("INSERT INTO wide (id, c0, c699) VALUES (1, 5, 7)")
    (row,) = taking.items(definition_of(database.url, "wide"))
    assert value_of(row) == {"id": "1", **dict.fromkeys(names), "c0": "5", "c699": "7"}


def test_null_is_told_even_where_a_constraint_says_that_there_is_none(
    database: Database, taking: Snapshots
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a char(3), b int)")
    database.execute("INSERT INTO t VALUES (1)")
    for name in ("a", "b"):
        database.execute(f"ALTER TABLE t ADD CONSTRAINT {name}_there NOT NULL {name} NOT VALID")
    definition = definition_of(database.url, "t")
    assert all(column.not_null for column in definition.card.columns)
    assert [value_of(row) for row in taking.items(definition)] == [{"id": "1", "a": None, "b": None}]


def test_only_rows_and_columns_of_the_shape_are_read(database: Database, taking: Snapshots) -> None:
    database.execute('CREATE TABLE t (id int PRIMARY KEY, a text, b text COLLATE "C", hidden text)')
    database.execute("INSERT INTO t SELECT i, chr(64 + i), 'x' || i FROM generate_series(1, 20) AS i")
    found = taking.items(
        definition_of(database.url, "t", columns="id,a", where="a > $1 AND id < 10", params=("C",))
    )
    assert [value_of(row) for row in found] == [{"id": str(i), "a": chr(64 + i)} for i in range(4, 10)]


def test_rows_of_partitions_belong_to_the_root_and_rows_of_heirs_to_the_heirs(
    database: Database, parted: Database, taking: Snapshots
) -> None:
    assert len(taking.items(definition_of(parted.url, "m"))) == 100
    database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    database.execute("CREATE TABLE heir () INHERITS (parent)")
    database.execute("INSERT INTO parent VALUES (1)")
    database.execute("INSERT INTO heir VALUES (2)")
    assert [row["key"] for row in taking.items(definition_of(database.url, "parent"))] == [
        '"public"."parent"/"1"'
    ]


def test_an_empty_table_and_changes_only_give_nothing_but_the_end(
    database: Database, taking: Snapshots
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shape, outcome = taking.take(definition_of(database.url, "t"))
    assert outcome.told == ["known", "completed"]
    point = outcome.point
    assert point is not None
    end = {"control": "snapshot-end", "xmin": str(point.xmin), "xmax": str(point.xmax), "xip_list": []}
    assert items_of(shape) == [{"headers": end}]
    database.execute("INSERT INTO t SELECT generate_series(1, 10)")
    shape, _ = taking.take(definition_of(database.url, "t", log="changes_only"))
    assert [item["headers"]["control"] for item in items_of(shape)] == ["snapshot-end"]


def test_rows_are_there_while_the_rest_is_read(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, filler text)")
    database.execute("INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 5000) AS i")
    with snapshots(database.url, tmp_path / "shapes", chunk_bytes_threshold=100_000) as taking:
        shape, outcome = taking.take(definition_of(database.url, "t"))
        assert outcome.told[:2] == ["known", "started"]
        assert set(outcome.told[2:-1]) == {"grown"}
        items = items_of(shape)
    assert [value_of(item)["id"] for item in items[:-1]] == [str(i) for i in range(1, 5001)]
    assert items[-1]["headers"]["control"] == "snapshot-end"


def test_any_text_is_written_as_json_and_as_part_of_a_key(database: Database, taking: Snapshots) -> None:
    database.execute("CREATE TABLE t (id text, flag bool, a text, PRIMARY KEY (id, flag))")
    texts = {"", "/", '"', "\\", "a/b//", "\x7f", "ü😀\u2028", *map(chr, range(1, 256))}
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, true, %s)", [(text, text) for text in texts])
    found = {row["value"]["id"]: row for row in taking.items(definition_of(database.url, "t"))}
    assert set(found) == texts
    for text, row in found.items():
        assert row["key"] == '"public"."t"/"' + text.replace("/", "//") + '"/"t"'
        assert row["value"] == {"id": text, "flag": "true", "a": text}


def test_a_row_larger_than_a_block_is_read_whole(database: Database, taking: Snapshots) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO t SELECT i, repeat('y', 3000000 * (i % 2)) FROM generate_series(1, 4) AS i")
    found = taking.items(definition_of(database.url, "t"))
    assert [len(value_of(row)["a"] or "") for row in found] == [3000000, 0, 3000000, 0]


def test_a_snapshot_shows_what_it_says_and_nothing_that_commits_beyond_its_position(
    database: Database,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    card = definition_of(database.url, "t").card
    with database.connect() as running, database.connect() as later, connect(database.url) as reading:
        running.execute("BEGIN")
        running.execute("INSERT INTO t VALUES (1)")
        (xid,) = running.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        database.execute("INSERT INTO t VALUES (2)")
        with consistent(reading, [card], 5.0) as (point, _):
            running.execute("COMMIT")
            (position,) = later.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone() or (0,)
            assert reading.execute("SELECT id FROM t").fetchall() == [(2,)]
    assert point.xmin == xid
    assert point.xip == (xid,)
    assert xid < point.xmax
    assert point.lsn < position


def test_a_snapshot_that_does_not_show_what_was_handed_out_is_taken_again(
    database: Database, taking: Snapshots
) -> None:
    """A commit may be handed out before it is visible: here it is when the first snapshot has been taken."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shape, outcome = taking.shape(definition_of(database.url, "t")), Outcome()
    with database.connect(autocommit=False) as writer:
        ((xid,),) = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        writer.execute("INSERT INTO t VALUES (1)")

        def shows_it(point: SnapshotPoint) -> bool:
            if point.shows(np.array([xid], np.uint64)).all():
                return True
            writer.commit()
            return False

        outcome.shows_enough = shows_it
        taking.start(shape, outcome)
        outcome.wait()
    assert outcome.told == ["known", "completed"]
    assert [value_of(row) for row in items_of(shape)[:-1]] == [{"id": "1"}]


def test_a_snapshot_that_never_shows_it_is_left_to_the_engine_after_a_while(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with snapshots(database.url, tmp_path, snapshot_lock_timeout="200ms") as taking:
        outcome = Outcome()
        outcome.shows_enough = lambda _point: False
        taking.start(taking.shape(definition_of(database.url, "t")), outcome)
        outcome.wait()
    assert outcome.told == ["known", "completed"]


def test_a_table_cannot_be_rewritten_or_truncated_between_the_snapshot_and_its_rows(
    database: Database,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1)")
    card = definition_of(database.url, "t").card
    with connect(database.url) as reading, consistent(reading, [card], 5.0):
        for statement in ("TRUNCATE t", "ALTER TABLE t ALTER id TYPE int8", "VACUUM FULL t"):
            with (
                database.connect(options="-c lock_timeout=50ms") as other,
                pytest.raises(psycopg.errors.LockNotAvailable),
            ):
                other.execute(statement.encode())


def test_a_locked_table_is_told_of_after_a_while(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    definition = definition_of(database.url, "t")
    with (
        snapshots(database.url, tmp_path / "shapes", snapshot_lock_timeout="200ms") as taking,
        database.connect(autocommit=False) as holding,
    ):
        holding.execute("LOCK TABLE t")
        problem = taking.problem(definition)
        assert (problem.status, problem.retry_after_s, problem.known) == (503, 10, True)
        assert problem.message == "Snapshot timed out while waiting for a table lock"
        holding.rollback()
        assert taking.items(definition) == []


@pytest.mark.parametrize("pooled", [False, True])
def test_a_statement_timeout_of_the_role_does_not_end_a_snapshot(
    database: Database, tmp_path: Path, pooled: bool
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role, url = database.create_role()
    database.execute(f"GRANT SELECT ON t TO {role}")
    database.execute(f"ALTER ROLE {role} SET statement_timeout = '1s'")
    urls = {"pooled_url": url} if pooled else {}
    outlived = (
        "SELECT 1 FROM pg_stat_activity "
        f"WHERE usename = '{role}' AND wait_event_type = 'Lock' AND now() - query_start > '1.5s'"
    )
    with (
        database.connect() as locker,
        snapshots(database.url if pooled else url, tmp_path, snapshot_lock_timeout="60s", **urls) as taking,
    ):
        shape = taking.shape(definition_of(database.url, "t"))
        locker.execute("BEGIN; LOCK TABLE t")
        outcome = taking.start(shape)
        wait_until(lambda: bool(outcome.told or database.query(outlived)), "a snapshot that waits for long")
        locker.execute("COMMIT")
        outcome.wait()
    assert outcome.problem is None, outcome.problem


def test_a_query_that_gives_nothing_is_ended_at_the_server_too(database: Database) -> None:
    connection = connect(database.url)
    with pytest.raises(SnapshotProblem) as caught:
        list(read_blocks(connection, sql.SQL("SELECT pg_sleep(600)::text"), 1, 0.3))
    state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
    pid = connection.info.backend_pid
    wait_until(lambda: database.query(state, (pid,)) != [("active",)], "the query to be cancelled")
    connection.close()
    assert caught.value.status == 503
    assert caught.value.message.startswith(
        "Snapshot query took too long to return data (cancelled after 300ms)"
    )


def test_what_the_role_may_not_read_is_told_without_a_word_of_the_query(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    definition = definition_of(database.url, "t")
    role, url = database.create_role()
    with snapshots(url, tmp_path / "shapes") as taking:
        problem = taking.problem(definition)
        assert (problem.status, problem.known) == (503, True)
        assert 'GRANT SELECT ON "public"."t"' in problem.message
        database.execute(f"GRANT SELECT ON t TO {role}")
        assert taking.items(definition) == []
        # Row-level security would leave rows out silently.
        database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        assert "BYPASSRLS" in taking.problem(definition).message


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE t"],
        ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, a text, b int)"],
        ["ALTER TABLE t RENAME TO u"],
        ["ALTER TABLE t DROP COLUMN a"],
        ["ALTER TABLE t RENAME COLUMN a TO c"],
        ["ALTER TABLE t ALTER COLUMN b TYPE int8"],
        ["ALTER TABLE t DROP CONSTRAINT t_pkey"],
        ["ALTER TABLE t ADD COLUMN c int"],  # the shape has all columns
    ],
)
def test_a_shape_is_never_filled_from_another_table_than_it_was_defined_on(
    database: Database, taking: Snapshots, statements: list[str]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
    definition = definition_of(database.url, "t", where="b > 1")
    assert taking.items(definition) == []  # what is known of the table from now on is not taken for granted
    for statement in statements:
        database.execute(statement)
    assert taking.problem(definition).status == 409
    assert taking.changed == [definition.table]


def test_a_condition_that_fails_for_a_row_names_no_value(database: Database, taking: Snapshots) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, secret text)")
    database.execute("INSERT INTO t VALUES (1, 'confidential')")
    problem = taking.problem(definition_of(database.url, "t", where="secret::int > 1"))
    assert problem.status == 500
    assert "confidential" not in problem.message


def test_shapes_that_wait_for_one_table_each_get_their_rows_whatever_becomes_of_the_others(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 5000) AS i")
    clauses = [f"id % 40 = {number}" for number in range(40)]
    clauses[7], clauses[11] = "a::int = 7", "id > 0"  # one that fails, and one of several blocks
    definitions = [definition_of(database.url, "t", where=clause) for clause in clauses]
    with snapshots(database.url, tmp_path / "shapes", db_pool_size=3) as taking, database.connect() as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        shapes = [taking.shape(definition) for definition in definitions]
        outcomes = [taking.start(shape) for shape in shapes]
        other.execute("COMMIT")
        for outcome in outcomes:
            outcome.wait()
        found = [items_of(shape) for shape in shapes]
    assert [number for number, outcome in enumerate(outcomes) if outcome.problem is not None] == [7]
    for number, items in enumerate(found):
        if number != 7:
            wanted = range(1, 5001) if number == 11 else range(number or 40, 5001, 40)
            assert [value_of(item)["id"] for item in items[:-1]] == [str(i) for i in wanted]
            assert items[-1]["headers"]["control"] == "snapshot-end"


def test_a_shape_that_is_gone_is_not_read(database: Database, taking: Snapshots) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shape = taking.shape(definition_of(database.url, "t"))
    shape.state = "gone"
    outcome = taking.start(shape)
    outcome.wait()
    assert outcome.told == ["failed"]


def test_connections_that_broke_meanwhile_are_opened_again(database: Database, taking: Snapshots) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    definition = definition_of(database.url, "t")
    assert taking.items(definition) == []
    ours = "FROM pg_stat_activity WHERE application_name = 'penstock shapes' AND datname = current_database()"
    database.execute(f"SELECT pg_terminate_backend(pid) {ours}")
    wait_until(lambda: not database.query(f"SELECT 1 {ours}"), "the connections to be gone")
    database.execute("INSERT INTO t VALUES (1)")
    assert len(taking.items(definition)) == 1


def test_no_server_at_all(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    definition = definition_of(database.url, "t")
    with snapshots("postgresql://nobody:secret@127.0.0.1:1/none", tmp_path / "shapes") as taking:
        problem = taking.problem(definition)
    assert (problem.status, problem.code, problem.retry_after_s) == (503, "database_unreachable", 10)
    assert problem.message == "Database is unreachable"


def test_rows_that_moved_in_come_with_their_keys_and_the_columns_that_are_asked_for_beside(
    database: Database, taking: Snapshots, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO t SELECT i, 'x/' || i FROM generate_series(1, 3000) AS i")
    definition = definition_of(database.url, "t", where="a <> 'never asked'")
    points: list[SnapshotPoint] = []
    found: dict[str, dict[str, Any]] = {}

    def rows(moved: MovedRows) -> None:
        lines = moved.lines
        assert moved.columns["a"].to_pylist() == [
            json.loads(line)["value"]["a"] for line in lines.content.splitlines()
        ]
        ends = [0, *lines.key_ends.tolist()]
        keys = [lines.keys[start:end].decode() for start, end in itertools.pairwise(ends)]
        assert lines.ends.tolist()[-1] == len(lines.content)
        found.update(zip(keys, map(json.loads, lines.content.splitlines()), strict=True))

    moves = MoveIns(taking.pools.queries, settings_for(database.url, tmp_path), taking.earlier)
    count = moves.read(definition, sql.SQL("id <= 2500"), ["a"], points.append, rows).result(WAIT_S)
    assert count == len(found) == 2500
    assert len(points) == 1
    assert found['"public"."t"/"7"'] == {
        "key": '"public"."t"/"7"',
        "value": {"id": "7", "a": "x/7"},
        "headers": {"operation": "insert", "relation": ["public", "t"], "is_move_in": True},
    }

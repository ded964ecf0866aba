"""Shapes with subqueries on a real source: what a client makes of them is what the condition says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.shapes.engine import collector
from penstock.shapes.shape import Shape
from penstock.shapes.source.subset import SubsetReader, SubsetRequest, define_subset
from penstock.shapes.subquery import layers
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, new_database, wait_until
from tests.event_client import EventClient
from tests.live_lane import LiveLane, items_of, shapes_capture

pytestmark = pytest.mark.integration

SCHEMA = """
CREATE TABLE teams (id int PRIMARY KEY, kind text);
CREATE TABLE users (id int PRIMARY KEY, team int, flag boolean NOT NULL DEFAULT false);
CREATE TABLE items (id int PRIMARY KEY, owner int, other int, note text);
INSERT INTO teams SELECT n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END FROM generate_series(1, 6) AS n;
INSERT INTO users SELECT n, 1 + n % 6, n % 3 = 0 FROM generate_series(1, 30) AS n;
INSERT INTO items SELECT n, 1 + n % 30, 1 + n % 7, (n % 2)::text FROM generate_series(1, 300) AS n;
"""
TEAM_A = "SELECT id FROM teams WHERE kind = 'a'"
CONDITIONS = [
    "owner IN (SELECT id FROM users WHERE flag)",
    "owner NOT IN (SELECT id FROM users WHERE flag)",
    f"owner IN (SELECT id FROM users WHERE team IN ({TEAM_A}))",
    f"owner IN (SELECT id FROM users WHERE team NOT IN ({TEAM_A})) AND note = '1'",
    f"owner IN (SELECT id FROM users WHERE flag) OR other IN ({TEAM_A}) AND note LIKE '0%'",
    "(owner, other) IN (SELECT id, team FROM users)",
    f"NOT (other IN ({TEAM_A}) OR note = '1')",
]


@pytest.fixture(scope="module")
def live(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveLane]:
    state = tmp_path_factory.mktemp("live")
    with (
        new_database(server) as database,
        shapes_capture(database, state) as capture,
        LiveLane(database, state, capture.capture.address) as running,
    ):
        database.execute(SCHEMA)
        running.wait_until_following()
        yield running


def followed(shape: Shape) -> dict[str, dict[str, Any]]:
    client = EventClient()
    client.take(items_of(shape))
    return client.rows


def selected(database: Database, where: str) -> dict[str, dict[str, Any]]:
    key = """'"public"."items"/"' || id || '"'"""
    row = "jsonb_build_object('id', id::text, 'owner', owner::text, 'other', other::text, 'note', note)"
    return dict(database.query(f"SELECT {key}, {row} FROM items WHERE {where}"))


def wait_until_equal(shape: Shape, database: Database, where: str) -> None:
    def is_equal() -> bool:
        assert shape.state != "gone", shape.error
        return followed(shape) == selected(database, where)

    wait_until(is_equal, f"the shape to be what {where} selects")


CHANGES = [
    "UPDATE users SET flag = NOT flag WHERE id % 4 = 0",
    "UPDATE teams SET kind = CASE kind WHEN 'a' THEN 'b' ELSE 'a' END WHERE id <= 3",
    "BEGIN; UPDATE users SET team = 1 + (team + 1) % 6 WHERE id < 10; "
    "UPDATE items SET owner = 1 + (owner + 3) % 30 WHERE id < 50; DELETE FROM teams WHERE id = 2; "
    "INSERT INTO items VALUES (1000, 4, 4, '0'), (1001, NULL, 4, '1'); COMMIT",
    "DELETE FROM users WHERE id BETWEEN 5 AND 9",
    "INSERT INTO users VALUES (5, 4, true), (6, 2, true)",
    "UPDATE items SET id = id + 5000 WHERE id % 50 = 0",
    "INSERT INTO teams VALUES (2, 'a')",
]


def test_shapes_follow_what_their_subqueries_select(live: LiveLane) -> None:
    database = live.database
    shapes = {where: live.ready("items", where=where) for where in CONDITIONS}
    for where, shape in shapes.items():
        wait_until_equal(shape, database, where)
    for change in CHANGES:
        database.execute(change)
        for where, shape in shapes.items():
            wait_until_equal(shape, database, where)
    tracker = live.lane.engine.collector.delivery.tracker
    wait_until(lambda: tracker.is_level, "all that was told to be on disk")


def fresh(database: Database, table: str) -> str:
    """A small outer table and its inner one, for tests that break something."""
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, owner text);"
        f"CREATE TABLE {table}_owners (id int PRIMARY KEY, name text);"
        f"INSERT INTO {table}_owners SELECT n, 'o/' || n FROM generate_series(1, 5) AS n;"
        f"INSERT INTO {table} SELECT n, 'o/' || n FROM generate_series(1, 9) AS n"
    )
    return f"owner IN (SELECT name FROM {table}_owners)"


def wait_until_gone(shape: Shape) -> None:
    wait_until(lambda: shape.state == "gone", "the shape to be gone")


def test_a_truncated_inner_table_ends_the_shape(live: LiveLane) -> None:
    shape = live.ready("truncated", where=fresh(live.database, "truncated"))
    live.database.execute("TRUNCATE truncated_owners")
    wait_until_gone(shape)


def ids(rows: dict[str, dict[str, Any]]) -> set[str]:
    return {row["id"] for row in rows.values()}


def test_a_null_among_what_not_in_asks_about_takes_all_rows_until_it_goes(live: LiveLane) -> None:
    where = fresh(live.database, "nulled").replace(" IN ", " NOT IN ")
    shape = live.ready("nulled", where=where)
    assert ids(followed(shape)) == {"6", "7", "8", "9"}
    for change, expected in (
        ("INSERT INTO nulled_owners VALUES (100, NULL)", set()),
        ("INSERT INTO nulled VALUES (10, NULL), (11, 'x')", set()),
        ("DELETE FROM nulled_owners WHERE id = 100 OR id = 3", {"3", "6", "7", "8", "9", "11"}),
        ("UPDATE nulled_owners SET name = NULL WHERE id = 1", set()),
        ("DELETE FROM nulled_owners", {str(n) for n in range(1, 12)}),
    ):
        live.database.execute(change)
        wait_until(lambda expected=expected: ids(followed(shape)) == expected, change)  # type: ignore[misc]
    assert shape.state == "ready"


def test_a_value_that_goes_and_comes_in_one_transaction_has_not_moved(
    live: LiveLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = live.ready("rocked", where=fresh(live.database, "rocked"))
    monkeypatch.setattr(collector, "_PORTION_BYTES", 1)  # as if each row were a large one
    live.database.execute(
        "UPDATE rocked_owners SET name = 'x' WHERE id = 2; "
        "UPDATE rocked_owners SET name = 'o/2' WHERE id = 2; "
        "DELETE FROM rocked WHERE id = 3"
    )
    wait_until(lambda: ids(followed(shape)) == {"1", "2", "4", "5"}, "the row to be deleted")
    live.database.execute("INSERT INTO rocked_owners VALUES (6, 'o/6')")
    wait_until(lambda: ids(followed(shape)) == {"1", "2", "4", "5", "6"}, "the row that comes in")
    assert [item["headers"]["event"] for item in items_of(shape) if "event" in item["headers"]] == ["move-in"]


def test_a_subquery_that_decides_nothing_harms_nobody(live: LiveLane) -> None:
    where = fresh(live.database, "idle")
    live.database.execute("CREATE TABLE idle_other (id int PRIMARY KEY)")
    shape = live.ready("idle", where=f"{where} OR {where} AND id IN (SELECT id FROM idle_other)")
    live.database.execute("INSERT INTO idle_other VALUES (1)")
    live.database.execute("INSERT INTO idle_owners VALUES (6, 'o/6')")
    wait_until(lambda: ids(followed(shape)) == {"1", "2", "3", "4", "5", "6"}, "the rows that come in")


def test_what_a_transaction_changes_is_kept_once_for_all_shapes(
    live: LiveLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = fresh(live.database, "bulky")
    shapes = [live.ready("bulky", where=f"{where} AND id > {n}") for n in range(8)]
    monkeypatch.setattr(layers, "_WAITING_BYTES_MAX", 4 << 20)  # of which the change takes a good part
    live.database.execute(
        "UPDATE bulky SET owner = 'o/1'; INSERT INTO bulky SELECT n, repeat('x', 900) "
        "FROM generate_series(10, 1000) AS n"
    )
    for n, shape in enumerate(shapes):
        expected = {str(i) for i in range(n + 1, 10)}
        wait_until(lambda s=shape, e=expected: s.state == "gone" or ids(followed(s)) == e, "all to be told")  # type: ignore[misc]
        assert shape.state == "ready"


def test_a_shape_ends_if_too_much_comes_before_its_rows(
    live: LiveLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = live.ready("slow", where=fresh(live.database, "slow"))
    subqueries = live.lane.engine.subqueries
    with monkeypatch.context() as patched:
        patched.setattr(subqueries.layers, "_transactions_max", 3)
        patched.setattr(subqueries.moves, "read", lambda *_asked: Future())
        live.database.execute("INSERT INTO slow_owners VALUES (6, 'o/6')")
        for number in range(10, 15):
            live.database.execute(f"INSERT INTO slow VALUES ({number}, 'o/1')")
        wait_until_gone(shape)
    again = live.ready("slow", where="owner IN (SELECT name FROM slow_owners)")
    assert ids(followed(again)) == {*map(str, range(1, 7)), *map(str, range(10, 15))}


def test_a_subset_has_what_events_need(live: LiveLane) -> None:
    where = fresh(live.database, "partly")
    shape = live.ready("partly", where=where)
    lane = live.lane
    reader = SubsetReader(lane.pools.queries, lane._settings, row_headers=lane.engine.subqueries.headers)
    subset = define_subset(shape.definition, SubsetRequest(where="id < 3", order_by="id"))
    answer = reader.read(shape.definition, subset, shape).result(120)
    told = {item["key"]: item["headers"] for item in json.loads(b"".join(answer.pieces()))["data"]}
    answer.close()
    first = {item["key"]: item["headers"] for item in items_of(shape)[:2]}
    assert len(told) == 2
    for key, headers in told.items():
        assert {**first[key], "snapshot_mark": headers["snapshot_mark"]} == headers


def test_what_a_client_asks_for_is_its_own_though_it_was_made_for_a_subquery(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(server) as database, shapes_capture(database, tmp_path) as capture:
        where = fresh(database, "shared")
        with LiveLane(database, tmp_path, capture.capture.address) as lane:
            lane.wait_until_following()
            outer = lane.ready("shared", where=where)
            inner = lane.ready("shared_owners", columns="id,name")
            assert not inner.hidden
            lane.lane.engine.submit(lambda: None).result()
        with LiveLane(database, tmp_path, capture.capture.address) as lane:
            registry = lane.lane.engine.registry
            again = registry.find(inner.handle)
            assert again is not None
            assert not again.hidden
            assert registry.find(outer.handle) is not None
            assert again not in registry.longest_unread(10)


def test_inner_shapes_go_with_the_last_shape_that_needs_them(live: LiveLane) -> None:
    where = fresh(live.database, "needed")
    shapes = [live.ready("needed", where=where), live.ready("needed", where=f"{where} AND id > 3")]
    registry = live.lane.engine.registry

    def inner() -> list[Shape]:
        return [shape for shape in registry.all() if shape.definition.table.name == "needed_owners"]

    (found,) = inner()
    assert found.hidden
    for left, shape in zip([1, 0], shapes, strict=True):
        live.lane.engine.submit(lambda shape=shape: live.lane.engine.drop(shape, "test")).result()  # type: ignore[misc]
        assert len(inner()) == left


def test_rows_are_told_with_tags_and_events_name_them(live: LiveLane) -> None:
    where = f"{fresh(live.database, 'told')} AND id < 8"
    shape = live.ready("told", where=where)
    names = ["insert"] * 5 + ["snapshot-end"]

    def is_told(wanted: list[str]) -> bool:
        found = [item["headers"] for item in items_of(shape)]
        return [each.get("operation") or each.get("event") or each["control"] for each in found] == wanted

    for change, more in (
        ("DELETE FROM told_owners WHERE id = 1", ["move-out"]),
        ("INSERT INTO told_owners VALUES (6, 'o/6')", ["move-in", "insert", "snapshot-end"]),
        ("UPDATE told SET owner = 'o/2' WHERE id = 6", ["update"]),
    ):
        live.database.execute(change)
        names += more
        wait_until(partial(is_told, list(names)), f"{more} to be told")
    items = items_of(shape)
    headers = [item["headers"] for item in items]
    tags = {item["value"]["id"]: item["headers"]["tags"] for item in items[:5]}
    salt = live.lane.engine.subqueries.layers.salt(shape)
    hashed = {n: hashlib.md5(f"{salt}v:o/{n}".encode()).hexdigest() for n in range(1, 10)}
    assert tags == {str(n): [f"1/{hashed[n]}"] for n in range(1, 6)}
    assert all(each["active_conditions"] == [True, True] for each in headers[:5])
    assert headers[6]["patterns"] == [{"pos": 1, "value": hashed[1]}]
    assert headers[7]["patterns"] == [{"pos": 1, "value": hashed[6]}]
    assert len(headers[6]["txids"]) == len(headers[7]["txids"]) == 1
    assert headers[8]["is_move_in"]
    assert headers[8]["tags"] == [f"1/{hashed[6]}"]
    assert headers[10]["tags"] == [f"1/{hashed[2]}"]
    assert headers[10]["removed_tags"] == [f"1/{hashed[6]}"]


def test_shapes_and_what_they_hold_outlive_the_lane(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with new_database(server) as database, shapes_capture(database, tmp_path) as capture:
        database.execute(SCHEMA)
        address = capture.capture.address
        with LiveLane(database, tmp_path, address) as lane:
            lane.wait_until_following()
            handles = {where: lane.ready("items", where=where).handle for where in CONDITIONS}
            for change in CHANGES[:2]:
                database.execute(change)
        database.execute(CHANGES[2])
        with LiveLane(database, tmp_path, address) as lane:
            registry = lane.lane.engine.registry
            shapes = {where: registry.find(handle) for where, handle in handles.items()}
            for change in CHANGES[3:]:
                database.execute(change)
            for where, shape in shapes.items():
                assert shape is not None
                wait_until_equal(shape, database, where)


ODD = """
CREATE TYPE mood AS ENUM ('so', 'so-so');
CREATE TABLE odd_inner (
    id int PRIMARY KEY, a text, b boolean, c timestamptz, d bigint, e uuid, f mood, g bytea
);
CREATE TABLE odd (LIKE odd_inner INCLUDING ALL, n int);
INSERT INTO odd_inner VALUES
    (1, 'a/"b"\\ü{}%', true, '2024-02-29 12:00:00.5+02', -1, gen_random_uuid(), 'so', '\\x00ff'),
    (2, '', false, '0044-03-15 00:00+00 BC', 9223372036854775807, gen_random_uuid(), 'so-so', ''),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO odd SELECT id, a, b, c, d, e, f, g, 1 FROM odd_inner;
INSERT INTO odd SELECT 10 + id, a, NULL, c, NULL, e, f, g, 1 FROM odd_inner;
"""


def test_values_of_all_kinds_are_told_alike_by_snapshots_changes_and_moves(live: LiveLane) -> None:
    database = live.database
    database.execute(ODD)
    one = [f"{column} IN (SELECT {column} FROM odd_inner)" for column in "abcdefg"]
    two = "(a, d) IN (SELECT a, d FROM odd_inner WHERE id > 0)"
    shape = live.ready("odd", where=" OR ".join([*one, two]))

    def tags() -> dict[str, dict[str, list[str]]]:
        """By key, the last that were told by an insert, by a move and by an update."""
        found: dict[str, dict[str, list[str]]] = {}
        for item in items_of(shape):
            headers = item["headers"]
            if "tags" in headers:
                kind = "move" if headers.get("is_move_in") else headers["operation"]
                found.setdefault(item["key"], {})[kind] = headers["tags"]
        return found

    def keys() -> set[str]:
        return {f'"public"."odd"/"{n}"' for n in (1, 2, 11, 12)}

    wait_until(lambda: set(tags()) == keys(), "the first rows")
    database.execute("UPDATE odd SET n = 2")
    wait_until(lambda: all("update" in each for each in tags().values()), "the updates")
    database.execute("CREATE TABLE odd_kept AS TABLE odd_inner; DELETE FROM odd_inner")
    wait_until(lambda: shape.state == "gone" or followed(shape) == {}, "all to move out")
    database.execute("INSERT INTO odd_inner TABLE odd_kept")
    wait_until(lambda: all("move" in each for each in tags().values()), "all to move in")
    for told in tags().values():
        assert told["insert"] == told["update"] == told["move"]
    assert set(followed(shape)) == keys()

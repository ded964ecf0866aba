"""Shapes with subqueries on a real source: what a client makes of events and rows is what the condition says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.shapes.shape import Shape
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
    "BEGIN; UPDATE users SET team = 1 + (team + 1) % 6 WHERE id < 10; UPDATE items SET owner = 1 + (owner + 3) % 30 "
    "WHERE id < 50; DELETE FROM teams WHERE id = 2; INSERT INTO items VALUES (1000, 4, 4, '0'), (1001, NULL, 4, '1'); COMMIT",
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

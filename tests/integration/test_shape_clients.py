"""The published clients, unmodified, against `penstock shapes serve`: their rows equal a SELECT."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, new_database
from tests.serving import ShapeServer
from tests.shape_client import Row, ShapeClient, State

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared(server: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(server) as created:
        yield created


@pytest.fixture(scope="module")
def shapes(shared: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShapeServer]:
    with ShapeServer(shared.url, tmp_path_factory.mktemp("shapes"), secret="s3cret") as started:
        started.wait_until_active()
        yield started


@pytest.fixture(scope="module")
def client() -> Iterator[ShapeClient]:
    with ShapeClient() as started:
        yield started


@pytest.fixture
def items(shared: Database) -> tuple[Database, str]:
    """A table of this test's own, and its name."""
    table = f"items_{secrets.token_hex(4)}"
    shared.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text, done bool NOT NULL, size int8)")
    shared.execute(
        f"INSERT INTO {table} "
        "SELECT i, 'note ' || i, i % 2 = 0, i * 10000000000 FROM generate_series(1, 20) AS i"
    )
    return shared, table


def selected(database: Database, query: str) -> list[Row]:
    """Rows as the client gives them; int8 is a BigInt there, and text on our line."""
    with database.connect() as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        rows = cursor.execute(query.encode()).fetchall()
    for row in rows:
        if row.get("size") is not None:
            row["size"] = str(row["size"])
    return by_id(rows)


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


def options(shapes: ShapeServer, table: str, **params: Any) -> dict[str, Any]:
    return {"url": shapes.shape_url, "params": {"table": table, "secret": "s3cret", **params}}


def write(database: Database, table: str) -> None:
    """A little of everything, in one transaction and in several."""
    database.execute(f"UPDATE {table} SET note = note || '!' WHERE id <= 3")
    database.execute(f"DELETE FROM {table} WHERE id = 4")
    with database.connect(autocommit=False) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (100, NULL, true, NULL)".encode())
        connection.execute(f"UPDATE {table} SET id = 101, done = false WHERE id = 5".encode())
        connection.execute(f"UPDATE {table} SET note = 'tab\t, \"quote\" \\ ü €' WHERE id = 6".encode())


@pytest.mark.parametrize("way", ["long poll", "server-sent events", "the hook of React"])
def test_rows_are_synced_and_follow_what_is_written(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient, way: str
) -> None:
    database, table = items
    sse = way == "server-sent events"
    client.open(table, hook="React" in way, liveSse=sse, **options(shapes, table))
    query = f"SELECT * FROM {table}"
    client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "the first rows")
    write(database, table)
    state = client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "the changes")
    client.close(table)
    assert {request["status"] for request in state["requests"]} == {200}
    assert any(request["live"] for request in state["requests"])
    assert any("text/event-stream" in (each["type"] or "") for each in state["requests"]) == sse
    inserted = [
        message["key"]
        for message in client.messages(table)
        if message["headers"].get("operation") == "insert"
    ]
    assert len(set(inserted)) == len(inserted), "no row is inserted twice"


@pytest.mark.parametrize("sse", [False, True], ids=["long poll", "server-sent events"])
def test_a_client_resumes_by_offset_and_handle(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient, sse: bool
) -> None:
    database, table = items
    client.open(table, **options(shapes, table))
    before = client.wait(table, lambda now: len(now["rows"]) == 20 and now["up_to_date"], "the first rows")
    client.close(table)
    database.execute(f"INSERT INTO {table} VALUES (21, 'while away', false, 1)")
    again = f"{table} again"
    resumed = {"offset": before["offset"], "handle": before["handle"], "liveSse": sse}
    client.open(again, **resumed, **options(shapes, table))
    client.wait(again, lambda now: [row["id"] for row in now["rows"]] == [21], "what was missed alone")
    database.execute(f"INSERT INTO {table} VALUES (22, 'live', false, 1)")
    state = client.wait(again, lambda now: len(now["rows"]) == 2, "what is written from then on")
    client.close(again)
    assert state["handle"] == before["handle"]
    assert {request["status"] for request in state["requests"]} == {200}


def test_nothing_comes_twice_when_a_stream_of_events_is_cut_after_a_transaction(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient
) -> None:
    """The client goes on at the first operation of what it was told to have seen."""
    database, table = items
    client.open(table, liveSse=True, **options(shapes, table))
    client.wait(table, lambda now: bool(streams(now)), "a stream of events")
    database.execute(f"INSERT INTO {table} SELECT i, 'together', true, i FROM generate_series(21, 25) AS i")
    before = client.wait(table, lambda now: len(now["rows"]) == 25 and now["up_to_date"], "all five")
    shapes.kill_and_await("shapes")
    database.execute(f"INSERT INTO {table} VALUES (26, 'after', true, 26)")
    state = client.wait(table, lambda now: len(now["rows"]) == 26, "what was written since")
    client.close(table)
    assert len(streams(state)) > len(streams(before)), "it has asked for another stream"
    keys = [message["key"] for message in client.messages(table) if "key" in message]
    assert len(keys) == len(set(keys)) == 26
    # 503 is for who comes again before the log was read up to where it was (correctness 43).
    assert {200} <= {request["status"] for request in state["requests"]} <= {200, 503}


def streams(state: State) -> list[dict[str, Any]]:
    return [each for each in state["requests"] if "text/event-stream" in (each["type"] or "")]


def test_chosen_columns_and_conditions_with_parameters(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient
) -> None:
    database, table = items
    chosen = {"columns": ["id", "note"], "where": "done = $1 AND id > $2", "params": ["true", "4"]}
    client.open(table, **options(shapes, table, **chosen))
    query = f"SELECT id, note FROM {table} WHERE done AND id > 4"
    client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "the first rows")
    write(database, table)
    database.execute(f"UPDATE {table} SET done = NOT done WHERE id BETWEEN 10 AND 13")
    client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "rows in and out")
    client.close(table)


def test_a_full_replica_has_whole_rows_and_old_values(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient
) -> None:
    database, table = items
    client.open(table, **options(shapes, table, replica="full"))
    client.wait(table, lambda now: now["up_to_date"], "the first rows")
    database.execute(f"UPDATE {table} SET note = 'new' WHERE id = 7")
    database.execute(f"DELETE FROM {table} WHERE id = 8")
    client.wait(table, lambda now: len(now["rows"]) == 19, "the changes")
    client.close(table)
    of = {
        message["headers"]["operation"]: message
        for message in client.messages(table)
        if "operation" in message["headers"]
    }
    whole = {"id": 7, "note": "new", "done": False, "size": "70000000000"}
    assert (of["update"]["value"], of["update"]["old_value"]) == (whole, {"note": "note 7"})
    assert of["delete"]["value"] == {"id": 8, "note": "note 8", "done": True, "size": "80000000000"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_subsets_are_asked_for_when_only_changes_are_followed(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient, method: str
) -> None:
    database, table = items
    client.open(table, log="changes_only", **options(shapes, table))
    client.wait(table, lambda now: now["up_to_date"], "the stream to be up to date")
    assert client.state(table)["rows"] == []
    client.snapshot(table, where="id > $1", params={"1": "10"}, orderBy="id DESC", limit=5, method=method)
    query = f"SELECT * FROM {table} WHERE id > 15"
    client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "the subset")
    database.execute(f"UPDATE {table} SET note = 'changed' WHERE id IN (1, 17)")
    database.execute(f"INSERT INTO {table} VALUES (30, 'new', true, 3)")
    wanted = f"SELECT * FROM {table} WHERE id > 15"
    state = client.wait(table, lambda now: by_id(now["rows"]) == selected(database, wanted), "its changes")
    client.close(table)
    asked = [each for each in state["requests"] if each["subset"] or each["method"] == "POST"]
    # Of a GET the client asks for what may come after it, before anybody wants it.
    assert {each["method"] for each in asked} == {method}


@pytest.mark.parametrize("sse", [False, True], ids=["long poll", "server-sent events"])
def test_a_client_fetches_anew_when_it_must(
    items: tuple[Database, str], shapes: ShapeServer, client: ShapeClient, sse: bool
) -> None:
    database, table = items
    client.open(table, liveSse=sse, **options(shapes, table))
    before = client.wait(table, lambda now: len(now["rows"]) == 20, "the first rows")
    database.execute(f"TRUNCATE {table}")
    database.execute(f"INSERT INTO {table} VALUES (1, 'after', false, 1)")
    query = f"SELECT * FROM {table}"
    state = client.wait(table, lambda now: by_id(now["rows"]) == selected(database, query), "the new rows")
    client.close(table)
    assert 409 in {request["status"] for request in state["requests"]}
    assert state["handle"] != before["handle"]


def test_a_table_in_many_chunks_is_the_same_table(
    shared: Database, client: ShapeClient, tmp_path: Path
) -> None:
    shared.execute("CREATE TABLE chunked (id int PRIMARY KEY, note text)")
    shared.execute("INSERT INTO chunked SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    environment = {"ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD": "10000"}
    with ShapeServer(shared.url, tmp_path, environment=environment) as server:
        server.wait_until_active()
        client.open("chunked", url=server.shape_url, params={"table": "chunked"})
        state = client.wait("chunked", lambda now: len(now["rows"]) == 1000, "all rows")
        assert len(state["requests"]) > 10
        shared.execute("UPDATE chunked SET note = 'y' || note")
        client.wait(
            "chunked", lambda now: all(row["note"][0] == "y" for row in now["rows"]), "every row to change"
        )
        client.close("chunked")

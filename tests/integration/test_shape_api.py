"""The wire contract against a real server process and a real Postgres: types, rows, refusals, attacks."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from penstock.core.stream import StreamId
from penstock.shapes.source.catalog import Catalog, read_cards
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, wait_until
from tests.serving import Answer, ShapeServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shop(server: EmbeddedPostgres) -> Iterator[Database]:
    """One database for all tests here: each has tables of its own."""
    database = Database(f"shapes_{secrets.token_hex(4)}", server)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database.name}".encode())
    yield database
    database.drop()


@pytest.fixture(scope="module")
def shapes(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShapeServer]:
    environment = {"ELECTRIC_ENABLE_INTEGRATION_TESTING": "true", "ELECTRIC_LONG_POLL_TIMEOUT": "4000"}
    directory: Path = tmp_path_factory.mktemp("shapes")
    with ShapeServer(shop.url, directory, secret="s3cret", environment=environment) as server:
        server.wait_until_active()
        yield server


def messages(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    return [each for each in answer.json() if "key" in each]


def synced(shapes: ShapeServer, **shape: str) -> tuple[Answer, list[dict[str, Any]]]:
    """From the beginning to up-to-date."""
    answer = shapes.get(**shape, offset="-1")
    found = messages(answer)
    while "electric-up-to-date" not in answer.headers:
        answer = shapes.get(**shape, offset=answer.offset, handle=answer.handle)
        found += messages(answer)
    return answer, found


def test_the_header_tells_every_column_s_type(shop: Database, shapes: ShapeServer) -> None:
    shop.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    shop.execute("CREATE DOMAIN short AS varchar(5)")
    shop.execute(
        "CREATE TABLE typed (b int8 NOT NULL, a uuid, v varchar(20), c char(3), n numeric(10,2),"
        " t timestamptz(3), i interval YEAR TO MONTH, m mood, d short, l int4[], ll text[][], vb varbit(9),"
        " j jsonb, PRIMARY KEY (a, b))"
    )
    schema = json.loads(shapes.get(table="typed", offset="-1").headers["electric-schema"])
    assert schema == {
        "b": {"type": "int8", "not_null": True, "pk_index": 1},
        "a": {"type": "uuid", "not_null": True, "pk_index": 0},
        "v": {"type": "varchar", "max_length": 20},
        "c": {"type": "bpchar", "length": 3},
        "n": {"type": "numeric", "precision": 10, "scale": 2},
        "t": {"type": "timestamptz", "precision": 3},
        "i": {"type": "interval", "fields": "YEAR TO MONTH"},
        "m": {"type": "mood"},
        "d": {"type": "short"},
        "l": {"type": "int4", "dims": 1},
        "ll": {"type": "text", "dims": 2},
        "vb": {"type": "varbit", "length": 9},
        "j": {"type": "jsonb"},
    }
    narrow = shapes.get(table="typed", offset="-1", columns="a,b,v").headers["electric-schema"]
    assert list(json.loads(narrow)) == ["b", "a", "v"]


def test_a_shape_follows_its_table(shop: Database, shapes: ShapeServer) -> None:
    table, value = '"Odd Names"', '"the ""value"""'
    shop.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {value} text, more int)")
    shop.execute(f"INSERT INTO {table} VALUES (1, 'one', 1), (2, 'a\"b\\c', NULL), (3, 'out', 3)")
    shape = {"table": table, "where": f"{value} <> $1", "params[1]": "out", "columns": f"id,{value}"}
    last, first = synced(shapes, **shape)
    assert [each["value"] for each in first] == [
        {"id": "1", 'the "value"': "one"},
        {"id": "2", 'the "value"': 'a"b\\c'},
    ]
    assert all(
        each["headers"] == {"operation": "insert", "relation": ["public", "Odd Names"]} for each in first
    )
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            lambda: shapes.get(**shape, offset=last.offset, handle=last.handle, live="true")
        )
        shop.execute(f"UPDATE {table} SET {value} = 'in' WHERE id = 3")
        answer = waiting.result()
    (message,) = messages(answer)
    assert message["key"] == '"public"."Odd Names"/"3"'
    assert message["value"] == {"id": "3", 'the "value"': "in"}
    headers = message["headers"]
    assert (headers["operation"], headers["last"]) == ("insert", True)
    assert answer.offset == f"{headers['lsn']}_{headers['op_position']}"
    assert answer.json()[-1]["headers"] == {"control": "up-to-date", "global_last_seen_lsn": headers["lsn"]}

    shop.execute(f"UPDATE {table} SET more = 5 WHERE id = 1")  # none of the shape's columns
    shop.execute(f"UPDATE {table} SET {value} = 'out' WHERE id = 1")
    answer = shapes.get(**shape, offset=answer.offset, handle=answer.handle, live="true")
    (message,) = messages(answer)
    assert (message["headers"]["operation"], message["value"]) == ("delete", {"id": "1"})


def test_events_resume_without_a_change_coming_twice(shop: Database, shapes: ShapeServer) -> None:
    shop.execute("CREATE TABLE five (id int PRIMARY KEY)")
    last, _ = synced(shapes, table="five")
    offset, seen = last.offset, []
    for number in range(2):
        shop.execute(f"INSERT INTO five SELECT {number * 10} + i FROM generate_series(1, 5) AS i")
        stream = _events(shapes, table="five", offset=offset, handle=last.handle)
        lsn = None
        for event in stream:
            if "key" in event:
                seen.append(event["value"]["id"])
            elif event["headers"]["control"] == "up-to-date":
                lsn = event["headers"]["global_last_seen_lsn"]
                if len(seen) == 5 * (number + 1):
                    break
        offset = f"{lsn}_0"
    assert seen == [str(number * 10 + i) for number in range(2) for i in range(1, 6)]
    again = shapes.get(table="five", offset=offset, handle=last.handle, live="true")
    assert messages(again) == []


def _events(shapes: ShapeServer, **parameters: str) -> Iterator[dict[str, Any]]:
    """Messages of one stream, until it is left."""
    given = {**parameters, "secret": "s3cret", "live": "true", "live_sse": "true"}
    connection = http.client.HTTPConnection("127.0.0.1", shapes.port, timeout=120)
    try:
        connection.request("GET", f"/v1/shape?{urlencode(given)}")
        answer = connection.getresponse()
        assert answer.headers["content-type"] == "text/event-stream"
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def test_what_is_no_table_or_column_is_refused(shop: Database, shapes: ShapeServer) -> None:
    shop.execute("CREATE TABLE plain (id int PRIMARY KEY, v text)")
    shop.execute("CREATE TABLE virtual (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    shop.execute("CREATE VIEW looked AS SELECT * FROM plain")
    shop.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")

    def errors(**parameters: str) -> Any:
        answer = shapes.get(offset="-1", **parameters)
        assert answer.status == 400
        assert answer.json()["message"] == "Invalid request"
        return answer.json()["errors"]

    assert errors(table="nope")["table"][0].startswith('Table "public"."nope" does not exist. If the table')
    for name in ("looked", "unlogged", "pg_catalog.pg_authid", "information_schema.tables"):
        assert list(errors(table=name)) == ["table"]
    for columns in ({}, {"columns": "id"}, {"columns": "id,g"}):
        assert "virtual generated columns (g)" in errors(table="virtual", **columns)["table"][0]
    assert errors(table="plain", columns="v") == {
        "columns": ["The list of columns must include all primary key columns, missing: id"]
    }
    plain = {"table": "plain", "columns": "id,v"}
    assert errors(**plain, where="1 x 1") == {"where": ['At location 17: syntax error at or near "x"']}
    assert errors(**plain, where="x" * 70_000)["where"][0]
    # A table that was not there a moment ago is found once it is.
    shop.execute("CREATE TABLE nope (id int PRIMARY KEY)")
    assert shapes.get(table="nope", offset="-1").status == 200


ATTACKS = [
    "'; DROP TABLE guarded; --",
    "1=1; DROP TABLE guarded",
    "true) OR pg_sleep(5) IS NULL --",
    "pg_sleep(5) IS NULL",
    "(SELECT secret FROM guarded_secrets) = 'x'",
    "id = (SELECT 1 FROM pg_authid)",
    "id IN (SELECT usesysid FROM pg_shadow)",
    "EXISTS (SELECT 1 FROM guarded_secrets)",
    "current_user = 'postgres'",
    "set_config('x.y', 'z', false) = 'z'",
    "dblink('x', 'y') IS NULL",
    "lo_import('/etc/passwd') > 0",
    "id::regclass::text = 'x'",
    "v = E'\\'; DROP TABLE guarded; --'",
    "v = $a$'; DROP TABLE guarded; --$a$",
    "v = 'x' UNION SELECT secret FROM guarded_secrets",
    "v = 'x' -- comment\nOR true",
    "v LIKE '%' ESCAPE '\\' ; SELECT 1",
    "/* */ id = 1 /* ; DROP TABLE guarded */",
    "id = 1 LIMIT 1",
    'id = 1 ORDER BY "v"; DELETE FROM guarded',
    "\x00",
    "v = '\u0000'",
    "v = U&'\\0027; DROP TABLE guarded; --'",
]


#: They read like an attack, and are conditions on `v` and `id` alone.
HARMLESS = {
    "v = E'\\'; DROP TABLE guarded; --'",
    "v = $a$'; DROP TABLE guarded; --$a$",
    "v = 'x' -- comment\nOR true",
    "/* */ id = 1 /* ; DROP TABLE guarded */",
    "v = U&'\\0027; DROP TABLE guarded; --'",
}


def test_attacks_change_nothing_and_learn_nothing(shop: Database, shapes: ShapeServer) -> None:
    shop.execute("CREATE TABLE guarded (id int PRIMARY KEY, v text)")
    shop.execute("INSERT INTO guarded VALUES (1, 'kept')")
    shop.execute("CREATE TABLE guarded_secrets (id int PRIMARY KEY, secret text)")
    shop.execute("INSERT INTO guarded_secrets VALUES (1, 'hidden value')")
    asked = 0
    for attack in ATTACKS:
        for parameters in (
            {"table": attack},
            {"table": f'"{attack}"'},
            {"columns": f"id,{attack}"},
            {"columns": f'id,"{attack}"'},
            {"where": attack},
            {"where": "v = $1", "params[1]": attack},
            {"where": f"v = '{attack}'"},
            {"subset__where": attack},
            {"subset__where": "v = $1", "subset__params": json.dumps({"1": attack})},
            {"subset__order_by": attack, "subset__limit": "1"},
            {"subset__limit": attack, "subset__order_by": "id"},
            {"handle": attack, "offset": "0_0"},
        ):
            began = time.monotonic()
            answer = shapes.get(**{"table": "guarded", "offset": "-1", **parameters})
            if time.monotonic() - began > 2:  # others use the machine too: it may have been their turn
                began = time.monotonic()
                shapes.get(**{"table": "guarded", "offset": "-1", **parameters})
                assert time.monotonic() - began < 2, ("nothing that sleeps is run", parameters)
            if "where" in parameters and parameters["where"] == attack and attack not in HARMLESS:
                assert answer.status == 400, (attack, answer.body)
            asked += 1
            assert answer.status in (200, 400, 409), (parameters, answer.status, answer.body)
            for inside in (b"hidden value", b"Traceback", b"psycopg", b"SELECT to_json", b".py"):
                assert inside not in answer.body
    assert asked == 12 * len(ATTACKS)
    assert shop.query("SELECT * FROM guarded") == [(1, "kept")]
    _, rows = synced(shapes, table="guarded")
    assert [row["value"] for row in rows] == [{"id": "1", "v": "kept"}]


def test_a_shape_can_be_deleted_and_comes_back_under_another_handle(
    shop: Database, shapes: ShapeServer
) -> None:
    shop.execute("CREATE TABLE deleted (id int PRIMARY KEY)")
    before, _ = synced(shapes, table="deleted")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            lambda: shapes.get(table="deleted", offset=before.offset, handle=before.handle, live="true")
        )
        assert shapes.ask("DELETE", "/v1/shape", {"table": "deleted"}).status == 202
        answer = waiting.result()
    assert answer.status == 409
    after = shapes.get(table="deleted", offset=before.offset, handle=before.handle)
    assert (after.status, after.json()) == (409, [{"headers": {"control": "must-refetch"}}])
    assert after.handle != before.handle
    assert shapes.get(table="deleted", offset="-1").handle == after.handle


def test_subsets_by_get_and_post(shop: Database, shapes: ShapeServer) -> None:
    shop.execute("CREATE TABLE many (id int PRIMARY KEY, v text)")
    shop.execute("INSERT INTO many SELECT i, 'v' || i FROM generate_series(1, 20) AS i")
    shape = {"table": "many", "log": "changes_only", "offset": "-1"}
    first = shapes.get(**shape)
    assert messages(first) == []
    get = shapes.get(
        **shape,
        subset__where="id > $1",
        subset__params='{"1":"10"}',
        subset__order_by="id DESC",
        subset__limit="3",
    )
    body = {"where": "id > $1", "params": {"1": "10"}, "order_by": "id DESC", "limit": 3}
    post = shapes.ask("POST", "/v1/shape", shape, json.dumps(body).encode())
    for answer in (get, post):
        assert answer.status == 200
        found = answer.json()
        assert [row["value"]["id"] for row in found["data"]] == ["20", "19", "18"]
        assert set(found["metadata"]) == {"xmin", "xmax", "xip_list", "snapshot_mark", "database_lsn"}
        assert answer.headers["electric-snapshot"] == "true"
        assert (answer.handle, answer.offset) == (first.handle, "0_0")
    wrong = shapes.get(**shape, subset__where="nope = 1")
    assert wrong.status == 400
    assert list(wrong.json()["errors"]["subset"]) == ["where"]


def test_cards_tell_what_shapes_need(shop: Database) -> None:
    shop.execute("CREATE SCHEMA cards")
    bounds = "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
    columns = "b int, a int, day date, PRIMARY KEY (day, a)"
    shop.execute(f"CREATE TABLE cards.whole ({columns}) PARTITION BY RANGE (day)")
    shop.execute(f"CREATE TABLE cards.p1 PARTITION OF cards.whole {bounds}")
    shop.execute("CREATE TYPE cards.size AS ENUM ('s', 'l')")
    shop.execute("ALTER TYPE cards.size ADD VALUE 'm' BEFORE 'l'")
    # The tests' server is built without ICU, which alone has such collations.
    shop.execute("CREATE COLLATION cards.loose (locale = 'C')")
    shop.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
    columns = "id int, size cards.size, t text COLLATE cards.loose, w int DEFAULT 1"
    shop.execute(f"CREATE TABLE cards.other ({columns})")
    whole, other = StreamId("cards", "whole"), StreamId("cards", "other")
    with connect(shop.url) as connection:
        found = {card.stream: card for card in read_cards(connection, streams=[whole, other])}
        assert (found[whole].kind, found[whole].key) == ("p", ("day", "a"))
        assert found[other].key == ()
        assert found[other].column("size").labels == ("s", "m", "l")
        assert [each.deterministic for each in found[other].columns] == [True, True, False, True]
        assert [each.has_default for each in found[other].columns] == [False, False, False, True]
        assert read_cards(connection, oids=[found[other].oid, 1]) == [found[other]]
        shop.execute("ALTER TABLE cards.other ALTER id SET STATISTICS 10")
        assert read_cards(connection, streams=[other]) == [found[other]]
        shop.execute("ALTER TABLE cards.whole DETACH PARTITION cards.p1")
        detached = read_cards(connection, streams=[whole])
        shop.execute(f"ALTER TABLE cards.whole ATTACH PARTITION cards.p1 {bounds}")
        attached = read_cards(connection, streams=[whole])
        assert len({card.partitions for card in (found[whole], *detached, *attached)}) == 3

        catalog = Catalog(lambda: connect(shop.url))
        assert catalog.known(other) is None
        assert catalog.card(other) == found[other] == catalog.known(other)
        version = catalog.version
        catalog.put(found[other])
        assert catalog.version == version
        catalog.forget(other)
        assert catalog.known(other) is None
        assert catalog.version > version
        assert catalog.card(StreamId("cards", "nope")) is None


def test_without_the_secret_nothing_is_told(shapes: ShapeServer) -> None:
    for path in ("/v1/shape", "/v1//shape/", "/v1/%73hape"):
        answer = shapes.ask("GET", path, {"table": "guarded", "offset": "-1", "secret": "wrong"})
        assert (answer.status, answer.json()) == (401, {"message": "Unauthorized - Invalid API secret"})
    wait_until(lambda: shapes.health() == (200, "active"), "it is healthy")

"""What a real Postgres prints, in each format, against what Postgres itself says of the values."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from psycopg import sql

from penstock.capture.transactions import ChangeRows
from penstock.core.stream import StreamId
from penstock.sources.postgres.catalog import discover
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.types import text_expression
from penstock.streams.encoding.encoder import EncodingSettings, encoder
from penstock.streams.encoding.view import StreamView
from tests.conftest import Database
from tests.stream_changes import Change, changes_of

pytestmark = pytest.mark.integration

#: A column's type, a value, and what Postgres says that it is as JSON in Debezium's format.
VALUES: Mapping[str, tuple[str, str, str]] = {
    "d": ("date", "'2026-02-28'", "to_json({} - date '1970-01-01')"),
    "d_bc": ("date", "'0044-03-15 BC'", "to_json({} - date '1970-01-01')"),
    "ts": ("timestamp", "'1969-07-20 20:17:40.123456'", "to_json((extract(epoch FROM {}) * 1000000)::int8)"),
    "ts3": ("timestamp(3)", "'2026-01-31 12:00:00.1'", "to_json((extract(epoch FROM {}) * 1000)::int8)"),
    "tz": (
        "timestamptz",
        "'2026-01-31 12:00:00.5+05:30'",
        """to_json(to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))""",
    ),
    "t": ("time", "'23:59:59.999999'", "to_json((extract(epoch FROM {}) * 1000000)::int8)"),
    "t3": ("time(3)", "'23:59:59.999'", "to_json((extract(epoch FROM {}) * 1000)::int4)"),
    "ttz": ("timetz", "'01:30:00+02:30'", "to_json(({} AT TIME ZONE 'UTC')::time::text || 'Z')"),
    "i": (
        "interval",
        "'1 year 2 mons -3 days 04:05:06.789'",
        "to_json((14 * 30.4375 * 86400 - 3 * 86400 + 14706.789)::numeric * 1000000)",
    ),
    "b": ("bytea", "'\\xdeadbeef00'", "to_json(encode({}, 'base64'))"),
    "bits": ("bit(10)", "B'1000000001'", "to_json('AQI='::text)"),
    "bit": ("bit(1)", "B'1'", "to_json(true)"),
    "big": ("int8", "9223372036854775807", "to_json({})"),
    "o": ("oid", "4294967295", "to_json({}::int8)"),
    "f4": ("float4", "0.1", "to_json({})"),
    "f8": ("float8", "'1e300'", "to_json({})"),
    "nan": ("float8", "'NaN'", "to_json('NaN'::text)"),
    "flag": ("bool", "true", "to_json({})"),
    "js": ("jsonb", """'{"a": [1, "é"]}'""", "to_json({}::text)"),
    "u": ("uuid", "'0b9a4f0e-8d3c-4f5e-9a7b-1c2d3e4f5a6b'", "to_json({}::text)"),
    "ip": ("inet", "'10.1.2.3/8'", "to_json({}::text)"),
    "r": ("int4range", "'[1,5)'", "to_json({}::text)"),
    "c": ("char(5)", "'ab'", "to_json('ab   '::text)"),
    "m": ("mood", "'so so'", "to_json({}::text)"),
    "ints": ("int4[]", "'{1,NULL,-3}'", "to_json({})"),
    "texts": ("text[]", """ARRAY['a b', 'c"d', 'NULL', NULL, '\\', '']""", "to_json({})"),
    "dates": ("date[]", "'{1970-01-11}'", "to_json(ARRAY[10])"),
    "flags": ("bool[]", "'{t,f}'", "to_json({})"),
    "moods": ("mood[]", "'{fine,so so}'", "to_json({})"),
    "plain": ("text", "E'\\b\\f\\n\\r\\t\\x01\\x1f\"\\\\/😀'", "to_json({})"),
}


@pytest.fixture
def table(database: Database) -> Database:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in VALUES.items())
    database.execute("CREATE TYPE mood AS ENUM ('fine', 'so so')")
    database.execute(
        f"CREATE TABLE v (id int PRIMARY KEY, p numeric(12,4), n numeric, cash money, {columns})"
    )
    values = ", ".join(value for _, value, _ in VALUES.values())
    database.execute(f"INSERT INTO v VALUES (1, -12345.6789, 1e40, -1234.5, {values})")
    return database


def rows_of(database: Database) -> tuple[ChangeRows, StreamView]:
    """The table's rows as the log would have them."""
    stream = StreamId("public", "v")
    with connect(database.url) as session:
        (found,) = discover(session, [stream])
        columns = found.schema.columns
        printed = ", ".join(text_expression(f'"{each.name}"', each) for each in columns)
        texts = session.execute(sql.SQL(f"SELECT {printed} FROM v")).fetchall()
    names = [each.name for each in columns]
    changes = [Change("i", dict(zip(names, row, strict=True))) for row in texts]
    return changes_of(stream, columns, changes), StreamView(stream, "v", tuple(names), ("id",))


def after(database: Database, settings: EncodingSettings) -> Any:
    changes, view = rows_of(database)
    events = encoder(settings).encode(changes, view)
    assert not events.refused
    return json.loads(events.value[0].as_py())["after"]


def test_debezium_values_are_what_postgres_says(table: Database) -> None:
    asked = ", ".join(f"{expression.format(name)}::text" for name, (_, _, expression) in VALUES.items())
    with connect(table.url) as session:
        (answers,) = session.execute(sql.SQL(f"SELECT {asked} FROM v")).fetchall()
    expected = {name: json.loads(answer) for name, answer in zip(VALUES, answers, strict=True)}
    found = after(table, EncodingSettings("debezium"))
    decimals = {name: found.pop(name) for name in ("id", "p", "n", "cash")}
    assert found == expected
    unscaled = int.from_bytes(base64.b64decode(decimals["p"]), "big", signed=True)
    assert Decimal(unscaled).scaleb(-4) == Decimal("-12345.6789")
    assert decimals["n"]["scale"] == 0
    assert int.from_bytes(base64.b64decode(decimals["n"]["value"]), "big", signed=True) == 10**40
    assert int.from_bytes(base64.b64decode(decimals["cash"]), "big", signed=True) == -123450


def test_own_json_has_the_texts_that_postgres_prints(table: Database) -> None:
    found = after(table, EncodingSettings())
    with connect(table.url) as session:
        (row,) = session.execute("SELECT plain, texts::text, p::text, i::text, tz::text FROM v").fetchall()
    assert tuple(found[name] for name in ("plain", "texts", "p", "i", "tz")) == row
    numbers = {name: found[name] for name in ("id", "big", "f4", "f8", "nan", "flag", "js")}
    assert numbers == {
        "id": 1,
        "big": "9223372036854775807",
        "f4": 0.1,
        "f8": 1e300,
        "nan": "NaN",
        "flag": True,
        "js": {"a": [1, "é"]},
    }

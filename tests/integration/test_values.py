"""Values of a real Postgres come out the same on both ways in: in binary, and as the text of the log.

The oracle is Postgres itself: its own text, and its own arithmetic for days, instants and bytes.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TypeVar

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock.core.schema import SourceColumn
from penstock.sources.postgres import binary_values
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy_binary import BLOCK_BYTES, BinaryFields, read_copy
from penstock.sources.postgres.types import (
    arrow_type,
    cast_text,
    from_binary,
    load_expression,
    text_expression,
)
from penstock.values.text_casts import CastResult
from tests.conftest import Database

pytestmark = pytest.mark.integration

T = TypeVar("T")

TYPES = """
CREATE TYPE mood AS ENUM ('fine', 'so so', '"quoted"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN code AS char(4);
"""


class Session:
    """A server session with the settings Penstock gives it."""

    def __init__(self, url: str) -> None:
        self.postgres = connect(url)

    def close(self) -> None:
        self.postgres.close()

    def printed(self, query: str) -> list[str | None]:
        """What the output function prints: the very text that logical replication sends."""
        result = self.postgres.pgconn.exec_(query.encode())
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.get_error_message()
        values = [result.get_value(row, 0) for row in range(result.ntuples)]
        return [None if value is None else value.decode() for value in values]

    def load(self, query: str, column: SourceColumn, block_bytes: int = BLOCK_BYTES) -> CastResult:
        """What a load makes of the query's one column."""
        results = self.copy(query, lambda fields: from_binary(fields, column), block_bytes)
        values = pa.concat_arrays([result.values for result in results])
        if all(result.bad is None for result in results):
            return CastResult(values)
        return CastResult(values, pa.concat_arrays([pa.array(marks(result)) for result in results]))

    def load_text(self, query: str) -> list[str | None]:
        printed: list[str | None] = []
        for part in self.copy(query, binary_values.text):
            printed += part.to_pylist()
        return printed

    def copy(
        self, query: str, convert: Callable[[BinaryFields], T], block_bytes: int = BLOCK_BYTES
    ) -> list[T]:
        blocks = read_copy(self.postgres, sql.SQL(query), 1, block_bytes=block_bytes)
        return [convert(block.column(0)) for block in blocks]

    def column(self, type_text: str) -> SourceColumn:
        query = f"SELECT NULL::{type_text}"
        description = self.postgres.execute(query.encode()).description
        assert description is not None
        oid = description[0].type_code
        row = self.postgres.execute("SELECT typname FROM pg_type WHERE oid = %s", (oid,)).fetchone()
        assert row is not None
        modifier = description[0]._fmod
        return SourceColumn("c", oid, modifier, row[0], type_text)


@pytest.fixture(scope="module")
def session(server: object) -> Iterator[Session]:
    from penstock.sources.postgres.embedded import EmbeddedPostgres

    assert isinstance(server, EmbeddedPostgres)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS test_values WITH (FORCE)")
        connection.execute("CREATE DATABASE test_values")
    database = Database("test_values", server)
    database.execute(TYPES)
    opened = Session(database.url)
    yield opened
    opened.close()
    database.drop()


def check(session: Session, type_text: str, inputs: list[str | None]) -> tuple[CastResult, str]:
    """Both ways in give the same; returns it, and the SELECT of the values for more questions."""
    column = session.column(type_text)
    literal = sql.Literal(inputs).as_string(session.postgres)
    values = (
        f"(SELECT v::{type_text} AS c, n FROM unnest({literal}::text[]) WITH ORDINALITY AS u (v, n)) AS s"
    )
    ordered = f"FROM {values} ORDER BY n"
    printed = session.printed(f"SELECT c {ordered}")
    as_text = f"SELECT {text_expression('c', column)} {ordered}"
    assert session.load_text(as_text) == printed, "selected as text, a value reads as the log has it"

    from_log = cast_text(pa.array(printed, pa.string()), column)
    query = as_text if load_expression(column) == "text" else f"SELECT c {ordered}"
    from_load = session.load(query, column)
    for result in (from_log, from_load):
        result.values.validate(full=True)
        assert result.values.type == arrow_type(column)
    assert bits(from_log.values) == bits(from_load.values)
    assert marks(from_log) == marks(from_load)
    for text, value, bad in zip(
        printed, from_log.values.is_valid().to_pylist(), marks(from_log), strict=True
    ):
        assert (text is None) == (not value and not bad), "null if and only if the source is null"
    if pa.types.is_string(arrow_type(column)):
        assert from_load.values.to_pylist() == printed
    return from_load, ordered


def bits(array: pa.Array) -> list[object]:
    if (
        pa.types.is_floating(array.type)
        or pa.types.is_timestamp(array.type)
        or pa.types.is_date32(array.type)
    ):
        array = array.view({32: pa.int32(), 64: pa.int64()}[array.type.bit_width])
    values: list[object] = array.to_pylist()
    return values


def marks(result: CastResult) -> list[bool]:
    return [False] * len(result.values) if result.bad is None else result.bad.to_pylist()


AS_PRINTED: dict[str, list[str | None]] = {
    "text": ["", " x ", "ünï\n\t\\", None, "'\"", "a" * 9000],
    "varchar(5)": ["abc", "", None],
    "char(6)": ["ab", "", "   ", None, "abcdef"],
    "code": ["ab", None],
    "name": ["relation", ""],
    '"char"': ["a", "", "\\377", None],
    "json": ['{"a": 1.10,  "a":2}', "null", None, "[]"],
    "jsonb": ['{"b": 1.10, "a": [1e400]}', "null", None, '"\\u00fc"'],
    "uuid": ["00000000-0000-0000-0000-000000000000", None, "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "mood": ["fine", "so so", '"quoted"', None],
    "pair": ["(1,x)", "(,)", None, '(2,"a b")'],
    "int[]": ["{1,2,NULL}", "{{1,2},{3,4}}", "[0:1]={5,6}", "{}", None],
    "text[]": ['{"a,b","",NULL,"NULL"}'],
    "numeric[]": ["{NaN,1.50}"],
    "mood[]": ['{fine,"so so"}'],
    "time": ["24:00:00", "00:00:00.000001", "23:59:59.999999", None],
    "timetz": ["24:00:00+05:30", "01:02:03.5-15:59:59"],
    "interval": ["1 year -2 mons +3 days -04:05:06.000007", "infinity", "0", None],
    "money": ["-92233720368547758.08", "1234.5", "0", None],
    "inet": ["1.2.3.4", "1.2.3.4/24", "::1", None],
    "cidr": ["10.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "int4range": ["[1,5)", "empty", "(,)", None],
    "tstzrange": ['["2024-01-01 00:00:00+00",infinity)'],
    "int8multirange": ["{[1,2),[5,7)}", "{}"],
    "bit(5)": ["10101", None],
    "varbit": ["", "101"],
    "oid": ["0", "4294967295"],
    "xid8": ["18446744073709551615"],
    "pg_lsn": ["FFFFFFFF/FFFFFFFF"],
    "point": ["(1.5,-2e+300)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "tsvector": ["'a':1A 'b c':2"],
    "tid": ["(4294967295,65535)"],
    "regclass": ["pg_class"],
    "numeric": [
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "-0.0",
        "1e-20",
        "1.50",
        "1e130",
        "0.00010000",
        "10000",
        "100000000.00000000",
        "-12345678901234567890123456789012345678901234567890.123456789",
        None,
    ],
    "numeric(50,10)": ["1.5", "NaN", None, "1234567890123456789012345678901234567890"],
    "numeric(5,-2)": ["12345", "149", "-99999"],
    "numeric(3,5)": ["0.00123", "-0.00999"],
}


@pytest.mark.parametrize("type_text", AS_PRINTED)
def test_what_has_no_type_of_its_own_in_the_lake_is_the_text_that_postgres_prints(
    session: Session, type_text: str
) -> None:
    assert arrow_type(session.column(type_text)) == pa.string()
    check(session, type_text, AS_PRINTED[type_text])


@pytest.mark.parametrize(
    ("type_text", "inputs", "bad"),
    [
        ("bool", ["t", "f", None], 0),
        ("int2", ["-32768", "32767", None], 0),
        ("int4", ["-2147483648", "2147483647", None], 0),
        ("int8", ["-9223372036854775808", "9223372036854775807", "0", None], 0),
        ("float4", ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1", None], 0),
        (
            "float8",
            ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1", None],
            0,
        ),
        ("bytea", ["\\x", "\\x00ff", "\\xdeadbeef", None], 0),
        ("numeric(10,2)", ["NaN", "0", "-0.01", "99999999.99", None], 1),
        ("price", ["NaN", "1.5", None], 1),
        ("numeric(38,38)", ["0.99999999999999999999999999999999999999", "-1e-38"], 0),
        ("numeric(38,0)", ["99999999999999999999999999999999999999", "-1", "NaN"], 1),
        (
            "date",
            ["infinity", "-infinity", "4714-11-24 BC", "0001-01-01 BC", "5874897-12-31", "1970-01-01", None],
            2,
        ),
        (
            "timestamp",
            [
                "infinity",
                "-infinity",
                "4714-11-24 00:00:00 BC",
                "0001-12-31 23:59:59.999999 BC",
                "1969-12-31 23:59:59.999999",
                "294247-01-10 04:00:54.775807",
                "294247-01-10 04:00:54.775808",
                "294276-12-31 23:59:59.999999",
                None,
            ],
            4,
        ),
        (
            "timestamptz",
            [
                "infinity",
                "-infinity",
                "4714-11-24 00:00:00+00 BC",
                "1800-01-01 00:00:00 Europe/Berlin",
                "294247-01-10 04:00:54.775807+00",
                "294276-12-31 23:59:59.999999+00",
                "2024-02-29 12:00:00.1-07",
                None,
            ],
            3,
        ),
    ],
)
def test_extremes_are_exact_or_bad_on_both_ways_in(
    session: Session, type_text: str, inputs: list[str | None], bad: int
) -> None:
    result, ordered = check(session, type_text, inputs)
    assert sum(marks(result)) == bad
    check_by_arithmetic(session, type_text, result, ordered)


def check_by_arithmetic(session: Session, type_text: str, result: CastResult, ordered: str) -> None:
    """What Postgres itself makes of the values, in a form that needs no parser of ours."""
    # The epoch of a whole timestamp is rounded at the ends of the calendar; that of its time of day is not.
    microseconds = "(c::date - '1970-01-01') * 86400000000::numeric + extract(epoch FROM c::time) * 1000000"
    questions = {
        "date": "CASE WHEN isfinite(c) THEN (c - '1970-01-01')::text END",
        "timestamp": f"CASE WHEN isfinite(c) THEN trunc({microseconds})::text END",
        "timestamptz": f"CASE WHEN isfinite(c) THEN trunc({microseconds})::text END",
        "bytea": "encode(c, 'hex')",
    }
    if type_text not in questions:
        return
    answers = session.printed(f"SELECT {questions[type_text]} {ordered}")
    for answer, value, bad in zip(answers, bits(result.values), marks(result), strict=True):
        if bad:
            assert answer is None or int(answer) > 2**63 - 1
        elif answer is not None:
            assert value == (bytes.fromhex(answer) if type_text == "bytea" else int(answer))


def lists(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str | None]]:
    return st.lists(values | st.none(), min_size=1, max_size=40)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
DRAWN: dict[str, st.SearchStrategy[list[str | None]]] = {
    "bool": lists(st.sampled_from(["t", "f"])),
    "int2": lists(st.integers(-(2**15), 2**15 - 1).map(str)),
    "int4": lists(st.integers(-(2**31), 2**31 - 1).map(str)),
    "int8": lists(st.integers(-(2**63), 2**63 - 1).map(str)),
    "float8": lists(st.floats().map(repr)),
    "float4": lists(st.floats(width=32).map(repr)),
    "numeric": lists(st.decimals(allow_nan=False).map(str) | st.sampled_from(["NaN", "-Infinity"])),
    "numeric(18,6)": lists(
        st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: f"{Decimal(n).scaleb(-6):f}")
    ),
    "numeric(38,10)": lists(
        st.integers(-(10**38) + 1, 10**38 - 1)
        .map(lambda n: f"{'-' if n < 0 else ''}{abs(n):039d}")
        .map(lambda digits: f"{digits[:-10]}.{digits[-10:]}")
    ),
    "numeric(19,0)": lists(st.integers(-(10**19) + 1, 10**19 - 1).map(str)),
    "numeric(30,20)": lists(st.decimals(-(10**9), 10**9, places=20, allow_nan=False).map(str)),
    "date": lists(st.integers(-2_440_588, 2_145_042_905).map(lambda n: f"@{n}")),
    "timestamp": lists(st.datetimes().map(str)),
    "timestamptz": lists(
        st.datetimes(timezones=st.timezones()).map(
            lambda t: t.astimezone(dt.UTC).isoformat() if 2 < t.year < 9998 else "infinity"
        )
    ),
    "bytea": lists(st.binary(max_size=30).map(lambda b: "\\x" + b.hex())),
    "text": lists(TEXT),
    "varchar(20)": lists(TEXT),
    "char(20)": lists(TEXT),
    "name": lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=20)),
    "json": lists(st.recursive(st.none() | st.integers() | TEXT, st.lists, max_leaves=4).map(json.dumps)),
    "price": lists(st.decimals(-(10**7), 10**7, places=2).map(str) | st.just("NaN")),
    "jsonb": lists(st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    "uuid": lists(st.uuids().map(str)),
    "text[]": lists(st.lists(st.integers(), max_size=3).map(lambda v: "{" + ",".join(map(str, v)) + "}")),
    "interval": lists(
        st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6)).map(
            lambda d: f"{d // dt.timedelta(microseconds=1)} us"
        )
    ),
}


@pytest.mark.parametrize("type_text", DRAWN)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_value_is_the_same_on_both_ways_in(session: Session, type_text: str, data: st.DataObject) -> None:
    inputs = data.draw(DRAWN[type_text])
    if type_text == "date":
        days = session.printed(
            "SELECT CASE WHEN n IS NOT NULL THEN ('1970-01-01'::date + n)::text END FROM unnest("
            + sql.Literal([None if each is None else int(each[1:]) for each in inputs]).as_string(
                session.postgres
            )
            + "::int[]) WITH ORDINALITY AS u (n, o) ORDER BY o"
        )
        inputs = days
    result, ordered = check(session, type_text, inputs)
    check_by_arithmetic(session, type_text, result, ordered)


def test_a_nan_that_was_computed_has_the_bits_of_one_that_was_written(session: Session) -> None:
    query = "SELECT 'infinity'::float8 - 'infinity'::float8 AS c"
    column = session.column("float8")
    loaded = session.load(query, column).values
    assert bits(loaded) == bits(cast_text(pa.array(session.printed(query)), column).values)


def test_a_table_of_many_blocks_comes_out_whole(session: Session) -> None:
    queries = {
        "int8": "SELECT CASE WHEN n % 3 > 0 THEN n::int8 END FROM generate_series(1, 100000) AS n",
        "uuid": "SELECT CASE WHEN n % 7 > 0 THEN md5(n::text)::uuid END FROM generate_series(1, 100000) AS n",
        "text": "SELECT CASE WHEN n % 5 > 0 THEN repeat('ü', n % 300) END FROM generate_series(1, 9999) AS n",
    }
    for type_text, query in queries.items():
        values = session.load(query, session.column(type_text), block_bytes=50_000).values
        values.validate(full=True)
        assert values.cast(pa.string()).to_pylist() == session.printed(query)

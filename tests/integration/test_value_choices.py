"""Columns held as the pipeline file chooses: exact on both ways in, or a dead letter, never rounded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock import Pipeline
from penstock.core.errors import PenstockError
from penstock.core.stream import StreamId
from penstock.sources.postgres.catalog import discover
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.sources.postgres.type_table import TYPE_TABLE
from penstock.sources.postgres.types import cast_text
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = pytest.mark.integration

#: Types of the catalogs themselves, and of indexes: no table of a user has them.
NOT_OF_COLUMNS = {
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_ddl_command",
}


class Printer:
    """A session that prints values as replication does; `schema` has an array and an element of each."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)
        self.connection.execute("DROP TABLE IF EXISTS probe; DROP TYPE IF EXISTS mood")
        self.connection.execute("CREATE TYPE mood AS ENUM ('fine', 'so so', '{x')")
        declared = ", ".join(f'"{each}[]" {each}[], "{each}" {each}' for each in ELEMENTS)
        self.connection.execute(f"CREATE TABLE probe ({declared})".encode())
        [table] = discover(self.connection, [StreamId("public", "probe")])
        self.schema = table.schema.held_as({f"{each}[]": "list" for each in ELEMENTS})

    def rows(self, query: sql.Composable | str) -> list[tuple[str | None, ...]]:
        text = query if isinstance(query, str) else query.as_string(self.connection)
        result = self.connection.pgconn.exec_(text.encode())
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.get_error_message()
        return [
            tuple(
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]

    def close(self) -> None:
        self.connection.execute("DROP TABLE probe; DROP TYPE mood")
        self.connection.close()


@pytest.fixture(scope="module")
def printer(server: EmbeddedPostgres) -> Iterator[Printer]:
    opened = Printer(server.url())
    yield opened
    opened.close()


def test_every_type_that_a_column_can_have_is_in_the_table_of_types(printer: Printer) -> None:
    built_in = {
        name
        for (name,) in printer.rows(
            "SELECT t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace "
            "LEFT JOIN pg_type e ON e.typarray = t.oid "
            "WHERE nspname = 'pg_catalog' AND t.typtype IN ('b', 'r', 'm') AND e.oid IS NULL"
        )
    }
    listed = {name for entry in TYPE_TABLE for name in entry.names}
    assert built_in - listed - NOT_OF_COLUMNS == set()


ELEMENTS: dict[str, st.SearchStrategy[str]] = {
    "int4": st.integers(-(2**31), 2**31 - 1).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "bool": st.sampled_from(["t", "f"]),
    "float8": st.floats().map(repr),
    "numeric": st.decimals(allow_nan=False).map(str) | st.sampled_from(["NaN", "-Infinity"]),
    "numeric(20,5)": st.decimals(-(10**14), 10**14, places=5, allow_nan=False).map(str) | st.just("NaN"),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
    | st.sampled_from(["NULL", "", '"', "\\", "{", ",", " "]),
    "mood": st.sampled_from(["fine", "so so", "{x"]),
    "uuid": st.uuids().map(str),
    "bytea": st.binary(max_size=6).map(lambda value: "\\x" + value.hex()),
    "date": st.dates().map(str) | st.sampled_from(["infinity", "0044-03-15 BC"]),
    "timestamptz": st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)).map(lambda t: f"{t}+00"),
    "time": st.times().map(str) | st.just("24:00:00"),
    "interval": st.integers(-(10**12), 10**12).map(lambda n: f"{n} us"),
    "jsonb": st.integers().map(str),
    "inet": st.ip_addresses().map(str),
}


@pytest.mark.parametrize("element", ELEMENTS)
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_list_holds_each_element_as_a_column_of_its_type_would(
    printer: Printer, element: str, data: st.DataObject
) -> None:
    arrays = data.draw(
        st.lists(st.lists(ELEMENTS[element] | st.none(), max_size=5) | st.none(), min_size=1, max_size=30)
    )
    rows = sql.SQL(", ").join(
        sql.SQL("({}, {}::text[]::{})").format(
            sql.Literal(number),
            sql.SQL("NULL")
            if array is None
            else sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(map(sql.Literal, array))),
            sql.SQL(f"{element}[]"),
        )
        for number, array in enumerate(arrays)
    )
    values = sql.SQL("(VALUES {}) AS v (n, c)").format(rows)
    printed = [text for (text,) in printer.rows(sql.SQL("SELECT c FROM {} ORDER BY n").format(values))]
    elements = printer.rows(
        sql.SQL(
            "SELECT n, e FROM {} CROSS JOIN LATERAL unnest(c) WITH ORDINALITY AS u (e, i) ORDER BY n, i"
        ).format(values)
    )
    result = cast_text(pa.array(printed, pa.string()), printer.schema.column(f"{element}[]"))
    result.values.validate(full=True)
    bad = [False] * len(arrays) if result.bad is None else result.bad.to_pylist()
    for number, is_bad in enumerate(bad):
        texts = pa.array([text for row, text in elements if row == str(number)], pa.string())
        alone = cast_text(texts, printer.schema.column(element))
        assert is_bad == (alone.bad is not None and alone.bad.true_count > 0)
        assert result.values[number].is_valid == (printed[number] is not None and not is_bad)
        if result.values[number].is_valid:
            assert same_bits(result.values[number].values, alone.values)


def same_bits(one: pa.Array, other: pa.Array) -> bool:
    if pa.types.is_floating(one.type):
        one, other = one.view(pa.int64()), other.view(pa.int64())
    return bool(one.equals(other))


TABLE = """
CREATE TABLE offers (
    id int PRIMARY KEY, amount numeric, valid_until date, seen timestamptz, opens time, tags text[],
    prices numeric(10,2)[], code int, raw bytea
)
"""
#: What the table cannot hold stands in the columns that are named.
ROWS: list[tuple[str, tuple[str, ...]]] = [
    ("1.5, 'infinity', '-infinity', '12:30', '{a,NULL,\"b,c\"}', '{1.50,2}', 7, '\\x00ff'", ()),
    ("1.123456789, '0044-03-15 BC', '2024-02-29 12:00+02', '00:00', '{}', NULL, -7, ''", ()),
    ("NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL", ()),
    ("1.100000000000, '2024-01-01', now(), '23:59:59.999999', '{x}', '{}', 1, NULL", ()),
    ("1.1234567891, NULL, NULL, NULL, NULL, NULL, NULL, NULL", ("amount",)),
    ("'NaN', NULL, NULL, '24:00', NULL, NULL, NULL, NULL", ("amount", "opens")),
    ("1e30, NULL, NULL, NULL, '{{a},{b}}', NULL, NULL, NULL", ("amount", "tags")),
    ("0, NULL, NULL, NULL, '[0:0]={a}', '{NaN}', NULL, NULL", ("tags", "prices")),
]
TYPES = {
    "amount": "decimal(38,9)",
    "valid_until": "text",
    "seen": "text",
    "opens": "time",
    "tags": "list",
    "prices": "list",
    "code": "text",
    "raw": "text",
}
#: The source's own words for what each column is held as.
AS_HELD = (
    "SELECT id, amount, valid_until::text, seen::text, nullif(opens, '24:00'), tags, prices, "
    "code::text, raw::text FROM offers"
)


def stream(**settings: Any) -> dict[str, Any]:
    return {"table": "public.offers", **settings}


def insert(database: Database, first: int) -> None:
    for number, (values, _) in enumerate(ROWS):
        database.execute(f"INSERT INTO offers VALUES ({first + number}, {values})")


def assert_as_chosen(database: Database, pipeline: PipelineUnderTest) -> None:
    """Every row that fits is as the source has it, the others are dead letters with what is wrong."""
    with connect(database.url) as connection:
        rows = connection.execute(AS_HELD).fetchall()
    source = {row[0]: row[1:] for row in rows}
    fits = {row for row in source if not ROWS[row % 100][1]}
    table = Pipeline.from_yaml(pipeline.file).table("public.offers").to_arrow()
    held = {row["id"]: tuple(row[name] for name in TYPES) for row in table.to_pylist()}
    assert held == {row: as_arrow(source[row]) for row in fits}
    letters = Pipeline.from_yaml(pipeline.file).dead_letters("public.offers").to_arrow()
    bad = {int(row["_key"][0]): tuple(row["_bad_columns"]) for row in letters.to_pylist()}
    assert bad == {row: ROWS[row % 100][1] for row in source if row not in fits}


def as_arrow(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)


@pytest.mark.parametrize("write", ["upsert", "append"])
def test_chosen_types_hold_the_same_by_load_and_by_log(
    database: Database, make: MakePipeline, write: str
) -> None:
    database.execute(TABLE)
    insert(database, 0)
    pipeline = make([stream(write=write, types=TYPES)])
    pipeline.sync()
    assert_as_chosen(database, pipeline)
    insert(database, 100)
    pipeline.sync()
    assert_as_chosen(database, pipeline)


def test_another_choice_means_that_the_table_is_loaded_again(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, amount numeric, opens time)")
    database.execute("INSERT INTO offers VALUES (1, 1.25, '24:00'), (2, 2.5, '12:00')")
    pipeline = make([stream()])
    pipeline.sync()
    columns: list[tuple[dict[str, str], list[pa.DataType], int]] = [
        ({"amount": "decimal(10,2)"}, [pa.decimal128(10, 2), pa.string()], 2),
        ({"amount": "decimal(10,1)", "opens": "time"}, [pa.decimal128(10, 1), pa.time64("us")], 1),
        ({"opens": "text"}, [pa.string(), pa.string()], 2),
    ]
    for number, (types, expected, rows) in enumerate(columns):
        pipeline.streams = [stream(types=types)]
        pipeline.write_file()
        database.execute(f"UPDATE offers SET amount = amount WHERE id = {number % 2 + 1}")
        pipeline.sync()
        table = Pipeline.from_yaml(pipeline.file).table("public.offers").to_arrow()
        assert table.schema.types[1:] == expected
        assert table.num_rows == rows
    assert sum("is loaded again" in note for note in pipeline.notes) == 3


def test_a_key_that_is_held_otherwise_still_finds_its_rows(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE offers (a numeric, b date, v text, PRIMARY KEY (a, b))")
    database.execute("INSERT INTO offers SELECT n, DATE '2024-01-01' + n, 'v' FROM generate_series(1, 50) n")
    database.execute("INSERT INTO offers VALUES (99, 'infinity', 'v')")
    pipeline = make([stream(types={"a": "decimal(38,0)", "b": "text"})], load={"method": "key"})
    pipeline.sync()
    database.execute("UPDATE offers SET v = 'w' WHERE a % 2 = 1; DELETE FROM offers WHERE a % 5 = 0")
    database.execute(
        "UPDATE offers SET b = '-infinity' WHERE a = 99; UPDATE offers SET a = a + 100 WHERE a < 9"
    )
    pipeline.sync()
    pipeline.assert_same("public.offers")


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"id": "decimal(10,2)"}, "Possible in `types` for this column: text."),
        ({"amount": "list"}, "Possible in `types` for this column: text, decimal(precision,scale)."),
        ({"tags": "time"}, "Possible in `types` for this column: text, list."),
        ({"opens": "decimal(1,1)"}, "text, time"),
        ({"amout": "text"}, "the columns are: id, amount"),
    ],
)
def test_a_choice_that_a_column_cannot_have_is_refused_before_anything_is_read(
    database: Database, make: MakePipeline, types: dict[str, str], words: str
) -> None:
    database.execute(TABLE)
    pipeline = make([stream(types=types)])
    found = [
        finding for finding in Pipeline.from_yaml(pipeline.file).check() if finding.name == "column types"
    ]
    assert [finding.level for finding in found] == ["error"]
    assert words in found[0].remedy
    with pytest.raises(PenstockError) as refused:
        pipeline.sync()
    assert words in str(refused.value)


def test_a_pattern_may_choose_for_columns_that_some_of_its_tables_have(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, d date); CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("INSERT INTO a VALUES (1, 'infinity'); INSERT INTO b VALUES (1)")
    pipeline = make([{"table": "public.*", "types": {"d": "text"}}])
    pipeline.sync()
    pipeline.assert_same("public.a", "public.b")


def test_a_type_with_the_name_of_a_built_in_one_is_text(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE SCHEMA shop; CREATE TYPE shop.int4 AS ENUM ('one', 'two')")
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, v shop.int4)")
    database.execute("INSERT INTO offers VALUES (1, 'one')")
    pipeline = make([stream()])
    pipeline.sync()
    database.execute("INSERT INTO offers VALUES (2, 'two')")
    pipeline.sync()
    pipeline.assert_same("public.offers")


def test_a_default_that_its_column_cannot_hold_is_a_dead_letter_and_no_null(
    database: Database, make: MakePipeline
) -> None:
    """Old rows read a constant default without an event; it must not become null on the way."""
    database.execute("CREATE TABLE offers (id int PRIMARY KEY); INSERT INTO offers VALUES (1), (2)")
    pipeline = make([stream()])
    pipeline.sync()
    database.execute("ALTER TABLE offers ADD COLUMN until date DEFAULT 'infinity'")
    database.execute("INSERT INTO offers VALUES (3, '2024-01-01')")
    pipeline.sync()
    table = Pipeline.from_yaml(pipeline.file).table("public.offers").to_arrow()
    assert table.to_pylist() == [{"id": 3, "until": dt.date(2024, 1, 1)}]
    assert Pipeline.from_yaml(pipeline.file).status().streams[0].dead_keys == 2

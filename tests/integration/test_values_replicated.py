"""Any value of any type is the same by load and by log, and what the source prints: by real replication.

Hypothesis draws the values of each type; a row has one of them, in the column of its type, so that what a
table cannot hold takes no other value with it. All of them come into the table three times: by the load, as
rows that were inserted later and as updates of rows that were null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.type_table import TYPE_TABLE
from tests.conftest import Database
from tests.drawn_values import MADE, TYPES, drawn
from tests.oracle import print_column, read_parquet, source_rows
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.traps import MakePipeline

#: What an insert, an update and the load give the same values: the ids of the load, and so much more.
WAYS = {"load": 0, "insert": 1_000_000, "update": 2_000_000}
DECIMALS = ("numeric(18,6)", "numeric(38,10)", "numeric(38,38)", "numeric(19,0)", "price")
#: Columns, and when a value of theirs has to be a dead letter, said by the server.
UNFIT = {
    "date": "NOT isfinite({c})",
    "timestamp": "NOT isfinite({c}) OR {c} > '294247-01-10 04:00:54.775807'",
    "timestamp(2)": "NOT isfinite({c}) OR {c} > '294247-01-10 04:00:54.775807'",
    "timestamptz": "NOT isfinite({c}) OR {c} > '294247-01-10 04:00:54.775807+00'",
    **dict.fromkeys(DECIMALS, "{c} = 'NaN'"),
}
COLUMNS = {kind: f"c{number}" for number, kind in enumerate(TYPES)}


def known(database: Database) -> list[str]:
    """The types that this server has; some are of a later version."""
    database.execute(MADE)
    rows = database.query(
        "SELECT k FROM unnest(%s::text[]) AS k WHERE to_regtype(k) IS NOT NULL", (list(TYPES),)
    )
    return [kind for (kind,) in rows]


def fill(database: Database, count: int) -> dict[str, int]:
    """How many values of each type there are; those of a type that the server takes."""
    kinds = known(database)
    columns = ", ".join(f"{COLUMNS[kind]} {kind}" for kind in kinds)
    database.execute(f"CREATE TABLE drawn (id int PRIMARY KEY, {columns})")
    counts = {}
    with connect(database.url) as connection:
        for number, kind in enumerate(kinds):
            statement = (
                f"INSERT INTO drawn (id, {COLUMNS[kind]}) SELECT {number * 1000} + n, v::{kind} "
                "FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n) WHERE pg_input_is_valid(v, %s)"
            )
            with suppress(psycopg.errors.FeatureNotSupported):  # xml, of a server that was built without it
                inserted = connection.execute(statement.encode(), (drawn(TYPES[kind], count), kind))
                counts[kind] = inserted.rowcount
    database.execute(f"INSERT INTO drawn (id) SELECT id + {WAYS['update']} FROM drawn")
    return counts


def change(database: Database) -> None:
    """The same values by the log."""
    columns = ", ".join(source_rows(database.url, "public.drawn").columns[1:])
    loaded = f"id < {WAYS['insert']}"
    database.execute(
        f"INSERT INTO drawn (id, {columns}) SELECT id + {WAYS['insert']}, {columns} FROM drawn WHERE {loaded}"
    )
    database.execute(
        f"UPDATE drawn AS d SET ({columns}) = (SELECT {columns} FROM drawn AS v "
        f"WHERE v.id = d.id - {WAYS['update']}) WHERE d.id > {WAYS['update']}"
    )


def held(pipeline: PipelineUnderTest) -> tuple[dict[int, dict[str, str]], dict[str, dict[int, object]]]:
    """What the table has in its rows, as the source would print it; and its very bits, by column and id."""
    table = read_parquet(pipeline.path("public.drawn"))
    ids = table.column("id").to_pylist()
    rows: dict[int, dict[str, str]] = {row: {} for row in ids}
    bits: dict[str, dict[int, object]] = defaultdict(dict)
    for column in table.column_names[1:]:
        printed, raw = print_column(table.column(column)), _bits(table.column(column))
        for row, text, value in zip(ids, printed, raw, strict=True):
            if text is not None:
                rows[row][column] = text
                bits[column][row] = value
    return rows, bits


def _bits(column: pa.ChunkedArray[Any]) -> list[object]:
    whole = column.combine_chunks()
    if pa.types.is_floating(whole.type) or pa.types.is_temporal(whole.type):
        whole = whole.view({32: pa.int32(), 64: pa.int64()}[whole.type.bit_width])
    values: list[object] = whole.to_pylist()
    return values


def dead_letters(pipeline: PipelineUnderTest) -> dict[int, dict[str, str | None]]:
    """By id, the column that does not fit and its text."""
    letters = Pipeline.from_yaml(pipeline.file).dead_letters("public.drawn").to_arrow().to_pylist()
    found = {}
    for letter in letters:
        texts = {entry["column"]: entry["value"] for entry in letter["_row"]}
        found[int(letter["_key"][0])] = {name: texts[name] for name in letter["_bad_columns"]}
    return found


def unfit(database: Database) -> set[int]:
    rows: set[int] = set()
    for kind, condition in UNFIT.items():
        where = condition.replace("{c}", COLUMNS[kind])
        rows |= {row for (row,) in database.query(f"SELECT id FROM drawn WHERE {where}")}
    return rows


def assert_exact(database: Database, pipeline: PipelineUnderTest) -> None:
    source = source_rows(database.url, "public.drawn")
    wanted: Mapping[int, dict[str, str]] = {
        int(str(row[0])): {
            name: text for name, text in zip(source.columns[1:], row[1:], strict=True) if text is not None
        }
        for row in source.rows
    }
    bad = unfit(database)
    rows, bits = held(pipeline)
    assert dead_letters(pipeline) == {row: wanted[row] for row in bad}
    different = {
        row: (wanted[row], rows.get(row)) for row in wanted.keys() - bad if rows.get(row) != wanted[row]
    }
    assert not different, dict(list(different.items())[:5])
    assert rows.keys() == wanted.keys() - bad
    for column, values in bits.items():
        by_way = [
            {row - base: value for row, value in values.items() if base < row < base + WAYS["insert"]}
            for base in WAYS.values()
        ]
        assert by_way[0] == by_way[1] == by_way[2], f"{column} has other bits by load than by log"


@pytest.mark.usefixtures("loads_by_spark")
@pytest.mark.parametrize(
    ("destination", "count"),
    [
        ("parquet", 12),
        pytest.param("parquet", 200, marks=pytest.mark.slow),
        pytest.param("iceberg", 60, marks=pytest.mark.slow),
    ],
)
def test_any_value_of_any_type_is_exact_by_load_and_by_log(
    database: Database, make: MakePipeline, destination: str, count: int
) -> None:
    counts = fill(database, count)
    few = {kind: found for kind, found in counts.items() if found < min(count, 2)}
    assert not few, "hardly any text that was drawn is a value of these types"
    pipeline = make(["public.drawn"], destination=DESTINATIONS[destination])
    pipeline.sync()
    change(database)
    pipeline.sync()
    assert_exact(database, pipeline)


@pytest.mark.slow
def test_any_value_of_any_type_is_exact_after_its_file_was_merged_with_others(
    database: Database, make: MakePipeline
) -> None:
    """Spark reads every value then, and writes it anew."""
    fill(database, 60)
    database.execute("ANALYZE drawn")
    pipeline = make(
        ["public.drawn"],
        destination=DESTINATIONS["iceberg"],
        load={"rows_per_chunk": 1000},  # many files
        maintenance={"every": "never"},
    )
    pipeline.sync()
    change(database)
    pipeline.sync()
    before = pipeline.files("public.drawn")
    [done] = Pipeline.from_yaml(pipeline.file).compact().streams
    assert "data files" in done.due
    assert not before & pipeline.files("public.drawn"), "every file was written anew"
    assert_exact(database, pipeline)


def test_every_type_of_the_table_of_types_has_values_to_draw(database: Database) -> None:
    names = database.query(
        "SELECT t.typname FROM unnest(%s::text[]) AS k JOIN pg_type AS t ON t.oid = k::regtype",
        (known(database),),
    )
    listed = {name for entry in TYPE_TABLE for name in entry.names}
    lacking = listed - {name for (name,) in names} - {"gtsvector"}  # of which nobody can write a value
    there = database.query("SELECT typname FROM pg_type WHERE typname = ANY(%s)", (list(lacking),))
    assert there == [], "types that this server has, and nobody draws values of"
    assert lacking <= TYPES.keys(), "a type of a later version has values to draw all the same"

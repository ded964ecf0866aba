"""Changes are written as Postgres writes them: strings as its `to_json`, keys as the snapshot's SQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from penstock.core.stream import StreamId
from penstock.shapes.definition import DefinitionRequest, define
from penstock.shapes.rendering.renderer import INSERT, View, render, render_keys
from penstock.shapes.rendering.row_lines import RowLines
from penstock.shapes.source.catalog import TableCard, read_cards
from penstock.shapes.source.row_reader import read_lines
from penstock.sources.postgres.connection import connect
from tests.conftest import Database
from tests.shape_changes import Change, changes_of

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.fixture
def source(database: Database) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with connect(database.url) as connection:
        yield connection


def test_strings_are_escaped_as_postgres_does_it(source: psycopg.Connection[tuple[object, ...]]) -> None:
    view = View(StreamId("public", "t"), ("a",), ("a",))

    @given(TEXTS)
    def compare(text: str) -> None:
        found = source.execute("SELECT to_json(%s::text)::text", (text,)).fetchone()
        assert found is not None
        changes = changes_of(view.stream, ("a",), [Change(INSERT, None, {"a": text})])
        item = render(changes, view, np.zeros(1, np.int32), np.full(1, INSERT, np.uint8))
        assert f'"value":{{"a":{found[0]}}},"headers"' in bytes(item.json).decode()

    compare()
    # Whatever is special to JSON or to us, all in one.
    compare.hypothesis.inner_test("".join(map(chr, range(1, 0x100))) + '/"\\\u2028\ufeff😀')  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["PRIMARY KEY (c, a)", "CHECK (true)"])
def test_keys_are_those_of_the_snapshot(source: psycopg.Connection[tuple[object, ...]], key: str) -> None:
    source.execute('CREATE SCHEMA "a/b"')
    source.execute(
        'CREATE TABLE "a/b"."c.d""e" (a text, n numeric, c boolean, b bytea, p char(5), i interval, '
        f"t timestamptz, f float8, r int[], o point, {key})".encode()
    )
    source.execute(
        """INSERT INTO "a/b"."c.d""e" VALUES
        ('x/y"\\', 1.50, true, '\\x2f22', 'a/', '1 day 2 h', '2026-01-01 12:00+02', 0.1, '{1,NULL}', '(1,2)'),
        ('/', 'NaN', false, NULL, NULL, NULL, 'infinity', '-Infinity', '{}', NULL)"""
    )
    source.execute('INSERT INTO "a/b"."c.d""e" (a, n, c) VALUES (%s, 0, true)', ("",))
    if "PRIMARY" not in key:
        source.execute('INSERT INTO "a/b"."c.d""e" DEFAULT VALUES')
    stream = StreamId("a/b", 'c.d"e')
    (card,) = read_cards(source, streams=[stream])

    def card_of(_: StreamId) -> TableCard:
        return card

    definition = define(DefinitionRequest(table='"a/b"."c.d""e"'), card_of)
    names = View.of(definition).key
    (lines,) = read_lines(source, RowLines(definition), 10.0)
    ends = [0, *lines.key_ends.tolist()]
    of_snapshot = [lines.keys[start:end] for start, end in itertools.pairwise(ends)]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(stream.namespace, stream.name))
    # Plain texts, by the types' output functions, as replication sends them.
    result = source.pgconn.exec_(query.as_bytes(source))
    rows = [
        [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
    ]
    assert len(rows) >= 3
    texts = [
        [None if value is None else value.decode() for value in column] for column in zip(*rows, strict=True)
    ]
    ours = render_keys(stream, [pa.array(column, pa.string()) for column in texts])
    assert ours.to_pylist() == of_snapshot

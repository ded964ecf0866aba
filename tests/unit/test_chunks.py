"""Chunks: ranges that cover every row once, and queries that no name can break."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.chunk import PlannedChunk
from penstock.sources.postgres.chunks import chunk_query, page_bounds

pytestmark = pytest.mark.unit


def table(key: tuple[str, ...] = ("id",), type_name: str = "int8") -> TableSchema:
    columns = tuple(SourceColumn(name, 20, -1, type_name, type_name) for name in ("id", 'we"ird', "o'k"))
    return TableSchema(StreamId("public", "orders"), columns, key)


def chunk(low: str | None, high: str | None, leaf: str = "public.orders") -> PlannedChunk:
    return PlannedChunk(leaf, low, high, filenode=1, estimated_rows=1)


def text(schema: TableSchema, planned: PlannedChunk, method: str = "ctid") -> str:
    query = chunk_query(schema, planned, "key" if method == "key" else "ctid", sql.SQL("*"))
    return query.as_string(None)


@given(pages=st.integers(0, 10**6), count=st.integers(1, 500))
def test_page_ranges_rise_and_are_even_to_one_page(pages: int, count: int) -> None:
    inner = [int(re.fullmatch(r"\((\d+),0\)", bound)[1]) for bound in page_bounds(pages, count)]  # type: ignore[index]
    edges = [0, *inner, pages]
    sizes = [high - low for low, high in itertools.pairwise(edges)]
    assert len(inner) == max(1, min(count, pages)) - 1
    assert max(sizes) - min(sizes) <= 1
    if inner:
        assert min(sizes) >= 1


def test_an_empty_table_has_one_range_without_bounds() -> None:
    assert page_bounds(0, 8) == []


def test_ranges_are_half_open_and_open_at_both_ends() -> None:
    assert text(table(), chunk(None, None)) == 'SELECT * FROM ONLY "public"."orders"'
    first, middle, last = (text(table(), chunk(*bounds)) for bounds in BOUNDS)
    assert first.endswith("""WHERE ctid < '(10,0)'::pg_catalog."tid\"""")
    assert middle.endswith(
        """WHERE ctid >= '(10,0)'::pg_catalog."tid" AND ctid < '(20,0)'::pg_catalog."tid\""""
    )
    assert last.endswith("""WHERE ctid >= '(20,0)'::pg_catalog."tid\"""")


BOUNDS: list[tuple[str | None, str | None]] = [(None, "(10,0)"), ("(10,0)", "(20,0)"), ("(20,0)", None)]


def test_a_chunk_reads_its_leaf_and_not_the_root() -> None:
    assert 'FROM ONLY "archive"."orders.2025"' in text(table(), chunk(None, None, "archive.orders.2025"))


def test_names_and_bounds_cannot_break_out_of_the_query() -> None:
    schema = table(key=('we"ird',))
    query = text(schema, chunk("1'; DROP TABLE x --", None, 'public.a"; DROP TABLE y --'), "key")
    assert '"a""; DROP TABLE y --"' in query
    assert """"we""ird" >= '1''; DROP TABLE x --'::pg_catalog."int8\"""" in query


def test_key_ranges_cast_the_bound_to_the_type_of_the_first_key_column() -> None:
    query = text(table(("id", "o'k"), "timestamptz"), chunk("2026-01-01 00:00:00+00", None), "key")
    assert query.endswith("""WHERE "id" >= '2026-01-01 00:00:00+00'::pg_catalog."timestamptz\"""")


def test_a_table_without_a_key_cannot_be_read_by_key() -> None:
    with pytest.raises(SourceError, match="no key"):
        text(table(key=()), chunk("1", None), "key")

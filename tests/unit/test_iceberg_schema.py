"""Columns are known by ids: which are the same, and which are not, whatever their names look like."""

from __future__ import annotations

import pyarrow as pa

from penstock.destinations.iceberg_schema import assign_ids, ids_of, same_columns, with_field_ids

NUMBERS = pa.list_(pa.field("element", pa.int64()))


def with_ids(columns: dict[str, pa.DataType]) -> pa.Schema:
    schema = pa.schema(list(columns.items()))
    return with_field_ids(schema, assign_ids(schema, {}, 0))


def test_a_column_whose_name_has_a_dot_keeps_its_id() -> None:
    held = with_ids({"id": pa.int64(), "a.b": pa.string()})
    again = pa.schema([("a.b", pa.string()), ("a", pa.string())])
    assert same_columns(again, held) == {"a.b": ids_of(held)["a.b"]}


def test_a_column_that_is_named_like_the_inside_of_another_has_an_id_of_its_own() -> None:
    held = with_ids({"a": NUMBERS, "a.element": pa.int64()})
    assert len(set(ids_of(held).values())) == 3
    assert same_columns(pa.schema([("a.element", pa.int64())]), held) == {"a.element": 3}


def test_what_is_inside_of_a_column_keeps_its_id_with_it() -> None:
    held = with_ids({"id": pa.int64(), "a.b": NUMBERS})
    again = pa.schema([("a.b", NUMBERS)])
    assert assign_ids(again, same_columns(again, held), 9) == {
        name: number for name, number in ids_of(held).items() if name != "id"
    }

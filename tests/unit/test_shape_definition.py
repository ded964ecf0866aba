"""Definitions of shapes: what a request means, what is refused and how, which requests share a shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.offset import LogOffset
from penstock.shapes.definition import (
    DefinitionError,
    DefinitionRequest,
    ShapeDefinition,
    define,
)
from penstock.shapes.http.app import check_compaction
from penstock.shapes.http.request import RequestError, ShapeRequest
from penstock.shapes.schema_header import modifiers
from penstock.shapes.source.catalog import TableCard
from tests.shape_wire import card, column

ITEMS = card(
    columns=(
        column("id", "int4", nullable=False),
        column("value"),
        column("Weird, Name"),
        column("tags", "text", dimensions=1),
        column("price", "numeric", modifier=(12 << 16 | 2) + 4),
    )
)


def shape(table: TableCard = ITEMS, /, **request: Any) -> ShapeDefinition:
    cards = {table.stream: table}
    return define(DefinitionRequest(**{"table": "items", **request}), cards.get)


def errors(table: TableCard = ITEMS, /, **request: Any) -> dict[str, Any]:
    with pytest.raises(DefinitionError) as caught:
        shape(table, **request)
    return caught.value.errors


def test_columns_come_in_the_table_s_order_whatever_the_order_they_are_asked_in() -> None:
    assert shape().columns == ITEMS.names
    assert shape(columns='"Weird, Name",id').columns == ("id", "Weird, Name")
    assert shape(columns="value,id,value").identity == shape(columns="id,value").identity


def test_the_header_has_the_types_of_the_selected_columns() -> None:
    assert json.loads(shape(columns="id,tags,price").schema_header) == {
        "id": {"type": "int4", "not_null": True, "pk_index": 0},
        "tags": {"type": "text", "dims": 1},
        "price": {"type": "numeric", "precision": 12, "scale": 2},
    }
    assert shape(card(columns=(column("id"), column("größe")))).schema_header.isascii()


@pytest.mark.parametrize(
    ("type_name", "modifier", "said"),
    [
        ("varchar", 259, {"max_length": 255}),
        ("bpchar", 14, {"length": 10}),
        ("bit", 3, {"length": 3}),
        ("varbit", 8, {"length": 8}),
        ("numeric", (5 << 16 | 0x7FF) + 4, {"precision": 5, "scale": -1}),
        ("timestamptz", 3, {"precision": 3}),
        ("time", 0, {"precision": 0}),
        ("interval", 0x7FFF << 16 | 3, {"precision": 3}),
        ("interval", (1 << 2 | 1 << 1) << 16 | 0xFFFF, {"fields": "YEAR TO MONTH"}),
        ("interval", 1 << 12 << 16 | 2, {"fields": "SECOND", "precision": 2}),
        ("geometry", 7, {"type_mod": 7}),
    ],
)
def test_a_modifier_is_told_by_its_meaning(type_name: str, modifier: int, said: dict[str, Any]) -> None:
    assert modifiers(type_name, modifier) == said


def test_a_table_that_is_not_there_is_told_by_its_quoted_name() -> None:
    assert errors(table="Nope") == {
        "table": [
            'Table "public"."nope" does not exist. If the table name contains capitals or special characters '
            "you must quote it."
        ]
    }
    assert errors(table="a.b.c") == {"table": ["Invalid table name: expected a name, or a schema and a name"]}


@pytest.mark.parametrize("table", [replace(card(), kind="v"), replace(card(), unlogged=True)])
def test_what_has_no_changes_in_the_log_has_no_shapes(table: TableCard) -> None:
    assert list(errors(table)) == ["table"]


def test_refused_columns_are_named() -> None:
    assert errors(columns="id,nope,neither") == {
        "columns": ["The following columns are not found on the table: nope, neither"]
    }
    assert errors(columns="value") == {
        "columns": ["The list of columns must include all primary key columns, missing: id"]
    }
    assert errors(columns="id,") == {"columns": ["Invalid zero-length delimited identifier"]}
    assert errors(columns="") == {"columns": ["Invalid zero-length delimited identifier"]}


def test_generated_columns_cannot_be_selected_and_must_be_left_out() -> None:
    table = card(columns=(column("id"), column("double", generated=True)))
    said = "The following columns are generated and cannot be included in the shape: double"
    assert errors(table, columns="id,double") == {"columns": [said]}
    assert errors(table)["columns"][0].startswith(said + ". ")
    assert shape(table, columns="id").columns == ("id",)


def test_a_table_with_virtual_columns_has_no_shapes() -> None:
    table = card(columns=(column("id"), column("double", generated=True, virtual=True)))
    assert list(errors(table)) == list(errors(table, columns="id")) == ["table"]


def test_queryable_columns_bound_the_columns_and_replace_them_where_there_are_none() -> None:
    assert shape(queryable_columns="id,value").columns == ("id", "value")
    assert shape(queryable_columns="id,value").identity == shape(columns="id,value").identity
    assert shape(queryable_columns="id,value", columns="id").queryable == ("id", "value")
    assert errors(queryable_columns="id", columns="id,value") == {
        "columns": ["The following columns are not queryable: value"]
    }
    assert list(errors(queryable_columns="value")) == ["queryable_columns"]


def test_requests_that_mean_the_same_share_a_shape() -> None:
    alike = shape(where="id = $1", params=("5",))
    assert alike.identity == shape(where="id=5").identity
    assert alike.identity == shape(table='"public"."items"', where=" ( id ) = 5").identity
    others = [
        shape(),
        shape(where="id = 6"),
        shape(where="id = 5", replica="full"),
        shape(where="id = 5", log="changes_only"),
        shape(where="id = 5", columns="id"),
        shape(where="id = 5", columns=",".join(f'"{name}"' for name in ITEMS.names)),
        shape(replace(ITEMS, oid=20_001), where="id = 5"),
        shape(replace(ITEMS, key=()), where="id = 5"),
    ]
    assert len({each.identity for each in (alike, *others)}) == len(others) + 1


def test_an_added_column_extends_a_shape_of_all_columns_and_changes_no_identity() -> None:
    longer = replace(ITEMS, columns=(*ITEMS.columns, column("added")))
    for before in (shape(where="id = 5"), shape(where="id = 5", columns="id,value")):
        after = before.with_card(longer)
        assert after.identity == before.identity
        assert ("added" in after.columns) is not before.selected_explicitly
    assert shape(longer).identity == shape().identity


def test_a_definition_is_read_back_without_a_source() -> None:
    before = shape(where="id = $1 AND value LIKE $2", params=("5", "a%"), columns="id,value", replica="full")
    after = ShapeDefinition.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.where is not None
    assert before.where is not None
    assert after.where.text == before.where.text
    assert after.schema_header == before.schema_header
    assert after.card == before.card


def test_a_condition_is_refused_in_the_contract_s_words() -> None:
    assert errors(where="1 x 1") == {"where": ['At location 17: syntax error at or near "x"']}
    assert errors(where="nope = 1")["where"][0].endswith("unknown reference nope")
    assert errors(where="id = $2", params=("1",))["where"][0].endswith("parameter $2 was not provided")


USERS = card(
    "users", (column("uid", "int4", nullable=False), column("name"), column("team", "int4")), key=("uid",)
)
CARDS = {ITEMS.stream: ITEMS, USERS.stream: USERS}


def with_subquery() -> ShapeDefinition:
    where = "id IN (SELECT team FROM users WHERE name = $1)"
    return define(DefinitionRequest("items", where=where, params=("a",)), CARDS.get)


def test_a_subquery_s_inner_shape_has_its_values_and_its_key() -> None:
    definition = with_subquery()
    assert definition.where is not None
    (atom,) = definition.where.subqueries
    assert atom.columns == ("team",)
    assert atom.definition.table == USERS.stream
    assert atom.definition.columns == ("uid", "team")
    assert atom.definition.log == "full"
    again = ShapeDefinition.from_json(json.loads(json.dumps(definition.to_json())))
    assert again == definition
    inner = ShapeDefinition.from_json(json.loads(json.dumps(atom.definition.to_json())))
    assert inner == atom.definition


def test_compaction_cannot_be_asked_for_with_subqueries() -> None:
    wanted = ShapeRequest(DefinitionRequest("items"), LogOffset.BEFORE_ALL, compaction=True)
    check_compaction(wanted, shape())
    with pytest.raises(RequestError) as caught:
        check_compaction(wanted, with_subquery())
    assert caught.value.errors == {"experimental_compaction": ["can't be enabled for shapes with subqueries"]}

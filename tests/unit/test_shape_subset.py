"""What a subset may ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.source.subset import SubsetError, SubsetRequest, define_subset
from tests.shape_wire import card, column

ITEMS = card(columns=(column("id", "int4", nullable=False), column("Name"), column("secret")))


def shape(**request: Any) -> ShapeDefinition:
    return define(DefinitionRequest(**{"table": "items", **request}), {ITEMS.stream: ITEMS}.get)


def rest_of(order_by: str, **request: Any) -> str:
    rest = define_subset(shape(), SubsetRequest(order_by=order_by, **request)).rest
    assert rest is not None
    return rest.as_string()


def refused(definition: ShapeDefinition | None = None, **request: Any) -> dict[str, Any]:
    with pytest.raises(SubsetError) as caught:
        define_subset(definition or shape(), SubsetRequest(**request))
    return caught.value.errors


def test_order_takes_columns_and_text_is_in_the_order_of_its_bytes() -> None:
    assert rest_of("id") == 'ORDER BY "items"."id"'
    assert rest_of('"Name" DESC NULLS LAST, ID asc', limit=5, offset=10) == (
        'ORDER BY "items"."Name" COLLATE "C" DESC NULLS LAST, "items"."id" ASC LIMIT 5 OFFSET 10'
    )
    assert rest_of("2 DESC NULLS FIRST") == 'ORDER BY "items"."Name" COLLATE "C" DESC NULLS FIRST'


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        ("id::text", "TypeCast expressions are not allowed in ORDER BY clauses"),
        ("lower(secret)", "FuncCall expressions are not allowed in ORDER BY clauses"),
        ("pg_sleep(10)", "FuncCall expressions are not allowed in ORDER BY clauses"),
        ("(SELECT 1)", "SubLink expressions are not allowed in ORDER BY clauses"),
        ("CASE WHEN true THEN 1 END", "CaseExpr expressions are not allowed in ORDER BY clauses"),
        ("$1", "ParamRef expressions are not allowed in ORDER BY clauses"),
        ('id COLLATE "C"', "CollateClause expressions are not allowed in ORDER BY clauses"),
        ("nothing", "unknown reference nothing"),
        ("items.id", "unknown reference items.id"),
        ("id USING <", "USING is not allowed in ORDER BY clauses"),
        ("'id'", "non-integer constant in ORDER BY"),
        ("7", "ORDER BY position 7 is not in select list"),
        ("id LIMIT 1", "malformed query ending with SQL clauses"),
        ("id FOR UPDATE", "malformed query ending with SQL clauses"),
        ("id; DROP TABLE items", "ORDER BY takes one list of columns"),
        ("id UNION SELECT 1", None),
        ("id)", None),
        ("id -- ", ""),
        ("", ""),
    ],
)
def test_order_takes_nothing_else(order_by: str, message: str | None) -> None:
    if message == "":  # nothing is wrong with it
        assert define_subset(shape(), SubsetRequest(order_by=order_by)) is not None
        return
    errors = refused(order_by=order_by)
    assert set(errors) == {"order_by"}
    assert message is None or errors["order_by"] == [message]


def test_a_limit_needs_an_order() -> None:
    message = {"order_by": ["order_by is required when limit or offset is present"]}
    assert refused(limit=1) == message
    assert refused(offset=1) == message


def test_a_condition_is_checked_like_a_shape_s_but_has_no_subqueries() -> None:
    subset = define_subset(shape(), SubsetRequest(where='"Name" = $1 AND id > $2', params=("x", "3")))
    assert subset.condition is not None
    assert subset.condition.columns == {"Name", "id"}
    assert refused(where="id IN (SELECT id FROM items)") == {
        "where": ["Subqueries are not allowed in subsets"]
    }
    assert refused(where="nothing = 1") == {"where": ["At location 0: unknown reference nothing"]}
    assert refused(where="id = $1") == {"where": ["At location 5: parameter $1 was not provided"]}


def test_only_queryable_columns_can_be_asked_about() -> None:
    definition = shape(queryable_columns='id,"Name"')
    assert refused(definition, where="secret = 'x'") == {"where": ["At location 0: unknown reference secret"]}
    assert refused(definition, order_by="secret") == {"order_by": ["unknown reference secret"]}
    assert define_subset(definition, SubsetRequest(where="id = 1", order_by="id")).rest is not None

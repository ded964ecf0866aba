"""What a change of a table means for a shape of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.stream import StreamId
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source.catalog import CardColumn, Catalog, TableCard
from penstock.shapes.source.problems import unreachable
from penstock.shapes.source.reconciler import compare, is_published
from penstock.sources.postgres.connection import Connection
from tests.shape_wire import card, column

ID = column("id", "int4", nullable=False)
BEFORE = card(columns=(ID, column("a"), column("b"), column("hidden")))


def shape(table: TableCard = BEFORE, **request: Any) -> ShapeDefinition:
    return define(DefinitionRequest(**{"table": "items", **request}), {table.stream: table}.get)


def table(*columns: CardColumn, **changed: Any) -> TableCard:
    return replace(BEFORE, columns=columns or BEFORE.columns, **changed)


def verdict(definition: ShapeDefinition, now: TableCard | None) -> str:
    found = compare(definition, now)
    return found.kind if found is not None else "nothing"


def without(name: str) -> TableCard:
    return table(*(each for each in BEFORE.columns if each.name != name))


def changed(name: str, **fields: Any) -> TableCard:
    return table(*(replace(each, **fields) if each.name == name else each for each in BEFORE.columns))


@pytest.mark.parametrize(
    "now",
    [
        None,
        table(oid=BEFORE.oid + 1),
        table(stream=StreamId("public", "renamed")),
        table(kind="p"),
        table(unlogged=True),
        table(partitions=("/1:2",)),
        table(key=("id", "a")),
        table(key=()),
        without("a"),
        without("b"),
        changed("a", type_name="varchar"),
        changed("a", modifier=12),
        changed("a", source=replace(column("a").source, type_oid=23)),
        changed("a", source=replace(column("a").source, attribute_number=9)),
        changed("b", labels=("x",)),
        changed("b", deterministic=False),
    ],
)
def test_whatever_makes_rows_read_otherwise_rotates(now: TableCard | None) -> None:
    assert verdict(shape(columns="id,a", where="b = 'x'"), now) == "rotate"


def test_a_table_that_is_as_it_was_means_nothing() -> None:
    assert verdict(shape(), BEFORE) == "nothing"


def test_columns_that_a_shape_has_nothing_to_do_with_do_not_rotate_it() -> None:
    some = shape(columns="id,a", where="b = 'x'")
    assert verdict(some, without("hidden")) == "refresh"
    assert verdict(some, table(*BEFORE.columns, column("c", nullable=False, has_default=True))) == "refresh"
    assert verdict(shape(), without("hidden")) == "rotate"


def test_nullability_and_defaults_refresh_the_header() -> None:
    a = column("a")
    for now in (
        changed("a", source=replace(a.source, nullable=False)),
        changed("a", has_default=True),
        changed("a", source=replace(a.source, missing_value="x")),
    ):
        found = compare(shape(), now)
        assert found is not None
        assert (found.kind, found.card) == ("refresh", now)


def test_an_added_column_rotates_only_where_older_rows_have_a_value_in_it() -> None:
    assert verdict(shape(), table(*BEFORE.columns, column("c"))) == "refresh"
    for added in (column("c", has_default=True), column("c", nullable=False), column("c", generated=True)):
        assert verdict(shape(), table(*BEFORE.columns, added)) == "rotate"


def test_another_expression_of_a_generated_column_gave_rows_other_values() -> None:
    before = table(*BEFORE.columns, column("c", has_default=True, expression="a || b"))
    now = table(*BEFORE.columns, column("c", has_default=True, expression="b || a"))
    assert verdict(shape(before), now) == "rotate"
    assert verdict(shape(before, columns="id,a"), now) == "refresh"


def test_an_added_column_of_a_table_without_a_key_is_part_of_every_key() -> None:
    keyless = replace(BEFORE, key=())
    now = replace(keyless, columns=(*keyless.columns, column("c")))
    assert verdict(shape(keyless, columns="a"), now) == "rotate"
    assert verdict(shape(keyless, columns="a"), replace(without("hidden"), key=())) == "rotate"


def test_while_the_source_is_away_a_table_is_taken_for_what_it_was() -> None:
    def connections() -> AbstractContextManager[Connection]:
        raise unreachable()

    catalog = Catalog(connections)
    catalog.put(BEFORE)
    catalog.forget(BEFORE.stream)
    catalog.forget(BEFORE.stream)
    assert catalog.known(BEFORE.stream) is None, "it is asked for again each time"
    assert catalog.card(BEFORE.stream) == BEFORE
    with pytest.raises(SnapshotProblem):
        catalog.card(StreamId("public", "others"))


def test_a_table_with_partitions_that_becomes_a_partition_is_rotated_and_another_one_is_not() -> None:
    parted = table(kind="p")
    assert verdict(shape(parted), replace(parted, is_partition=True)) == "rotate"
    assert verdict(shape(), table(is_partition=True)) == "refresh"
    assert TableCard.from_json(parted.to_json()) == parted
    written_before = {name: value for name, value in BEFORE.to_json().items() if name != "is_partition"}
    assert TableCard.from_json(written_before) == BEFORE


def test_a_table_is_published_if_it_is_or_all_of_its_leaves_are() -> None:
    assert is_published(BEFORE, frozenset({BEFORE.oid}))
    assert not is_published(BEFORE, frozenset({BEFORE.oid + 1}))
    parted = table(kind="p", partitions=("/1:7", "/2:8/3:9"))
    assert is_published(parted, frozenset({1, 3}))
    assert not is_published(parted, frozenset({1, 2}))
    assert is_published(table(kind="p"), frozenset()), "there are no rows that could change"

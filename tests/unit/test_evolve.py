"""A table follows its source's columns by what they are, not by what they are called."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.selection import Selection, SelectionError
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.lake.evolve import ColumnSource, plan_evolution
from penstock.lake.work import MustReload, SchemaPlan, plan_schema, untold
from penstock.log.reader import LogFile


def column(
    name: str, number: int, type_name: str = "int4", modifier: int = -1, **more: object
) -> SourceColumn:
    oid = sum(map(ord, type_name))
    return SourceColumn(name, oid, modifier, type_name, type_name, number, **more)  # type: ignore[arg-type]


def table(*columns: SourceColumn, key: tuple[str, ...] = ("id",), oid: int = 7) -> TableSchema:
    return TableSchema(StreamId("public", "t"), columns, key, relation_oid=oid)


ID = column("id", 1)
BASE = table(ID, column("a", 2), column("b", 3))
UNKNOWN = [replace(each, attribute_number=0) for each in BASE.columns]


def test_the_same_columns_are_the_same() -> None:
    assert plan_evolution(BASE, BASE).kind == "same"
    assert plan_evolution(BASE, replace(BASE, replica_identity="f", deferrable_key=True)).kind == "same"


def test_an_added_column_holds_its_constant_default_or_null_in_rows_that_are_there() -> None:
    new = table(*BASE.columns, column("c", 4, missing_value="5"), column("d", 5))
    evolution = plan_evolution(BASE, new)
    assert evolution.kind == "rewrite"
    assert evolution.columns[3:] == (ColumnSource("c", None, "5"), ColumnSource("d", None, None))


def test_an_added_generated_column_needs_a_new_load() -> None:
    new = table(*BASE.columns, column("c", 4, generated=True))
    for number in (0, 3):
        evolution = plan_evolution(table(*BASE.columns[:2], column("b", number)), new)
        assert evolution.kind == "resync"
        assert "c is generated" in evolution.reason
    ordinary = table(*BASE.columns, column("c", 4))
    assert plan_evolution(new, ordinary).kind == "same", "DROP EXPRESSION"


def test_an_added_generated_column_is_null_in_older_rows_that_are_to_stay() -> None:
    old = replace(BASE, storage="before")  # adding the column writes the table anew
    new = replace(table(*BASE.columns, column("c", 4, generated=True)), storage="after")
    evolution = plan_evolution(old, new, keeps_older_rows=True)
    assert evolution.kind == "rewrite"
    assert evolution.columns[3:] == (ColumnSource("c", None, None),)
    besides = replace(table(*new.columns, column("d", 5)), storage="after")
    assert plan_evolution(old, besides, keeps_older_rows=True).kind == "resync", "d may have got any values"


W = column("w", 4, generated=True)
PUBLISHED = table(*BASE.columns[:2], W, BASE.columns[2])
LEFT_OUT = replace(BASE, unpublished=(W,))


def test_a_generated_column_that_is_no_longer_published_is_not_dropped() -> None:
    for new in (LEFT_OUT, replace(LEFT_OUT, columns=tuple(UNKNOWN))):
        for keeps in (False, True):
            evolution = plan_evolution(PUBLISHED, new, keeps_older_rows=keeps)
            assert evolution.kind == "resync"
            assert "w is generated" in evolution.reason
    assert plan_evolution(PUBLISHED, BASE).kind == "rewrite", "DROP COLUMN"
    assert plan_evolution(BASE, LEFT_OUT).kind == "same", "it was never published"


def planned(base: TableSchema, *versions: TableSchema, keeps: bool = True) -> SchemaPlan | MustReload:
    """Of a range whose files have these versions, in order."""
    files = [LogFile(Path("f"), version.id, str(version.stream), 0, 0, {}, 0, 0) for version in versions]
    by_id = {version.id: version for version in versions}
    return plan_schema(base, files, by_id.__getitem__, keeps_older_rows=keeps)


@pytest.mark.parametrize("versions", [(LEFT_OUT,), (PUBLISHED, LEFT_OUT), (LEFT_OUT, PUBLISHED)])
def test_rows_that_stay_as_they_were_told_keep_a_column_that_is_no_longer_published(
    versions: tuple[TableSchema, ...],
) -> None:
    plan = planned(PUBLISHED, *versions)
    assert isinstance(plan, SchemaPlan)
    assert plan.rewrite is None
    assert plan.schema == PUBLISHED
    untold_in = {version.id: untold(plan.columns[version.id], plan.schema) for version in versions}
    assert untold_in == {each.id: ["w"] if each == LEFT_OUT else [] for each in versions}
    assert isinstance(planned(PUBLISHED, *versions, keeps=False), MustReload)
    never = planned(BASE, LEFT_OUT, keeps=False)
    assert isinstance(never, SchemaPlan)
    assert never.schema == BASE, "what rows of the log lack says nothing of the table"


def test_what_else_changes_while_a_column_is_not_published_is_followed() -> None:
    renamed, more = replace(W, name="x"), column("d", 5, missing_value="5")
    left_out = replace(LEFT_OUT, columns=(*BASE.columns[:2], more), unpublished=(renamed, column("y", 6)))
    plan = planned(PUBLISHED, left_out)
    assert isinstance(plan, SchemaPlan)
    assert plan.rewrite == (
        ColumnSource("id", "id"),
        ColumnSource("a", "a"),
        ColumnSource("x", "w"),
        ColumnSource("d", None, "5"),
    )
    assert plan.columns[left_out.id][2:] == (ColumnSource("x", None), ColumnSource("d", "d"))


def test_a_part_of_the_table_lacks_what_it_holds_and_is_not_published() -> None:
    with_w, without = Selection(("id", "w")), Selection(("id", "a"))
    plan = planned(with_w.of(PUBLISHED), with_w.of(LEFT_OUT))
    assert isinstance(plan, SchemaPlan)
    assert plan.schema == with_w.of(PUBLISHED)
    assert without.of(LEFT_OUT) == without.of(BASE)
    asked = Selection(("id", "a"), Condition.compile("w = 1", PUBLISHED.columns))
    with pytest.raises(SelectionError, match="column w"):
        asked.of(LEFT_OUT)  # nobody can tell which rows are of the part
    assert asked.unpublished(LEFT_OUT) == (W,)


def test_a_version_says_that_columns_are_not_published_and_others_are_what_they_were() -> None:
    assert TableSchema.from_json(json.loads(json.dumps(LEFT_OUT.to_json()))) == LEFT_OUT
    assert LEFT_OUT.id != BASE.id
    assert "unpublished" not in BASE.to_json()


def test_a_column_that_was_altered_in_a_rewritten_table_needs_a_new_load() -> None:
    old = replace(table(ID, column("a", 2, version="7")), storage="before")
    new = replace(table(ID, column("a", 2, version="9")), storage="after")
    evolution = plan_evolution(old, new)
    assert evolution.kind == "resync"
    assert "a" in evolution.reason
    assert plan_evolution(old, replace(new, storage="before")).kind == "same", "SET STATISTICS, for instance"
    assert plan_evolution(old, replace(old, storage="after")).kind == "same", "VACUUM FULL"


def test_a_column_dropped_and_added_again_needs_a_new_load() -> None:
    assert plan_evolution(table(ID, column("a", 2)), table(ID, column("a", 3))).kind == "resync"


def test_a_rewrite_of_the_table_makes_an_added_column_uncertain_and_nothing_else() -> None:
    old = replace(BASE, storage="before")
    assert plan_evolution(old, replace(BASE, storage="after")).kind == "same"
    assert plan_evolution(old, replace(table(ID, column("c", 3)), storage="after")).kind == "rewrite"
    added = table(*BASE.columns, column("c", 4))
    assert plan_evolution(old, replace(added, storage="after")).kind == "resync"
    assert plan_evolution(old, replace(added, storage="before")).kind == "rewrite"
    assert plan_evolution(old, replace(added, storage="")).kind == "rewrite"
    later = table(*BASE.columns, column("c", 4, missing_value="5"))
    assert plan_evolution(old, replace(later, storage="after")).kind == "rewrite", "added after the rewrite"
    wider = replace(table(ID, column("a", 2, "text"), column("b", 3)), storage="after")
    narrow = replace(table(ID, column("a", 2, "varchar", 9), column("b", 3)), storage="before")
    assert plan_evolution(narrow, wider).kind == "resync", "ALTER … USING"


def test_dropped_columns_leave_and_renamed_ones_stay_what_they_were() -> None:
    evolution = plan_evolution(BASE, table(ID, column("c", 3)))
    assert evolution.kind == "rewrite"
    assert evolution.columns == (ColumnSource("id", "id"), ColumnSource("c", "b"))


def test_columns_that_swap_names_swap_values() -> None:
    evolution = plan_evolution(BASE, table(ID, column("b", 2), column("a", 3)))
    assert evolution.columns[1:] == (ColumnSource("b", "a"), ColumnSource("a", "b"))
    assert evolution.kind == "rewrite"


def test_a_key_of_other_columns_needs_a_new_load_and_a_renamed_key_does_not() -> None:
    assert plan_evolution(BASE, replace(BASE, key=("id", "a"))).kind == "resync"
    renamed = table(column("key", 1), column("a", 2), column("b", 3), key=("key",))
    assert plan_evolution(BASE, renamed).kind == "rewrite"
    added = table(column("a", 2), column("b", 3), column("id", 4))
    assert plan_evolution(BASE, added).kind == "resync"


def test_a_table_created_anew_needs_a_new_load() -> None:
    assert plan_evolution(BASE, replace(BASE, relation_oid=8)).kind == "resync"


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (("varchar", 9), ("varchar", 14), "same"),
        (("varchar", 9), ("varchar", -1), "same"),
        (("varchar", 9), ("text", -1), "same"),
        (("text", -1), ("varchar", -1), "same"),
        (("text", -1), ("varchar", 9), "resync"),
        (("varchar", 14), ("varchar", 9), "resync"),
        (("varchar", -1), ("varchar", 9), "resync"),
        (("bpchar", 9), ("bpchar", 14), "resync"),
        (("bpchar", 9), ("text", -1), "resync"),
        (("timestamp", 3), ("timestamp", 6), "same"),
        (("timestamp", 3), ("timestamp", -1), "same"),
        (("timestamp", -1), ("timestamp", 3), "resync"),
        (("timestamp", -1), ("timestamptz", -1), "resync"),
        (("numeric", numeric(10, 2)), ("numeric", numeric(12, 2)), "resync"),
        (("numeric", numeric(50, 2)), ("numeric", numeric(60, 2)), "same"),
        (("numeric", numeric(50, 2)), ("numeric", numeric(60, 3)), "resync"),
        (("numeric", numeric(50, 2)), ("numeric", numeric(45, 2)), "resync"),
        (("numeric", numeric(50, 2)), ("numeric", -1), "same"),
        (("numeric", -1), ("numeric", numeric(50, 2)), "resync"),
        (("int4", -1), ("int8", -1), "resync"),
        (("int4", -1), ("text", -1), "resync"),
        (("json", -1), ("jsonb", -1), "resync"),
        (("mood", -1), ("text", -1), "resync"),
        (("time", 3), ("time", -1), "same"),
        (("varbit", 3), ("varbit", 5), "same"),
        (("bit", 3), ("bit", 5), "resync"),
    ],
)
def test_a_type_may_change_where_no_value_does(
    before: tuple[str, int], after: tuple[str, int], kind: str
) -> None:
    old, new = table(ID, column("a", 2, *before)), table(ID, column("a", 2, *after))
    assert plan_evolution(old, new).kind == kind


def test_a_domain_over_a_type_is_that_type_and_another_type_of_the_same_name_is_not() -> None:
    for type_name, kind in (("int4", "same"), ("mood", "resync")):
        old = table(ID, column("a", 2, type_name))
        new = table(ID, replace(column("a", 2, type_name), type_oid=99))
        assert plan_evolution(old, new).kind == kind


def test_without_numbers_only_what_names_tell_is_certain() -> None:
    assert plan_evolution(BASE, table(*UNKNOWN)).kind == "same"
    assert plan_evolution(table(*UNKNOWN), BASE).kind == "same"
    assert plan_evolution(table(*UNKNOWN), table(*BASE.columns, column("c", 4))).kind == "rewrite"
    assert plan_evolution(BASE, table(*UNKNOWN[:2])).kind == "rewrite"


def test_without_numbers_a_rename_and_a_drop_with_an_addition_cannot_be_told_apart() -> None:
    evolution = plan_evolution(BASE, table(*BASE.columns[:2], column("c", 0)))
    assert evolution.kind == "unsure"
    assert "renamed" in evolution.reason


def test_without_its_number_the_default_of_an_added_column_is_not_known() -> None:
    assert plan_evolution(BASE, table(*BASE.columns, column("c", 0))).kind == "unsure"


def test_a_column_known_to_be_another_is_not_paired_by_name() -> None:
    old = table(ID, column("a", 2), column("b", 0))
    assert plan_evolution(old, table(ID, column("b", 3), column("a", 4))).kind == "unsure"

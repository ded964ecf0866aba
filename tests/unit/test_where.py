"""Conditions: what is refused is refused at its place, and nothing a person writes is printed as SQL."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.selection import Selection, SelectionError
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.core.where.calendar import date_number, timestamp_number
from penstock.lake.evolve import plan_evolution

TYPES = {
    "id": "int4",
    "big": "int8",
    "amount": "numeric",
    "ratio": "float4",
    "measure": "float8",
    "name": "text",
    "Region": "varchar",
    "day": "date",
    "at": "timestamptz",
    "flag": "bool",
    "data": "jsonb",
    "code": "bpchar",
    "place": "inet",
}
COLUMNS = [SourceColumn(name, 23, -1, kind, kind) for name, kind in TYPES.items()]


def compiled(text: str) -> Condition:
    return Condition.compile(text, COLUMNS)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("id = = 1", 5, "syntax error"),
        ("name = 'ä' AND missing = 1", 15, "unknown reference missing"),
        ("region = 'eu'", 0, 'did you mean "Region"?'),
        ("naem = 'x'", 0, "did you mean name?"),
        ("id = 'x'", 3, "not a whole number"),
        ("id = 1 AND name = 5", 16, "could not select an operator: text = int4"),
        ("data IS NULL", 0, "unsupported type jsonb"),
        ("code = 'eu'", 0, "unsupported type bpchar"),
        ("place::text = '::1'", 0, "unsupported type inet"),
        ("name", 0, "must be true or false"),
        ("id IN (SELECT 1)", 3, "subquery is not supported"),
        ("id = $1", 5, "parameter $1 was not provided"),
        ("at > now()", 5, "unknown or unsupported function now/0"),
        ("at > CURRENT_TIMESTAMP", 5, "changes with the clock"),
        ("day > 'yesterday'", 4, "write YYYY-MM-DD"),
        ("day > '1/2/2024'", 4, "write YYYY-MM-DD"),
        ("day > '2023-02-29'", 4, "no such day"),
        ("measure + 1 > 2", 8, "could not select an operator"),
        ("amount / 3 > 1", 7, "numerics are rounded"),
        ("id / 0 > 1", 3, "not zero"),
        ("id / big > 1", 3, "needs a literal"),
        ("amount = measure", 7, "cannot be converted"),
        ("big::int4 = 1", 3, "not every int8 fits"),
        ("ratio IN (0.1)", 6, "write = and OR"),
        ("name LIKE name", 5, "must be a literal"),
        ("name LIKE 'a!%' ESCAPE '!'", 5, "without ESCAPE"),
        ("name LIKE 'a\\'", 5, "must not end with escape"),
        ("name < 'x' COLLATE \"en_US\"", 11, "no other collation"),
        ("CASE WHEN flag THEN true END", 0, "CASE is not supported"),
        ("x.id = 1", 0, "name alone"),
        ("name ~ 'a'", 5, "operator ~ is not supported"),
        ("id = 1::numeric(3,1)", 6, "without limits"),
        ("40000::int2 = id", 5, "out of the range of int2"),
        ("(id, big) = (1, 2)", 10, "rows and arrays"),
        ("count(*) > 1", 0, "unknown or unsupported function count/0"),
    ],
)
def test_what_cannot_be_evaluated_exactly_is_refused_at_its_place(text: str, place: int, said: str) -> None:
    with pytest.raises(WhereError) as refused:
        compiled(text)
    assert said in str(refused.value)
    assert refused.value.position == place


@pytest.mark.parametrize(
    "text", ["", "  -- nothing", "1=1) OR (1=1", "id = 1; SELECT 2", "id = 1 LIMIT 1", "(" * 5000]
)
def test_only_a_condition_is_a_condition(text: str) -> None:
    with pytest.raises(WhereError):
        compiled(text)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_a_literal_stays_a_literal_in_what_is_printed(text: str) -> None:
    """Read back by Postgres' own parser, it is the text that was written."""
    written = compiled("name = '" + text.replace("'", "''") + "'")
    assert compiled(written.sql().replace("::pg_catalog.", "::")).expression == written.expression


def test_names_are_quoted_in_what_is_printed() -> None:
    name = 'a"; DROP TABLE x; --'
    condition = Condition.compile('"a""; DROP TABLE x; --" = 1', [SourceColumn(name, 23, -1, "int4", "int4")])
    assert condition.sql().startswith('("a""; DROP TABLE x; --" = ')
    assert condition.columns == {name}


def test_a_condition_can_be_sent_to_a_task() -> None:
    condition = compiled("name = 'x' AND amount BETWEEN 1 AND 2.5")
    assert pickle.loads(pickle.dumps(condition)) == condition


def test_no_rows_and_one_row_have_answers_too() -> None:
    condition = compiled(f"amount < {'9' * 90} OR id = 1")
    for values in ([], ["5"]):
        columns = {"amount": pa.array(values, pa.string()), "id": pa.array(values, pa.string())}
        assert condition.evaluate(columns, len(values)).to_pylist() == [True] * len(values)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        # Of each pair of true, false and unknown, in this order.
        ("a AND b", "tfu fff ufu"),
        ("a OR b", "ttt tfu tuu"),
        ("NOT a", "fff ttt uuu"),
        ("NOT (a AND b)", "ftu ttt utu"),
        ("a = b", "tfu ftu uuu"),
        ("a IS DISTINCT FROM b", "ftt tft ttf"),
        ("a IS NOT TRUE", "fff ttt ttt"),
        ("(a OR b) IS UNKNOWN", "fff fft ftt"),
        ("a IN (true, NULL)", "ttt uuu uuu"),
        ("a NOT IN (true, NULL)", "fff uuu uuu"),
        ("a NOT IN (true)", "fff ttt uuu"),
    ],
)
def test_logic_has_three_values(text: str, answers: str) -> None:
    columns = [SourceColumn(name, 16, -1, "bool", "bool") for name in "ab"]
    condition = Condition.compile(text, columns)
    truths = ["t", "f", None]
    pairs = {
        "a": pa.array([truth for truth in truths for _ in truths]),
        "b": pa.array([truth for _ in truths for truth in truths]),
    }
    found = condition.evaluate(pairs, 9).to_pylist()
    assert found == [{"t": True, "f": False, "u": None}[each] for each in answers.replace(" ", "")]


def test_rows_of_a_slice_have_the_answers_of_their_own_values() -> None:
    condition = compiled("at > '2024-01-01'")
    at = pa.array(["2024-02-29 10:30:00+00", None, "-infinity", "1970-01-01 00:00:00+00"] * 3)
    whole = condition.evaluate({"at": at}, len(at)).to_pylist()
    for start in range(len(at)):
        part = at.slice(start, 3)
        assert condition.evaluate({"at": part}, len(part)).to_pylist() == whole[start : start + 3]


def test_many_values_in_a_list_are_one_look_up() -> None:
    condition = compiled(f"id IN ({', '.join(map(str, range(500)))})")
    ids = pa.array([str(n) for n in range(1000)])
    assert condition.evaluate({"id": ids}, 1000).to_pylist() == [n < 500 for n in range(1000)]


@given(st.dates())
def test_days_are_counted_as_the_calendar_does(day: object) -> None:
    from datetime import date

    assert isinstance(day, date)
    assert date_number(day.isoformat()) == (day - date(2000, 1, 1)).days
    assert timestamp_number(f"{day} 00:00:01") == (day - date(2000, 1, 1)).days * 86_400_000_000 + 1_000_000


def table(*names: str) -> TableSchema:
    columns = tuple(
        SourceColumn(name, 23, -1, "int4", "int4", number + 1) for number, name in enumerate(names)
    )
    return TableSchema(StreamId("public", "t"), columns, ("id",))


def test_a_part_of_a_table_holds_its_columns_and_knows_those_of_its_filter() -> None:
    whole = table("id", "a", "b", "c")
    part = Selection(("b", "id"), Condition.compile("c > 1", whole.columns)).of(whole)
    assert (part.names, part.key, [column.name for column in part.hidden]) == (("id", "b"), ("id",), ["c"])
    assert TableSchema.from_json(part.to_json()) == part
    assert part.id != whole.id


def test_what_a_part_does_not_name_may_change_without_changing_it() -> None:
    selection = Selection(("id", "b"))
    assert selection.of(table("id", "x", "b")).names == selection.of(table("id", "y", "b", "z")).names
    with pytest.raises(SelectionError):
        selection.of(table("id", "c"))


def test_the_whole_table_is_as_it_was_before_there_were_parts() -> None:
    assert Selection().of(table("id")) == table("id")
    assert not {"chosen", "where", "hidden"} & table("id").to_json().keys()


def test_a_change_of_a_column_that_only_the_filter_reads_concerns_the_rows_and_not_the_files() -> None:
    whole = table("id", "a", "b")
    selection = Selection(("id", "a"), Condition.compile("b > 1", whole.columns))
    part = selection.of(whole)
    same = plan_evolution(part, part)
    assert (same.kind, [source.name for source in same.hidden]) == ("same", ["b"])
    retyped = replace(
        whole, columns=(*whole.columns[:2], replace(whole.columns[2], type_name="int8", type_oid=20))
    )
    assert plan_evolution(part, selection.of(retyped)).kind == "resync"
    grown = plan_evolution(
        Selection((), selection.condition).of(table("id", "a", "b")), table("id", "a", "b", "c")
    )
    assert (grown.kind, [source.name for source in grown.columns]) == ("rewrite", ["id", "a", "b", "c"])

"""Conditions of shapes: the messages clients know, parameters, subqueries, rows without an answer."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import Condition, EvaluationError, SubqueryTable, WhereError, tree
from penstock.core.where.access import Contains, Equality, equalities
from penstock.core.where.arrays import Array, print_array, read_array
from penstock.core.where.intervals import (
    Interval,
    justify_days,
    justify_hours,
    justify_interval,
    print_interval,
    read_interval,
)
from penstock.core.where.patterns import matches, regex

TYPES = {
    "id": "int4",
    "big": "int8",
    "amount": "numeric",
    "measure": "float8",
    "name": "text",
    "day": "date",
    "at": "timestamptz",
    "flag": "bool",
    "tags": "_text",
    "numbers": "_int4",
    "data": "jsonb",
    "mood": "mood",
    "place": "inet",
    "label": "name",
}
COLUMNS = [
    SourceColumn(name, 20_000 if kind == "mood" else 23, -1, kind, kind) for name, kind in TYPES.items()
]
LABELS = ("sad", "fine", "glad")


def compiled(text: str, **options: Any) -> Condition:
    return Condition.compile(text, COLUMNS, enums={"mood": LABELS}, wording="electric", **options)


def answers(condition: Condition, **columns: list[str | None]) -> list[bool | None]:
    arrays = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    found: list[bool | None] = condition.evaluate(arrays, len(next(iter(columns.values())))).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 x 1", 'At location 17: syntax error at or near "x"'),
        ("id = 1 AND missing = 1", "At location 11: unknown reference missing"),
        ("t.id = 1", "At location 0: unknown reference t.id"),
        ("name = 5", "At location 5: Could not select an operator overload"),
        ("id = 'test'", "At location 3: invalid syntax for type int4: test"),
        ("id = $1", "At location 5: parameter $1 was not provided"),
        ("at > now()", "At location 5: unknown or unsupported function now/0"),
        ("lower(id) = 'x'", "At location 0: Could not select a function overload for lower(int4)"),
        ("count(*) > 1", "At location 0: aggregation is not supported in this context"),
        ("flag::date = day", "At location 4: unknown cast from type bool to type date"),
        ("place = '::1'", "At location 0: unsupported type inet"),
        ("id::money IS NULL", "At location 2: unsupported type money"),
        ("id = ANY(5)", "At location 3: argument of ANY must be an array"),
        ("id AND flag", "At location 0: int4 is not castable to bool"),
        ("id IS TRUE", "At location 0: argument of IS TRUE must be bool, not int4"),
        ("1 IS NOT UNKNOWN", "At location 0: argument of IS NOT UNKNOWN must be bool, not int4"),
        ("CASE WHEN flag THEN true END", "At location 0: CaseExpr is not supported in this context"),
        ("id IN (SELECT 1)", "At location 3: SubLink is not supported in this context"),
        ("at > CURRENT_TIMESTAMP", "At location 5: SQLValueFunction is not supported in this context"),
        ("name", "WHERE clause must return a boolean"),
        ("id = 1 LIMIT 1", "malformed query ending with SQL clauses"),
        ("name = '" + "x" * 70_000 + "'", "WHERE clause is bigger than maximum size of 64 KiB"),
    ],
)
def test_a_client_is_told_what_it_knows_from_elsewhere(text: str, said: str) -> None:
    with pytest.raises(WhereError) as refused:
        compiled(text)
    assert str(refused.value) == said


def test_a_parameter_is_typed_by_its_use_and_only_once() -> None:
    condition = compiled("id = $1 AND name = $2 AND big > $1", params={1: " 7", 2: "x'y"})
    assert condition.sql().count("('7'::pg_catalog.int8)") == 2
    assert "'x''y'" in condition.sql()
    assert condition.expression == compiled("id = 7 AND name = 'x''y' AND big > 7").expression
    with pytest.raises(WhereError, match=r"type conflict for \$1: int4 and text"):
        compiled("id = $1 AND name = $1", params={1: "7"})
    with pytest.raises(WhereError, match="invalid syntax for type int4: x"):
        compiled("id = $1", params={1: "x"})
    with pytest.raises(WhereError, match="null character"):
        compiled("name = $1", params={1: "a\0b"})


def test_an_index_of_the_source_can_serve_equality_of_texts_and_order_is_that_of_bytes() -> None:
    assert compiled("name = 'x'").sql() == """("name" = ('x'::pg_catalog.text))"""
    assert compiled("name IN ('x', NULL)").sql().startswith('("name" IN (')
    assert 'COLLATE "C"' in compiled("name > 'x'").sql()
    assert 'COLLATE "C"' in compiled("lower(name) = 'x'").sql()
    assert 'COLLATE "C"' in Condition.compile("name = 'x'", COLUMNS).sql()


def test_columns_whose_equal_texts_may_differ_are_refused() -> None:
    with pytest.raises(WhereError, match="nondeterministic"):
        compiled("name = 'x'", nondeterministic={"name"})


def test_an_enumeration_is_ordered_by_its_labels() -> None:
    assert answers(compiled("mood > 'sad'"), mood=["glad", "fine", "sad", None]) == [True, True, False, None]
    assert answers(compiled("mood::text > 'sad'"), mood=["glad", "fine"]) == [False, False]
    chosen = compiled("mood = ANY($1)", params={1: "{glad,sad,NULL}"})
    assert answers(chosen, mood=["glad", "fine", "sad", None]) == [True, None, True, None]
    for text in ("mood = 'bored'", "mood = ANY('{bored}')"):
        with pytest.raises(WhereError, match="invalid syntax for type mood: bored"):
            compiled(text)
    with pytest.raises(EvaluationError):
        answers(compiled("mood > 'sad'"), mood=["bored"])


def test_what_fails_for_a_row_matters_only_if_nothing_else_settles_it() -> None:
    guarded = compiled("id <> 0 AND 10 / id > 2")
    assert answers(guarded, id=["0", "3", "5", None, "0"]) == [False, True, False, None, False]
    assert answers(compiled("id = 0 OR 10 / id > 2"), id=["0", "3"]) == [True, True]
    with pytest.raises(EvaluationError) as failed:
        answers(compiled("10 / id > 2"), id=["3", "0"])
    assert "division by zero" in str(failed.value)
    with pytest.raises(EvaluationError):
        answers(compiled("name::int4 = 1"), name=["1", "secret"])
    assert answers(compiled("coalesce(name::int4, 10 / id) = 1"), name=["1"], id=["0"]) == [True]


def test_a_value_that_cannot_be_read_is_not_in_the_error() -> None:
    for text in ("name::int4 = 1", "name::uuid IS NULL", "name::bool", "name LIKE name"):
        with pytest.raises(EvaluationError) as failed:
            answers(compiled(text), name=["secret\\"])
        assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("name::date = '2024-02-29'", ["2024-02-29", " 2024-02-29T10:00:00Z", "2024-03-01"]),
        ("date(name) = '2024-02-29'", ["2024-02-29", "2024-02-29 23:00:00.5-02", "infinity"]),
        ("name::time = '10:00'", ["10:00:00", "2024-02-29 10:00+02", "10:01"]),
        ("name::timestamp = '2024-02-29 10:00'", ["2024-02-29 10:00", "2024-02-29T10:00:00Z", "2024-02-29"]),
        ("name::timestamptz = '2024-02-29 10:00'", ["2024-02-29T10:00Z", "2024-02-29 12:00+02", "-infinity"]),
        ("name::interval = '36 hours'", ["1 day 12:00", "PT36H", "1 mon"]),
    ],
)
def test_a_text_can_be_cast_to_a_day_or_a_time(text: str, written: list[str | None]) -> None:
    assert answers(compiled(text), name=[*written, None]) == [True, True, False, None]


@pytest.mark.parametrize("written", ["today", "29.02.2024", "2024-02-30", "24:00:00", "1 day 1 day", "PTS"])
def test_a_text_that_is_read_by_the_clock_or_by_settings_has_no_answer(written: str) -> None:
    for type_name in ("date", "time", "timestamp", "timestamptz", "interval"):
        if (written, type_name) == ("24:00:00", "interval"):
            continue
        with pytest.raises(EvaluationError):
            answers(compiled(f"name::{type_name} IS NULL"), name=[written])


def test_a_name_is_cut_and_what_stands_beside_one_too() -> None:
    long = "x" * 70
    assert answers(compiled("label = $1", params={1: long}), label=["x" * 63, "x"]) == [True, False]
    assert answers(compiled(f"name::name = '{long}'"), name=[long, "x" * 63, "x"]) == [True, True, False]
    assert answers(compiled("name::name::text = $1", params={1: "ä" * 31}), name=["ä" * 32]) == [True]
    assert answers(compiled("label = name"), label=["x" * 63, "b"], name=[long, "b"]) == [False, True]
    assert answers(compiled("label > 'Z' AND lower(label) LIKE 'a%'"), label=["aB", "A"]) == [True, False]
    assert answers(compiled("label = ANY('{a,b}')"), label=["a", "c"]) == [True, False]
    for mixed in ("coalesce(label, name) = 'a'", f"label IN ('{long}'::text, 'a')"):
        with pytest.raises(WhereError):
            compiled(mixed)


def test_patterns_may_be_in_an_array_of_the_row() -> None:
    tags = ["{A%,b}", "{c,NULL}", "{}", None]
    names: list[str | None] = ["ab", "ab", "ab", "ab"]
    assert answers(compiled("name LIKE ANY(tags)"), name=names, tags=tags) == [False, None, False, None]
    assert answers(compiled("name ILIKE ANY(tags)"), name=names, tags=tags) == [True, None, False, None]
    assert answers(compiled("name NOT LIKE ALL(tags)"), name=names, tags=tags) == [True, None, True, None]
    assert answers(compiled("name NOT ILIKE ANY(tags)"), name=names, tags=tags) == [True, True, False, None]
    with pytest.raises(WhereError, match="operator"):
        compiled("id LIKE ANY(numbers)")


def test_what_a_pipeline_file_may_not_use_is_what_can_fail() -> None:
    for text in ("measure * 2 > 1", "10 / id > 1", "tags @> '{a}'", "day + 1 > day", "greatest(id, 1) > 0"):
        compiled(text)
        with pytest.raises(WhereError):
            Condition.compile(text, COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        " AND ".join(["flag IS TRUE"] * 1_200),
        " AND ".join(f"id * {n} > 0" for n in range(101)),
        "amount > 1e5000",
    ],
)
def test_what_a_condition_from_outside_can_cost_is_bounded(text: str) -> None:
    with pytest.raises(WhereError, match="more than"):
        compiled(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("data = $1", "1e999999999"),
        ("data = $1", "[" * 100_000 + "]" * 100_000),
        ("data = $1", "[" * 200 + "]" * 200),
        ("tags @> $1", "{" * 100_000 + "}" * 100_000),
        ("name LIKE $1", "_" * 1_000_000),
        ("day + $1::interval > day", "9" * 100_000 + " years"),
        ("id = $1", "9" * 100_000),
        ("amount = $1", "1e99999"),
    ],
)
def test_a_parameter_of_any_size_is_read_at_once_or_refused(text: str, value: str) -> None:
    with pytest.raises(WhereError):
        compiled(text, params={1: value})


def test_a_document_too_deep_to_be_looked_into_has_no_answer() -> None:
    with pytest.raises(EvaluationError):
        answers(compiled("data @> '[]'"), data=["[" * 5_000 + "]" * 5_000])


def test_a_long_list_is_read_at_once() -> None:
    chosen = compiled("tags && $1", params={1: "{" + ",".join(f'"a {n}"' for n in range(100_000)) + "}"})
    assert answers(chosen, tags=['{"a 99999"}', "{b}"]) == [True, False]


INNER = [SourceColumn(name, 23, -1, kind, kind) for name, kind in {"id": "int4", "name": "text"}.items()]


def tables(stream: StreamId) -> SubqueryTable | None:
    return SubqueryTable(stream, INNER) if stream.name in ("users", "teams") else None


def test_a_subquery_is_described_and_printed_with_its_parameters() -> None:
    condition = compiled(
        "flag AND id IN (SELECT u.id FROM other.users AS u "
        "WHERE u.name = $1 AND id NOT IN (SELECT id FROM teams))",
        subqueries=tables,
        params={1: "x"},
    )
    assert condition.columns == {"flag", "id"}
    (outer,) = condition.subqueries
    assert (outer.stream, [column.name for column in outer.columns]) == (StreamId("other", "users"), ["id"])
    assert outer.condition is not None
    assert [inner.stream for inner in outer.condition.subqueries] == [StreamId("public", "teams")]
    again = Condition.compile(
        outer.condition.text, INNER, params={1: "x"}, subqueries=tables, wording="electric"
    )
    assert again == outer.condition
    inner = """(SELECT "id" FROM "other"."users" WHERE (("name" = ('x'::pg_catalog.text)) AND """
    nested = """(("id") NOT IN (SELECT "id" FROM "public"."teams"))))"""
    assert condition.sql() == f"""("flag" AND (("id") IN {inner}{nested}))"""
    assert condition.sql(lambda node: f"<{node.subquery} {node.negated}>") == '("flag" AND <0 False>)'
    assert pickle.loads(pickle.dumps(condition)) == condition


def test_a_subquery_that_is_used_twice_is_one() -> None:
    text = "id IN (SELECT id FROM users) OR (flag AND big IN (SELECT id FROM users))"
    assert len(compiled(text, subqueries=tables).subqueries) == 1
    assert (
        len(
            compiled(
                "id IN (SELECT id FROM users) OR id IN (SELECT id FROM teams)", subqueries=tables
            ).subqueries
        )
        == 2
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "id IN (SELECT id FROM users) OR NOT (flag AND id IN (SELECT id FROM users))",
            "a subquery dependency cannot be used with both positive and negative polarity "
            "in the same filter",
        ),
        ("(id IN (SELECT id FROM users)) IS TRUE", "under AND, OR and NOT only"),
        ("id + 1 IN (SELECT id FROM users)", "must be columns"),
        ("id IN (SELECT name FROM users)", "types of id and of the subquery's name differ: int4 and text"),
        ("amount IN (SELECT amount FROM users)", "unsupported type numeric"),
        ("id IN (SELECT id + 1 FROM users)", "selects columns only"),
        ("id IN (SELECT id, name FROM users)", "too many columns"),
        ("(id, name) IN (SELECT id FROM users)", "too few columns"),
        ("id IN (SELECT id FROM nowhere)", 'Table "public"."nowhere" does not exist'),
        ("id IN (SELECT DISTINCT id FROM users)", "no further clauses"),
        ("id IN (SELECT id FROM users GROUP BY id)", "no further clauses"),
        ("id IN (SELECT id FROM users ORDER BY id LIMIT 1)", "no further clauses"),
        ("id IN (SELECT id FROM users WHERE big = 1)", "unknown reference big"),
        ("id IN (SELECT id FROM users, teams)", "one table"),
    ],
)
def test_subqueries_that_are_no_shapes_are_refused(text: str, said: str) -> None:
    with pytest.raises(WhereError) as refused:
        compiled(text, subqueries=tables)
    assert said in str(refused.value)


def test_membership_is_asked_of_the_caller_and_negated_here() -> None:
    condition = compiled("flag OR id NOT IN (SELECT id FROM users)", subqueries=tables)

    def membership(node: tree.InSubquery, values: tuple[pa.StringArray, ...]) -> pa.BooleanArray:
        assert node.subquery == 0
        return pa.array([None if value is None else value == "1" for value in values[0].to_pylist()])

    columns = {"flag": pa.array(["f", "f", "f", "t"]), "id": pa.array(["1", "2", None, None])}
    assert condition.evaluate(columns, 4, membership).to_pylist() == [False, True, None, True]


def test_an_index_is_told_what_single_columns_must_have() -> None:
    condition = compiled(
        "id = 7 AND (name IN ('a', 'b') AND big > 3) AND 'x' = ANY(tags) AND numbers @> '{1,2}'"
    )
    access = equalities(condition.expression)
    found = [
        (type(term), term.column.name, [literal.text for literal in term.literals]) for term in access.terms
    ]
    assert found == [
        (Equality, "id", ["7"]),
        (Equality, "name", ["a", "b"]),
        (Contains, "tags", ["x"]),
        (Contains, "numbers", ["1", "2"]),
    ]
    assert [type(rest) for rest in access.rest] == [tree.Compare]
    whole = tree.AllOf((*(term.expression for term in access.terms), *access.rest))
    columns = {
        "id": pa.array(["7", "7", "8"]),
        "name": pa.array(["a", "c", "a"]),
        "big": pa.array(["4", "4", "4"]),
        "tags": pa.array(["{x,y}", "{x}", "{x}"]),
        "numbers": pa.array(["{1,2,3}", "{1,2}", "{1,2}"]),
    }
    rebuilt = Condition("", whole)
    assert rebuilt.evaluate(columns, 3) == condition.evaluate(columns, 3) == pa.array([True, False, False])


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=5))
def test_an_array_is_read_as_it_was_printed(items: list[str | None]) -> None:
    array = Array((len(items),), (1,), tuple(items)) if items else Array((), (), ())
    assert read_array(print_array(array, str), str) == array


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{1", "{1,}", "{,1}", "{{1},2}", "{{1},{1,2}}", "{1}x", "[1:3]={1}"]
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        read_array(text, str)


INTERVALS = st.builds(
    Interval, st.integers(-5_000, 5_000), st.integers(-99_999, 99_999), st.integers(-(10**14), 10**14)
)


@given(INTERVALS)
def test_an_interval_is_read_as_it_was_printed_and_justified_to_the_same_length(interval: Interval) -> None:
    assert read_interval(print_interval(interval)) == interval
    for justify in (justify_days, justify_hours, justify_interval):
        assert justify(interval).rank == interval.rank


@given(st.text(st.sampled_from("abA"), max_size=8), st.text(st.sampled_from("abA%_\\"), max_size=8))
def test_a_pattern_matches_one_by_one_what_it_matches_in_a_batch(text: str, pattern: str) -> None:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0:
        batch = pc.match_substring_regex(pa.array([text]), regex(pattern)).to_pylist()
        assert [matches(text, pattern)] == batch


def test_the_longest_patterns_take_no_time_to_speak_of() -> None:
    assert not matches("a" * 2_000, "%a" * 500 + "b")

"""The router gives each shape the changes that its condition is true for, whichever way it finds them."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.transactions import ChangeRows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition, tree
from penstock.core.where.arrays import flat, print_array
from penstock.core.where.kinds import ArrayOf, Kind
from penstock.log import columns as log_columns
from penstock.shapes.routing import clauses as clauses_module
from penstock.shapes.routing import index as router_index
from penstock.shapes.routing.clauses import Clauses
from penstock.shapes.routing.index import plan
from penstock.shapes.routing.router import DELETED, INSERTED, UPDATED, EventRouter, Routed

STREAM = StreamId("public", "t")
TYPES = {
    "id": "int4",
    "big": "int8",
    "amount": "numeric",
    "ratio": "float4",
    "measure": "float8",
    "name": "text",
    "flag": "bool",
    "day": "date",
    "moment": "timestamp",
    "at": "timestamptz",
    "clock": "time",
    "code": "uuid",
    "raw": "bytea",
    "tags": "_text",
    "prices": "_numeric",
    "mood": "mood",
}
LABELS = ("sad", "ok", "happy")
COLUMNS = [
    SourceColumn(name, 23 if name != "mood" else 20_000, -1, kind, kind) for name, kind in TYPES.items()
]
SCHEMA = TableSchema(STREAM, tuple(COLUMNS), ("id",))
UUIDS = ("00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001")
#: Printed values by column, and how people write them in a condition.
VALUES: dict[str, list[str]] = {
    "id": ["-1", "0", "1", "2", "2147483647"],
    "big": ["1", "2", "9223372036854775807", "-9223372036854775808"],
    "amount": ["0", "0.00", "1", "1.0", "1.50", "-1.5", "10", "9.99", "NaN", "Infinity", "-Infinity",
               "123456789012345678901234567890.125"],
    "ratio": ["0", "-0", "1.1", "NaN", "Infinity"],
    "measure": ["0", "-0", "1.1", "-1e+300", "NaN", "Infinity", "-Infinity"],
    "name": ["", "a", "A", "ab", "äb", "Äb", "a%b", "a_b", "b\\", "日本", "NULL"],
    "flag": ["t", "f"],
    "day": ["2024-02-29", "1999-12-31", "infinity", "-infinity", "0044-03-15 BC", "12024-01-01"],
    "moment": ["2024-02-29 12:00:00", "2024-02-29 12:00:00.5", "1969-12-31 23:59:59.999999", "infinity"],
    "at": ["2024-02-29 12:00:00+00", "1900-01-01 00:00:00.000001+00", "-infinity"],
    "clock": ["00:00:00", "12:30:00.5", "24:00:00"],
    "code": list(UUIDS),
    "raw": ["\\x", "\\x00ff", "\\xab"],
    "tags": ["{}", "{a}", '{a,b,NULL,"b c"}', "[0:1]={b,a}", "{{a,x},{y,z}}", "{NULL}", '{"NULL"}'],
    "prices": ["{1.0,2}", "{1,NULL}", "{0.00}", "{}"],
    "mood": list(LABELS),
}  # fmt: skip
LITERALS = VALUES | {
    "day": ["2024-02-29", "1999-12-31", "infinity", "2000-01-01"],
    "clock": ["00:00:00", "12:30:00.5", "12:30"],
    "ratio": ["0", "1.1", "NaN"],
}
Row = Mapping[str, str | None]


def batch(changes: Sequence[tuple[str, Row | None, Row | None]]) -> ChangeRows:
    """Of each change its kind, the row before it and the row after it."""
    schema = log_columns.log_schema(SCHEMA, str(STREAM))
    arrays: dict[str, Any] = {
        name: pa.array([new.get(name) if new else None for _, _, new in changes], pa.string())
        for name in TYPES
    }
    count = len(changes)
    arrays |= {
        log_columns.TX: pa.array([100] * count, pa.int64()),
        log_columns.OP_INDEX: pa.array(range(0, 2 * count, 2), pa.int64()),
        log_columns.OP: pa.array([kind for kind, _, _ in changes]),
        log_columns.XID: pa.array([7] * count, pa.uint64()),
        log_columns.COMMIT_TS: pa.array([0] * count, pa.timestamp("us", "UTC")),
        log_columns.OLD: pa.array([old for _, old, _ in changes], schema.field(log_columns.OLD).type),
        log_columns.OLD_KIND: pa.array(["f" if old else "n" for _, old, _ in changes]),
        log_columns.UNCHANGED: pa.nulls(count, pa.list_(pa.string())),
    }
    rows = pa.RecordBatch.from_arrays([arrays[field.name] for field in schema], schema=schema)
    return ChangeRows(STREAM, STREAM, SCHEMA.id, rows)


def condition(text: str) -> Condition:
    return Condition.compile(text, COLUMNS, enums={"mood": LABELS}, wording="electric")


def router_of(conditions: Iterable[Condition | None], *, indexed: bool) -> EventRouter:
    router = EventRouter(indexed=indexed)
    for slot, each in enumerate(conditions):
        router.add(slot, STREAM, each)
    return router


def listed(routed: Routed) -> list[tuple[int, int, int]]:
    return list(zip(routed.slot.tolist(), routed.row.tolist(), routed.action.tolist(), strict=True))


def expected(conditions: Sequence[Condition | None], changes: ChangeRows) -> list[tuple[int, int, int]]:
    """Of each condition on its own, by Arrow, and the rules of old and new row."""
    found = []
    for slot, each in enumerate(conditions):
        sides = []
        for side in (changes.old, changes.new):
            columns = {name: side(name) for name in TYPES}
            answer = each.evaluate(columns, len(changes)).to_pylist() if each else [True] * len(changes)
            sides.append([truth is True for truth in answer])
        for row, op in enumerate(changes.op.tolist()):
            was, is_in = sides[0][row] and chr(op) in "ud", sides[1][row] and chr(op) in "iu"
            action = {(True, True): UPDATED, (False, True): INSERTED, (True, False): DELETED}.get(
                (was, is_in)
            )
            if action:
                found.append((slot, row, action))
    return found


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def leaves(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(TYPES)))
    value = quoted(draw(st.sampled_from(LITERALS[name])))
    symbol = draw(st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="]))
    forms = [
        f"{name} {symbol} {value}",
        f"{value} {symbol} {name}",
        f"{name} IS NULL",
        f"{name} IS DISTINCT FROM {value}",
        f"{name} IS NOT DISTINCT FROM NULL",
        f"{name} = NULL",
    ]
    if name != "ratio":
        several = draw(
            st.lists(st.sampled_from([*map(quoted, LITERALS[name]), "NULL"]), min_size=1, max_size=4)
        )
        forms.append(f"{name} {draw(st.sampled_from(['IN', 'NOT IN']))} ({', '.join(several)})")
    if name == "name":
        pattern = quoted("".join(draw(st.lists(st.sampled_from(["%", "_", "a", "B", "ä", "b", "\\%"])))))
        forms += [f"name {draw(st.sampled_from(['LIKE', 'ILIKE', 'NOT LIKE', 'NOT ILIKE']))} {pattern}"] * 4
        forms += [f"lower(name) {symbol} {value}"]
    if name == "tags":
        forms = [
            "tags IS NULL",
            "'a' = ANY(tags)",
            "tags @> '{a}'",
            "tags @> ARRAY['b', 'a']",
            "NOT tags @> '{}'",
        ]
        forms += ["'NULL' = ANY(tags)", "tags && ARRAY['x']", "'a' <> ALL(tags)"]
    if name == "prices":
        forms = ["1.00 = ANY(prices)", "0.0 = ANY(prices)", "prices @> ARRAY[2, 1.0]"]
    if name == "mood":
        forms += ["mood::text = 'ok'", "mood::text LIKE '%a%'", "mood = 'ok' OR mood = 'sad'"]
    if name == "flag":
        forms += ["flag", "flag IS NOT TRUE", "flag IS UNKNOWN"]
    if name == "id":
        forms += [
            "id < big",
            "id IS DISTINCT FROM big",
            "id = amount",
            "id + 1 > 2",
            "id = 1.0",
            "id < measure",
        ]
    if name == "at":
        forms += [
            f"at::date = {quoted('2024-02-29')}",
            f"moment BETWEEN {quoted('2000-01-01')} AND 'infinity'",
        ]
    return draw(st.sampled_from(forms))


CONDITIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " AND ".join(parts) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " OR ".join(parts) + ")"),
        inner.map(lambda part: f"(NOT {part})"),
        st.tuples(inner, st.sampled_from(["TRUE", "FALSE", "UNKNOWN", "NOT UNKNOWN"])).map(
            lambda pair: f"(({pair[0]}) IS {pair[1]})"
        ),
    ),
    max_leaves=5,
)
ROWS: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {name: st.one_of(st.none(), st.sampled_from(values)) for name, values in VALUES.items()}
)
CHANGES = st.lists(
    st.one_of(
        ROWS.map(lambda new: ("i", None, new)),
        st.tuples(ROWS, ROWS).map(lambda both: ("u", *both)),
        ROWS.map(lambda old: ("d", old, None)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CONDITIONS, min_size=1, max_size=6), CHANGES)
def test_shapes_get_what_their_condition_is_true_for_by_the_index_and_without_it(
    texts: list[str], changes: list[tuple[str, Row | None, Row | None]]
) -> None:
    conditions = [None, *map(condition, texts)]
    rows = batch([changes[-1], *changes]).slice(1, len(changes) + 1)  # parts of batches come as well
    wanted = expected(conditions, rows)
    for indexed in (True, False):
        routed = router_of(conditions, indexed=indexed).route(rows)
        assert listed(routed) == wanted
        assert not routed.failed


@pytest.mark.parametrize(
    "text",
    [
        "id > 1",
        "1 <= id AND id <> 5 OR NOT flag",
        "id < big",
        "id = 1.5",
        "amount BETWEEN 1 AND 2.5",
        "measure >= 1e10",
        "ratio > 0.1",
        "name ILIKE '%pump%' OR name LIKE 'a_c'",
        "lower(name) = 'x'",
        "day >= '2024-01-01' AND at < '2024-01-01'",
        "at::date IN ('2024-01-01', '2024-01-02')",
        "clock > '12:00' AND code <> '00000000-0000-0000-0000-000000000001'",
        "(id = 1 OR NULL) IS UNKNOWN",
        "id IS DISTINCT FROM big AND name IS NOT NULL",
    ],
)
def test_what_people_write_most_is_decided_by_compiled_code(text: str) -> None:
    clauses = Clauses()
    number = clauses.take(condition(text).expression)
    assert clauses.has_program(np.array([number], np.int32)).all()


@pytest.mark.parametrize(
    ("text", "columns", "keys", "has_rest"),
    [
        ("id = 5", ["id"], [(b"5",)], False),
        ("5 = id AND name = 'x'", ["id", "name"], [(b"5", b"x")], False),
        ("id IN (1, 2, NULL) AND name = 'x' AND id > 1", ["id", "name"], [(b"1", b"x"), (b"2", b"x")], True),
        ("big IN (1, 2, 3) AND id IN (1, 2)", ["id"], [(b"1",), (b"2",)], True),
        ("id = 1 OR id = 2", ["id"], [(b"1",), (b"2",)], False),
        ("amount = 1.50", ["amount"], [(b"1.5",)], False),
        ("amount IN (100, 0.00)", ["amount"], [(b"0",), (b"100",)], False),
        ("id = 2.0", ["id"], [(b"2",)], False),
        ("id = 2.5", ["id"], [], False),
        ("id = NULL", ["id"], [], False),
        ("NOT flag AND day = '2024-02-29'", ["day", "flag"], [(b"2024-02-29", b"f")], False),
    ],
)
def test_equalities_are_looked_up(
    text: str, columns: list[str], keys: list[tuple[bytes, ...]], has_rest: bool
) -> None:
    planned = plan(condition(text).expression)
    assert planned is not None
    assert [part.column for part in planned.keys.parts] == columns
    assert sorted(planned.wanted) == keys
    assert (planned.rest is not None) == has_rest


@pytest.mark.parametrize(
    "text", ["id > 1", "measure = 1", "ratio = 0.5", "id = 1 OR name = 'x'", "NOT id = 1"]
)
def test_what_is_no_equality_of_values_with_one_text_is_not_looked_up(text: str) -> None:
    assert plan(condition(text).expression) is None


TEXT = st.text(st.sampled_from("abAB%_\\äÄ日\U0001f600 \n"), max_size=8)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A pattern that was a text before some of it was replaced, that text, and others."""
    texts = draw(st.lists(TEXT, min_size=1, max_size=8))
    parts = [draw(st.sampled_from([letter, letter.swapcase(), "_", "%"])) for letter in texts[0]]
    pattern = "".join(parts)
    odd = (len(pattern) - len(pattern.rstrip("\\"))) % 2
    return pattern + "\\" * odd, texts


@settings(max_examples=150, deadline=None)
@given(patterns(), st.booleans())
def test_patterns_match_characters_as_the_evaluator_has_them(
    pattern_and_texts: tuple[str, list[str]], ignore_case: bool
) -> None:
    pattern, texts = pattern_and_texts
    each = condition(f"name {'ILIKE' if ignore_case else 'LIKE'} {quoted(pattern)}")
    rows = batch([("i", None, {"name": text}) for text in texts])
    assert listed(router_of([each], indexed=True).route(rows)) == expected([each], rows)


@pytest.mark.parametrize(
    ("text", "value", "wanted"),
    [
        ("measure = 0", "-0", True),
        ("measure < 0", "-0", False),
        ("measure = 'NaN'", "NaN", True),
        ("measure > 'Infinity'", "NaN", True),
        ("measure IN (0, 1)", "-0", True),
        ("ratio > 0.1", "0.1", True),  # the real nearest to 0.1 is above the double
        ("amount > 'Infinity'", "NaN", True),
        ("amount < -1.5", "-1.50", False),
        ("name LIKE '_'", "日", True),
        ("name ILIKE 'ä'", "Ä", False),
        ("day > '9999-12-31'", "12024-01-01", True),
        ("day < '2024-01-01'", "0044-03-15 BC", True),
        ("at < '1900-01-01'", "-infinity", True),
        ("big > 9223372036854775806", "9223372036854775807", True),
        ("clock >= '23:59:59.999999'", "24:00:00", True),
    ],
)
def test_odd_values_compare_as_in_postgres(text: str, value: str, wanted: bool) -> None:
    each = condition(text)
    rows = batch([("i", None, dict.fromkeys(each.columns, value))])
    for indexed in (True, False):
        assert len(router_of([each], indexed=indexed).route(rows)) == wanted


COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=3).map(
    lambda value: f"{value:f}".replace("-0.000", "0.000")
)


@settings(max_examples=150, deadline=None)
@given(
    NUMERICS, st.lists(NUMERICS, min_size=1, max_size=8), st.sampled_from(["=", "<", "<=", ">", ">=", "<>"])
)
def test_numerics_compare_by_value_and_not_by_their_digits(
    literal: str, values: list[str], symbol: str
) -> None:
    spelled = values + [value.rstrip("0").rstrip(".") for value in values]
    rows = batch([("i", None, {"amount": value}) for value in spelled])
    each = condition(f"amount {symbol} {literal}")
    wanted = [
        (0, row, INSERTED)
        for row, value in enumerate(spelled)
        if COMPARISONS[symbol](Decimal(value), Decimal(literal))
    ]
    for indexed in (True, False):
        assert listed(router_of([each], indexed=indexed).route(rows)) == wanted


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.text(st.sampled_from('a",{}\\ NULlä'), max_size=5)), max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.text(st.sampled_from('a",{}\\ NULlä'), max_size=3),
)
def test_elements_of_arrays_are_looked_up(lists: list[list[str | None]], wanted: str) -> None:
    column = tree.Column("name", "_text", ArrayOf("text"))
    any_of = tree.Quantified("=", tree.Literal(wanted, Kind.TEXT), column, False)
    asked = Condition("", any_of)
    assert plan(any_of) is not None
    router = router_of([asked], indexed=True)
    rows = batch([("i", None, {"name": print_array(flat(each), str)}) for each in lists])
    found = [(0, row, INSERTED) for row, each in enumerate(lists) if wanted in each]
    assert listed(router.route(rows)) == found


@pytest.mark.parametrize(
    ("printed", "found"),
    [("{1,2}", True), ("{{3,4},{1,5}}", True), ("[2:3]={1,7}", True), ("{}", False), ("{NULL,11}", False)],
)
def test_elements_of_any_dimension_are_looked_up(printed: str, found: bool) -> None:
    column = tree.Column("name", "_int4", ArrayOf("int4"))
    contained = tree.Literal("{1}", ArrayOf("int4"))
    asked = Condition("", tree.Call("array @> array", (column, contained), Kind.BOOLEAN))
    routed = router_of([asked], indexed=True).route(batch([("i", None, {"name": printed})]))
    assert listed(routed) == ([(0, 0, INSERTED)] if found else [])


def test_an_element_that_is_there_twice_is_found_once() -> None:
    column = tree.Column("name", "_text", ArrayOf("text"))
    asked = Condition("", tree.Quantified("=", tree.Literal("a", Kind.TEXT), column, False))
    rows = batch([("u", {"name": "{b}"}, {"name": "{a,a}"}), ("u", {"name": "{a,a}"}, {"name": "{a}"})])
    assert listed(router_of([asked], indexed=True).route(rows)) == [(0, 0, INSERTED), (0, 1, UPDATED)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("id = 5", id="looked up"),
        pytest.param("id > 4", id="compiled"),
        pytest.param("id + 1 > 5", id="by Arrow"),
        pytest.param("name = 'x' AND id + 1 > 5", id="looked up, then by Arrow"),
    ],
)
def test_a_change_is_an_insert_an_update_or_a_delete_by_the_row_as_it_was_and_as_it_is(text: str) -> None:
    out, into = ({"id": number, "name": "x"} for number in ("1", "5"))
    rows = batch(
        [
            ("i", None, into),
            ("i", None, out),
            ("u", out, into),
            ("u", into, into),
            ("u", into, out),
            ("u", out, out),
            ("d", into, None),
            ("d", out, None),
        ]
    )
    routed = router_of([condition(text)], indexed=True).route(rows)
    assert [found[1:] for found in listed(routed)] == [
        (0, INSERTED), (2, INSERTED), (3, UPDATED), (4, DELETED), (6, DELETED)
    ]  # fmt: skip


def test_a_condition_that_cannot_be_evaluated_fails_its_shape_and_no_other() -> None:
    failing = ["id > 0", "id + 1 > 0", "name = 'x' AND id > 0", "name = 'x' AND id + 1 > 0"]
    passing = ["name = 'x'", "name > 'a'", "name = 'y' AND id + 1 > 0"]
    rows = batch([("i", None, {"id": "no number", "name": "x"})])
    routed = router_of([*map(condition, failing + passing), None], indexed=True).route(rows)
    assert routed.failed == (0, 1, 2, 3)
    assert listed(routed) == [(4, 0, INSERTED), (5, 0, INSERTED), (7, 0, INSERTED)]


def test_a_truncate_is_not_a_change_of_rows() -> None:
    rows = batch([("t", None, None)])
    assert not listed(
        router_of([None, condition("id IS NULL"), condition("id = 1")], indexed=True).route(rows)
    )


def test_another_table_has_shapes_of_its_own() -> None:
    router = EventRouter()
    router.add(0, StreamId("public", "other"), None)
    assert not listed(router.route(batch([("i", None, {"id": "1"})])))


def test_shapes_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what they leave behind is packed, and their slots are given to others."""
    monkeypatch.setattr(router_index, "_HOLES_MIN", 4)
    monkeypatch.setattr(clauses_module, "_HOLES_MIN", 4)
    chance = random.Random(5)
    texts = [
        *(f"id = {number} AND name LIKE '%{number}%'" for number in range(10)),
        *(f"id IN ({number}, {number + 1})" for number in range(10)),
        *(f"id > {number} AND name <> '{number}'" for number in range(10)),
        *(f"id + 1 > {number}" for number in range(5)),
    ]
    rows = batch([("i", None, {"id": str(number), "name": f"n{number}"}) for number in range(12)])
    conditions = [None, *map(condition, texts)]
    wanted = expected(conditions, rows)
    router, present = EventRouter(), dict[int, int]()
    for _ in range(400):
        slot = chance.randrange(40)
        if slot in present:
            router.remove(slot)
            del present[slot]
        else:
            present[slot] = chance.randrange(len(conditions))
            router.add(slot, STREAM, conditions[present[slot]])
        found = [
            (at, row, action) for at in sorted(present) for each, row, action in wanted if each == present[at]
        ]
        assert listed(router.route(rows)) == found

"""The parts of shapes with subqueries, each against its definition."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.offset import LogOffset
from penstock.core.where import tree
from penstock.core.where.evaluate import evaluate
from penstock.core.where.kinds import Kind
from penstock.shapes.definition import SUBQUERIES_MAX, DefinitionError
from penstock.shapes.subquery.held_state import HeldState
from penstock.shapes.subquery.materializer import RowSet
from penstock.shapes.subquery.normal_form import DISJUNCTS_MAX, NormalForm, TooManyDisjunctsError
from penstock.shapes.subquery.tags import Tags, slots_of
from penstock.shapes.subquery.values import ValueSet, affected
from tests.subquery_model import defined

PLAIN = [tree.Column(name, "bool", Kind.BOOLEAN) for name in "pq"]
MEMBERS = [
    tree.InSubquery((tree.Column(name, "int4", Kind.INTEGER),), number, negated)
    for (number, name), negated in itertools.product(enumerate("xy"), (False, True))
]
TRUTHS = (True, False, None)
#: Every combination of what the four leaves may be.
CASES = list(itertools.product(TRUTHS, repeat=4))


def expressions() -> st.SearchStrategy[tree.Expression]:
    return st.recursive(
        st.sampled_from([*PLAIN, *MEMBERS]),
        lambda inner: st.one_of(
            st.builds(tree.Not, inner),
            st.builds(tree.AllOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(tree.AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=8,
    )


def truths(expression: tree.Expression) -> list[bool | None]:
    """In each case."""
    letters = {True: "t", False: "f", None: None}
    columns = {
        name: pa.array([letters[case[place]] for case in CASES], pa.string())
        for place, name in enumerate("pq")
    }
    columns |= {name: pa.array(["1"] * len(CASES), pa.string()) for name in "xy"}

    def member(node: tree.InSubquery, _values: object) -> pa.BooleanArray:
        return pa.array([case[2 + node.subquery] for case in CASES], pa.bool_())

    found: list[bool | None] = evaluate(expression, columns, len(CASES), member).to_pylist()
    return found


@given(expressions())
def test_a_condition_is_true_where_a_disjunct_has_only_active_positions(expression: tree.Expression) -> None:
    form = NormalForm.of(expression)
    active = np.array([[bool(each) for each in truths(atom)] for atom in form.positions])
    expected = [bool(each) for each in truths(expression)]
    assert form.holds_for(active).tolist() == expected
    assert [form.holds(case) for case in active.T.tolist()] == expected


@given(expressions())
def test_the_rest_of_a_condition_holds_wherever_the_condition_does(expression: tree.Expression) -> None:
    rest = NormalForm.of(expression).without_subqueries
    if rest is not None:
        assert not any(isinstance(node, tree.InSubquery) for node in tree.every_node(rest))
        assert all(b for a, b in zip(truths(expression), truths(rest), strict=True) if a)


def test_an_atom_is_one_position_wherever_it_stands() -> None:
    member, plain = MEMBERS[0], PLAIN[0]
    expression = tree.AnyOf((tree.AllOf((member, plain)), tree.AllOf((member, PLAIN[1]))))
    assert NormalForm.of(expression) == NormalForm((plain, member, PLAIN[1]), ((0, 1), (1, 2)))


def test_an_atom_that_decides_nothing_is_no_position() -> None:
    one, other = MEMBERS[0], MEMBERS[2]
    expression = tree.AnyOf((tree.AllOf((other, one)), one))
    assert NormalForm.of(expression) == NormalForm((one,), ((0,),))


def test_a_condition_has_a_limited_number_of_subqueries() -> None:
    inner = "SELECT id FROM users WHERE team IN (SELECT id FROM teams WHERE id = {n})"
    most = SUBQUERIES_MAX // 2
    assert defined("items", " OR ".join(f"owner IN ({inner.format(n=n)})" for n in range(most))).where
    with pytest.raises(DefinitionError) as refused:
        defined("items", " OR ".join(f"owner IN ({inner.format(n=n)})" for n in range(most + 1)))
    assert refused.value.errors == {"where": [f"a condition takes {SUBQUERIES_MAX} subqueries at most"]}


def test_a_condition_with_too_many_combinations_is_refused() -> None:
    pairs = [
        tree.AnyOf(tuple(replace(MEMBERS[0], subquery=2 * number + side) for side in (0, 1)))
        for number in range(DISJUNCTS_MAX.bit_length())
    ]
    with pytest.raises(TooManyDisjunctsError):
        NormalForm.of(tree.AllOf(tuple(pairs)))
    either = " AND ".join(
        f"(owner IN (SELECT id FROM users WHERE id <> {n}) OR other IN (SELECT id FROM teams WHERE id > {n}))"
        for n in range(DISJUNCTS_MAX.bit_length())
    )
    with pytest.raises(DefinitionError) as refused:
        defined("items", either)
    assert refused.value.errors == {"where": ["the condition has too many combinations of subqueries"]}


VALUES = st.tuples(*[st.sampled_from(["1", "2", None])] * 2)


@given(st.lists(st.dictionaries(VALUES, st.integers(-1, 2), max_size=3), max_size=6), VALUES, st.booleans())
def test_membership_is_what_sql_says(
    batches: list[dict[tuple[str | None, ...], int]], asked: tuple[str | None, ...], counts_early: bool
) -> None:
    values, expected = ValueSet(), dict.fromkeys(itertools.product(["1", "2", None], repeat=2), 0)
    if counts_early:
        _active(values, (None, None))
    for batch in batches:
        changes = {value: change for value, change in batch.items() if expected[value] + change >= 0}
        before = {each: _active(values, each) for each in expected}
        flips = values.flips(changes)
        values.apply(changes)
        for value, change in changes.items():
            expected[value] += change
        for negated in (False, True):
            moved = {each for each in expected if before[each][negated] != _active(values, each)[negated]}
            if not any(None in value for value in flips):
                assert moved <= affected(flips, negated=negated)
    member = _member(asked, [value for value, count in expected.items() if count])
    assert _active(values, asked) == (member is True, member is False)


def _active(values: ValueSet, value: tuple[str | None, ...]) -> tuple[bool, bool]:
    return values.is_active(value, negated=False), values.is_active(value, negated=True, nulls=values.nulls)


def _member(value: tuple[str | None, ...], values: list[tuple[str | None, ...]]) -> bool | None:
    """`value IN (values)` in SQL."""
    found: list[bool | None] = []
    for other in values:
        parts = [None if a is None or b is None else a == b for a, b in zip(value, other, strict=True)]
        found.append(False if False in parts else None if None in parts else True)
    return True if True in found else None if None in found else False


FORM = NormalForm((PLAIN[0], MEMBERS[0], MEMBERS[2]), ((0, 1), (2,)))


def test_tags_have_a_slot_for_each_position_of_their_disjunct() -> None:
    tags = Tags(FORM, "salt")
    slots = tags.slots([None, ("7",), (None,)])
    assert slots == ("1", _md5("saltv:7"), _md5("saltNULL"))
    assert tags.tags(slots) == [f"1/{slots[1]}/", f"//{slots[2]}"]
    assert slots_of(tags.tags(slots)) == slots
    assert tags.slot(1, ("7",)) == tags.slot(2, ("7",)) != tags.slot(1, (None,))
    before = tags.slots([None, ("8",), (None,)])
    assert (
        tags.headers(slots, [True, True, False], before)
        == (
            f',"tags":["1/{slots[1]}/","//{slots[2]}"],"removed_tags":["1/{before[1]}/"]'
            ',"active_conditions":[true,true,false]'
        ).encode()
    )


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def test_rows_go_when_an_event_leaves_no_disjunct_of_them() -> None:
    rows = RowSet(FORM)
    rows.put(b"one", ("1",), ("1", "a", "b"), [True, True, False])
    rows.put(b"two", ("2",), ("1", "a", "c"), [True, True, True])
    assert rows.take() == {("1",): 1, ("2",): 1}
    rows.move([(2, "b")], active=True)
    rows.move([(1, "a")], active=False)
    assert rows.take() == {}
    rows.move([(2, "b")], active=False)
    assert rows.take() == {("1",): -1}
    rows.put(b"two", ("3",), ("1", "a", "c"), [True, False, True])
    rows.remove(b"one")
    assert rows.take() == {("2",): -1, ("3",): 1}
    assert len(rows) == 1


def test_what_is_held_can_be_read_again() -> None:
    nulls = [frozenset({("1", None), (None, None)}), frozenset[tuple[str | None, ...]]()]
    held = HeldState(LogOffset(7, 4), [{("1", None): 5, ("ä/\n", "2"): 1 << 40}, {}], nulls)
    assert HeldState.from_json(held.to_json()) == held

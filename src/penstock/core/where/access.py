"""What a condition demands of single columns: for an index over many conditions.

A condition is taken apart at its topmost AND. A term says what a row must have; the row must satisfy every
term and `rest`, together they are the whole condition. Only true counts: false and unknown are both out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from penstock.core.where import tree
from penstock.core.where.arrays import read_array
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind

_TRUE, _FALSE = (tree.Literal(text, Kind.BOOLEAN) for text in "tf")


@dataclass(frozen=True, slots=True)
class Equality:
    """The column equals one of the literals, none of them NULL; no literals: no row is in.

    Of a cast of the column the literals are given as the column would have them, or its text.
    """

    column: tree.Column
    literals: tuple[tree.Literal, ...]
    expression: tree.Expression


@dataclass(frozen=True, slots=True)
class Contains:
    """The array in the column has all of the literals among its elements, none of them NULL."""

    column: tree.Column
    literals: tuple[tree.Literal, ...]
    expression: tree.Expression


@dataclass(frozen=True, slots=True)
class Access:
    terms: tuple[Equality | Contains, ...]
    rest: tuple[tree.Expression, ...]


def equalities(expression: tree.Expression) -> Access:
    terms: list[Equality | Contains] = []
    rest: list[tree.Expression] = []
    for operand in _conjuncts(expression):
        term = _term(operand)
        if term is None:
            rest.append(operand)
        else:
            terms.append(term)
    return Access(tuple(terms), tuple(rest))


def _conjuncts(expression: tree.Expression) -> list[tree.Expression]:
    if not isinstance(expression, tree.AllOf):
        return [expression]
    return [conjunct for operand in expression.operands for conjunct in _conjuncts(operand)]


def _term(expression: tree.Expression) -> Equality | Contains | None:
    match expression:
        case tree.Compare("=", operand, tree.Literal() as literal):
            return _equality(operand, (literal,), expression)
        case tree.Compare("=", tree.Literal() as literal, operand):
            return _equality(operand, (literal,), expression)
        case tree.IsIn(operand, literals):
            return _equality(operand, literals, expression)
        case tree.AnyOf(operands):
            return _either(operands, expression)
        case tree.Column() | tree.IsTruth(tree.Column(), True):
            return _equality(next(tree.columns_in(expression)), (_TRUE,), expression)
        case tree.Not(tree.Column()) | tree.IsTruth(tree.Column(), False):
            return _equality(next(tree.columns_in(expression)), (_FALSE,), expression)
        case tree.Quantified("=", tree.Literal() as literal, tree.Column() as column, False) if (
            literal.text is not None
        ):
            return Contains(column, (literal,), expression)
        case tree.Call("array @> array", (tree.Column() as column, tree.Literal() as array)):
            return _contains(column, array, expression)
    return None


def _equality(
    operand: tree.Expression, literals: tuple[tree.Literal, ...], expression: tree.Expression
) -> Equality | None:
    match operand:
        case tree.Column():
            return Equality(operand, _not_null(literals), expression)
        case tree.Cast(tree.Column(_, _, Kind.INTEGER) as column, Kind.NUMERIC):
            return Equality(column, tuple(_whole(_not_null(literals))), expression)
        case tree.Cast(tree.Column(_, _, Kind.PRINTED | EnumOf()) as column, Kind.TEXT):
            return Equality(column, _not_null(literals), expression)
    return None


def _either(operands: tuple[tree.Expression, ...], expression: tree.Expression) -> Equality | None:
    """Equalities of one column."""
    terms = [term for operand in operands if isinstance(term := _term(operand), Equality)]
    if len(terms) < len(operands) or len({term.column for term in terms}) > 1:
        return None
    literals = dict.fromkeys(literal for term in terms for literal in term.literals)
    return Equality(terms[0].column, tuple(literals), expression)


def _whole(literals: tuple[tree.Literal, ...]) -> Iterator[tree.Literal]:
    """Those that a whole number can equal."""
    for literal in literals:
        value = Decimal(literal.text or "NaN")
        if value.is_finite() and value == value.to_integral_value():
            yield tree.Literal(str(int(value)), Kind.INTEGER)


def _contains(column: tree.Column, array: tree.Literal, expression: tree.Expression) -> Contains | None:
    assert isinstance(array.kind, ArrayOf)
    if array.text is None:
        return None
    items = read_array(array.text, str).items
    if not items or None in items:
        return None
    return Contains(column, tuple(tree.Literal(item, array.kind.element) for item in items), expression)


def _not_null(literals: tuple[tree.Literal, ...]) -> tuple[tree.Literal, ...]:
    return tuple(literal for literal in literals if literal.text is not None)

"""IN, ANY and ALL: a value against a list that is written out, or an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.core.where import tree
from penstock.core.where.arrays import read_array
from penstock.core.where.comparing import COMPARISONS, LIKES, compare, like, negated_if, symbol_of
from penstock.core.where.convert import (
    alike,
    converted,
    known,
    no_operator,
    read,
    textual,
    type_of,
    unified,
)
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind, array_of
from penstock.core.where.single import is_listed
from penstock.core.where.wording import RefusedError, refused

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

_QUANTIFIED: dict[str, tree.ComparisonOperator | tree.LikeOperator] = {
    **{symbol: cast("tree.ComparisonOperator", found) for symbol, found in COMPARISONS.items()},
    "~~": "LIKE",
    "!~~": "NOT LIKE",
    "~~*": "ILIKE",
    "!~~*": "NOT ILIKE",
}


def in_list(compiler: Compiler, expression: Any) -> tree.Expression:
    if not expression.rexpr.HasField("list"):
        raise RefusedError("IN takes a list of values")
    operand = compiler.expression(expression.lexpr)
    items = [compiler.expression(item) for item in expression.rexpr.list.items]
    if operand.kind is Kind.REAL:
        if compiler.total or not all(isinstance(item, tree.Literal) for item in items):
            _refuse_real_in_lists(operand)
        items = [known(converted(item, Kind.REAL), Kind.REAL) for item in items]
    if {Kind.NAME, Kind.TEXT} <= {operand.kind, *(item.kind for item in items)}:
        raise RefusedError("IN takes names or texts, not both: write = and OR")
    negated = symbol_of(expression) == "<>"
    return negated_if(negated, _equals_any(operand, items, total=compiler.total))


def any_or_all(compiler: Compiler, expression: Any, *, every: bool) -> tree.Expression:
    symbol = symbol_of(expression)
    operand = compiler.expression(expression.lexpr)
    if expression.rexpr.WhichOneof("node") == "a_array_expr":
        items = [compiler.expression(item) for item in expression.rexpr.a_array_expr.elements]
        if items and not any(isinstance(item.kind, ArrayOf) for item in items):
            _refuse_real_in_lists(operand)
            elements = alike(items, "ARRAY", total=compiler.total)
            return _one_by_one(compiler, symbol, operand, elements, every=every)
    if compiler.total:
        raise refused("array") if symbol in COMPARISONS else _unknown_with_array(symbol)
    array = compiler.expression(expression.rexpr)
    if array.kind is Kind.UNKNOWN:
        if isinstance(operand.kind, EnumOf) or operand.kind is Kind.NAME:
            return _one_by_one(compiler, symbol, operand, _labels(array), every=every)
        wanted = array_of(type_of(known(operand)))
        if wanted is None:
            raise no_operator(symbol, operand, array)
        array = read(array, wanted)
    if not isinstance(array.kind, ArrayOf):
        raise refused("array")
    if isinstance(array, tree.Literal) and array.text is not None:
        return _one_by_one(compiler, symbol, operand, _literals(array), every=every)
    operand = textual(operand) if operand.kind is Kind.NAME else known(operand, array.kind.element)
    if symbol not in _QUANTIFIED or operand.kind != array.kind.element:
        raise no_operator(symbol, operand, array)
    if symbol in LIKES and operand.kind is not Kind.TEXT:
        raise no_operator("LIKE", operand, array)
    return tree.Quantified(_QUANTIFIED[symbol], operand, array, every)


def _labels(array: tree.Expression) -> list[tree.Literal]:
    """The labels in an array in quotes, to be read as those of an enumeration, or as names."""
    literal = read(array, ArrayOf("text"))
    if literal.text is None:
        raise refused("array")
    return [replace(label, kind=Kind.UNKNOWN) for label in _literals(literal)]


def _literals(array: tree.Literal) -> list[tree.Literal]:
    """The elements of an array that is written out."""
    assert isinstance(array.kind, ArrayOf)
    found = read_array(array.text or "{}", str)
    return [tree.Literal(item, array.kind.element) for item in found.items]


def _one_by_one(
    compiler: Compiler,
    symbol: str,
    operand: tree.Expression,
    elements: Sequence[tree.Expression],
    *,
    every: bool,
) -> tree.Expression:
    if not elements:
        return tree.Literal("t" if every else "f", Kind.BOOLEAN)
    if symbol in LIKES:
        found = tuple(like(symbol, operand, element, total=compiler.total) for element in elements)
        return tree.AllOf(found) if every else tree.AnyOf(found)
    if symbol not in COMPARISONS:
        raise _unknown_with_array(symbol)
    if symbol == "=" and not every:
        return _equals_any(operand, elements, total=compiler.total)
    compared = tuple(compare(symbol, operand, element, total=compiler.total) for element in elements)
    return tree.AllOf(compared) if every else tree.AnyOf(compared)


def _unknown_with_array(symbol: str) -> RefusedError:
    return RefusedError(
        f"the operator {symbol} is not supported with this array", "Could not select an operator overload"
    )


def _refuse_real_in_lists(operand: tree.Expression) -> None:
    # Postgres rounds the list's numbers to real there, and compares as double elsewhere.
    if operand.kind is Kind.REAL:
        raise RefusedError("a list of values for a real column is not supported: write = and OR")


def _equals_any(
    operand: tree.Expression, items: Sequence[tree.Expression], *, total: bool
) -> tree.Expression:
    pairs = [unified(operand, item, "=", total=total) for item in items]
    same_operand = all(left == pairs[0][0] for left, _ in pairs) and not is_listed(pairs[0][0].kind)
    if same_operand and all(isinstance(right, tree.Literal) for _, right in pairs):
        return tree.IsIn(pairs[0][0], tuple(cast("tree.Literal", right) for _, right in pairs))
    return tree.AnyOf(tuple(compare("=", left, right, total=total) for left, right in pairs))

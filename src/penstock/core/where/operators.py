"""Operators of a condition: comparisons, lists, patterns, arithmetic.

Each rule takes the parse tree's node of an operation and gives the checked one; what an operator cannot do
exactly for every value is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.core.where import tree
from penstock.core.where.convert import RefusedError, known, no_operator, unified
from penstock.core.where.kinds import EXACT_NUMBERS, Kind

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LIKES = {"~~": (False, False), "!~~": (True, False), "~~*": (False, True), "!~~*": (True, True)}
_ARITHMETIC = ("+", "-", "*", "/", "%")
_BITS = ("&", "|", "#")


def operation(compiler: Compiler, expression: Any) -> tree.Expression:
    kind = compiler.name_of(expression, "kind")
    rule = _RULES.get(kind)
    if rule is None:
        raise RefusedError(f"{kind.removeprefix('AEXPR_').replace('_', ' ')} is not supported in a condition")
    return rule(compiler, expression)


def negated_if(negated: bool, expression: tree.Expression) -> tree.Expression:
    return tree.Not(expression) if negated else expression


def _symbol(expression: Any) -> str:
    if len(expression.name) != 1:
        raise RefusedError("an operator of a named schema is not supported")
    symbol: str = expression.name[0].string.sval
    return symbol


def _plain(compiler: Compiler, expression: Any) -> tree.Expression:
    symbol = _symbol(expression)
    if symbol in _LIKES:
        return _like(compiler, expression)
    if any(
        expression.HasField(side)
        and getattr(expression, side).WhichOneof("node") in ("row_expr", "a_array_expr")
        for side in ("lexpr", "rexpr")
    ):
        raise RefusedError("rows and arrays cannot be compared in a condition")
    right = compiler.expression(expression.rexpr)
    if not expression.HasField("lexpr"):
        return _unary(symbol, right)
    left = compiler.expression(expression.lexpr)
    if symbol in _COMPARISONS:
        return _compare(symbol, left, right)
    if symbol in _BITS:
        return _bits(symbol, left, right)
    if symbol in _ARITHMETIC:
        return _arithmetic(symbol, left, right)
    if symbol == "||":
        return _concatenation(left, right)
    raise RefusedError(f"the operator {symbol} is not supported in a condition")


def _unary(symbol: str, operand: tree.Expression) -> tree.Expression:
    if operand.kind not in EXACT_NUMBERS or symbol not in ("-", "+", "@", "~"):
        raise no_operator(symbol, None, operand)
    if symbol == "-":
        return tree.Arithmetic("-", tree.Literal("0", operand.kind), operand, operand.kind)
    if symbol == "@":
        return tree.Absolute(operand, operand.kind)
    if symbol == "~":
        return _bits("#", operand, tree.Literal("-1", Kind.INTEGER))
    return operand


def _compare(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    left, right = unified(left, right, symbol)
    return tree.Compare(cast("tree.ComparisonOperator", _COMPARISONS[symbol]), left, right)


def _bits(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    left, right = unified(left, right, symbol)
    if left.kind is not Kind.INTEGER:
        raise no_operator(symbol, left, right)
    if any(isinstance(side, tree.Arithmetic | tree.Absolute | tree.Coalesce) for side in (left, right)):
        raise RefusedError(f"{symbol} takes columns and literals, not results of arithmetic")
    return tree.Bits(cast("tree.BitOperator", symbol), left, right)


def _arithmetic(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    left, right = unified(left, right, symbol)
    if left.kind not in EXACT_NUMBERS:
        raise no_operator(symbol, left, right)
    if symbol in ("/", "%"):
        if left.kind is not Kind.INTEGER:
            raise RefusedError(f"{symbol} is supported for whole numbers only: numerics are rounded")
        if not isinstance(right, tree.Literal) or right.text in (None, "0"):
            raise RefusedError(f"{symbol} needs a literal that is not zero at its right")
    return tree.Arithmetic(cast("tree.ArithmeticOperator", symbol), left, right, left.kind)


def _concatenation(left: tree.Expression, right: tree.Expression) -> tree.Expression:
    before, after = known(left), known(right)
    if before.kind is not Kind.TEXT or after.kind is not Kind.TEXT:
        raise no_operator("||", left, right)
    return tree.Concatenate(before, after)


def _distinct(compiler: Compiler, expression: Any, *, negated: bool) -> tree.Expression:
    left, right = compiler.expression(expression.lexpr), compiler.expression(expression.rexpr)
    return negated_if(negated, tree.IsDistinct(*unified(left, right, "IS DISTINCT FROM")))


def _between(compiler: Compiler, expression: Any, *, negated: bool, symmetric: bool) -> tree.Expression:
    operand = compiler.expression(expression.lexpr)
    low, high = (compiler.expression(bound) for bound in expression.rexpr.list.items)
    inside = _within(operand, low, high)
    if symmetric:
        inside = tree.AnyOf((inside, _within(operand, high, low)))
    return negated_if(negated, inside)


def _within(operand: tree.Expression, low: tree.Expression, high: tree.Expression) -> tree.Expression:
    return tree.AllOf((_compare(">=", operand, low), _compare("<=", operand, high)))


def _like(compiler: Compiler, expression: Any) -> tree.Expression:
    negated, ignore_case = _LIKES[_symbol(expression)]
    if expression.rexpr.WhichOneof("node") == "func_call":
        raise RefusedError("the pattern of LIKE must be a literal, without ESCAPE")
    operand = known(compiler.expression(expression.lexpr))
    pattern = known(compiler.expression(expression.rexpr))
    if operand.kind is not Kind.TEXT or pattern.kind is not Kind.TEXT:
        raise no_operator("LIKE", operand, pattern)
    if not isinstance(pattern, tree.Literal):
        raise RefusedError("the pattern of LIKE must be a literal")
    if pattern.text is None:
        return tree.Literal(None, Kind.BOOLEAN)
    if (len(pattern.text) - len(pattern.text.rstrip("\\"))) % 2:
        raise RefusedError("LIKE pattern must not end with escape character")
    return negated_if(negated, tree.Like(operand, pattern.text, ignore_case))


def _in(compiler: Compiler, expression: Any) -> tree.Expression:
    if not expression.rexpr.HasField("list"):
        raise RefusedError("IN takes a list of values")
    operand = compiler.expression(expression.lexpr)
    _refuse_real_in_lists(operand)
    items = [compiler.expression(item) for item in expression.rexpr.list.items]
    return negated_if(_symbol(expression) == "<>", _equals_any(operand, items))


def _any_or_all(compiler: Compiler, expression: Any, *, every: bool) -> tree.Expression:
    if expression.rexpr.WhichOneof("node") != "a_array_expr":
        raise RefusedError("ANY and ALL take an array that is written out: ARRAY[…]")
    symbol = _symbol(expression)
    items = [compiler.expression(item) for item in expression.rexpr.a_array_expr.elements]
    if symbol not in _COMPARISONS or not items:
        raise RefusedError(f"the operator {symbol} is not supported with this array")
    operand = compiler.expression(expression.lexpr)
    _refuse_real_in_lists(operand)
    elements = _of_one_kind(items)
    if symbol == "=" and not every:
        return _equals_any(operand, elements)
    compared = tuple(_compare(symbol, operand, element) for element in elements)
    return tree.AllOf(compared) if every else tree.AnyOf(compared)


def _of_one_kind(items: Sequence[tree.Expression]) -> list[tree.Expression]:
    """An array has a type of its own, whatever it is compared with."""
    kinds = {item.kind for item in items} - {Kind.UNKNOWN}
    if len(kinds) > 1:
        raise RefusedError("write the array with values of one type")
    return [known(item, next(iter(kinds), Kind.TEXT)) for item in items]


def _refuse_real_in_lists(operand: tree.Expression) -> None:
    # Postgres rounds the list's numbers to real there, and compares as double elsewhere.
    if operand.kind is Kind.REAL:
        raise RefusedError("a list of values for a real column is not supported: write = and OR")


def _equals_any(operand: tree.Expression, items: Sequence[tree.Expression]) -> tree.Expression:
    pairs = [unified(operand, item, "=") for item in items]
    same_operand = all(left == pairs[0][0] for left, _ in pairs)
    if same_operand and all(isinstance(right, tree.Literal) for _, right in pairs):
        return tree.IsIn(pairs[0][0], tuple(cast("tree.Literal", right) for _, right in pairs))
    return tree.AnyOf(tuple(tree.Compare("=", left, right) for left, right in pairs))


_RULES: dict[str, Callable[[Compiler, Any], tree.Expression]] = {
    "AEXPR_OP": _plain,
    "AEXPR_OP_ANY": partial(_any_or_all, every=False),
    "AEXPR_OP_ALL": partial(_any_or_all, every=True),
    "AEXPR_DISTINCT": partial(_distinct, negated=False),
    "AEXPR_NOT_DISTINCT": partial(_distinct, negated=True),
    "AEXPR_IN": _in,
    "AEXPR_LIKE": _like,
    "AEXPR_ILIKE": _like,
    "AEXPR_BETWEEN": partial(_between, negated=False, symmetric=False),
    "AEXPR_NOT_BETWEEN": partial(_between, negated=True, symmetric=False),
    "AEXPR_BETWEEN_SYM": partial(_between, negated=False, symmetric=True),
    "AEXPR_NOT_BETWEEN_SYM": partial(_between, negated=True, symmetric=True),
}

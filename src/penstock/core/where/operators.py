"""Operators of a condition: comparisons, lists, patterns, arithmetic.

Each rule takes the parse tree's node of an operation and gives the checked one. What an operator cannot do
exactly for every value is refused, or looked for among the `overloads`, which may fail for some.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.core.where import lists, overloads, tree
from penstock.core.where.comparing import COMPARISONS, LIKES, compare, like, negated_if, symbol_of
from penstock.core.where.convert import known, no_operator, unified
from penstock.core.where.kinds import EXACT_NUMBERS, ArrayOf, Kind
from penstock.core.where.single import is_listed
from penstock.core.where.wording import RefusedError

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

_ARITHMETIC = ("+", "-", "*", "/", "%")
_BITS = ("&", "|", "#")


def operation(compiler: Compiler, expression: Any) -> tree.Expression:
    kind = compiler.name_of(expression, "kind")
    rule = _RULES.get(kind)
    if rule is None:
        raise RefusedError(f"{kind.removeprefix('AEXPR_').replace('_', ' ')} is not supported in a condition")
    return rule(compiler, expression)


def _plain(compiler: Compiler, expression: Any) -> tree.Expression:
    symbol = symbol_of(expression)
    if symbol in LIKES:
        return _like(compiler, expression)
    if any(
        expression.HasField(side) and getattr(expression, side).WhichOneof("node") in compiler.incomparable
        for side in ("lexpr", "rexpr")
    ):
        raise RefusedError(
            "rows and arrays cannot be compared in a condition", "RowExpr is not supported in this context"
        )
    right = compiler.expression(expression.rexpr)
    if not expression.HasField("lexpr"):
        try:
            return _unary(symbol, right)
        except RefusedError:
            if compiler.total:
                raise
            return overloads.unary(symbol, right)
    left = compiler.expression(expression.lexpr)
    if symbol in COMPARISONS:
        return compare(symbol, left, right, total=compiler.total)
    try:
        return _binary(symbol, left, right)
    except RefusedError:
        if compiler.total:
            raise
        return overloads.binary(symbol, left, right)


def _binary(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    if symbol in _BITS:
        return _bits(symbol, left, right)
    if symbol in _ARITHMETIC:
        return _arithmetic(symbol, left, right)
    if symbol == "||":
        return _concatenation(left, right)
    raise RefusedError(
        f"the operator {symbol} is not supported in a condition", "Could not select an operator overload"
    )


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
    left, right = unified(left, right, "IS DISTINCT FROM", total=compiler.total)
    if is_listed(left.kind):
        name = "array distinct" if isinstance(left.kind, ArrayOf) else "distinct"
        return negated_if(negated, tree.Call(name, (left, right), Kind.BOOLEAN))
    return negated_if(negated, tree.IsDistinct(left, right))


def _between(compiler: Compiler, expression: Any, *, negated: bool, symmetric: bool) -> tree.Expression:
    operand = compiler.expression(expression.lexpr)
    low, high = (compiler.expression(bound) for bound in expression.rexpr.list.items)
    inside = _within(operand, low, high, total=compiler.total)
    if symmetric:
        inside = tree.AnyOf((inside, _within(operand, high, low, total=compiler.total)))
    return negated_if(negated, inside)


def _within(
    operand: tree.Expression, low: tree.Expression, high: tree.Expression, *, total: bool
) -> tree.Expression:
    return tree.AllOf((compare(">=", operand, low, total=total), compare("<=", operand, high, total=total)))


def _like(compiler: Compiler, expression: Any) -> tree.Expression:
    if expression.rexpr.WhichOneof("node") == "func_call":
        name = expression.rexpr.func_call.funcname[-1].string.sval
        if compiler.total or name == "like_escape":
            raise RefusedError("the pattern of LIKE must be a literal, without ESCAPE")
    operand, pattern = compiler.expression(expression.lexpr), compiler.expression(expression.rexpr)
    return like(symbol_of(expression), operand, pattern, total=compiler.total)


_RULES: dict[str, Callable[[Compiler, Any], tree.Expression]] = {
    "AEXPR_OP": _plain,
    "AEXPR_OP_ANY": partial(lists.any_or_all, every=False),
    "AEXPR_OP_ALL": partial(lists.any_or_all, every=True),
    "AEXPR_DISTINCT": partial(_distinct, negated=False),
    "AEXPR_NOT_DISTINCT": partial(_distinct, negated=True),
    "AEXPR_IN": lists.in_list,
    "AEXPR_LIKE": _like,
    "AEXPR_ILIKE": _like,
    "AEXPR_BETWEEN": partial(_between, negated=False, symmetric=False),
    "AEXPR_NOT_BETWEEN": partial(_between, negated=True, symmetric=False),
    "AEXPR_BETWEEN_SYM": partial(_between, negated=False, symmetric=True),
    "AEXPR_NOT_BETWEEN_SYM": partial(_between, negated=True, symmetric=True),
}

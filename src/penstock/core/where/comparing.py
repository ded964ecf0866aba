"""Two values compared: what rules of several kinds of nodes share."""

from __future__ import annotations

from typing import Any, cast

from penstock.core.where import tree
from penstock.core.where.convert import converted, no_operator, textual, unified
from penstock.core.where.kinds import ArrayOf, Kind, ValueKind
from penstock.core.where.single import is_listed
from penstock.core.where.wording import RefusedError

COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
LIKES = {"~~": (False, False), "!~~": (True, False), "~~*": (False, True), "!~~*": (True, True)}
_PATTERN_MAX = 10_000
_DAY_AND_MOMENT: tuple[set[ValueKind], ...] = (
    {Kind.DATE, Kind.TIMESTAMP},
    {Kind.DATE, Kind.TIMESTAMPTZ},
)
_TURNED: dict[tree.ComparisonOperator, tree.ComparisonOperator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def negated_if(negated: bool, expression: tree.Expression) -> tree.Expression:
    return tree.Not(expression) if negated else expression


def symbol_of(expression: Any) -> str:
    if len(expression.name) != 1:
        raise RefusedError("an operator of a named schema is not supported")
    symbol: str = expression.name[0].string.sval
    return symbol


def compare(
    symbol: str, left: tree.Expression, right: tree.Expression, *, total: bool = True
) -> tree.Expression:
    found = cast("tree.ComparisonOperator", COMPARISONS[symbol])
    if not total and {left.kind, right.kind} in _DAY_AND_MOMENT:
        return _compare_day(found, left, right)
    left, right = unified(left, right, symbol, total=total)
    if not is_listed(left.kind):
        return tree.Compare(found, left, right)
    if found not in ("=", "<>") and left.kind is not Kind.INTERVAL:
        raise no_operator(symbol, left, right)
    name = f"array {found} array" if isinstance(left.kind, ArrayOf) else f"compare {found}"
    return tree.Call(name, (left, right), Kind.BOOLEAN)


def _compare_day(
    symbol: tree.ComparisonOperator, left: tree.Expression, right: tree.Expression
) -> tree.Expression:
    """Without a conversion, which the last days do not have."""
    if right.kind is Kind.DATE:
        left, right, symbol = right, left, _TURNED.get(symbol, symbol)
    moment = converted(right, Kind.TIMESTAMP, total=False)
    return tree.Call(f"day {symbol} moment", (left, moment), Kind.BOOLEAN)


def like(symbol: str, operand: tree.Expression, pattern: tree.Expression, *, total: bool) -> tree.Expression:
    negated, ignore_case = LIKES[symbol]
    operand, pattern = textual(operand), textual(pattern)
    if operand.kind is not Kind.TEXT or pattern.kind is not Kind.TEXT:
        raise no_operator("LIKE", operand, pattern)
    if not isinstance(pattern, tree.Literal):
        if total:
            raise RefusedError("the pattern of LIKE must be a literal")
        called = tree.Call("ilike" if ignore_case else "like", (operand, pattern), Kind.BOOLEAN)
        return negated_if(negated, called)
    if pattern.text is None:
        return tree.Literal(None, Kind.BOOLEAN)
    if not total and len(pattern.text) > _PATTERN_MAX:
        raise RefusedError(f"the pattern of LIKE is longer than {_PATTERN_MAX} characters")
    if (len(pattern.text) - len(pattern.text.rstrip("\\"))) % 2:
        raise RefusedError("LIKE pattern must not end with escape character")
    return negated_if(negated, tree.Like(operand, pattern.text, ignore_case))

"""Operators and functions that take one row at a time: what each computes, and how it reads in SQL.

`CALLS` has each by its name in the tree. What fails at the source fails here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from penstock.core.where import arrays, exact, floats, intervals, json_values, single
from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY
from penstock.core.where.errors import EvaluationError
from penstock.core.where.patterns import ascii_lower, matches
from penstock.core.where.tree import ComparisonOperator
from penstock.core.where.zones import moment_in

_INFINITE = {POSITIVE_INFINITY: math.inf, NEGATIVE_INFINITY: -math.inf}


@dataclass(frozen=True, slots=True)
class CallRule:
    """`sql`: its text, with the operands in order. `strict`: NULL for a NULL, without being asked."""

    apply: Callable[..., Any]
    sql: str
    strict: bool = True


def over(rule: CallRule, operands: list[list[Any]]) -> list[Any]:
    """For each row; an operand of one value is the same in every row."""
    rows = next((len(each) for each in operands if len(each) != 1), 1)
    spread = [each * rows if len(each) == 1 else each for each in operands]
    apply = rule.apply
    if not rule.strict:
        return [apply(*values) for values in zip(*spread, strict=True)]
    return [
        None if any(value is None for value in values) else apply(*values)
        for values in zip(*spread, strict=True)
    ]


def _whole_quotient(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    if right == 0 and not (isinstance(left, Decimal) and left.is_nan()):
        raise EvaluationError("division by zero")
    if isinstance(left, Decimal):
        return exact.CONTEXT.remainder(left, right)
    return left - _whole_quotient(left, right) * right


def _extreme(*values: Any, greatest: bool) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known, key=single.rank) if greatest else min(known, key=single.rank)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _distinct(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is not right
    return single.compare("<>", left, right)


def _concat(*values: str | None) -> str:
    return "".join(value for value in values if value is not None)


def _like(text: str, pattern: str, *, ignore_case: bool) -> bool:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise EvaluationError("LIKE pattern must not end with escape character")
    return matches(ascii_lower(text), ascii_lower(pattern)) if ignore_case else matches(text, pattern)


#: By operator: whether it holds between a value and an element of an array.
WITH_ELEMENT: dict[str, Callable[[Any, Any], bool]] = {
    **{symbol: partial(single.compare, symbol) for symbol in single.COMPARISONS},
    "LIKE": partial(_like, ignore_case=False),
    "ILIKE": partial(_like, ignore_case=True),
    "NOT LIKE": lambda text, pattern: not _like(text, pattern, ignore_case=False),
    "NOT ILIKE": lambda text, pattern: not _like(text, pattern, ignore_case=True),
}


def _compare_day(symbol: ComparisonOperator, day: int, moment: int) -> bool:
    """The last days have no moments, but lie before infinity."""
    return single.COMPARISONS[symbol](_INFINITE.get(day, day * DAY_US), _INFINITE.get(moment, moment))


_BITS: dict[str, Callable[[int, int], int]] = {
    "&": lambda left, right: left & right,
    "|": lambda left, right: left | right,
    "#": lambda left, right: left ^ right,
}
_UTC = "'UTC'::pg_catalog.text"


def _operator(symbol: str) -> str:
    return f"({{0}} {symbol} {{1}})"


CALLS: dict[str, CallRule] = {
    **{f"double {symbol}": CallRule(apply, _operator(symbol)) for symbol, apply in floats.ARITHMETIC.items()},
    **{
        f"real {symbol}": CallRule(floats.in_single_precision(floats.ARITHMETIC[symbol]), _operator(symbol))
        for symbol in "+-*/"
    },
    **{
        f"whole {symbol}": CallRule(apply, f"({{0}}::pg_catalog.int8 {symbol} {{1}}::pg_catalog.int8)")
        for symbol, apply in _BITS.items()
    },
    "whole /": CallRule(_whole_quotient, "pg_catalog.div({0}::pg_catalog.numeric, {1}::pg_catalog.numeric)"),
    "remainder": CallRule(_remainder, "pg_catalog.mod({0}::pg_catalog.numeric, {1}::pg_catalog.numeric)"),
    "negative": CallRule(lambda value: -value, "(- {0})"),
    "absolute": CallRule(abs, "pg_catalog.abs({0})"),
    "root": CallRule(floats.root, "(|/ {0})"),
    "greatest": CallRule(partial(_extreme, greatest=True), "GREATEST({all})", strict=False),
    "least": CallRule(partial(_extreme, greatest=False), "LEAST({all})", strict=False),
    "coalesce": CallRule(_first, "COALESCE({all})", strict=False),
    "distinct": CallRule(_distinct, "({0} IS DISTINCT FROM {1})", strict=False),
    **{
        f"compare {symbol}": CallRule(partial(single.compare, symbol), _operator(symbol))
        for symbol in single.COMPARISONS
    },
    "concat": CallRule(_concat, "pg_catalog.concat({all})", strict=False),
    "like": CallRule(WITH_ELEMENT["LIKE"], "({0} LIKE {1})"),
    "ilike": CallRule(WITH_ELEMENT["ILIKE"], "({0} ILIKE {1})"),
    # Days, times and intervals.
    "day + days": CallRule(intervals.add_days, "({0} + {1}::pg_catalog.int4)"),
    "day - days": CallRule(
        lambda day, number: intervals.add_days(day, -number), "({0} - {1}::pg_catalog.int4)"
    ),
    "day + interval": CallRule(
        lambda day, interval: intervals.add_to_moment(intervals.moment_of(day), interval), "({0} + {1})"
    ),
    "day - interval": CallRule(
        lambda day, interval: intervals.add_to_moment(intervals.moment_of(day), intervals.negate(interval)),
        "({0} - {1})",
    ),
    **{
        f"day {symbol} moment": CallRule(partial(_compare_day, symbol), _operator(symbol))
        for symbol in single.COMPARISONS
    },
    "day - day": CallRule(intervals.days_between, "({0} - {1})"),
    "day + time": CallRule(intervals.moment_of, "({0} + {1})"),
    "moment + interval": CallRule(intervals.add_to_moment, "({0} + {1})"),
    "moment - interval": CallRule(
        lambda moment, interval: intervals.add_to_moment(moment, intervals.negate(interval)), "({0} - {1})"
    ),
    "instant + interval": CallRule(
        intervals.add_to_moment, f"((({{0}} AT TIME ZONE {_UTC}) + {{1}}) AT TIME ZONE {_UTC})"
    ),
    "instant - interval": CallRule(
        lambda moment, interval: intervals.add_to_moment(moment, intervals.negate(interval)),
        f"((({{0}} AT TIME ZONE {_UTC}) - {{1}}) AT TIME ZONE {_UTC})",
    ),
    "moment - moment": CallRule(intervals.between_moments, "({0} - {1})"),
    "time + interval": CallRule(intervals.add_to_time, "({0} + {1})"),
    "time - interval": CallRule(
        lambda time, interval: intervals.add_to_time(time, intervals.negate(interval)), "({0} - {1})"
    ),
    "time - time": CallRule(lambda left, right: intervals.Interval(0, 0, left - right), "({0} - {1})"),
    "interval + interval": CallRule(intervals.add, "({0} + {1})"),
    "interval - interval": CallRule(intervals.subtract, "({0} - {1})"),
    "interval * whole": CallRule(intervals.multiply, "({0} * {1}::pg_catalog.float8)"),
    "- interval": CallRule(intervals.negate, "(- {0})"),
    "justify_days": CallRule(intervals.justify_days, "pg_catalog.justify_days({0})"),
    "justify_hours": CallRule(intervals.justify_hours, "pg_catalog.justify_hours({0})"),
    "justify_interval": CallRule(intervals.justify_interval, "pg_catalog.justify_interval({0})"),
    "to local": CallRule(partial(moment_in, to_local=True), "pg_catalog.timezone({0}, {1})"),
    "to instant": CallRule(partial(moment_in, to_local=False), "pg_catalog.timezone({0}, {1})"),
    # Arrays.
    "array = array": CallRule(lambda left, right: left == right, "({0} = {1})"),
    "array <> array": CallRule(lambda left, right: left != right, "({0} <> {1})"),
    "array distinct": CallRule(lambda left, right: left != right, "({0} IS DISTINCT FROM {1})", strict=False),
    "array @> array": CallRule(arrays.contains, "({0} @> {1})"),
    "array && array": CallRule(arrays.overlaps, "({0} && {1})"),
    "array || array": CallRule(arrays.join, "pg_catalog.array_cat({0}, {1})", strict=False),
    "array || element": CallRule(arrays.append, "pg_catalog.array_append({0}, {1}{element})", strict=False),
    "element || array": CallRule(arrays.prepend, "pg_catalog.array_prepend({0}{element}, {1})", strict=False),
    "array_ndims": CallRule(lambda array: array.dimensions or None, "pg_catalog.array_ndims({0})"),
    "subscript": CallRule(arrays.subscript, "({0}){indexes}"),
    "slice": CallRule(arrays.slice_of, "({0}){slices}"),
    # JSON.
    "json ->": CallRule(json_values.member, "({0} -> {1})"),
    "json -> place": CallRule(json_values.element, "({0} -> {1}::pg_catalog.int4)"),
    "json ->>": CallRule(
        lambda value, name: json_values.as_text(json_values.member(value, name)), "({0} ->> {1})"
    ),
    "json ->> place": CallRule(
        lambda value, place: json_values.as_text(json_values.element(value, place)),
        "({0} ->> {1}::pg_catalog.int4)",
    ),
    "json @> json": CallRule(json_values.contains, "({0} @> {1})"),
    "json ? text": CallRule(json_values.has_key, "({0} ? {1})"),
    "json ?| texts": CallRule(json_values.has_any_key, "({0} ?| {1})"),
    "json ?& texts": CallRule(json_values.has_all_keys, "({0} ?& {1})"),
}

"""Floating-point numbers in the order of Postgres: NaN equals NaN and is greater than everything else."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc

from penstock.core.where.exact import Exact as Values
from penstock.core.where.tree import ComparisonOperator


def compare(symbol: ComparisonOperator, left: Values, right: Values) -> Values:
    return _COMPARISONS[symbol](left, right)


def _equal(left: Values, right: Values) -> Values:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Values, right: Values) -> Values:
    return pc.or_kleene(pc.less(left, right), pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _negated(function: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    return lambda left, right: pc.invert(function(left, right))


def _swapped(function: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    return lambda left, right: function(right, left)


_COMPARISONS: dict[ComparisonOperator, Callable[[Values, Values], Values]] = {
    "=": _equal,
    "<>": _negated(_equal),
    "<": _less,
    ">": _swapped(_less),
    ">=": _negated(_less),
    "<=": _negated(_swapped(_less)),
}

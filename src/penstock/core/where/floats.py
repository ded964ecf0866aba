"""Floating-point numbers in the order of Postgres: NaN equals NaN and is greater than everything else.

Arithmetic, one value at a time, fails where Postgres' does: a result that is infinite, or zero, though no
operand is. Only `^` leans on the C library, which may differ from the source's in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from penstock.core.where.errors import EvaluationError
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


def _checked(result: float, *operands: float) -> float:
    if math.isinf(result) and not any(map(math.isinf, operands)):
        raise EvaluationError("value out of range: overflow")
    return math.nan if math.isnan(result) else result


def _multiply(left: float, right: float) -> float:
    result = _checked(left * right, left, right)
    if result == 0 and left != 0 and right != 0:
        raise EvaluationError("value out of range: underflow")
    return result


def _divide(left: float, right: float) -> float:
    if right == 0 and not math.isnan(left):
        raise EvaluationError("division by zero")
    if right == 0:
        return math.nan
    result = _checked(left / right, left)
    if result == 0 and left != 0 and not math.isinf(right):
        raise EvaluationError("value out of range: underflow")
    return result


def _power(base: float, exponent: float) -> float:
    if base < 0 and not math.isnan(exponent) and not math.isinf(exponent) and exponent != int(exponent):
        raise EvaluationError("a negative number raised to a non-integer power yields a complex result")
    if base == 0 and exponent < 0:
        raise EvaluationError("zero raised to a negative power is undefined")
    try:
        result = math.pow(base, exponent)
    except OverflowError:
        raise EvaluationError("value out of range: overflow") from None
    if result == 0 and base != 0 and not math.isinf(base) and not math.isinf(exponent):
        raise EvaluationError("value out of range: underflow")
    return math.nan if math.isnan(result) else result


def root(value: float) -> float:
    if value < 0:
        raise EvaluationError("cannot take square root of a negative number")
    return math.nan if math.isnan(value) else math.sqrt(value)


def in_single_precision(operation: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """The same in single precision: a double holds sums and products of two reals before they are rounded."""

    def rounded(left: float, right: float) -> float:
        result = operation(left, right)
        with np.errstate(over="ignore", under="ignore"):
            single_precision = float(np.float32(result))
        if single_precision == 0 and result != 0:
            raise EvaluationError("value out of range: underflow")
        return _checked(single_precision, left, right)

    return rounded


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: _checked(left + right, left, right),
    "-": lambda left, right: _checked(left - right, left, right),
    "*": _multiply,
    "/": _divide,
    "^": _power,
}

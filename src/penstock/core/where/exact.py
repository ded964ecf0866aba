"""Whole numbers and numerics, compared and added up without a rounding anywhere.

Three forms, the fastest that holds the values at hand: 64-bit integers, decimals of at most 76 digits, and
Python's decimals of any length, with NaN and infinities. Numbers of more than 76 digits, NaN and infinities
are rare enough that a batch with one of them may cost a Python object per row.
"""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.where.tree import ArithmeticOperator, ComparisonOperator

_DIGITS_MAX = 76
_INTEGER_DIGITS = 19
#: Longer than any sum or product of two numerics, and silent about infinity minus infinity, which is NaN.
CONTEXT = decimal.Context(
    prec=600_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[], rounding=decimal.ROUND_DOWN
)


@dataclass(frozen=True, slots=True, eq=False)
class Long:
    """Numbers of any length: Decimal or None, one per row or one for all rows."""

    values: NDArray[np.object_]


#: An array or a scalar of Arrow, for which there are no types, or `Long`.
Exact: TypeAlias = Any

ARROW_COMPARISONS: dict[ComparisonOperator, Callable[[Any, Any], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PYTHON_COMPARISONS: dict[ComparisonOperator, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def numerics(text: pa.StringArray) -> Exact:
    """Numerics as Postgres prints them: digits, a sign, a point, or NaN and the infinities."""
    if text.null_count == len(text):
        return pa.nulls(len(text), pa.int64())
    if pc.any(pc.match_substring_regex(text, "[NI]")).as_py():
        return _long(text)
    point = pc.find_substring(text, ".")
    length = pc.binary_length(text)
    fraction = pc.if_else(pc.less(point, 0), 0, pc.subtract(pc.subtract(length, point), 1))
    scale = pc.max(fraction).as_py()
    whole = pc.max(pc.subtract(length, fraction)).as_py()
    if whole + scale > _DIGITS_MAX:
        return _long(text)
    return text.cast(_decimal(whole + scale, scale))


def compare(symbol: ComparisonOperator, left: Exact, right: Exact) -> pa.Array:
    if isinstance(left, Long) or isinstance(right, Long):
        return _compare_long(symbol, left, right)
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return ARROW_COMPARISONS[symbol](left, right)
    (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
    whole, scale = max(left_whole, right_whole), max(left_scale, right_scale)
    if whole + scale > _DIGITS_MAX:
        return _compare_long(symbol, left, right)
    common = _decimal(whole + scale, scale)
    return ARROW_COMPARISONS[symbol](left.cast(common), right.cast(common))


def calculate(symbol: ArithmeticOperator, left: Exact, right: Exact) -> Exact:
    """`/` and `%` cut towards zero; both are of whole numbers, and `right` is not zero."""
    if isinstance(left, Long) or isinstance(right, Long):
        return _calculate_long(symbol, left, right)
    try:
        if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
            return _INTEGERS[symbol](left, right)
        if symbol in _DECIMALS and _fits(symbol, left, right):
            return _DECIMALS[symbol](_widened(left), _widened(right))
    except pa.ArrowInvalid:
        pass  # an overflow
    return _calculate_long(symbol, left, right)


def absolute(values: Exact) -> Exact:
    if isinstance(values, Long):
        return Long(_each(lambda value: value.copy_abs(), values.values))
    try:
        return pc.abs_checked(values)
    except pa.ArrowInvalid:
        return absolute(_to_long(values))


def missing(values: Exact) -> pa.Array:
    """Of any values, also those that only have a list."""
    if isinstance(values, pa.Array | pa.Scalar):
        return pc.is_null(values)
    return _answers([value is None for value in values.values])


def first_known(left: Exact, right: Exact, rows: int) -> Exact:
    """`left`, and where that is null `right`."""
    if all(not isinstance(side, Long) and pa.types.is_integer(side.type) for side in (left, right)):
        return pc.coalesce(left, right)
    before, after = (np.broadcast_to(_to_long(side).values, rows) for side in (left, right))
    return Long(np.where(before == None, after, before))  # noqa: E711  (of each element)


def _decimal(digits: int, scale: int) -> pa.DataType:
    digits = max(digits, 1)
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def _digits(values: pa.Array) -> tuple[int, int]:
    """At most so many digits before and after the point."""
    kind = values.type
    if pa.types.is_integer(kind):
        return _INTEGER_DIGITS, 0
    return kind.precision - kind.scale, kind.scale


def _fits(symbol: ArithmeticOperator, left: pa.Array, right: pa.Array) -> bool:
    (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
    if symbol == "*":
        return left_whole + left_scale + right_whole + right_scale < _DIGITS_MAX
    return max(left_whole, right_whole) + max(left_scale, right_scale) < _DIGITS_MAX


def _widened(values: pa.Array) -> pa.Array:
    whole, scale = _digits(values)
    return values.cast(pa.decimal256(max(whole + scale, 1), scale))


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


_INTEGERS: dict[ArithmeticOperator, Callable[[Any, Any], Exact]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide_checked,
    "%": _remainder,
}
_DECIMALS: dict[ArithmeticOperator, Callable[[Any, Any], Exact]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_LONG: dict[ArithmeticOperator, Callable[[decimal.Decimal, decimal.Decimal], decimal.Decimal]] = {
    "+": CONTEXT.add,
    "-": CONTEXT.subtract,
    "*": CONTEXT.multiply,
    "/": CONTEXT.divide_int,
    "%": CONTEXT.remainder,
}


def _long(text: pa.StringArray) -> Long:
    return Long(_each(CONTEXT.create_decimal, np.array(text.to_pylist(), object)))


def _to_long(values: Exact) -> Long:
    if isinstance(values, Long):
        return values
    listed = [values.as_py()] if isinstance(values, pa.Scalar) else values.to_pylist()
    array = np.empty(len(listed), object)
    array[:] = listed
    return Long(_each(CONTEXT.create_decimal, array))


def _each(function: Callable[[Any], Any], values: NDArray[np.object_]) -> NDArray[np.object_]:
    result = np.empty(values.shape, object)
    result[:] = [None if value is None else function(value) for value in values]
    return result


def _pairs(left: Exact, right: Exact) -> list[tuple[Any, Any]]:
    return list(zip(*np.broadcast_arrays(_to_long(left).values, _to_long(right).values), strict=True))


def _compare_long(symbol: ComparisonOperator, left: Exact, right: Exact) -> pa.Array:
    function = _PYTHON_COMPARISONS[symbol]
    return _answers(
        [
            None if before is None or after is None else function(rank(before), rank(after))
            for before, after in _pairs(left, right)
        ]
    )


def _answers(answers: list[bool | None]) -> pa.Array:
    """One answer is one for all rows: it may come from literals alone."""
    array = pa.array(answers, pa.bool_())
    return array[0] if len(array) == 1 else array


def rank(value: decimal.Decimal) -> tuple[bool, decimal.Decimal]:
    """NaN equals NaN and is greater than everything else."""
    return (True, decimal.Decimal(0)) if value.is_nan() else (False, value)


def _calculate_long(symbol: ArithmeticOperator, left: Exact, right: Exact) -> Long:
    function = _LONG[symbol]
    pairs = _pairs(left, right)
    result = np.empty(len(pairs), object)
    result[:] = [
        None if before is None or after is None else function(before, after) for before, after in pairs
    ]
    return Long(result)

"""Conversions of one value to another kind, with Postgres' rounding and its refusals.

Text is read by the same rules as a literal, dates and times by those of `written_times.py`; what only the
source reads (a boolean as `tru` is fine, a number as `0x1F` is not) has no answer here.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from penstock.core.where import intervals, single, written_times
from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY
from penstock.core.where.errors import EvaluationError
from penstock.core.where.json_values import print_json
from penstock.core.where.kinds import Kind, ValueKind
from penstock.core.where.literals import LiteralError, printed

INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_OF_TEXT = (Kind.INTEGER, Kind.NUMERIC, Kind.REAL, Kind.DOUBLE, Kind.BOOLEAN, Kind.UUID)
_INFINITIES = (POSITIVE_INFINITY, NEGATIVE_INFINITY)


def exists(source: ValueKind, target: ValueKind) -> bool:
    return (source, target) in _FUNCTIONS


def function(source: ValueKind, target: ValueKind, type_name: str) -> Callable[[Any], Any]:
    convert = _FUNCTIONS[source, target]
    if target is not Kind.INTEGER:
        return convert
    limit: int = 1 << (INTEGER_BITS[type_name] - 1)

    def whole(value: Any) -> int:
        number: int = convert(value)
        if not -limit <= number < limit:
            raise EvaluationError(f"a value is out of range for type {type_name}")
        return number

    return whole


def _from_text(kind: Kind) -> Callable[[str], Any]:
    read = single.reader(kind)
    print_value = written_times.printed_time if kind in written_times.KINDS else printed

    def convert(text: str) -> Any:
        try:
            return read(print_value(text, kind))
        except LiteralError:
            raise EvaluationError(f"a text is not a value of type {kind.value}") from None

    return convert


def _rounded_numeric(value: Decimal) -> int:
    if not value.is_finite():
        raise EvaluationError("a numeric is not a whole number")
    return int(value.to_integral_value(rounding=decimal.ROUND_HALF_UP))


def _rounded_float(value: float) -> int:
    if not math.isfinite(value):
        raise EvaluationError("a value is out of range for a whole number")
    return round(value)


def _double(value: Any) -> float:
    try:
        result = float(value)
    except OverflowError:
        raise EvaluationError("a value is out of range for type float8") from None
    if math.isinf(result) and not (isinstance(value, Decimal) and value.is_infinite()):
        raise EvaluationError("a value is out of range for type float8")
    return math.nan if math.isnan(result) else result


def _real(value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        result = float(np.float32(value))
    if (math.isinf(result) and not math.isinf(value)) or (result == 0 and value != 0):
        raise EvaluationError("a value is out of range for type float4")
    return math.nan if math.isnan(result) else result


def _numeric(value: float, *, digits: int) -> Decimal:
    if not math.isfinite(value):
        return Decimal("NaN") if math.isnan(value) else Decimal(value)
    return Decimal(f"{value:.{digits}g}")


def _moment(day: int) -> int:
    return intervals.moment_of(day)


def _time(moment: int) -> int | None:
    return None if moment in _INFINITIES else moment % DAY_US


def _same(value: Any) -> Any:
    return value


_FUNCTIONS: dict[tuple[ValueKind, ValueKind], Callable[[Any], Any]] = {
    **{
        (source, kind): _from_text(kind)
        for source in (Kind.TEXT, Kind.NAME)
        for kind in (*_OF_TEXT, *written_times.KINDS)
    },
    (Kind.INTEGER, Kind.INTEGER): _same,
    (Kind.NUMERIC, Kind.INTEGER): _rounded_numeric,
    (Kind.REAL, Kind.INTEGER): _rounded_float,
    (Kind.DOUBLE, Kind.INTEGER): _rounded_float,
    (Kind.BOOLEAN, Kind.INTEGER): int,
    (Kind.INTEGER, Kind.BOOLEAN): bool,
    (Kind.INTEGER, Kind.DOUBLE): _double,
    (Kind.NUMERIC, Kind.DOUBLE): _double,
    (Kind.DOUBLE, Kind.REAL): _real,
    (Kind.REAL, Kind.NUMERIC): partial(_numeric, digits=6),
    (Kind.DOUBLE, Kind.NUMERIC): partial(_numeric, digits=15),
    (Kind.TEXT, Kind.NAME): _from_text(Kind.NAME),
    (Kind.NAME, Kind.TEXT): _same,
    (Kind.INTEGER, Kind.TEXT): str,
    (Kind.JSON, Kind.TEXT): print_json,
    (Kind.DATE, Kind.TIMESTAMP): _moment,
    (Kind.DATE, Kind.TIMESTAMPTZ): _moment,
    (Kind.TIMESTAMP, Kind.TIMESTAMPTZ): _same,
    (Kind.TIMESTAMPTZ, Kind.TIMESTAMP): _same,
    (Kind.TIMESTAMP, Kind.TIME): _time,
    (Kind.TIMESTAMPTZ, Kind.TIME): _time,
    (Kind.TIME, Kind.INTERVAL): partial(intervals.Interval, 0, 0),
    (Kind.INTERVAL, Kind.TIME): lambda interval: interval.us % DAY_US,
}

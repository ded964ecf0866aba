"""Values one by one, as Python's own: for operators that Arrow does not have.

Numbers are int, Decimal and float; days and moments the numbers of `calendar.py`; a time of day microseconds;
an enumeration's value its place among the labels; intervals, arrays and JSON have classes of their own.
A batch in this form costs Python objects per row: a microsecond or two for each operator.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.where import exact, json_values
from penstock.core.where.arrays import read_array
from penstock.core.where.calendar import date_number, timestamp_number
from penstock.core.where.errors import EvaluationError
from penstock.core.where.exact import Long
from penstock.core.where.intervals import Interval, read_interval
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind, ValueKind
from penstock.core.where.tree import ComparisonOperator

_NAN = math.nan
_DECIMAL_NAN = decimal.Decimal("NaN")
_ARROW = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.REAL: pa.float64(),
    Kind.DOUBLE: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.NAME: pa.string(),
    Kind.UUID: pa.string(),
    Kind.BYTEA: pa.string(),
    Kind.DATE: pa.int64(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.TIMESTAMPTZ: pa.int64(),
}
COMPARISONS: dict[ComparisonOperator, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Values without a form in Arrow, one per row or one for all rows; None is NULL."""

    values: list[Any]


def is_listed(kind: ValueKind) -> bool:
    return isinstance(kind, ArrayOf) or kind in (Kind.INTERVAL, Kind.JSON)


def reader(kind: ValueKind) -> Callable[[str], Any]:
    """From the text that Postgres prints; a `ValueError` for what it does not print."""
    if isinstance(kind, ArrayOf):
        element = reader(kind.element)
        return lambda text: read_array(text, element)
    if isinstance(kind, EnumOf):
        return kind.labels.index
    return _READERS.get(kind, str)


def read_listed(text: pa.StringArray, kind: ValueKind) -> Listed:
    read = reader(kind)
    try:
        return Listed([None if each is None else read(each) for each in text.to_pylist()])
    except ValueError:
        raise EvaluationError(f"a value of type {kind.value} cannot be read") from None


def listed(values: Any, kind: ValueKind) -> list[Any]:
    """Of the evaluator's values: as many as there are rows, or one."""
    if isinstance(values, Listed):
        return values.values
    found = _plain(values)
    if kind in (Kind.REAL, Kind.DOUBLE):
        return [_NAN if each is not None and math.isnan(each) else each for each in found]
    if kind is Kind.INTEGER:
        return [None if each is None else int(each) for each in found]
    if kind is Kind.NUMERIC:
        return [None if each is None else _decimal(each) for each in found]
    if kind is Kind.TIME:
        return [None if each is None else time_us(each) for each in found]
    return found


def _plain(values: Any) -> list[Any]:
    if isinstance(values, Long):
        return list(values.values)
    if isinstance(values, pa.Scalar):
        return [values.as_py()]
    found: list[Any] = values.to_pylist()
    return found


def gathered(values: list[Any], kind: ValueKind) -> Any:
    """The evaluator's form of the values."""
    if is_listed(kind):
        return Listed(values)
    if kind is Kind.NUMERIC or (kind is Kind.INTEGER and not _fit(values)):
        array = np.empty(len(values), object)
        array[:] = [None if each is None else decimal.Decimal(each) for each in values]
        return Long(array)
    if kind is Kind.TIME:
        values = [None if each is None else print_time(each) for each in values]
        arrow = pa.array(values, pa.string())
    else:
        assert isinstance(kind, Kind)
        arrow = pa.array(values, _ARROW.get(kind, pa.int64()))
    return arrow[0] if len(arrow) == 1 else arrow


def _fit(values: list[Any]) -> bool:
    return all(each is None or -(2**63) <= each < 2**63 for each in values)


def compare(symbol: ComparisonOperator, left: Any, right: Any) -> bool:
    """Of two values of one kind, neither of them NULL."""
    return COMPARISONS[symbol](rank(left), rank(right))


def rank(value: Any) -> Any:
    """What the order of values is the order of."""
    if isinstance(value, Interval):
        return value.rank
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    if isinstance(value, decimal.Decimal):
        return exact.rank(value)
    return value


def time_us(text: str) -> int:
    """Of a time of day as Postgres prints it."""
    hour, minute, second = text.split(":")
    whole, _, fraction = second.partition(".")
    return (int(hour) * 3600 + int(minute) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0") or 0)


def print_time(us: int) -> str:
    seconds, us = divmod(us, 1_000_000)
    fraction = f".{us:06}".rstrip("0") if us else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _float(text: str) -> float:
    return _NAN if text == "NaN" else float(text)


def _real(text: str) -> float:
    return _NAN if text == "NaN" else float(np.float32(text))


def _decimal(value: Any) -> decimal.Decimal:
    found = exact.CONTEXT.create_decimal(value)
    return _DECIMAL_NAN if found.is_nan() else found


_READERS: dict[ValueKind, Callable[[str], Any]] = {
    Kind.BOOLEAN: lambda text: text == "t",
    Kind.INTEGER: int,
    Kind.NUMERIC: _decimal,
    Kind.REAL: _real,
    Kind.DOUBLE: _float,
    Kind.DATE: date_number,
    Kind.TIME: time_us,
    Kind.TIMESTAMP: timestamp_number,
    Kind.TIMESTAMPTZ: timestamp_number,
    Kind.INTERVAL: read_interval,
    Kind.JSON: json_values.read,
}

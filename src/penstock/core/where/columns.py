"""Columns of text, as Postgres prints them under our session settings, in the form each kind is compared in.

Text, uuid, bytea and time of day stay text: printed in one way only, their order is the order of the bytes.
(Hexadecimal digits sort like the bytes they stand for; a fraction of a second has no trailing zeros.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.where import calendar, exact, single
from penstock.core.where.errors import EvaluationError
from penstock.core.where.kinds import EnumOf, Kind, ValueKind

#: One value per row, or a scalar for all rows; intervals, arrays and JSON as `single.Listed`.
Values: TypeAlias = exact.Exact


def read(text: pa.StringArray, kind: ValueKind) -> Values:
    if isinstance(kind, EnumOf):
        return _places(text, kind.labels)
    if single.is_listed(kind):
        return single.read_listed(text, kind)
    assert isinstance(kind, Kind)
    return _READERS[kind](text)


def _places(text: pa.StringArray, labels: tuple[str, ...]) -> pa.Int64Array:
    places = pc.index_in(text, pa.array(labels, pa.string())).cast(pa.int64())
    if places.null_count > text.null_count:
        raise EvaluationError("an enumeration has a label that was added after the condition was checked")
    return places


def _as_is(text: pa.StringArray) -> pa.StringArray:
    return text


def _booleans(text: pa.StringArray) -> pa.BooleanArray:
    return pc.equal(text, "t")


def _integers(text: pa.StringArray) -> pa.Int64Array:
    return text.cast(pa.int64())


def _reals(text: pa.StringArray) -> pa.DoubleArray:
    return text.cast(pa.float32()).cast(pa.float64())


def _doubles(text: pa.StringArray) -> pa.DoubleArray:
    return text.cast(pa.float64())


def _dates(text: pa.StringArray) -> pa.Int64Array:
    """Days. Years of five digits, BC and the infinities are told by their length, and read one by one."""
    plain = pc.fill_null(pc.equal(pc.binary_length(text), 10), True)
    days = _possible(_only(text, plain), pa.date32())
    numbers = pc.subtract(days.cast(pa.int32()).cast(pa.int64()), calendar.DAYS_FROM_1970)
    return _with_odd_ones(numbers, text, plain, calendar.date_number)


def _timestamps(text: pa.StringArray) -> pa.Int64Array:
    """Microseconds; with time zone, the text is in UTC."""
    four_digit_year = pc.equal(pc.utf8_slice_codeunits(text, 10, 11), " ")
    plain = pc.fill_null(pc.and_not(four_digit_year, pc.ends_with(text, " BC")), True)
    plain_text = _only(text, plain)
    in_utc = pc.ends_with(plain_text, "+00")
    if pc.any(in_utc).as_py():
        plain_text = pc.if_else(in_utc, pc.utf8_slice_codeunits(plain_text, 0, -3), plain_text)
    moments = _possible(plain_text, pa.timestamp("us")).cast(pa.int64())
    numbers = pc.subtract(moments, calendar.DAYS_FROM_1970 * calendar.DAY_US)
    return _with_odd_ones(numbers, text, plain, calendar.timestamp_number)


def _possible(text: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Dates that are in no calendar, of which MySQL has some, are null."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pa.concat_arrays([_one(text[place : place + 1], kind) for place in range(len(text))])


def _one(text: pa.StringArray, kind: pa.DataType) -> pa.Array:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _only(text: pa.StringArray, chosen: pa.BooleanArray) -> pa.StringArray:
    """The others are null. Not by a null scalar: beside a slice of texts Arrow would take bytes from
    elsewhere (GH-49410)."""
    return pc.if_else(chosen, text, pa.nulls(len(text), pa.string()))


def _with_odd_ones(
    numbers: pa.Int64Array, text: pa.StringArray, plain: pa.BooleanArray, number: Callable[[str], int]
) -> pa.Int64Array:
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    if not odd.size:
        return numbers
    read = pa.array([number(each) for each in text.take(pa.array(odd)).to_pylist()], pa.int64())
    return pc.replace_with_mask(numbers, pc.invert(plain), read)


_READERS: dict[Kind, Callable[[pa.StringArray], Values]] = {
    Kind.BOOLEAN: _booleans,
    Kind.INTEGER: _integers,
    Kind.NUMERIC: exact.numerics,
    Kind.REAL: _reals,
    Kind.DOUBLE: _doubles,
    Kind.TEXT: _as_is,
    Kind.NAME: _as_is,
    Kind.PRINTED: _as_is,
    Kind.UUID: _as_is,
    Kind.BYTEA: _as_is,
    Kind.TIME: _as_is,
    Kind.DATE: _dates,
    Kind.TIMESTAMP: _timestamps,
    Kind.TIMESTAMPTZ: _timestamps,
}

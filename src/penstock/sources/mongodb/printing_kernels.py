"""Compiled: values as the change log's text has them, from Arrow's own buffers.

The text is in the form that `values.text_casts` reads back exactly: dates as `2020-01-31 23:59:59.123+00`,
before the year 1 with ` BC` at the end; decimals with all digits behind the point that their column has,
never with an exponent; doubles with the shortest digits that are exact; bytes as `\\x…`. Where `valid` is
false the text is empty. Writers check nothing: there is room before they are called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.json_kernels import put_hex
from penstock.sources.mongodb.memory_kernels import Address, Number, load_byte, store_byte
from penstock.sources.mongodb.number_kernels import (
    point_after,
    write_digits,
    write_digits_128,
    write_double,
    zeros_before,
)
from penstock.text_kernels import Bytes, Flags, Indices, Ints

_ZERO, _MINUS, _PLUS, _COLON, _POINT, _SPACE, _B, _C, _BACKSLASH, _X = (ord(each) for each in "0-+:. BC\\x")
_DAY_MS = 86_400_000
_DAYS_TO_1970 = 719_468  # from the first of March of the year 0, where eras of 400 years begin
_ERA_DAYS = 146_097
_DATE_ROOM, _DOUBLE_ROOM, _DECIMAL_ROOM = 40, 32, 48


@compiled()
def _put_two(number: Number, out: Address, to: Number) -> Number:
    store_byte(out + to, _ZERO + number // 10)
    store_byte(out + to + 1, _ZERO + number % 10)
    return to + 2


@compiled()
def _put_day(days: Number, out: Address, to: Number) -> tuple[Any, Any]:
    """Days since 1970 as year, month and day; whether the year is one before Christ."""
    shifted = days + _DAYS_TO_1970
    era = shifted // _ERA_DAYS
    day_of_era = shifted - era * _ERA_DAYS
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    place = (5 * day_of_year + 2) // 153  # of the month, from March on
    day = day_of_year - (153 * place + 2) // 5 + 1
    month = place + 3 if place < 10 else place - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    before_christ = year < 1
    shown = 1 - year if before_christ else year
    digits = 1000
    while shown < digits and digits > 1:
        store_byte(out + to, _ZERO)
        to += 1
        digits //= 10
    to = write_digits(np.uint64(shown), out, to)
    store_byte(out + to, _MINUS)
    to = _put_two(month, out, to + 1)
    store_byte(out + to, _MINUS)
    return _put_two(day, out, to + 1), before_christ


@compiled()
def _put_clock(milliseconds: Number, out: Address, to: Number) -> Number:
    seconds = milliseconds // 1000
    to = _put_two(seconds // 3600, out, to)
    store_byte(out + to, _COLON)
    to = _put_two(seconds // 60 % 60, out, to + 1)
    store_byte(out + to, _COLON)
    to = _put_two(seconds % 60, out, to + 1)
    fraction, digit = milliseconds % 1000, 100
    if fraction:
        store_byte(out + to, _POINT)
        to += 1
    while fraction:
        store_byte(out + to, _ZERO + fraction // digit)
        fraction, digit, to = fraction % digit, digit // 10, to + 1
    return to


@compiled()
def print_dates(milliseconds: Ints, valid: Flags) -> tuple[Indices, Bytes]:
    """Milliseconds since 1970."""
    offsets = np.zeros(len(valid) + 1, np.int32)
    text = np.empty(_DATE_ROOM * len(valid), np.uint8)
    out, to = np.int64(text.ctypes.data), np.int64(0)
    for row in range(len(valid)):
        if valid[row]:
            days = milliseconds[row] // _DAY_MS
            to, before_christ = _put_day(days, out, to)
            store_byte(out + to, _SPACE)
            to = _put_clock(milliseconds[row] - days * _DAY_MS, out, to + 1)
            store_byte(out + to, _PLUS)
            to = _put_two(np.int64(0), out, to + 1)
            if before_christ:
                store_byte(out + to, _SPACE)
                store_byte(out + to + 1, _B)
                store_byte(out + to + 2, _C)
                to += 3
        offsets[row + 1] = to
    return offsets, text[:to]


@compiled()
def print_doubles(bits: Any, valid: Flags) -> tuple[Indices, Bytes]:
    """Doubles, given as the 64 bits of each."""
    offsets = np.zeros(len(valid) + 1, np.int32)
    text = np.empty(_DOUBLE_ROOM * len(valid), np.uint8)
    out, to = np.int64(text.ctypes.data), np.int64(0)
    for row in range(len(valid)):
        if valid[row]:
            to = write_double(bits[row], out, to)
        offsets[row + 1] = to
    return offsets, text[:to]


@compiled()
def print_decimals(halves: Any, scale: int, valid: Flags) -> tuple[Indices, Bytes]:
    """Numbers of 128 bits, lower half first, with `scale` digits behind the point."""
    offsets = np.zeros(len(valid) + 1, np.int32)
    text = np.empty(_DECIMAL_ROOM * len(valid), np.uint8)
    out, to = np.int64(text.ctypes.data), np.int64(0)
    for row in range(len(valid)):
        if valid[row]:
            low, high = halves[row, 0], halves[row, 1]
            if high >> np.uint64(63):
                store_byte(out + to, _MINUS)
                to += 1
                low = np.uint64(0) - low
                high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
            digits = write_digits_128(high, low, out, to) - to
            if scale == 0:
                to += digits
            elif digits > scale:
                to = point_after(digits, digits - scale, out, to)
            else:
                to = zeros_before(digits, scale - digits, out, to)
        offsets[row + 1] = to
    return offsets, text[:to]


@compiled()
def print_bytes(ends: Indices, data: Bytes, valid: Flags) -> tuple[Indices, Bytes]:
    """Binary values, by Arrow's offsets."""
    offsets = np.zeros(len(valid) + 1, np.int32)
    source = np.int64(data.ctypes.data)
    text = np.empty(2 * (np.int64(ends[-1]) - np.int64(ends[0])) + 2 * len(valid), np.uint8)
    out, to = np.int64(text.ctypes.data), np.int64(0)
    for row in range(len(valid)):
        if valid[row]:
            store_byte(out + to, _BACKSLASH)
            store_byte(out + to + 1, _X)
            to += 2
            for at in range(np.int64(ends[row]), np.int64(ends[row + 1])):
                to = put_hex(load_byte(source + at), out, to)
        offsets[row + 1] = to
    return offsets, text[:to]

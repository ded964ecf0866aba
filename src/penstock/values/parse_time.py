"""Compiled parsers of Postgres' days and times (`DateStyle = ISO`), over Arrow's string buffers.

Exact for every year Postgres can print, BC included, in the proleptic Gregorian calendar that Postgres
and Arrow share, to the microsecond. What 64-bit microseconds since 1970 cannot hold (infinity, and the
years after 294246, which Postgres counts from 2000) is marked bad. Arguments are those of `parse`.
"""

from __future__ import annotations

from typing import TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.values.parse import Bytes, Flags, Offsets, Words, is_null

Number: TypeAlias = int | np.int64

_DAY_US = 86_400_000_000
# The last day that begins within the range of 64-bit microseconds since 1970, and what is left of it.
_LAST_DAY = 106_751_991
_LAST_DAY_US = 14_454_775_807


@numba.njit(cache=True, nogil=True)
def _two_digits(data: Bytes, position: int) -> Number:
    tens, ones = np.int64(data[position]) - 48, np.int64(data[position + 1]) - 48
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else -1


@numba.njit(cache=True, nogil=True)
def _days(year: Number, month: Number, day: Number) -> Number:
    """Days since 1970 in the proleptic Gregorian calendar; year 0 is 1 BC. Eras of 400 years repeat."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@numba.njit(cache=True, nogil=True)
def _parse_day(data: Bytes, position: int, end: int) -> tuple[Number, int]:
    """Days since 1970 and the position after the day; -1 as position: not a day (or an infinite one)."""
    # "BC" stands at the very end, behind the time and the zone, but decides what the year means.
    before_christ = end - position > 3 and data[end - 1] == 67 and data[end - 2] == 66
    year = np.int64(0)
    first = position
    while position < end and 48 <= data[position] <= 57 and position - first < 7:
        year = year * 10 + np.int64(data[position]) - 48
        position += 1
    if position - first < 4 or end - position < 6 or data[position] != 45 or data[position + 3] != 45:
        return 0, -1
    month, day = _two_digits(data, position + 1), _two_digits(data, position + 4)
    if month < 1 or month > 12 or day < 1 or day > 31 or year == 0:
        return 0, -1
    return _days(1 - year if before_christ else year, month, day), position + 6


@numba.njit(cache=True, nogil=True)
def _at_end(data: Bytes, position: int, end: int) -> bool:
    return position == end or (
        position + 3 == end and data[position] == 32 and data[position + 1] == 66 and data[position + 2] == 67
    )


@numba.njit(cache=True, nogil=True)
def parse_dates(
    offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int, out: NDArray[np.int32], bad: Flags
) -> int:
    failures = 0
    for i in range(offsets.size - 1):
        if is_null(validity, first_bit + i):
            continue
        days, position = _parse_day(data, offsets[i], offsets[i + 1])
        if position >= 0 and _at_end(data, position, offsets[i + 1]):
            out[i] = days
        else:
            bad[i] = True
            failures += 1
    return failures


@numba.njit(cache=True, nogil=True)
def _parse_clock(data: Bytes, position: int, end: int) -> tuple[Number, int]:
    """Microseconds of `HH:MM:SS[.ffffff]` and the position after it; -1 as position: not a time."""
    if end - position < 8 or data[position + 2] != 58 or data[position + 5] != 58:
        return 0, -1
    hours, minutes = _two_digits(data, position), _two_digits(data, position + 3)
    seconds = _two_digits(data, position + 6)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or seconds < 0 or seconds > 59:
        return 0, -1
    position += 8
    fraction = np.int64(0)
    if position < end and data[position] == 46:
        position += 1
        digits = 0
        while position < end and 48 <= data[position] <= 57 and digits < 7:
            fraction = fraction * 10 + np.int64(data[position]) - 48
            position += 1
            digits += 1
        if digits < 1 or digits > 6:
            return 0, -1
        for _ in range(6 - digits):
            fraction *= 10
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction, position


@numba.njit(cache=True, nogil=True)
def _parse_zone(data: Bytes, position: int, end: int) -> tuple[Number, int]:
    """Seconds east of UTC of `+HH[:MM[:SS]]`, 0 where there is none; -1 as position: not a zone."""
    if position >= end or (data[position] != 43 and data[position] != 45):
        return 0, position
    east = data[position] == 43
    seconds = np.int64(0)
    position += 1
    unit = 3600
    while unit > 0:
        if end - position < 2:
            return 0, -1
        part = _two_digits(data, position)
        if part < 0:
            return 0, -1
        seconds += part * unit
        position += 2
        unit //= 60
        if unit == 0 or position >= end or data[position] != 58:
            break
        position += 1
    return (seconds if east else -seconds), position


@numba.njit(cache=True, nogil=True)
def parse_timestamps(
    offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int, out: Words, bad: Flags
) -> int:
    """Microseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.ffffff][+HH[:MM[:SS]]][ BC]`."""
    failures = 0
    for i in range(offsets.size - 1):
        if is_null(validity, first_bit + i):
            continue
        end = offsets[i + 1]
        days, position = _parse_day(data, offsets[i], end)
        fits = position >= 0 and position < end and data[position] == 32
        clock: Number = np.int64(0)
        if fits:
            clock, position = _parse_clock(data, position + 1, end)
            fits = position >= 0
        if fits:
            east, position = _parse_zone(data, position, end)
            fits = position >= 0 and _at_end(data, position, end)
            clock -= east * 1_000_000
        days += clock // _DAY_US
        clock %= _DAY_US
        # Postgres goes on to the year 294276, 64-bit microseconds since 1970 end in January 294247.
        if fits and (days < _LAST_DAY or (days == _LAST_DAY and clock <= _LAST_DAY_US)):
            out[i] = days * _DAY_US + clock
        else:
            bad[i] = True
            failures += 1
    return failures


@numba.njit(cache=True, nogil=True)
def parse_times(
    offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int, out: Words, bad: Flags
) -> int:
    """Microseconds since midnight of `HH:MM:SS[.ffffff]`; `24:00:00` is no time of a day, and bad."""
    failures = 0
    for i in range(offsets.size - 1):
        if is_null(validity, first_bit + i):
            continue
        clock, position = _parse_clock(data, offsets[i], offsets[i + 1])
        if position == offsets[i + 1]:
            out[i] = clock
        else:
            bad[i] = True
            failures += 1
    return failures


@numba.njit(cache=True, nogil=True)
def mark_impossible_days(offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int, bad: Flags) -> int:
    """Of `YYYY-MM-DD…` that a parser could read, those whose month has no such day; how many there are.

    Postgres prints none, and its parsers take every month for one of 31 days.
    """
    failures = 0
    for i in range(offsets.size - 1):
        if is_null(validity, first_bit + i) or bad[i]:
            continue
        start = offsets[i]
        year = _two_digits(data, start) * 100 + _two_digits(data, start + 2)
        month, day = _two_digits(data, start + 5), _two_digits(data, start + 8)
        last = 30 if month in (4, 6, 9, 11) else 31
        if month == 2:
            last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
        if day > last:
            bad[i] = True
            failures += 1
    return failures

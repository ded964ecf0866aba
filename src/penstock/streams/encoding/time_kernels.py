"""Compiled conversions between Postgres' days, times and intervals and what Debezium's types hold.

Each gives where each value ends, and the bytes; nulls, and what could not be read (`bad`), are empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.streams.encoding.number_kernels import (
    write_clock,
    write_day,
    write_fraction,
    write_instant,
    write_signed,
)
from penstock.text_kernels import QUOTE, Bytes, Cells, Flags, Indices, Ints, Number, length_of, value_of

_MINUS, _POINT = ord("-"), ord(".")
_DAY_US = 86_400_000_000
_MONTH_US = 2_629_800_000_000  # 365.25 / 12 days


@compiled("(int64[::1], boolean[::1], int64)")
def instant_column(micros: Ints, valid: Flags, digits: int) -> tuple[Any, ...]:
    """`"2026-01-31T12:00:00.123456Z"`, in quotes, and where each ends."""
    ends = np.empty(len(micros) + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(48 * len(micros), np.uint8), 0
    for row in range(len(micros)):
        if valid[row]:
            out[at] = QUOTE
            at = write_instant(micros[row], digits, out, at + 1)
            out[at] = QUOTE
            at += 1
        ends[row + 1] = at
    return ends, out[:at]


@compiled("(int64[::1], boolean[::1])")
def clock_column(micros: Ints, valid: Flags) -> tuple[Any, ...]:
    """`"12:00:00.5Z"` of microseconds since midnight, in quotes, and where each ends."""
    ends = np.empty(len(micros) + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(48 * len(micros), np.uint8), 0
    for row in range(len(micros)):
        if valid[row]:
            out[at] = QUOTE
            at = write_clock(micros[row], out, at + 1)
            at = write_fraction(micros[row] % 1_000_000, -1, out, at)
            out[at], out[at + 1] = ord("Z"), QUOTE
            at += 2
        ends[row + 1] = at
    return ends, out[:at]


@compiled("(int32[::1], boolean[::1])")
def day_column(days: Indices, valid: Flags) -> tuple[Any, ...]:
    """`"2026-01-31Z"`, in quotes, and where each ends."""
    ends = np.empty(len(days) + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(24 * len(days), np.uint8), 0
    for row in range(len(days)):
        if valid[row]:
            out[at] = QUOTE
            at = write_day(days[row], out, at + 1)
            out[at], out[at + 1] = ord("Z"), QUOTE
            at += 2
        ends[row + 1] = at
    return ends, out[:at]


@compiled()
def _pair(value: Bytes, at: Number) -> Number:
    return 10 * (np.int64(value[at]) - 48) + np.int64(value[at + 1]) - 48


@compiled("(int64[:,::1], int64)")
def zoned_time_column(cells: Cells, count: int) -> tuple[Any, ...]:
    """`"10:20:30.5Z"` of `12:20:30.5+02`: in UTC, and 24:00:00+00 stays what it is."""
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(24 * count, np.uint8), 0
    for row in range(count):
        length = length_of(cells, 0, row)
        if length > 0:
            value = value_of(cells, 0, row, length)
            micros = ((_pair(value, 0) * 60 + _pair(value, 3)) * 60 + _pair(value, 6)) * 1_000_000
            position = 8
            if position < length and value[position] == _POINT:
                position += 1
                unit = np.int64(100_000)
                while position < length and 48 <= value[position] <= 57:
                    micros += (np.int64(value[position]) - 48) * unit
                    unit //= 10
                    position += 1
            east = np.int64(1)
            if position < length and value[position] == _MINUS:
                east = np.int64(-1)
            unit, shift = np.int64(3600), np.int64(0)
            while position + 2 < length:
                shift += _pair(value, position + 1) * unit
                unit //= 60
                position += 3
            if not (micros == _DAY_US and shift == 0):
                micros = (micros - east * shift * 1_000_000) % _DAY_US
            out[at] = QUOTE
            at = write_clock(micros, out, at + 1)
            at = write_fraction(micros % 1_000_000, -1, out, at)
            out[at], out[at + 1] = ord("Z"), QUOTE
            at += 2
        ends[row + 1] = at
    return ends, out[:at]


@compiled()
def _interval_parts(value: Bytes, parts: Ints) -> bool:  # noqa: PLR0912 - one branch per letter
    """Years, months, days, hours, minutes and microseconds of `P1Y2M3DT4H5M6.789S`; whether it is one."""
    parts[:] = 0
    if value[0] != ord("P"):
        return False
    number, negative, in_time, digits = np.int64(0), False, False, -1
    for index in range(1, len(value)):
        letter = value[index]
        if letter == ord("T"):
            in_time = True
        elif letter == _MINUS:
            negative = True
        elif letter == _POINT:
            digits = 0
        elif 48 <= letter <= 57:
            number = number * 10 + np.int64(letter) - 48
            digits += 1 if digits >= 0 else 0
        else:
            if letter == ord("S"):
                for _ in range(6 - max(digits, 0)):
                    number *= 10
            part = 5
            if letter == ord("Y"):
                part = 0
            elif letter == ord("M"):
                part = 4 if in_time else 1
            elif letter == ord("D"):
                part = 2
            elif letter == ord("H"):
                part = 3
            parts[part] = -number if negative else number
            number, negative, digits = np.int64(0), False, -1
    return True


@compiled()
def _write_interval(parts: Ints, out: Bytes, at: Number) -> Number:
    out[at], out[at + 1] = QUOTE, ord("P")
    at += 2
    for part in range(5):
        if part == 3:
            out[at] = ord("T")
            at += 1
        at = write_signed(parts[part], out, at)
        out[at] = (ord("Y"), ord("M"), ord("D"), ord("H"), ord("M"))[part]
        at += 1
    if parts[5] < 0:
        out[at] = _MINUS
        at += 1
    micros = abs(parts[5])
    at = write_signed(micros // 1_000_000, out, at)
    at = write_fraction(micros % 1_000_000, -1, out, at)
    out[at], out[at + 1] = ord("S"), QUOTE
    return at + 2


@compiled("(int64[:,::1], int64, boolean)")
def interval_column(cells: Cells, count: int, as_text: bool) -> tuple[Any, ...]:
    """Microseconds, a month being 365.25 / 12 days; or `"P1Y2M3DT4H5M6.78S"` with every part."""
    ends, bad = np.empty(count + 1, np.int32), np.zeros(count, np.bool_)
    ends[0] = 0
    out, at = np.empty(128 * count, np.uint8), 0
    parts = np.zeros(6, np.int64)
    for row in range(count):
        length = length_of(cells, 0, row)
        if length > 0:
            if not _interval_parts(value_of(cells, 0, row, length), parts):
                bad[row] = True
            elif as_text:
                at = _write_interval(parts, out, at)
            else:
                months = parts[0] * 12 + parts[1]
                clock = (parts[3] * 60 + parts[4]) * 60_000_000 + parts[5]
                at = write_signed(months * _MONTH_US + parts[2] * _DAY_US + clock, out, at)
        ends[row + 1] = at
    return ends, out[:at], bad

"""Compiled loops over one column: values at their places, to texts with Arrow's offsets.

Most columns of most tables are integers, decimals, dates, times and UTF-8: those have a loop each, in which
nothing is decided per value that the column decides (5 to 15 ns a value). All others share `render_others`,
which asks for the kind of every value.

A place below zero is null. Each fills offsets and texts, for which there is room (`columns.room`) and `SLACK`
more, from the byte `start` on, and returns where the last text ends; beyond 2^31 - 1 the offsets are worth
nothing.
"""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.double_kernels import store_double
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, Number, Places
from penstock.sources.mysql.binlog.value_kernels import microseconds_of, timestamp_date, write_value
from penstock.word_kernels import (
    SLACK,
    address_of,
    big_at,
    copy_text,
    date_digits,
    little_at,
    load_word,
    store_byte,
    store_clock,
    store_date,
    store_digits,
    store_fraction,
    store_padded,
)

_MINUS, _POINT, _SPACE, _ZERO = (np.uint64(ord(letter)) for letter in "-. 0")
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_E8, _E9 = np.uint64(10**8), np.uint64(10**9)
#: digits before and behind the point that `render_decimals` can do
WHOLE_MAX, SCALE_MAX = 18, 9


@compiled()
def count_nulls(places: Places) -> int:
    nulls = 0
    for row in range(len(places)):
        nulls += places[row] < 0
    return nulls


@compiled()
def valid_bits(places: Places) -> Bytes:
    """A bit per row: whether it has a value."""
    bits = np.zeros((len(places) + 7) // 8, np.uint8)
    for row in range(len(places)):
        bits[row >> 3] |= np.uint8(places[row] >= 0) << np.uint8(row & 7)
    return bits


@compiled()
def count_bytes(places: Places, lengths: Lengths, least: int) -> Number:
    """Of all values together, each as if it had `least` at least."""
    size = np.int64(0)
    for row in range(len(places)):
        if places[row] >= 0:
            size += max(np.int64(lengths[row]), np.int64(least))
    return size


@compiled()
def render_integers(
    buffer: Bytes, places: Places, width: int, signed: bool, text_offsets: Lengths, out: Bytes, start: int
) -> Number:
    rows = len(places)
    unused = np.int64(64 - 8 * width)
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    to = base + start
    for row in range(rows):
        text_offsets[row] = to - base
        at = np.int64(places[row])
        if at < 0:
            continue
        if signed and width > 0 and at <= end - 8:  # the bytes behind the value go with the shift
            number = np.int64(load_word(source + at)) << unused >> unused
        else:
            magnitude = little_at(source, end, at, width)
            if not signed or width == 0:
                to = store_digits(magnitude, to)
                continue
            number = np.int64(magnitude) << unused >> unused
        store_byte(to, _MINUS)  # a digit takes its place if there is none
        to = store_digits(np.uint64(abs(number)), to + (number < 0))
    text_offsets[rows] = to - base
    return to - base


@compiled()
def render_decimals(
    buffer: Bytes, places: Places, precision: int, scale: int, text_offsets: Lengths, out: Bytes, start: int
) -> Number:
    """Of 1 to 18 digits before the point, 0 to 9 behind it: see `write_decimal` for how they are stored."""
    rows = len(places)
    whole = precision - scale
    size = _DIGIT_BYTES[whole - 9] + 4 if whole > 9 else _DIGIT_BYTES[whole]
    sign = np.uint64(1) << np.uint64(8 * size - 1)
    fraction_size = _DIGIT_BYTES[scale]
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    to = base + start
    for row in range(rows):
        text_offsets[row] = to - base
        if places[row] < 0:
            continue
        at = np.int64(places[row])
        number = big_at(source, end, at, size)
        negative = number & sign == 0
        flip = ~np.uint64(0) if negative else np.uint64(0)
        number = (number ^ sign ^ flip) & (sign | (sign - np.uint64(1)))
        if whole > 9:
            number = (number >> np.uint64(32)) * _E9 + (number & np.uint64(0xFFFFFFFF))
        store_byte(to, _MINUS)
        to = store_digits(number, to + np.int64(negative))
        if scale > 0:
            unused = np.uint64(64 - 8 * fraction_size)
            fraction = (big_at(source, end, at + size, fraction_size) ^ flip) << unused >> unused
            store_byte(to, _POINT)
            to += 1
            if scale > 8:
                high = fraction // _E8
                fraction -= high * _E8
                store_byte(to, _ZERO + high)
                to += 1
            to = store_padded(fraction, np.int64(min(scale, 8)), to)
    text_offsets[rows] = to - base
    return to - base


@compiled()
def render_dates(buffer: Bytes, places: Places, text_offsets: Lengths, out: Bytes, start: int) -> Number:
    rows = len(places)
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    to = base + start
    for row in range(rows):
        text_offsets[row] = to - base
        if places[row] >= 0:
            value = little_at(source, end, np.int64(places[row]), 3)
            digits = date_digits(
                value >> np.uint64(9), value >> np.uint64(5) & np.uint64(15), value & np.uint64(31)
            )
            to = store_date(digits, to)
    text_offsets[rows] = to - base
    return to - base


@compiled()
def _store_moment(
    date: Number,
    hour: Number,
    minute: Number,
    second: Number,
    fraction: Number,
    digits: Number,
    to: Number,
) -> Number:
    """A date's digits, a time, and the fraction as it is stored; the address behind it."""
    to = store_date(date, to)
    store_byte(to, _SPACE)
    to = store_clock(hour, minute, second, to + 1)
    return store_fraction(np.uint64(microseconds_of(np.int64(fraction), digits)), digits, to)


@compiled()
def render_datetimes(
    buffer: Bytes, places: Places, digits: int, text_offsets: Lengths, out: Bytes, start: int
) -> Number:
    """DATETIME: five bytes of year × 13 + month, day, hour, minute, second; then the fraction."""
    rows = len(places)
    fraction_size = (digits + 1) >> 1
    unused = np.uint64(8 * fraction_size)
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    date, date_text = ~np.uint64(0), np.uint64(0)
    to = base + start
    for row in range(rows):
        text_offsets[row] = to - base
        if places[row] < 0:
            continue
        stored = big_at(source, end, np.int64(places[row]), 5 + fraction_size)
        packed = (stored >> unused) - np.uint64(0x8000000000)
        fraction = stored & ((np.uint64(1) << unused) - np.uint64(1))
        if packed >> np.uint64(17) != date:  # rows that come together are of one day, mostly
            date = packed >> np.uint64(17)
            months = packed >> np.uint64(22)
            year = months // np.uint64(13)
            date_text = date_digits(year, months - year * np.uint64(13), date & np.uint64(31))
        hour, minute = packed >> np.uint64(12) & np.uint64(31), packed >> np.uint64(6) & np.uint64(63)
        to = _store_moment(date_text, hour, minute, packed & np.uint64(63), fraction, digits, to)
    text_offsets[rows] = to - base
    return to - base


@compiled()
def render_timestamps(
    buffer: Bytes, places: Places, digits: int, text_offsets: Lengths, out: Bytes, start: int
) -> Number:
    """TIMESTAMP: four bytes of seconds since 1970, then the fraction; none at all is the zero date."""
    rows = len(places)
    fraction_size = (digits + 1) >> 1
    unused = np.uint64(8 * fraction_size)
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    to = base + start
    date, date_text = np.int64(-1), np.uint64(0)
    zero_date = date_digits(np.uint64(0), np.uint64(0), np.uint64(0))
    for row in range(rows):
        text_offsets[row] = to - base
        if places[row] < 0:
            continue
        stored = big_at(source, end, np.int64(places[row]), 4 + fraction_size)
        fraction = stored & ((np.uint64(1) << unused) - np.uint64(1))
        seconds = np.int64(stored >> unused)
        days = seconds // 86_400
        if days != date:
            date = days
            year, month, day = timestamp_date(days)
            date_text = date_digits(np.uint64(year), np.uint64(month), np.uint64(day))
        clock = np.uint64(seconds - days * 86_400)
        minutes = clock // np.uint64(60)
        hour, minute = minutes // np.uint64(60), minutes % np.uint64(60)
        shown = zero_date if stored == np.uint64(0) else date_text
        to = _store_moment(shown, hour, minute, clock - minutes * np.uint64(60), fraction, digits, to)
    text_offsets[rows] = to - base
    return to - base


@compiled()
def render_doubles(buffer: Bytes, places: Places, text_offsets: Lengths, out: Bytes, start: int) -> Number:
    rows = len(places)
    source, end, base = address_of(buffer), len(buffer), address_of(out)
    to = base + start
    for row in range(rows):
        text_offsets[row] = to - base
        if places[row] >= 0:
            to = store_double(little_at(source, end, np.int64(places[row]), 8), to)
    text_offsets[rows] = to - base
    return to - base


@compiled()
def copy_texts(
    buffer: Bytes, places: Places, lengths: Lengths, text_offsets: Lengths, out: Bytes, start: int
) -> Number:
    """Texts as they are: UTF-8, and what a result of a query has."""
    rows = len(places)
    source, target = address_of(buffer), address_of(out)
    last = len(buffer) - SLACK
    to: Number = np.int64(start)
    for row in range(rows):
        text_offsets[row] = to
        if places[row] >= 0:
            at, width = np.int64(places[row]), np.int64(lengths[row])
            if at + width <= last:
                copy_text(source + at, width, target + to)
            else:
                for index in range(width):
                    out[to + index] = buffer[at + index]
            to += width
    text_offsets[rows] = to
    return to


@compiled()
def render_others(
    kind: int,
    buffer: Bytes,
    places: Places,
    lengths: Lengths,
    width: int,
    length: int,
    scale: int,
    texts: Bytes,
    ends: Ints,
    codes: Ints,
    text_offsets: Lengths,
    out: Bytes,
    start: int,
) -> Number:
    """Any kind but UTF-8.

    `width` is that of every value, or below zero where each has its own in `lengths`.
    """
    rows = len(places)
    to: Number = np.int64(start)
    for row in range(rows):
        text_offsets[row] = to
        if places[row] >= 0:
            at, size = np.int64(places[row]), np.int64(width if width >= 0 else lengths[row])
            to = write_value(kind, buffer, at, size, length, scale, texts, ends, codes, out, to)
    text_offsets[rows] = to
    return to

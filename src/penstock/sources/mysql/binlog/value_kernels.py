"""Compiled writers: a value as it stands in a row image, to its exact text.

Each returns where it ended and checks nothing: there is room before it is called (`columns.room`), and
`word_kernels.SLACK` bytes behind it.

Texts are those of `SELECT CAST(… AS CHAR)` in the time zone UTC, with all fractional digits of the column.
Other than there: a bit field is its digits; bytes are hexadecimal; a geometry is its reference system and its
WKB, hexadecimal. A date that is zero, or has zero parts, stays as it is.
"""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mysql.binlog.character_kernels import write_code_point, write_multi_byte, write_utf16
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Number, little_endian
from penstock.text_kernels import copy_bytes
from penstock.word_kernels import (
    address_of,
    date_digits,
    load_big,
    store_clock,
    store_date,
    store_digits,
    store_fraction,
    store_padded,
)

(
    SIGNED, UNSIGNED, DECIMAL, DATE, DATETIME2, TIMESTAMP2, TIME2, YEAR, BITS, ENUM, SET, HEX, GEOMETRY, UTF8,
    SINGLE_BYTE, UTF16_BIG, UTF16_LITTLE, UTF32, MULTI_BYTE, EUC_JP, GB18030, OLD_TIMESTAMP, OLD_DATETIME,
    OLD_TIME,
) = range(24)  # fmt: skip

_ZERO, _MINUS, _POINT, _COLON, _SPACE, _COMMA = (ord(letter) for letter in "0-.: ,")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SRID = np.frombuffer(b"SRID=", np.uint8)
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_TEN, _E8 = np.uint64(10), np.uint64(10**8)


@compiled()
def big_endian(buffer: Bytes, at: Number, size: Number) -> Number:
    return np.int64(load_big(buffer, at, size))


@compiled()
def write_padded(number: Number, digits: Number, out: Bytes, at: Number) -> Number:
    """The last `digits` digits, up to nine, with zeros in front."""
    rest = np.uint64(number)
    if digits > 8:
        high = rest // _E8
        rest -= high * _E8
        out[at] = _ZERO + high % _TEN
        at += 1
        digits = np.int64(8)
    base = address_of(out)
    return store_padded(rest, np.int64(digits), base + at) - base


@compiled()
def write_unsigned(number: Number, out: Bytes, at: Number) -> Number:
    base = address_of(out)
    return store_digits(np.uint64(number), base + at) - base


@compiled()
def write_signed(number: Number, out: Bytes, at: Number) -> Number:
    if number < 0:
        out[at] = _MINUS
        return write_unsigned(np.uint64(0) - np.uint64(number), out, at + 1)
    return write_unsigned(np.uint64(number), out, at)


@compiled()
def write_decimal(
    buffer: Bytes, at: Number, precision: Number, scale: Number, out: Bytes, to: Number
) -> Number:
    """Groups of nine digits in four bytes, most significant first; a negative one has all bits inverted."""
    negative = buffer[at] & 0x80 == 0
    flip = np.int64(0xFF) if negative else np.int64(0)
    whole = precision - scale
    if negative:
        out[to] = _MINUS
        to += 1
    begin, is_first = to, True
    left = whole
    while left > 0:
        digits = left % 9 if left % 9 else 9
        value = _digits_of(buffer, at, digits, flip, is_first)
        is_first = False
        at += _DIGIT_BYTES[digits]
        left -= digits
        if to > begin:
            to = write_padded(value, digits, out, to)
        elif value > 0:
            to = write_unsigned(np.uint64(value), out, to)
    if to == begin:
        out[to] = _ZERO
        to += 1
    if scale > 0:
        out[to] = _POINT
        to += 1
        left = scale
        while left > 0:
            digits = min(left, 9)
            value = _digits_of(buffer, at, digits, flip, is_first)
            is_first = False
            at += _DIGIT_BYTES[digits]
            left -= digits
            to = write_padded(value, digits, out, to)
    return to


@compiled()
def _digits_of(buffer: Bytes, at: Number, digits: Number, flip: Number, is_first: bool) -> Number:
    """A group's digits as a number. The first bit of the first group is the sign, inverted."""
    value = np.int64(0)
    for index in range(_DIGIT_BYTES[digits]):
        byte = np.int64(buffer[at + index]) ^ flip
        if is_first and index == 0:
            byte ^= 0x80
        value = (value << 8) | byte
    return value


@compiled()
def write_date(year: Number, month: Number, day: Number, out: Bytes, to: Number) -> Number:
    base = address_of(out)
    digits = date_digits(np.uint64(year), np.uint64(month), np.uint64(day))
    return store_date(digits, base + to) - base


@compiled()
def write_clock(hours: Number, minutes: Number, seconds: Number, out: Bytes, to: Number) -> Number:
    """Three digits for hours of a hundred and more, up to 999."""
    base = address_of(out)
    if hours >= 100:
        out[to] = _ZERO + hours // 100
        hours, to = hours % 100, to + 1
    return store_clock(np.uint64(hours), np.uint64(minutes), np.uint64(seconds), base + to) - base


@compiled()
def write_fraction(microseconds: Number, digits: Number, out: Bytes, to: Number) -> Number:
    base = address_of(out)
    return store_fraction(np.uint64(microseconds), digits, base + to) - base


@compiled()
def microseconds_of(value: Number, digits: Number) -> Number:
    """A stored fraction: hundredths in a byte, ten-thousandths in two, millionths in three."""
    size = (digits + 1) >> 1
    if size == 1:
        return value * 10_000
    return value * 100 if size == 2 else value


@compiled()
def write_packed_datetime(
    packed: Number, microseconds: Number, digits: Number, out: Bytes, to: Number
) -> Number:
    months = packed >> 22
    to = write_date(months // 13, months % 13, (packed >> 17) & 31, out, to)
    out[to] = _SPACE
    to = write_clock((packed >> 12) & 31, (packed >> 6) & 63, packed & 63, out, to + 1)
    return write_fraction(microseconds, digits, out, to)


@compiled()
def timestamp_date(days: Number) -> tuple[Number, Number, Number]:
    """Days since 1970 to a date of the proleptic Gregorian calendar, by eras of 400 years from March on."""
    days += 719_468
    era = days // 146_097
    day_of_era = days - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year_of_era + era * 400 + (1 if month <= 2 else 0), month, day


@compiled()
def write_timestamp(seconds: Number, microseconds: Number, digits: Number, out: Bytes, to: Number) -> Number:
    """Seconds since 1970, in UTC. None at all is the date that is zero."""
    if seconds == 0 and microseconds == 0:
        to = write_date(0, 0, 0, out, to)
    else:
        year, month, day = timestamp_date(seconds // 86_400)
        to = write_date(year, month, day, out, to)
    out[to] = _SPACE
    second = seconds % 86_400
    to = write_clock(second // 3_600, second // 60 % 60, second % 60, out, to + 1)
    return write_fraction(microseconds, digits, out, to)


@compiled()
def write_time(
    hms: Number, microseconds: Number, negative: bool, digits: Number, out: Bytes, to: Number
) -> Number:
    if negative:
        out[to] = _MINUS
        to += 1
    to = write_clock((hms >> 12) & 1023, (hms >> 6) & 63, hms & 63, out, to)
    return write_fraction(microseconds, digits, out, to)


@compiled()
def write_time2(buffer: Bytes, at: Number, digits: Number, out: Bytes, to: Number) -> Number:
    size = (digits + 1) >> 1
    value = big_endian(buffer, at, 3 + size) - (np.int64(0x800000) << (8 * size))
    negative = value < 0
    value = -value if negative else value
    fraction = value & ((np.int64(1) << (8 * size)) - 1)
    return write_time(value >> (8 * size), microseconds_of(fraction, digits), negative, digits, out, to)


@compiled()
def write_hex(buffer: Bytes, at: Number, length: Number, out: Bytes, to: Number) -> Number:
    for index in range(length):
        byte = buffer[at + index]
        out[to + 2 * index], out[to + 2 * index + 1] = _HEX[byte >> 4], _HEX[byte & 15]
    return to + 2 * length


@compiled()
def _write_set(mask: Number, texts: Bytes, ends: Ints, out: Bytes, to: Number) -> Number:
    begin = to
    for member in range(len(ends)):
        if mask >> np.uint64(member) & np.uint64(1):
            if to > begin:
                out[to] = _COMMA
                to += 1
            start = ends[member - 1] if member else np.int64(0)
            to = copy_bytes(texts[start : ends[member]], out, to)
    return to


@compiled()
def write_value(  # noqa: PLR0912 - one branch per kind
    kind: int,
    buffer: Bytes,
    at: Number,
    width: Number,
    length: Number,
    scale: Number,
    texts: Bytes,
    ends: Ints,
    codes: Ints,
    out: Bytes,
    to: Number,
) -> Number:
    """A value of `width` bytes at `at`, of any kind but UTF8; `length` and `scale` are the column's."""
    if kind == SIGNED:
        shift = np.int64(64 - 8 * width)
        return write_signed((little_endian(buffer, at, width) << shift) >> shift, out, to)
    if kind == UNSIGNED:
        return write_unsigned(np.uint64(little_endian(buffer, at, width)), out, to)
    if kind == DECIMAL:
        return write_decimal(buffer, at, length, scale, out, to)
    if kind == DATETIME2:
        fraction = microseconds_of(big_endian(buffer, at + 5, width - 5), length)
        packed = big_endian(buffer, at, 5) - 0x8000000000
        return write_packed_datetime(packed, fraction, length, out, to)
    if kind == TIMESTAMP2:
        fraction = microseconds_of(big_endian(buffer, at + 4, width - 4), length)
        return write_timestamp(big_endian(buffer, at, 4), fraction, length, out, to)
    if kind == DATE:
        value = little_endian(buffer, at, 3)
        return write_date(value >> 9, (value >> 5) & 15, value & 31, out, to)
    if kind == TIME2:
        return write_time2(buffer, at, length, out, to)
    if kind == YEAR:
        year = np.int64(buffer[at])
        return write_padded(1900 + year if year else 0, 4, out, to)
    if kind == ENUM:
        member = little_endian(buffer, at, width)
        if member == 0 or member > len(ends):  # 0: what was written was no member
            return to
        start = ends[member - 2] if member > 1 else np.int64(0)
        return copy_bytes(texts[start : ends[member - 1]], out, to)
    if kind == SET:
        return _write_set(np.uint64(little_endian(buffer, at, width)), texts, ends, out, to)
    if kind == BITS:
        value = np.uint64(big_endian(buffer, at, width))
        for index in range(length):
            out[to + index] = _ZERO + (value >> np.uint64(length - 1 - index) & np.uint64(1))
        return to + length
    if kind == HEX:
        to = write_hex(buffer, at, width, out, to)
        for _ in range(2 * (length - width)):  # BINARY(n) is sent without the zeros at its end
            out[to] = _ZERO
            to += 1
        return to
    if kind == GEOMETRY:
        if width < 4:  # nothing at all, which a server that is not strict takes for a geometry
            return to
        to = copy_bytes(_SRID, out, to)
        to = write_unsigned(np.uint64(little_endian(buffer, at, 4)), out, to)
        out[to] = 59  # ;
        return write_hex(buffer, at + 4, width - 4, out, to + 1)
    if kind == SINGLE_BYTE:
        for index in range(width):
            to = write_code_point(codes[buffer[at + index]], out, to)
        return to
    if kind in (MULTI_BYTE, EUC_JP, GB18030):
        return write_multi_byte(kind == EUC_JP, kind == GB18030, buffer, at, width, codes, out, to)
    if kind in (UTF16_BIG, UTF16_LITTLE):
        return write_utf16(buffer, at, width, np.int64(0 if kind == UTF16_BIG else 1), out, to)
    if kind == UTF32:
        for index in range(width >> 2):
            to = write_code_point(big_endian(buffer, at + 4 * index, 4), out, to)
        return to
    if kind == OLD_TIMESTAMP:
        return write_timestamp(little_endian(buffer, at, 4), 0, 0, out, to)
    value = little_endian(buffer, at, width)
    if kind == OLD_DATETIME:
        date, clock = value // 1_000_000, value % 1_000_000
        to = write_date(date // 10_000, date // 100 % 100, date % 100, out, to)
        out[to] = _SPACE
        return write_clock(clock // 10_000, clock // 100 % 100, clock % 100, out, to + 1)
    value = (value << 40) >> 40  # three bytes, signed
    if value < 0:
        out[to] = _MINUS
        to += 1
        value = -value
    return write_clock(value // 10_000, value // 100 % 100, value % 100, out, to)

"""Compiled writers of numbers and instants; they return where they ended, and check nothing."""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.text_kernels import QUOTE, Bytes, Number, copy_bytes, write_decimal

_MINUS, _ZERO, _POINT, _SLASH, _LETTER_I, _LETTER_N = (ord(letter) for letter in "-0./IN")
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_LARGEST_EXACT = np.frombuffer(b"9007199254740991", np.uint8)  # 2 ** 53 - 1
_LEAST = np.frombuffer(b"-9223372036854775808", np.uint8)
_DAY_US = 86_400_000_000


@compiled()
def write_signed(number: Number, out: Bytes, at: Number) -> Number:
    number = np.int64(number)
    if number >= 0:
        return write_decimal(number, out, at)
    if number == -9223372036854775808:
        return copy_bytes(_LEAST, out, at)
    out[at] = _MINUS
    return write_decimal(-number, out, at + 1)


@compiled()
def write_exact(source: Bytes, out: Bytes, at: Number) -> Number:
    """The text of an integer: a JSON number if every double near it is exact, else a string."""
    first = 1 if source[0] == _MINUS else 0
    digits = len(source) - first
    exact = digits < len(_LARGEST_EXACT)
    if digits == len(_LARGEST_EXACT):
        exact = True
        for index in range(digits):
            if source[first + index] != _LARGEST_EXACT[index]:
                exact = source[first + index] < _LARGEST_EXACT[index]
                break
    if exact:
        return copy_bytes(source, out, at)
    out[at] = QUOTE
    at = copy_bytes(source, out, at + 1)
    out[at] = QUOTE
    return at + 1


@compiled()
def write_float(source: Bytes, out: Bytes, at: Number) -> Number:
    """The text of a float: a JSON number, or a string if it is NaN or infinite."""
    letter = source[1] if source[0] == _MINUS else source[0]
    if letter not in (_LETTER_I, _LETTER_N):
        return copy_bytes(source, out, at)
    out[at] = QUOTE
    at = copy_bytes(source, out, at + 1)
    out[at] = QUOTE
    return at + 1


@compiled()
def write_varint(number: Number, out: Bytes, at: Number) -> Number:
    rest = np.uint64(number)
    while rest >= np.uint64(0x80):
        out[at] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@compiled()
def write_zigzag(number: Number, out: Bytes, at: Number) -> Number:
    number = np.int64(number)
    return write_varint(np.uint64((number << 1) ^ (number >> 63)), out, at)


@compiled()
def _write_hex(number: Number, out: Bytes, at: Number) -> Number:
    digits, rest = 1, number >> 4
    while rest > 0:
        digits, rest = digits + 1, rest >> 4
    for index in range(digits):
        out[at + digits - 1 - index] = _HEX[number & 15]
        number >>= 4
    return at + digits


@compiled()
def write_lsn(number: Number, out: Bytes, at: Number) -> Number:
    """As Postgres prints it: `16/B374D848`."""
    number = np.int64(number)
    at = _write_hex((number >> 32) & 0xFFFFFFFF, out, at)
    out[at] = _SLASH
    return _write_hex(number & 0xFFFFFFFF, out, at + 1)


@compiled()
def write_padded(number: Number, digits: Number, out: Bytes, at: Number) -> Number:
    for index in range(digits):
        out[at + digits - 1 - index] = _ZERO + number % 10
        number //= 10
    return at + digits


@compiled()
def write_fraction(micros: Number, digits: Number, out: Bytes, at: Number) -> Number:
    """The first `digits` of six, with a point in front; below 0: those before the zeros at the end."""
    if digits < 0:
        digits, rest = 6, micros
        while digits > 0 and rest % 10 == 0:
            digits, rest = digits - 1, rest // 10
    if digits == 0:
        return at
    out[at] = _POINT
    for _ in range(6 - digits):
        micros //= 10
    return write_padded(micros, digits, out, at + 1)


@compiled()
def write_clock(micros: Number, out: Bytes, at: Number) -> Number:
    """`HH:MM:SS` of microseconds since midnight."""
    seconds = micros // 1_000_000
    at = write_padded(seconds // 3600, 2, out, at)
    out[at] = 58
    at = write_padded(seconds // 60 % 60, 2, out, at + 1)
    out[at] = 58
    return write_padded(seconds % 60, 2, out, at + 1)


@compiled()
def write_day(days: Number, out: Bytes, at: Number) -> Number:
    """`YYYY-MM-DD` as ISO 8601 has it: 1 BC is 0000, and a year beyond 9999 has a sign."""
    shifted = np.int64(days) + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year < 0:
        out[at] = _MINUS
        at += 1
        year = -year
    elif year > 9999:
        out[at] = 43
        at += 1
    at = write_padded(year, 4, out, at) if year <= 9999 else write_decimal(year, out, at)
    out[at] = _MINUS
    at = write_padded(month, 2, out, at + 1)
    out[at] = _MINUS
    return write_padded(day, 2, out, at + 1)


@compiled()
def write_instant(micros: Number, digits: Number, out: Bytes, at: Number) -> Number:
    """`YYYY-MM-DDTHH:MM:SS.ffffffZ` of microseconds since 1970."""
    micros, digits = np.int64(micros), np.int64(digits)
    days = micros // _DAY_US
    clock = micros - days * _DAY_US
    at = write_day(days, out, at)
    out[at] = 84
    at = write_clock(clock, out, at + 1)
    at = write_fraction(clock % 1_000_000, digits, out, at)
    out[at] = 90
    return at + 1

"""Compiled parsers of the log's text, straight over Arrow's string buffers.

The text is as Postgres prints it under our session settings; other sources write theirs in the same form.

Each parser walks one column once, writes values and a mask of what it could not read, and never raises:
a value that does not fit costs one row, not a batch. They are exact where `strptime`-like casts are not:
38 digits of a decimal, every integer up to the last; for days and times see `parse_time`.

The first call of each compiles for about a second; the result is cached beside this file.

`offsets`, `data` and `validity` are the buffers of a string array, `first_bit` its offset into `validity`;
an empty `validity` means no nulls. Every parser returns how many values were bad.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Offsets = NDArray[np.int32]
Words = NDArray[np.int64]


@numba.njit(cache=True, nogil=True, inline="always")
def is_null(validity: Bytes, bit: int) -> bool:
    return validity.size > 0 and (validity[bit >> 3] >> (bit & 7)) & 1 == 0


@numba.njit(cache=True, nogil=True)
def parse_booleans(
    offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int, out: Flags, bad: Flags
) -> int:
    """`t` and `f`, as Postgres sends them; `true` and `false`, as its cast to text does."""
    failures = 0
    for i in range(offsets.size - 1):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        if is_null(validity, first_bit + i):
            continue
        letter = data[start] if length else 0
        out[i] = letter == 116
        if not ((letter == 116 and length in (1, 4)) or (letter == 102 and length in (1, 5))):
            bad[i] = True
            failures += 1
    return failures


@numba.njit(cache=True, nogil=True)
def parse_integers(
    offsets: Offsets,
    data: Bytes,
    validity: Bytes,
    first_bit: int,
    least: int,
    greatest: int,
    out: Words,
    bad: Flags,
) -> int:
    failures = 0
    for i in range(offsets.size - 1):
        position, end = offsets[i], offsets[i + 1]
        if is_null(validity, first_bit + i):
            continue
        negative = position < end and data[position] == 45
        if negative:
            position += 1
        fits = 0 < end - position <= 19
        # Summed up below zero, since the least 64-bit number has no positive counterpart.
        value = np.int64(0)
        while fits and position < end:
            digit = np.int64(data[position]) - 48
            fits = 0 <= digit <= 9 and (
                value > -922337203685477580 or (value == -922337203685477580 and digit <= 8)
            )
            if fits:
                value = value * 10 - digit
            position += 1
        if not negative:
            if value == -9223372036854775808:
                fits = False
            else:
                value = -value
        if fits and least <= value <= greatest:
            out[i] = value
        else:
            bad[i] = True
            failures += 1
    return failures


@numba.njit(cache=True, nogil=True, inline="always")
def _append_digit(low: np.uint64, high: np.uint64, digit: np.uint64) -> tuple[np.uint64, np.uint64]:
    """(high, low) * 10 + digit, in 128 bits."""
    if high == np.uint64(0) and low < np.uint64(10**18):
        return low * np.uint64(10) + digit, high
    part = (low & np.uint64(0xFFFFFFFF)) * np.uint64(10) + digit
    carried = (low >> np.uint64(32)) * np.uint64(10) + (part >> np.uint64(32))
    low = (carried << np.uint64(32)) | (part & np.uint64(0xFFFFFFFF))
    return low, high * np.uint64(10) + (carried >> np.uint64(32))


@numba.njit(cache=True, nogil=True)
def parse_decimals(
    offsets: Offsets,
    data: Bytes,
    validity: Bytes,
    first_bit: int,
    precision: int,
    scale: int,
    out: NDArray[np.uint64],
    bad: Flags,
) -> int:
    """Into 128-bit numbers as pairs of words (low, high) in `out`, scaled by 10 ** scale."""
    failures = 0
    zero = np.uint64(0)
    for i in range(offsets.size - 1):
        position, end = offsets[i], offsets[i + 1]
        if is_null(validity, first_bit + i):
            continue
        negative = position < end and data[position] == 45
        if negative:
            position += 1
        fits = position < end
        low, high = zero, zero
        significant, fraction, in_fraction = 0, 0, False
        while fits and (position < end or fraction < scale):
            digit = np.int64(0)
            if position < end:
                letter = data[position]
                position += 1
                if letter == 46 and not in_fraction:
                    in_fraction = True
                    fits = position < end
                    continue
                digit = np.int64(letter) - 48
                fits = 0 <= digit <= 9
            else:
                in_fraction = True
            if in_fraction:
                fraction += 1
                if fraction > scale:
                    fits = fits and digit == 0
                    continue
            if significant or digit:
                significant += 1
            low, high = _append_digit(low, high, np.uint64(digit))
        if not fits or significant > precision:
            bad[i] = True
            failures += 1
            continue
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(1 if low == zero else 0)
        out[2 * i] = low
        out[2 * i + 1] = high
    return failures


@numba.njit(cache=True, nogil=True, inline="always")
def _hex_digit(letter: int) -> int:
    if 48 <= letter <= 57:
        return letter - 48
    if 97 <= letter <= 102:
        return letter - 87
    if 65 <= letter <= 70:
        return letter - 55
    return 255


@numba.njit(cache=True, nogil=True)
def parse_hex(
    offsets: Offsets,
    data: Bytes,
    validity: Bytes,
    first_bit: int,
    prefix: int,
    out_offsets: Offsets,
    out: Bytes,
    bad: Flags,
) -> int:
    """Bytes of `\\x…`, with `prefix` 0 of bare digits; `out` is at least half as long as `data`."""
    failures = 0
    written = 0
    for i in range(offsets.size - 1):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        out_offsets[i] = written
        if is_null(validity, first_bit + i):
            continue
        fits = length >= prefix and length % 2 == 0
        if fits and prefix:
            fits = data[start] == 92 and data[start + 1] == 120
        before = written
        if fits:
            for position in range(start + prefix, start + length, 2):
                high, low = _hex_digit(data[position]), _hex_digit(data[position + 1])
                if high > 15 or low > 15:
                    fits = False
                    break
                out[written] = high * 16 + low
                written += 1
        if not fits:
            written = before
            bad[i] = True
            failures += 1
    out_offsets[offsets.size - 1] = written
    return failures


@numba.njit(cache=True, nogil=True)
def print_uuids(raw: Bytes, out: Bytes) -> None:
    """The 36 characters of each 16 bytes."""
    for i in range(raw.size // 16):
        written = 36 * i
        for byte in range(16):
            if byte in (4, 6, 8, 10):
                out[written] = 45
                written += 1
            high, low = raw[16 * i + byte] >> 4, raw[16 * i + byte] & 15
            out[written] = high + (48 if high < 10 else 87)
            out[written + 1] = low + (48 if low < 10 else 87)
            written += 2

"""Compiled conversions of Postgres' texts to bytes: decimals, bits, base64, and hstore to JSON.

Each takes the cells of one column and gives where each value ends, and the bytes; nulls, and what could not
be read (`bad`), are empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.text_kernels import QUOTE, Bytes, Cells, Number, length_of, roomy, value_of

STANDARD = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8).copy()
URL_SAFE = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8).copy()

_MINUS, _POINT, _EQUALS, _ONE, _BACKSLASH = (ord(letter) for letter in "-.=1\\")


@compiled()
def _base64(source: Bytes, letters: Bytes, out: Bytes, at: Number) -> Number:
    size = len(source)
    for start in range(0, size - size % 3, 3):
        group = np.int64(source[start]) << 16 | np.int64(source[start + 1]) << 8 | np.int64(source[start + 2])
        out[at], out[at + 1] = letters[group >> 18], letters[group >> 12 & 63]
        out[at + 2], out[at + 3] = letters[group >> 6 & 63], letters[group & 63]
        at += 4
    left = size % 3
    if left > 0:
        group = np.int64(source[size - left]) << 16
        if left == 2:
            group |= np.int64(source[size - 1]) << 8
        out[at], out[at + 1] = letters[group >> 18], letters[group >> 12 & 63]
        out[at + 2] = letters[group >> 6 & 63] if left == 2 else _EQUALS
        out[at + 3] = _EQUALS
        at += 4
    return at


@compiled("(int64[:,::1], int64, uint8[::1])")
def base64_column(cells: Cells, count: int, letters: Bytes) -> tuple[Any, ...]:
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(32 * count + 64, np.uint8), 0
    for row in range(count):
        length = length_of(cells, 0, row)
        if length > 0:
            out = roomy(out, at, 2 * length + 8)
            at = _base64(value_of(cells, 0, row, length), letters, out, at)
        ends[row + 1] = at
    return ends, out[:at]


@compiled()
def _unscaled(value: Bytes, scale: Number, limbs: Bytes) -> tuple[Number, Number, bool]:
    """The bytes that a decimal takes in `limbs`, least first, without sign; its scale; whether it is one.

    `scale` below 0: its own, without the zeros at its end.
    """
    first = 1 if value[0] == _MINUS else 0
    point = len(value)
    for index in range(first, len(value)):
        if value[index] == _POINT:
            point = index
        elif value[index] < 48 or value[index] > 57:
            return 0, 0, False
    fraction = max(len(value) - point - 1, 0)
    last = len(value)
    own = scale
    if scale < 0:
        while fraction > 0 and value[last - 1] == 48:
            last, fraction = last - 1, fraction - 1
        own = fraction
    elif fraction > scale:
        return 0, 0, False
    size = 0
    for index in range(first, last + (own - fraction)):
        digit = np.int64(0)
        if index < last:
            if index == point:
                continue
            digit = np.int64(value[index]) - 48
        carry = digit
        for limb in range(size):
            carry += np.int64(limbs[limb]) * 10
            limbs[limb] = carry & 0xFF
            carry >>= 8
        if carry > 0:
            limbs[size] = carry
            size += 1
    return size, own, True


@compiled()
def _as_complement(limbs: Bytes, size: Number, negative: bool, out: Bytes) -> Number:
    """Two's complement, most significant first, in the fewest bytes; returns how many."""
    if size == 0:
        out[0] = 0
        return 1
    carry = np.int64(1)
    for index in range(size):
        byte = np.int64(limbs[index])
        if negative:
            byte = (~byte & 0xFF) + carry
            carry = byte >> 8
            byte &= 0xFF
        limbs[index] = byte
    top = limbs[size - 1]
    if (top >= 0x80) != negative:
        limbs[size] = 0xFF if negative else 0
        size += 1
    while size > 1 and limbs[size - 1] == (0xFF if negative else 0) and (limbs[size - 2] >= 0x80) == negative:
        size -= 1
    for index in range(size):
        out[index] = limbs[size - 1 - index]
    return size


@compiled("(int64[:,::1], int64, int64)")
def decimal_column(cells: Cells, count: int, scale: int) -> tuple[Any, ...]:
    """The unscaled value of each decimal as bytes; also each one's scale, and what is none."""
    ends, bad = np.empty(count + 1, np.int32), np.zeros(count, np.bool_)
    scales = np.zeros(count, np.int64)
    ends[0] = 0
    out, at = np.empty(16 * count + 64, np.uint8), 0
    limbs = np.empty(64, np.uint8)
    for row in range(count):
        length = length_of(cells, 0, row)
        if length > 0:
            if len(limbs) < length + max(scale, 0) + 8:
                limbs = np.empty(2 * (length + max(scale, 0) + 8), np.uint8)
            value = value_of(cells, 0, row, length)
            size, own, fits = _unscaled(value, scale, limbs)
            if fits:
                out = roomy(out, at, size + 8)
                scales[row] = own
                at += _as_complement(limbs, size, value[0] == _MINUS, out[at:])
            else:
                bad[row] = True
        ends[row + 1] = at
    return ends, out[:at], scales, bad


@compiled("(int64[:,::1], int64)")
def bits_column(cells: Cells, count: int) -> tuple[Any, ...]:
    """Zeros and ones as bytes, the last bit lowest in the first byte; zeros in front take no byte."""
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(8 * count + 64, np.uint8), 0
    for row in range(count):
        length = length_of(cells, 0, row)
        if length > 0:
            value = value_of(cells, 0, row, length)
            first = 0
            while first < length and value[first] != _ONE:
                first += 1
            bits = length - first
            out = roomy(out, at, bits // 8 + 1)
            size = (bits + 7) // 8
            out[at : at + size] = 0
            for bit in range(bits):
                if value[length - 1 - bit] == _ONE:
                    out[at + bit // 8] |= np.uint8(1 << (bit % 8))
            at += size
        ends[row + 1] = at
    return ends, out[:at]


@compiled("(int64[:,::1], int64)")
def hstore_column(cells: Cells, count: int) -> tuple[Any, ...]:
    """`{"a":"1","b":null}` of `"a"=>"1", "b"=>NULL`."""
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(64 * count + 64, np.uint8), 0
    for row in range(count):
        length = length_of(cells, 0, row)
        if length >= 0:
            out = roomy(out, at, 6 * length + 2)
            out[at] = ord("{")
            at += 1
            quoted, position = False, 0
            while position < length:
                value = value_of(cells, 0, row, length)
                letter = value[position]
                position += 1
                if quoted and letter < 0x20:
                    out[at : at + 4] = np.array([92, 117, 48, 48], np.uint8)
                    out[at + 4] = 48 + (letter >> 4)
                    out[at + 5] = (letter & 15) + (48 if letter & 15 < 10 else 87)
                    at += 6
                elif quoted and letter == 92:
                    out[at], out[at + 1] = letter, value[position]
                    at, position = at + 2, position + 1
                elif quoted or letter in (QUOTE, ord(",")):
                    quoted = quoted != (letter == QUOTE)
                    out[at] = letter
                    at += 1
                elif letter == ord("="):
                    out[at] = ord(":")
                    at += 1
                elif letter in (ord("N"), ord("U"), ord("L")):
                    out[at] = letter + 32
                    at += 1
            out[at] = ord("}")
            at += 1
        ends[row + 1] = at
    return ends, out[:at]

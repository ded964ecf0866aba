"""Compiled writers of texts that are not UTF-8, character by character."""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Number

NO_CODE = -1
_BEYOND_ONE = 1 << 8
_BEYOND_TWO = _BEYOND_ONE + (1 << 16)
_QUESTION_MARK = ord("?")


@compiled()
def write_code_point(code: Number, out: Bytes, to: Number) -> Number:
    """As UTF-8; half of a surrogate pair becomes U+FFFD."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return to + 2
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        code = np.int64(0xFFFD)
    if code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return to + 3
    out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    out[to + 2], out[to + 3] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return to + 4


@compiled()
def write_utf16(buffer: Bytes, at: Number, length: Number, high: Number, out: Bytes, to: Number) -> Number:
    """`high`: which of two bytes is the higher one."""
    index = np.int64(0)
    while index + 1 < length:
        unit = np.int64(buffer[at + index + high]) << 8 | np.int64(buffer[at + index + 1 - high])
        index += 2
        if 0xD800 <= unit < 0xDC00 and index + 1 < length:
            low = np.int64(buffer[at + index + high]) << 8 | np.int64(buffer[at + index + 1 - high])
            if 0xDC00 <= low < 0xE000:
                unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
                index += 2
        to = write_code_point(unit, out, to)
    return to


@compiled()
def write_multi_byte(
    has_three: bool,
    has_four: bool,
    buffer: Bytes,
    at: Number,
    length: Number,
    codes: Ints,
    out: Bytes,
    to: Number,
) -> Number:
    """`codes` has the code points of single bytes, of pairs, and of three behind 8F or the first of four.

    A byte that begins no code becomes a question mark, as the servers show it.
    """
    end = at + length
    while at < end:
        first, left, size = np.int64(buffer[at]), end - at, 1
        code = codes[first]
        if code < 0 and left > 1:
            second, size = np.int64(buffer[at + 1]), 2
            code = codes[_BEYOND_ONE + (first << 8 | second)]
            if code < 0 and has_three and first == 0x8F and left > 2:
                code, size = codes[_BEYOND_TWO + (second << 8 | np.int64(buffer[at + 2]))], 3
            elif code < 0 and has_four and left > 3:
                code, size = _four_byte_code(buffer, at, codes), 4
        if code < 0:
            code, size = np.int64(_QUESTION_MARK), 1
        to = write_code_point(code, out, to)
        at += size
    return to


@compiled()
def _four_byte_code(buffer: Bytes, at: Number, codes: Ints) -> Number:
    """Of GB 18030: numbered in order. The first are looked up, those from U+10000 on are computed."""
    first, second = np.int64(buffer[at]) - 0x81, np.int64(buffer[at + 1]) - 0x30
    third, fourth = np.int64(buffer[at + 2]) - 0x81, np.int64(buffer[at + 3]) - 0x30
    if not (0 <= first < 126 and 0 <= second < 10 and 0 <= third < 126 and 0 <= fourth < 10):
        return np.int64(NO_CODE)
    number = first * 12_600 + second * 1_260 + third * 10 + fourth
    if number < len(codes) - _BEYOND_TWO:
        return codes[_BEYOND_TWO + number]
    return number - 189_000 + 0x10000 if 189_000 <= number < 189_000 + 0x100000 else np.int64(_QUESTION_MARK)

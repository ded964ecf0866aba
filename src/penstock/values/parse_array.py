"""A compiled reader of Postgres' array literals, over Arrow's string buffers.

Only what a list can say is read: one dimension, beginning at 1. An array of several dimensions, or with
bounds of its own (`[0:1]={5,6}`), is marked bad whole; so is what is no array literal at all. Elements
come out as the text their own output function printed, with quotes and backslashes taken off.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.values.parse import Bytes, Flags, Offsets, is_null

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = 34, 92, 44, 123, 125


def parse_arrays(
    offsets: Offsets, data: Bytes, validity: Bytes, first_bit: int
) -> tuple[Offsets, Offsets, Bytes, Flags, Flags]:
    """Where each array's elements begin; the elements' offsets, bytes and nulls; which arrays are bad."""
    rows = offsets.size - 1
    size = int(offsets[-1] - offsets[0])
    elements_max = size // 2 + rows  # an element takes a byte and a separator at least
    starts = np.zeros(rows + 1, np.int32)
    out_offsets = np.zeros(elements_max + 1, np.int32)
    out = np.empty(size, np.uint8)
    nulls, bad = np.zeros(elements_max, np.bool_), np.zeros(rows, np.bool_)
    count = _parse_arrays(offsets, data, validity, first_bit, starts, out_offsets, out, nulls, bad)
    return starts, out_offsets[: count + 1], out[: out_offsets[count]], nulls[:count], bad


@numba.njit(cache=True, nogil=True)
def _parse_arrays(
    offsets: Offsets,
    data: Bytes,
    validity: Bytes,
    first_bit: int,
    starts: Offsets,
    out_offsets: Offsets,
    out: Bytes,
    nulls: Flags,
    bad: Flags,
) -> int:
    count = 0
    for i in range(offsets.size - 1):
        starts[i] = count
        if is_null(validity, first_bit + i):
            continue
        after = _parse_one(data, offsets[i], offsets[i + 1], count, out_offsets, out, nulls)
        if after < 0:
            bad[i] = True
        else:
            count = after
    starts[offsets.size - 1] = count
    return count


@numba.njit(cache=True, nogil=True)
def _parse_one(
    data: Bytes, position: int, end: int, count: int, out_offsets: Offsets, out: Bytes, nulls: Flags
) -> int:
    """The number of elements after this array's; -1: it is bad, and what was written is to be overwritten."""
    if end - position < 2 or data[position] != _OPEN or data[end - 1] != _CLOSE:
        return -1
    position += 1
    end -= 1
    if position == end:
        return count
    while True:
        start = out_offsets[count]
        quoted = position < end and data[position] == _QUOTE
        if quoted:
            position, written = _copy_quoted(data, position + 1, end, out, start)
        else:
            position, written = _copy_plain(data, position, end, out, start)
        if position < 0:
            return -1
        nulls[count] = not quoted and _is_null_word(out, start, written)
        count += 1
        out_offsets[count] = start if nulls[count - 1] else written
        if position == end:
            return count
        if data[position] != _COMMA:
            return -1
        position += 1


@numba.njit(cache=True, nogil=True)
def _copy_quoted(data: Bytes, position: int, end: int, out: Bytes, written: int) -> tuple[int, int]:
    """The positions after the closing quote and after what was written; -1: there is no closing quote."""
    while position < end and data[position] != _QUOTE:
        if data[position] == _BACKSLASH:
            position += 1
            if position == end:
                return -1, written
        out[written] = data[position]
        written += 1
        position += 1
    return (position + 1 if position < end else -1), written


@numba.njit(cache=True, nogil=True)
def _copy_plain(data: Bytes, position: int, end: int, out: Bytes, written: int) -> tuple[int, int]:
    """The positions after the element and after what was written; -1: it is not a plain element."""
    first = position
    while position < end and data[position] != _COMMA:
        if data[position] in (_OPEN, _CLOSE, _QUOTE, _BACKSLASH):
            return -1, written
        out[written] = data[position]
        written += 1
        position += 1
    return (position if position > first else -1), written


@numba.njit(cache=True, nogil=True)
def _is_null_word(out: Bytes, start: int, end: int) -> bool:
    """An element printed as NULL without quotes; the text NULL is printed within them."""
    return (
        end - start == 4
        and out[start] == 78
        and out[start + 1] == 85
        and out[start + 2] == 76
        and out[start + 3] == 76
    )

"""Compiled: which values a column of a given form has no place for, and documents of what has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.bson_kernels import DATE, DOCUMENT, NULL, text_end, value_end
from penstock.sources.mongodb.column_kernels import column_of, survey
from penstock.sources.mongodb.memory_kernels import copy, load_byte, load_int64, store_byte
from penstock.text_kernels import Bytes, Flags, Indices, Ints

#: Beyond so many milliseconds a date has no place in 64-bit microseconds.
DATE_MS_MAX = (2**63 - 1) // 1000
_SIZE_EMPTY = 5


@compiled()
def mark_unfit(
    buffer: Bytes, kinds: Bytes, positions: Indices, fitting: int, whole: int, scale: int, unfit: Flags
) -> int:
    """Mark values that are not of the `fitting` kinds; how many.

    Decimals have at most `whole` digits before and `scale` behind the point.
    """
    source = np.int64(buffer.ctypes.data)
    digits = np.zeros(2, np.int64)
    found = 0
    for row in range(len(kinds)):
        if kinds[row] == 0 or kinds[row] == NULL:
            continue
        digits[0], digits[1] = 0, 0
        seen = survey(buffer, kinds[row : row + 1], positions[row : row + 1], digits)
        fits = seen & ~fitting == 0 and digits[0] <= whole and digits[1] <= scale
        if kinds[row] == DATE:
            milliseconds = load_int64(source + np.int64(positions[row]))
            fits = fits and -DATE_MS_MAX <= milliseconds <= DATE_MS_MAX
        if not fits:
            unfit[row] = True
            found += 1
    return found


@compiled()
def gather_rest(
    buffer: Bytes, starts: Ints, doc_ends: Ints, names: Bytes, ends: Ints, slots: Indices, unfit: Any
) -> tuple[Bytes, Bytes, Indices, Ints]:
    """Of each document the fields that no column holds: unknown ones, and those `unfit` (column, row).

    As one buffer of documents, the type (0: there is nothing), place and end of each. `locate` has walked the
    same documents before, so they are BSON.
    """
    rows = len(starts)
    source = np.int64(buffer.ctypes.data)
    size = np.int64(0)
    for row in range(rows):
        size += doc_ends[row] - starts[row]
    made = np.empty(size, np.uint8)  # a part of a document is no longer than it
    kinds, positions = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
    limits = np.zeros(rows, np.int64)
    out, to = np.int64(made.ctypes.data), np.int64(0)
    for row in range(rows):
        begun = to
        to += 4
        limit = doc_ends[row] - 1
        at = starts[row] + 4
        guess = np.int64(0)
        while at < limit:
            name_end = text_end(source, at + 1, limit)
            end = value_end(source, load_byte(source + at), name_end + 1, limit)
            column = column_of(source + at + 1, name_end - at - 1, guess, names, ends, slots)
            if column >= 0:
                guess = column + 1
            if column < 0 or unfit[column, row]:
                copy(out + to, source + at, end - at)
                to += end - at
            at = end
        store_byte(out + to, np.int64(0))
        to += 1
        if to - begun == _SIZE_EMPTY:
            to = begun
        else:
            for byte in range(4):
                store_byte(out + begun + byte, ((to - begun) >> (8 * byte)) & 255)
            kinds[row], positions[row] = DOCUMENT, begun
        limits[row] = to
    return made[:to], kinds, positions, limits

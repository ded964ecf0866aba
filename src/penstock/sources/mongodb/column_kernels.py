"""Compiled: the top-level fields of documents into Arrow buffers.

1. `locate` walks the fields of each document and notes, per column and row, the type and the place of the
   value. Documents of a collection mostly have the same fields in the same order, so a name is compared with
   that of the column after the last one first, and looked up by its hash only if it differs.
2. `survey` tells what kinds of values a column has, as bits; the column's type follows from them (`fields`).
3. One `fill_…` per type of column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.bson_kernels import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
    text_end,
    value_end,
)
from penstock.sources.mongodb.json_kernels import is_utf8, put_hex, put_object_id
from penstock.sources.mongodb.memory_kernels import (
    Address,
    Number,
    copy,
    load_byte,
    load_double,
    load_int32,
    load_int64,
    store_byte,
)
from penstock.sources.mongodb.number_kernels import FINITE, parse_decimal128, tenth
from penstock.text_kernels import Bytes, Indices, Ints

#: kinds of values, as bits. A wide integer is beyond 2^53; an odd decimal is NaN, infinite, or -0.
IS_NULL, IS_INT32, IS_INT64, IS_WIDE, IS_DOUBLE, IS_DECIMAL, IS_ODD_DECIMAL = (1 << bit for bit in range(7))
IS_STRING, IS_BAD_STRING, IS_BOOLEAN, IS_DATE, IS_OBJECT_ID, IS_BINARY, IS_UUID, IS_OTHER = (
    1 << bit for bit in range(7, 15)
)
_EXACT_MAX = 2**53
_GENERIC, _UUID = 0, 4
_DASH = ord("-")
_SIZE_UUID, _SIZE_UUID_TEXT, _SIZE_OBJECT_ID_TEXT = 16, 36, 24
_HASH_START, _HASH_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
#: outcomes of `locate` besides the number of a row
NEW_NAME, BROKEN = 1, 2


@compiled()
def _hash(at: Address, size: Number) -> Number:
    value = _HASH_START
    for index in range(size):
        value = (value ^ np.uint64(load_byte(at + index))) * _HASH_FACTOR
    return value ^ (value >> np.uint64(32))


@compiled()
def same(at: Address, size: Number, other: Address, other_size: Number) -> bool:
    if size != other_size:
        return False
    for index in range(size):  # noqa: SIM110 - compiled code has no generators
        if load_byte(at + index) != load_byte(other + index):
            return False
    return True


@compiled()
def enter_name(names: Bytes, ends: Ints, column: int, slots: Indices) -> None:
    """Put a column's name into the table of slots, which has room."""
    start = ends[column - 1] if column > 0 else np.int64(0)
    place = np.int64(
        _hash(np.int64(names.ctypes.data) + start, ends[column] - start) & np.uint64(len(slots) - 1)
    )
    while slots[place] >= 0:
        place = (place + 1) & (len(slots) - 1)
    slots[place] = column


@compiled()
def column_of(at: Address, size: Number, guess: Number, names: Bytes, ends: Ints, slots: Indices) -> Number:
    """The number of the column with this name, or -1."""
    base = np.int64(names.ctypes.data)
    if guess < len(ends):
        start = ends[guess - 1] if guess > 0 else np.int64(0)
        if same(at, size, base + start, ends[guess] - start):
            return guess
    place = np.int64(_hash(at, size) & np.uint64(len(slots) - 1))
    while slots[place] >= 0:
        column = np.int64(slots[place])
        start = ends[column - 1] if column > 0 else np.int64(0)
        if same(at, size, base + start, ends[column] - start):
            return column
        place = (place + 1) & (len(slots) - 1)
    return np.int64(-1)


@compiled()
def locate(
    buffer: Bytes, starts: Ints, doc_ends: Ints, first: int, names: Bytes, ends: Ints, slots: Indices,
    skip_unknown: bool, kinds: Any, positions: Any,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Fill the matrices (column, row) from row `first` on.

    Returns the row it stopped at and why: `NEW_NAME`, with its place and size, unless those are skipped, or
    `BROKEN`. Of a name that occurs twice in a document the last value counts, as in drivers' dictionaries.
    """
    source = np.int64(buffer.ctypes.data)
    nothing = np.int64(0)
    for row in range(first, len(starts)):
        for column in range(len(ends)):
            kinds[column, row] = 0
        limit = doc_ends[row] - 1
        at = starts[row] + 4
        guess = np.int64(0)
        while at < limit:
            kind = load_byte(source + at)
            name = at + 1
            name_end = text_end(source, name, limit)
            if name_end < 0:
                return row, BROKEN, nothing, nothing
            end = value_end(source, kind, name_end + 1, limit)
            if end < 0:
                return row, BROKEN, nothing, nothing
            column = column_of(source + name, name_end - name, guess, names, ends, slots)
            if column >= 0:
                kinds[column, row] = kind
                positions[column, row] = name_end + 1
                guess = column + 1
            elif not skip_unknown:
                return row, NEW_NAME, name, name_end - name
            at = end
    return len(starts), 0, nothing, nothing


@compiled()
def find_field(buffer: Bytes, starts: Ints, doc_ends: Ints, wanted: Bytes) -> tuple[Bytes, Indices, Any]:
    """Type and place of one field of each document; the first document that is no BSON, or -1."""
    source, name_wanted = np.int64(buffer.ctypes.data), np.int64(wanted.ctypes.data)
    kinds, positions = np.zeros(len(starts), np.uint8), np.zeros(len(starts), np.int32)
    for row in range(len(starts)):
        limit = doc_ends[row] - 1
        at = starts[row] + 4
        while at < limit:
            kind = load_byte(source + at)
            name_end = text_end(source, at + 1, limit)
            if name_end < 0:
                return kinds, positions, row
            end = value_end(source, kind, name_end + 1, limit)
            if end < 0:
                return kinds, positions, row
            if same(source + at + 1, name_end - at - 1, name_wanted, len(wanted)):
                kinds[row], positions[row] = kind, name_end + 1
                break
            at = end
    return kinds, positions, -1


@compiled()
def _decimal_kind(at: Address, digits: Ints) -> Number:
    """`digits` are the most there were before and behind the point; they grow."""
    what, negative, high, low, power = parse_decimal128(at)
    is_zero = high == np.uint64(0) and low == np.uint64(0)
    if what != FINITE or (negative and is_zero):
        return IS_ODD_DECIMAL
    if is_zero:
        return IS_DECIMAL
    while True:
        next_high, next_low = tenth(high, low)
        if next_low * np.uint64(10) != low:
            break
        high, low, power = next_high, next_low, power + 1
    size = 0
    while high != np.uint64(0) or low != np.uint64(0):
        high, low = tenth(high, low)
        size += 1
    digits[0] = max(digits[0], size + power)
    digits[1] = max(digits[1], -power)
    return IS_DECIMAL


@compiled()
def _binary_kind(at: Address) -> Number:
    subtype = load_byte(at + 4)
    if subtype == _GENERIC:
        return IS_BINARY
    return IS_UUID if subtype == _UUID and load_int32(at) == _SIZE_UUID else IS_OTHER


@compiled()
def survey(  # noqa: PLR0912 - a branch per type
    buffer: Bytes, kinds: Bytes, positions: Indices, digits: Ints
) -> int:
    """The kinds of a column's values; `digits` as `_decimal_kind` has it."""
    source = np.int64(buffer.ctypes.data)
    seen = 0
    for row in range(len(kinds)):
        kind, at = np.int64(kinds[row]), source + np.int64(positions[row])
        if kind == 0:
            continue
        if kind == STRING:
            seen |= IS_STRING if is_utf8(at + 4, load_int32(at) - 1) else IS_BAD_STRING
        elif kind == INT32:
            seen |= IS_INT32
        elif kind == INT64:
            seen |= IS_INT64 if -_EXACT_MAX <= load_int64(at) <= _EXACT_MAX else IS_WIDE
        elif kind == DOUBLE:
            seen |= IS_DOUBLE
        elif kind == DATE:
            seen |= IS_DATE
        elif kind == OBJECT_ID:
            seen |= IS_OBJECT_ID
        elif kind == BOOLEAN:
            seen |= IS_BOOLEAN
        elif kind == NULL:
            seen |= IS_NULL
        elif kind == DECIMAL128:
            seen |= _decimal_kind(at, digits)
        elif kind == BINARY:
            seen |= _binary_kind(at)
        else:
            seen |= IS_OTHER
    return seen


@compiled()
def valid_bits(kinds: Bytes, null_counts: bool) -> tuple[Bytes, int]:
    """Arrow's validity: set where there is a value, with `null_counts` not a null; how many are not."""
    bits = np.zeros((len(kinds) + 7) // 8, np.uint8)
    nulls = 0
    for row in range(len(kinds)):
        if kinds[row] == 0 or (null_counts and kinds[row] == NULL):
            nulls += 1
        else:
            bits[row >> 3] |= np.uint8(1 << (row & 7))
    return bits, nulls


@compiled()
def fill_integers(buffer: Bytes, kinds: Bytes, positions: Indices, out: Any) -> None:
    """Integers of either size; dates, in milliseconds."""
    source = np.int64(buffer.ctypes.data)
    for row in range(len(kinds)):
        at = source + np.int64(positions[row])
        if kinds[row] == INT32:
            out[row] = load_int32(at)
        elif kinds[row] in (INT64, DATE):
            out[row] = load_int64(at)
        else:
            out[row] = 0


@compiled()
def fill_doubles(buffer: Bytes, kinds: Bytes, positions: Indices, out: Any) -> None:
    source = np.int64(buffer.ctypes.data)
    for row in range(len(kinds)):
        at = source + np.int64(positions[row])
        if kinds[row] == DOUBLE:
            out[row] = load_double(at)
        elif kinds[row] == INT32:
            out[row] = load_int32(at)
        elif kinds[row] == INT64:
            out[row] = load_int64(at)
        else:
            out[row] = 0.0


@compiled()
def fill_booleans(buffer: Bytes, kinds: Bytes, positions: Indices, bits: Bytes) -> None:
    source = np.int64(buffer.ctypes.data)
    for row in range(len(kinds)):
        if kinds[row] == BOOLEAN and load_byte(source + np.int64(positions[row])):
            bits[row >> 3] |= np.uint8(1 << (row & 7))


@compiled()
def fill_decimals(buffer: Bytes, kinds: Bytes, positions: Indices, scale: int, out: Any) -> None:
    """Numbers of 128 bits, two's complement, lower half first. `survey` has said that they fit."""
    source = np.int64(buffer.ctypes.data)
    ten = np.uint64(10)
    for row in range(len(kinds)):
        at = source + np.int64(positions[row])
        high, low, power, negative = np.uint64(0), np.uint64(0), np.int64(0), False
        if kinds[row] == DECIMAL128:
            _, negative, high, low, power = parse_decimal128(at)
        elif kinds[row] in (INT32, INT64):
            number = load_int32(at) if kinds[row] == INT32 else load_int64(at)
            negative = number < 0
            low = np.uint64(0) - np.uint64(number) if negative else np.uint64(number)
        if high != np.uint64(0) or low != np.uint64(0):
            for _ in range(-scale - power):  # zeros at its end that no scale has room for
                high, low = tenth(high, low)
            for _ in range(power + scale):
                carried = (low >> np.uint64(32)) * ten + (
                    (low & np.uint64(0xFFFFFFFF)) * ten >> np.uint64(32)
                )
                high, low = high * ten + (carried >> np.uint64(32)), low * ten
        if negative:
            low = np.uint64(0) - low
            high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
        out[row, 0], out[row, 1] = low, high


@compiled()
def _text_size(kind: Number, at: Address) -> Number:
    if kind == STRING:
        return load_int32(at) - 1
    if kind == OBJECT_ID:
        return np.int64(_SIZE_OBJECT_ID_TEXT)
    if kind == BINARY:
        return np.int64(_SIZE_UUID_TEXT) if load_byte(at + 4) == _UUID else load_int32(at)
    return np.int64(0)


@compiled()
def _put_uuid(at: Address, out: Address, to: Number) -> Number:
    for index in range(_SIZE_UUID):
        if index in (4, 6, 8, 10):
            store_byte(out + to, _DASH)
            to += 1
        to = put_hex(load_byte(at + index), out, to)
    return to


@compiled()
def fill_texts(buffer: Bytes, kinds: Bytes, positions: Indices) -> tuple[Indices, Bytes]:
    """Strings, binary of subtype 0 and ids as Arrow offsets and bytes; all are of one kind."""
    source = np.int64(buffer.ctypes.data)
    offsets = np.zeros(len(kinds) + 1, np.int32)
    size = np.int64(0)
    for row in range(len(kinds)):
        size += _text_size(np.int64(kinds[row]), source + np.int64(positions[row]))
        offsets[row + 1] = size
    text = np.empty(size, np.uint8)
    out = np.int64(text.ctypes.data)
    for row in range(len(kinds)):
        at, to = source + np.int64(positions[row]), np.int64(offsets[row])
        if kinds[row] == STRING:
            copy(out + to, at + 4, np.int64(offsets[row + 1]) - to)
        elif kinds[row] == OBJECT_ID:
            put_object_id(at, out, to)
        elif kinds[row] == BINARY and load_byte(at + 4) == _UUID:
            _put_uuid(at + 5, out, to)
        elif kinds[row] == BINARY:
            copy(out + to, at + 5, np.int64(offsets[row + 1]) - to)
    return offsets, text

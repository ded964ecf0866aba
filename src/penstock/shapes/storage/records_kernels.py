"""Compiled loops over the records of a shape's log.

    tx:u64 op:u64 key_size:u32 key op_type:u8 flag:u8 json_size:u64 json         (big-endian)

The same bytes stand in the buffer, in the commit log and in the shape's file, so an item is encoded once,
when it is appended, and its JSON is copied out when it is read. `flag` is 0; it is there for later use.
Buffers may be read-only. No loop holds the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Number: TypeAlias = Any  # a machine integer inside compiled code
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: what a record has besides its key and its JSON
FIXED_BYTES = 30
BEFORE_KEY, _AFTER_KEY = 20, 10

#: how `select_records` ended: at the end of what there is, past the last offset, or where no more fits
MORE, PAST, FULL = 0, 1, 2

#: rows of what `scan_records` finds
TX, OP, KIND, KEY_START, KEY_END, JSON_START, JSON_END = range(7)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.Array(types.uint8, 1, "C")
_INT = types.int64
_SEPARATOR_BYTES = 2
_COMMA, _NEWLINE = 0x2C, 0x0A


def _compiled(*signature: Any) -> Callable[[_Function], _Function]:
    def wrap(function: _Function) -> _Function:
        try:
            return cast("_Function", numba.njit(signature or None, nogil=True, cache=True)(function))
        except RuntimeError:  # neither the package's directory nor the user's cache can be written
            return cast("_Function", numba.njit(signature or None, nogil=True)(function))

    return wrap


@_compiled()
def _put(out: Bytes, at: Number, width: Number, value: Number) -> Number:
    for index in range(width):
        out[at + index] = (value >> (8 * (width - 1 - index))) & 0xFF
    return at + width


@_compiled()
def _get(buffer: Bytes, at: Number, width: Number) -> Number:
    value = np.int64(0)
    for index in range(width):
        value = (value << 8) | np.int64(buffer[at + index])
    return value


@_compiled()
def _copy(source: Bytes, start: Number, end: Number, out: Bytes, at: Number) -> Number:
    for index in range(end - start):
        out[at + index] = source[start + index]
    return at + end - start


@_compiled(_INTS, _INTS, _BYTES, _INTS, _BYTES, _INTS, _BYTES)
def encode_records(
    tx: Ints, op: Ints, kind: Bytes, key_ends: Ints, keys: Bytes, json_ends: Ints, json: Bytes
) -> tuple[Bytes, Ints]:
    """The items as records, and where each ends."""
    count = len(tx)
    ends = np.empty(count, np.int64)
    size = np.int64(0)
    if count > 0:
        size = FIXED_BYTES * count + key_ends[count - 1] + json_ends[count - 1]
    out = np.empty(size, np.uint8)
    at, key_start, json_start = np.int64(0), np.int64(0), np.int64(0)
    for item in range(count):
        at = _put(out, at, 8, tx[item])
        at = _put(out, at, 8, op[item])
        at = _put(out, at, 4, key_ends[item] - key_start)
        at = _copy(keys, key_start, key_ends[item], out, at)
        out[at], out[at + 1] = kind[item], 0
        at = _put(out, at + 2, 8, json_ends[item] - json_start)
        at = _copy(json, json_start, json_ends[item], out, at)
        ends[item] = at
        key_start, json_start = key_ends[item], json_ends[item]
    return out, ends


@_compiled()
def _record_end(buffer: Bytes, at: Number, stop: Number) -> Number:
    """Where the record at `at` ends; -1 if not all of it is there."""
    if stop - at < FIXED_BYTES:
        return np.int64(-1)
    after_key = at + BEFORE_KEY + _get(buffer, at + 16, 4)
    if stop - after_key < _AFTER_KEY:
        return np.int64(-1)
    size = _get(buffer, after_key + 2, 8)
    start = after_key + _AFTER_KEY
    if size < 0 or stop - start < size:
        return np.int64(-1)
    return start + size


@_compiled(_BYTES, _INT, _INT)
def scan_records(buffer: Bytes, at: Number, stop: Number) -> Any:
    """A column per whole record between `at` and `stop`; `JSON_END` is where the record ends."""
    count, position = 0, at
    while True:
        position = _record_end(buffer, position, stop)
        if position < 0:
            break
        count += 1
    found = np.empty((7, count), np.int64)
    for record in range(count):
        key_end = at + BEFORE_KEY + _get(buffer, at + 16, 4)
        found[TX, record] = _get(buffer, at, 8)
        found[OP, record] = _get(buffer, at + 8, 8)
        found[KIND, record] = buffer[key_end]
        found[KEY_START, record] = at + BEFORE_KEY
        found[KEY_END, record] = key_end
        found[JSON_START, record] = key_end + _AFTER_KEY
        at = key_end + _AFTER_KEY + _get(buffer, key_end + 2, 8)
        found[JSON_END, record] = at
    return found


@_compiled(_BYTES, _INT, _INT, _INT, _INT, _INT, _OUT, _INT)
def select_records(
    buffer: Bytes,
    at: Number,
    min_tx: Number,
    min_op: Number,
    max_tx: Number,
    max_op: Number,
    out: Bytes,
    items_max: Number,
) -> Any:
    """Copy the JSON of records after (min_tx, min_op) and up to (max_tx, max_op), each with a separator
    before it. Returns how it ended, where to go on, and how many bytes were written."""
    written, items, stop = np.int64(0), 0, len(buffer)
    while True:
        end = _record_end(buffer, at, stop)
        if end < 0:
            return MORE, at, written
        tx, op = _get(buffer, at, 8), _get(buffer, at + 8, 8)
        if tx > max_tx or (tx == max_tx and op > max_op):
            return PAST, at, written
        if tx > min_tx or (tx == min_tx and op > min_op):
            start = at + BEFORE_KEY + _get(buffer, at + 16, 4) + _AFTER_KEY
            if items == items_max or written + _SEPARATOR_BYTES + end - start > len(out):
                return FULL, at, written
            out[written], out[written + 1] = _COMMA, _NEWLINE
            written = _copy(buffer, start, end, out, written + _SEPARATOR_BYTES)
            items += 1
        at = end


@_compiled(_BYTES, _INTS, _INTS)
def hash_ranges(buffer: Bytes, starts: Ints, ends: Ints) -> Ints:
    """A 64-bit fingerprint of each range of bytes (FNV-1a). Equal ones need not be equal ranges."""
    hashes = np.empty(len(starts), np.int64)
    for index in range(len(starts)):
        value = np.uint64(0xCBF29CE484222325)
        for at in range(starts[index], ends[index]):
            value = (value ^ np.uint64(buffer[at])) * np.uint64(0x100000001B3)
        hashes[index] = np.int64(value)
    return hashes

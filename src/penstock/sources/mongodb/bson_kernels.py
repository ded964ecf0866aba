"""Compiled: where things are in raw BSON. Nothing is read beyond the end of the document it belongs to.

A position is an offset from `source`, the address of a buffer. `value_end` checks the one value it measures:
its length fits, a string and a document end with a zero byte, a boolean is 0 or 1. What is inside a nested
document is looked at by whoever goes there. A document of 16 MiB has positions that fit in 32 bits, and so
has a batch: `documents.BATCH_BYTES_MAX`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.memory_kernels import Address, Number, load_byte, load_int32
from penstock.text_kernels import Bytes, Ints

DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, UNDEFINED, OBJECT_ID, BOOLEAN, DATE, NULL = range(1, 11)
REGEX, DB_POINTER, CODE, SYMBOL, CODE_WITH_SCOPE, INT32, TIMESTAMP, INT64, DECIMAL128 = range(11, 20)
MIN_KEY, MAX_KEY = 0xFF, 0x7F
#: instead of a position: the bytes are no BSON; documents in documents, and no end
MALFORMED, TOO_DEEP = -1, -2
SMALLEST = 5  # a document without fields: its length and a zero byte


def _fixed_sizes() -> Any:
    """By type: the size of its values; -1 it differs, -2 there is no such type."""
    sizes = np.full(256, -2, np.int64)
    for kind, size in (
        (DOUBLE, 8), (UNDEFINED, 0), (OBJECT_ID, 12), (BOOLEAN, 1), (DATE, 8), (NULL, 0), (INT32, 4),
        (TIMESTAMP, 8), (INT64, 8), (DECIMAL128, 16), (MIN_KEY, 0), (MAX_KEY, 0),
    ):  # fmt: skip
        sizes[kind] = size
    for kind in (STRING, DOCUMENT, ARRAY, BINARY, REGEX, DB_POINTER, CODE, SYMBOL, CODE_WITH_SCOPE):
        sizes[kind] = -1
    return sizes


_SIZES = _fixed_sizes()


@compiled()
def text_end(source: Address, at: Number, limit: Number) -> Number:
    """Where the zero byte is that ends the name at `at`."""
    while at < limit:
        if load_byte(source + at) == 0:
            return at
        at += 1
    return np.int64(MALFORMED)


@compiled()
def _string_end(source: Address, at: Number, limit: Number) -> Number:
    if at + 5 > limit:
        return np.int64(MALFORMED)
    end = at + 4 + load_int32(source + at)
    if end < at + 5 or end > limit or load_byte(source + end - 1) != 0:
        return np.int64(MALFORMED)
    return end


@compiled()
def document_end(source: Address, at: Number, limit: Number) -> Number:
    if at + SMALLEST > limit:
        return np.int64(MALFORMED)
    end = at + load_int32(source + at)
    if end < at + SMALLEST or end > limit or load_byte(source + end - 1) != 0:
        return np.int64(MALFORMED)
    return end


@compiled()
def value_end(source: Address, kind: Number, at: Number, limit: Number) -> Number:
    """The position behind a value, or `MALFORMED`. `limit` is where the values of its document end."""
    size = _SIZES[kind]
    if size >= 0:
        end = at + size
        if end > limit or (kind == BOOLEAN and load_byte(source + at) > 1):
            return np.int64(MALFORMED)
        return end
    if kind in (STRING, CODE, SYMBOL):
        return _string_end(source, at, limit)
    if kind in (DOCUMENT, ARRAY):
        return document_end(source, at, limit)
    return _rare_end(source, kind, at, limit)


@compiled()
def _rare_end(source: Address, kind: Number, at: Number, limit: Number) -> Number:
    bad = np.int64(MALFORMED)
    if kind == BINARY:
        if at + 5 > limit:
            return bad
        size = load_int32(source + at)
        return at + 5 + size if 0 <= size <= limit - at - 5 else bad
    if kind == REGEX:
        end = text_end(source, at, limit)
        if end >= 0:
            end = text_end(source, end + 1, limit)
        return end + 1 if end >= 0 else bad
    if kind == DB_POINTER:
        end = _string_end(source, at, limit)
        return end + 12 if 0 <= end <= limit - 12 else bad
    if kind == CODE_WITH_SCOPE:
        if at + 4 > limit:
            return bad
        end = at + load_int32(source + at)
        if end > limit or end < at + 4:
            return bad
        scope = _string_end(source, at + 4, end)
        return end if scope >= 0 and document_end(source, scope, end) == end else bad
    return bad


@compiled()
def find_documents(buffer: Bytes) -> Ints:
    """Where each of the documents that lie one after the other begins, and where the last one ends.

    The last number is `MALFORMED` if they do not fit the buffer.
    """
    size = np.int64(len(buffer))
    source = np.int64(buffer.ctypes.data)
    count, at = 0, np.int64(0)
    while 0 <= at < size:
        at = document_end(source, at, size)
        count += 1
    starts = np.empty(count + 1, np.int64)
    at = np.int64(0)
    for index in range(count):
        starts[index] = at
        at = document_end(source, at, size)
    starts[count] = at
    return starts


@compiled()
def find_in_array(buffer: Bytes, at: int, limit: int) -> tuple[Ints, Ints]:
    """Where the documents of an array begin and end; one end too few if something else is in it."""
    source = np.int64(buffer.ctypes.data)
    capacity = (limit - at) // (SMALLEST + 3) + 1
    starts, ends = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    count = 0
    position, last = np.int64(at + 4), np.int64(limit - 1)
    while position < last:
        name_end = text_end(source, position + 1, last)
        if load_byte(source + position) != DOCUMENT or name_end < 0:
            return starts[: count + 1], ends[:count]
        end = document_end(source, name_end + 1, last)
        if end < 0:
            return starts[: count + 1], ends[:count]
        starts[count], ends[count] = name_end + 1, end
        count += 1
        position = end
    return starts[:count].copy(), ends[:count].copy()

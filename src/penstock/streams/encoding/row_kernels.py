"""Compiled writers of rows: a value in its form, with the text of its column around it.

Before anything is written there is room for the most it can come to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.streams.encoding.number_kernels import write_exact, write_float, write_varint, write_zigzag
from penstock.text_kernels import (
    LONGEST_ESCAPE,
    QUOTE,
    Bytes,
    Cells,
    Flags,
    Indices,
    Ints,
    Number,
    constant,
    copy_bytes,
    length_of,
    roomy,
    value_of,
    write_escaped,
)

#: How a value is written. TEXT: as a JSON string; JSON: as it is, in one line; EXACT: an integer, as a string
#: where a double is not exact; FLOAT: a number, or a string if it is none. Avro's: LONG, SIZED; Protobuf's:
#: VARINT, PREFIXED; of both: BYTE, a boolean.
RAW, TEXT, JSON, BOOLEAN, EXACT, FLOAT, LONG, SIZED, VARINT, PREFIXED, BYTE = range(11)
#: The texts of a column in a row: before a value, and in place of one that is null, unchanged, or not known.
VALUE, NULL, UNCHANGED, UNKNOWN, TEXTS = range(5)
CELL_MAX = 12  # what a value may take beside its bytes: quotes, a size

TRUE, FALSE = np.frombuffer(b"true", np.uint8), np.frombuffer(b"false", np.uint8)
_LETTER_T, _COMMA = ord("t"), ord(",")


@compiled()
def _write_json(source: Bytes, out: Bytes, at: Number) -> Number:
    """JSON in one line: what is below a blank can only stand between its tokens."""
    for index in range(len(source)):
        byte = source[index]
        out[at + index] = byte if byte >= 0x20 else np.uint8(0x20)
    return at + len(source)


@compiled()
def _parsed(source: Bytes) -> Number:
    negative = source[0] == 45
    number = np.int64(0)
    for index in range(1 if negative else 0, len(source)):
        number = number * 10 - (np.int64(source[index]) - 48)  # below zero, where there is one more
    return number if negative else -number


@compiled()
def write_cell(form: Number, value: Bytes, out: Bytes, at: Number) -> Number:
    if form == TEXT:
        out[at] = QUOTE
        at = write_escaped(value, out, at + 1)
        out[at] = QUOTE
        return at + 1
    if form == RAW:
        return copy_bytes(value, out, at)
    if form == BOOLEAN:
        return copy_bytes(TRUE if value[0] == _LETTER_T else FALSE, out, at)
    if form == EXACT:
        return write_exact(value, out, at)
    if form == FLOAT:
        return write_float(value, out, at)
    if form == JSON:
        return _write_json(value, out, at)
    if form == SIZED:
        return copy_bytes(value, out, write_zigzag(np.int64(len(value)), out, at))
    if form == PREFIXED:
        return copy_bytes(value, out, write_varint(np.uint64(len(value)), out, at))
    if form == LONG:
        return write_zigzag(_parsed(value), out, at)
    if form == VARINT:
        return write_varint(np.uint64(_parsed(value)), out, at)
    out[at] = 1 if value[0] == _LETTER_T else 0  # BYTE
    return at + 1


@compiled()
def write_row(
    cells: Cells, columns: Ints, forms: Bytes, known: Flags, whole: bool, missing: Flags, row: Number,
    text: Bytes, ends: Ints, opening: Number, closing: Number, out: Bytes, at: Number,
) -> Number:  # fmt: skip
    """A row's columns; with `opening`, each text begins with a comma, and the first makes room for it."""
    start = at
    for index in range(len(columns)):
        column, texts = columns[index], TEXTS * index
        if not (whole or known[index]):
            at = constant(text, ends, texts + UNKNOWN, out, at)
            continue
        if len(missing) > 0 and missing[row, column]:
            at = constant(text, ends, texts + UNCHANGED, out, at)
            continue
        length = length_of(cells, column, row)
        if length < 0:
            at = constant(text, ends, texts + NULL, out, at)
            continue
        at = constant(text, ends, texts + VALUE, out, at)
        at = write_cell(forms[index], value_of(cells, column, row, length), out, at)
    if opening > 0:
        at = max(at, start + 1)
        out[start], out[at] = opening, closing
        at += 1
    return at


@compiled()
def bytes_of(cells: Cells, columns: Ints, row: Number) -> Number:
    size = np.int64(0)
    for column in columns:
        size += max(length_of(cells, column, row), 0)
    return size


@compiled("(int64[:,::1], int64, uint8)")
def write_column(cells: Cells, count: int, form: int) -> tuple[Any, ...]:
    """Each value of a column in its form, and where each ends; nulls are empty."""
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(24 * count + 64, np.uint8), 0
    for row in range(count):
        length = length_of(cells, 0, row)
        if length >= 0:
            out = roomy(out, at, LONGEST_ESCAPE * length + 64)
            at = write_cell(form, value_of(cells, 0, row, length), out, at)
        ends[row + 1] = at
    return ends, out[:at]


@compiled("(int64[:,::1], int32[::1], boolean[::1], uint8[::1], uint8[::1], uint8[::1])")
def join_lists(
    cells: Cells, starts: Indices, is_null: Flags, opening: Bytes, null: Bytes, closing: Bytes
) -> tuple[Any, ...]:
    """`[1,null,2]` of the elements `starts[n]:starts[n + 1]`, for each n that is not null; and the ends."""
    count = len(starts) - 1
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(64 * count + 64, np.uint8), 0
    for row in range(count):
        if not is_null[row]:
            out = roomy(out, at, len(opening) + len(closing))
            at = copy_bytes(opening, out, at)
            for element in range(starts[row], starts[row + 1]):
                length = length_of(cells, 0, element)
                out = roomy(out, at, max(length, len(null)) + len(closing) + 1)
                if element > starts[row]:
                    out[at] = _COMMA
                    at += 1
                if length < 0:
                    at = copy_bytes(null, out, at)
                elif length > 0:
                    at = copy_bytes(value_of(cells, 0, element, length), out, at)
            at = copy_bytes(closing, out, at)
        ends[row + 1] = at
    return ends, out[:at]

"""A compiled loop that writes rows as lines of JSON, from the bytes in which COPY sent their texts.

It reads values where libpq has put them and writes into buffers that grow: before a row is written there is
room for the most it can come to. It is compiled once, at import, and read from the cache afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.text_kernels import (
    LONGEST_ESCAPE,
    QUOTE,
    Bytes,
    Indices,
    Ints,
    Number,
    constant,
    copy_bytes,
    roomy,
    write_escaped,
)

#: The constant parts of a line, by number; after them one part per column, its name.
PREFIX, OPEN, VALUE, TAIL, CLOSE, COLUMNS = range(6)

_SLASH, _UNDERSCORE = (ord(letter) for letter in "/_")
_CELL_MAX = 8  # what a value or a part of a key needs beside its bytes
_NULL = np.frombuffer(b"null", np.uint8)


@compiled()
def _length(raw: Bytes, position: Number) -> Number:
    """Of the value at `position`: the number before it."""
    length = np.int64(0)
    for index in range(position - 4, position):
        length = (length << 8) | np.int64(raw[index])
    return length


@compiled()
def _write_key(raw: Bytes, positions: Indices, key: Ints, row: Number, out: Bytes, at: Number) -> Number:
    """`/"1"/_`: slashes in values are doubled, nulls are an underscore."""
    for column in key:
        out[at] = _SLASH
        at += 1
        position = np.int64(positions[column, row])
        if position < 0:
            out[at] = _UNDERSCORE
            at += 1
            continue
        out[at] = QUOTE
        at += 1
        for index in range(position, position + _length(raw, position)):
            out[at] = raw[index]
            at += 1
            if raw[index] == _SLASH:
                out[at] = _SLASH
                at += 1
        out[at] = QUOTE
        at += 1
    return at


@compiled("(uint8[::1], int32[:,:], int64, int64[::1], uint8[::1], int64[::1])")
def render_lines(
    raw: Bytes, positions: Indices, columns: int, key: Ints, text: Bytes, ends: Ints
) -> tuple[Any, ...]:
    """The ends and bytes of lines, then of keys. Of the fields of a row the first `columns` are values, those
    that `key` numbers make its key, and one more after all of these, if there is one, is headers as they are.
    """
    fields, rows = positions.shape
    constants = ends[-1]
    has_headers = fields > max(columns, key.max() + 1 if len(key) else 0)
    line_ends, key_ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    lines = np.empty(rows * (constants + 16 * fields), np.uint8)
    keys = np.empty(rows * (ends[PREFIX] + 24), np.uint8)
    at, key_at = np.int64(0), np.int64(0)
    for row in range(rows):
        size = np.int64(0)
        for field in range(fields):
            position = np.int64(positions[field, row])
            size += _CELL_MAX + (_length(raw, position) if position >= 0 else 0)
        keys = roomy(keys, key_at, ends[PREFIX] + 2 * size)
        start = key_at
        key_at = constant(text, ends, PREFIX, keys, key_at)
        key_at = _write_key(raw, positions, key, row, keys, key_at)
        key_ends[row] = key_at
        lines = roomy(lines, at, constants + LONGEST_ESCAPE * (size + key_at - start))
        at = write_escaped(keys[start:key_at], lines, constant(text, ends, OPEN, lines, at))
        at = constant(text, ends, VALUE, lines, at)
        for column in range(columns):
            at = constant(text, ends, COLUMNS + column, lines, at)
            position = np.int64(positions[column, row])
            if position < 0:
                at = copy_bytes(_NULL, lines, at)
                continue
            lines[at] = QUOTE
            at = write_escaped(raw[position : position + _length(raw, position)], lines, at + 1)
            lines[at] = QUOTE
            at += 1
        at = constant(text, ends, TAIL, lines, at)
        if has_headers and positions[fields - 1, row] >= 0:
            position = np.int64(positions[fields - 1, row])
            at = copy_bytes(raw[position : position + _length(raw, position)], lines, at)
        at = constant(text, ends, CLOSE, lines, at)
        line_ends[row] = at
    return line_ends, lines[:at], key_ends, keys[:key_at]


def warm_up() -> None:
    """Nothing is left to do: importing this module has compiled it or read it from the cache."""

"""Compiled loops over row images: where values are, then their texts with Arrow's offsets and validity bits.

1. `locate_values` walks the rows of one table and notes where each value starts and its length.
2. `render` writes one column's texts, with room for the longest that its type allows; `render_floats` hands
   numbers to Arrow, which writes the shortest text that reads back as the same number.

All of them run without the GIL.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.sources.absent_kernels import ABSENT
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.event_kernels import count_present
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Number, little_endian
from penstock.sources.mysql.binlog.value_kernels import write_value

Lengths = npt.NDArray[np.int32]

NULL = -1  # stands in for a length
_UPDATE, _DELETE, _INSERT = 117, 100, 105


@compiled()
def _locate_image(
    buffer: Bytes,
    at: Number,
    present_at: Number,
    present: Number,
    widths: Ints,
    row: int,
    offsets: Ints,
    lengths: Lengths,
) -> Number:
    """Note where the values of the image at `at` are; the position after it."""
    columns = len(widths)
    nulls_at = at
    at += (present + 7) >> 3
    index = 0
    for column in range(columns):
        if present != columns and not (buffer[present_at + (column >> 3)] >> np.uint8(column & 7)) & 1:
            lengths[column, row] = ABSENT
            continue
        is_null = (buffer[nulls_at + (index >> 3)] >> np.uint8(index & 7)) & 1
        index += 1
        if is_null:
            lengths[column, row] = NULL
            continue
        width = widths[column]
        if width < 0:
            prefix = -width
            width = little_endian(buffer, at, prefix)
            at += prefix
        offsets[column, row] = at
        lengths[column, row] = width
        at += width
    return at


@compiled()
def locate_values(
    buffer: Bytes,
    kind: Bytes,
    row_at: Ints,
    present_at: Ints,
    widths: Ints,
    new_offsets: Ints,
    new_lengths: Lengths,
    old_offsets: Ints,
    old_lengths: Lengths,
    old_kind: Bytes,
) -> tuple[int, int]:
    """Fill the matrices (column, row); how many values are absent in new rows, and in old ones.

    `old_kind` becomes n (there is none), f (all columns) or k (some). What is absent in the new image of an
    update is taken from the old one where that has it. With `old_offsets` of no rows the caller promises that
    there are inserts only.
    """
    columns = len(widths)
    bitmap = (columns + 7) >> 3
    absent = absent_old = 0
    event, first, second = np.int64(-1), 0, 0  # rows of one event have the same columns
    for row in range(len(kind)):
        at, present = row_at[row], present_at[row]
        if present != event:
            event = present
            first = count_present(buffer, present, columns)
            second = count_present(buffer, present + bitmap, columns) if kind[row] == _UPDATE else first
        if kind[row] == _INSERT:
            old_kind[row] = 110  # n
            _locate_image(buffer, at, present, first, widths, row, new_offsets, new_lengths)
            absent += columns - first
            if old_offsets.shape[1] > 0:
                for column in range(columns):
                    old_lengths[column, row] = NULL
            continue
        at = _locate_image(buffer, at, present, first, widths, row, old_offsets, old_lengths)
        absent_old += columns - first
        old_kind[row] = 107 if first < columns else 102  # k, f
        if kind[row] == _DELETE:
            for column in range(columns):
                new_lengths[column, row] = NULL
            continue
        _locate_image(buffer, at, present + bitmap, second, widths, row, new_offsets, new_lengths)
        for column in range(columns if second < columns else 0):
            if new_lengths[column, row] == ABSENT:
                new_offsets[column, row] = old_offsets[column, row]
                new_lengths[column, row] = old_lengths[column, row]
                absent += new_lengths[column, row] == ABSENT
    return absent, absent_old


@compiled()
def render(
    kind: int,
    buffer: Bytes,
    offsets: Ints,
    lengths: Lengths,
    length: int,
    scale: int,
    texts: Bytes,
    ends: Ints,
    codes: Ints,
) -> tuple[Ints, Bytes, Bytes, int]:
    """One column: offsets of texts (64 bits), their bytes, validity bits, how many are null."""
    rows = len(lengths)
    fixed = kind not in (values.UTF8, values.HEX, values.GEOMETRY) and not (
        values.SINGLE_BYTE <= kind <= values.UTF32
    )
    validity = np.zeros((rows + 7) // 8, np.uint8)
    nulls = 0
    size: Number = np.int64(0)
    for row in range(rows):
        if lengths[row] < 0:
            nulls += 1
        else:
            validity[row >> 3] |= np.uint8(1 << (row & 7))
            size += max(np.int64(lengths[row]), np.int64(length) if kind == values.HEX else np.int64(0))
    if fixed:
        size = (rows - nulls) * values.room(kind, length, ends)
    else:
        size = size * values.expansion(kind) + (16 * rows if kind == values.GEOMETRY else 0)
    out = np.empty(size, np.uint8)
    text_offsets = np.empty(rows + 1, np.int64)
    to = np.int64(0)
    for row in range(rows):
        text_offsets[row] = to
        width = np.int64(lengths[row])
        if kind == values.UTF8:
            at = offsets[row]
            for index in range(width):  # none for null: texts are short, and this is quicker than a call
                out[to + index] = buffer[at + index]
            to += max(width, np.int64(0))
        elif width >= 0:
            to = write_value(kind, buffer, offsets[row], width, length, scale, texts, ends, codes, out, to)
    text_offsets[rows] = to
    return text_offsets, out[:to], validity, nulls


@compiled()
def gather_floats(
    buffer: Bytes, offsets: Ints, lengths: Lengths, floats: Bytes, width: int
) -> tuple[Bytes, int]:
    """The bytes of numbers side by side, 0 for null; validity bits and how many are null."""
    validity = np.zeros((len(lengths) + 7) // 8, np.uint8)
    nulls = 0
    for row in range(len(lengths)):
        if lengths[row] < 0:
            nulls += 1
            for index in range(width):
                floats[row * width + index] = 0
            continue
        validity[row >> 3] |= np.uint8(1 << (row & 7))
        for index in range(width):
            floats[row * width + index] = buffer[offsets[row] + index]
    return validity, nulls


@compiled()
def gather_vectors(buffer: Bytes, offsets: Ints, lengths: Lengths) -> tuple[Bytes, Ints, Bytes, int]:
    """The bytes of all vectors' numbers, how many numbers there are up to each row, validity bits, nulls."""
    rows = len(lengths)
    ends = np.empty(rows, np.int64)
    validity = np.zeros((rows + 7) // 8, np.uint8)
    nulls, size = 0, np.int64(0)
    for row in range(rows):
        if lengths[row] < 0:
            nulls += 1
        else:
            validity[row >> 3] |= np.uint8(1 << (row & 7))
            size += np.int64(lengths[row]) & ~3
        ends[row] = size >> 2
    floats = np.empty(size, np.uint8)
    to = 0
    for row in range(rows):
        for index in range(np.int64(lengths[row]) & ~3 if lengths[row] > 0 else 0):
            floats[to] = buffer[offsets[row] + index]
            to += 1
    return floats, ends, validity, nulls


@compiled()
def join_vectors(ends: Ints, validity: Bytes, text_ends: Lengths, data: Bytes) -> tuple[Ints, Bytes]:
    """Texts of numbers, joined to texts of vectors: offsets and bytes."""
    rows = len(ends)
    out = np.empty(len(data) + len(text_ends) + 2 * rows, np.uint8)
    text_offsets = np.empty(rows + 1, np.int64)
    to, number = np.int64(0), np.int64(0)
    for row in range(rows):
        text_offsets[row] = to
        if not (validity[row >> 3] >> np.uint8(row & 7)) & 1:
            continue
        out[to] = 91  # [
        to += 1
        begin = number
        while number < ends[row]:
            if number > begin:
                out[to] = 44
                to += 1
            for at in range(text_ends[number], text_ends[number + 1]):
                out[to] = data[at]
                to += 1
            number += 1
        out[to] = 93
        to += 1
    text_offsets[rows] = to
    return text_offsets, out[:to]

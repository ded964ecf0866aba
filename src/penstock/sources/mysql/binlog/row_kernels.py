"""Compiled loops over row images: where values are; and numbers with a point, gathered for Arrow.

`locate_values` walks the rows of one table and notes where each value starts and its length; what they become
is the matter of `column_kernels`. Arrow writes the shortest text that reads back as the same number.
"""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.absent_kernels import ABSENT
from penstock.sources.mysql.binlog.event_kernels import count_present
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, Number, Places, little_endian
from penstock.word_kernels import address_of, load_word, store_half

NULL = -1  # stands in for a place
_UPDATE, _DELETE, _INSERT = 117, 100, 105


@compiled()
def _locate_image(
    buffer: Bytes,
    at: Number,
    present_at: Number,
    present: Number,
    widths: Ints,
    row: int,
    places: Places,
    lengths: Lengths,
) -> Number:
    """Note where the values of the image at `at` are; the position after it."""
    columns = len(widths)
    nulls_at = at
    at += (present + 7) >> 3
    variable = 0
    index = 0
    for column in range(columns):
        width = widths[column]
        if not (buffer[present_at + (column >> 3)] >> np.uint8(column & 7)) & 1:
            places[column, row] = ABSENT
            variable += width < 0
            continue
        is_null = (buffer[nulls_at + (index >> 3)] >> np.uint8(index & 7)) & 1
        index += 1
        if is_null:
            places[column, row] = NULL
            variable += width < 0
            continue
        if width < 0:
            prefix = -width
            width = little_endian(buffer, at, prefix)
            at += prefix
            lengths[variable, row] = width
            variable += 1
        places[column, row] = at
        at += width
    return at


@compiled()
def _locate_whole(
    source: Number,
    limit: Number,
    at: Number,
    widths: Number,
    columns: Number,
    place: Number,
    place_step: Number,
    length: Number,
    length_step: Number,
) -> Number:
    """The same for an image of all columns, of 64 at most, with places of four bytes; -1: near the end.

    By addresses: arrays as arguments of a function that is called for each row cost more than what it does.
    """
    if at > limit:
        return np.int64(-1)
    nulls = load_word(source + at)
    at += (columns + 7) >> 3
    for column in range(columns):
        width = np.int64(load_word(widths + 8 * column))
        if nulls >> np.uint64(column) & np.uint64(1):
            store_half(place, np.int32(NULL))
            place += place_step
            if width < 0:
                length += length_step
            continue
        if width < 0:
            if at > limit:
                return np.int64(-1)
            unused = np.uint64(64 + 8 * width)
            size = np.int64(load_word(source + at) << unused >> unused)
            at -= width
            width = size
            store_half(length, np.int32(size))
            length += length_step
        store_half(place, np.int32(at))
        place += place_step
        at += width
    return at


@compiled()
def _locate(
    buffer: Bytes,
    at: Number,
    present_at: Number,
    present: Number,
    widths: Ints,
    row: Number,
    places: Places,
    lengths: Lengths,
) -> Number:
    after: Number = np.int64(-1)
    if present == len(widths) and present <= 64 and places.itemsize == 4:
        after = _locate_whole(
            address_of(buffer),
            len(buffer) - 8,
            at,
            address_of(widths),
            present,
            address_of(places) + 4 * row,
            4 * places.shape[1],
            address_of(lengths) + 4 * row,
            4 * lengths.shape[1],
        )
    if after < 0:
        after = _locate_image(buffer, at, present_at, present, widths, row, places, lengths)
    return after


@compiled()
def locate_values(
    buffer: Bytes,
    kind: Bytes,
    row_at: Ints,
    present_at: Ints,
    widths: Ints,
    new_places: Places,
    new_lengths: Lengths,
    old_places: Places,
    old_lengths: Lengths,
    old_kind: Bytes,
) -> tuple[int, int]:
    """Fill the matrices (column, row); how many values are absent in new rows, and in old ones.

    Lengths are those of columns that have one, in their order. `old_kind` becomes n (there is none), f (all
    columns) or k (some). What is absent in the new image of an update is taken from the old one where that
    has it. With `old_places` of no rows the caller promises that there are inserts only.
    """
    columns = len(widths)
    bitmap = (columns + 7) >> 3
    absent = absent_old = 0
    event, first, second = np.int64(-1), 0, 0  # rows of one event have the same columns
    by_address = columns <= 64 and new_places.itemsize == 4
    source, limit, widths_at = address_of(buffer), len(buffer) - 8, address_of(widths)
    places_at, places_step = address_of(new_places), 4 * new_places.shape[1]
    lengths_at, lengths_step = address_of(new_lengths), 4 * new_lengths.shape[1]
    for row in range(len(kind)):
        at, present = row_at[row], present_at[row]
        if present != event:
            event = present
            first = count_present(buffer, present, columns)
            second = count_present(buffer, present + bitmap, columns) if kind[row] == _UPDATE else first
        if kind[row] == _INSERT:
            old_kind[row] = 110  # n
            if (
                not by_address
                or first != columns
                or (
                    _locate_whole(
                        source,
                        limit,
                        at,
                        widths_at,
                        columns,
                        places_at + 4 * row,
                        places_step,
                        lengths_at + 4 * row,
                        lengths_step,
                    )
                    < 0
                )
            ):
                _locate_image(buffer, at, present, first, widths, row, new_places, new_lengths)
            absent += columns - first
            if old_places.shape[1] > 0:
                for column in range(columns):
                    old_places[column, row] = NULL
            continue
        at = _locate(buffer, at, present, first, widths, row, old_places, old_lengths)
        absent_old += columns - first
        old_kind[row] = 107 if first < columns else 102  # k, f
        if kind[row] == _DELETE:
            for column in range(columns):
                new_places[column, row] = NULL
            continue
        _locate(buffer, at, present + bitmap, second, widths, row, new_places, new_lengths)
        variable = 0
        for column in range(columns if second < columns else 0):
            if new_places[column, row] == ABSENT:
                new_places[column, row] = old_places[column, row]
                if widths[column] < 0:
                    new_lengths[variable, row] = old_lengths[variable, row]
                absent += new_places[column, row] == ABSENT
            variable += widths[column] < 0
    return absent, absent_old


@compiled()
def gather_floats(buffer: Bytes, places: Places, floats: Bytes, width: int) -> None:
    """The bytes of numbers side by side, 0 for null."""
    for row in range(len(places)):
        for index in range(width):
            floats[row * width + index] = buffer[places[row] + index] if places[row] >= 0 else np.uint8(0)


@compiled()
def gather_vectors(buffer: Bytes, places: Places, lengths: Lengths) -> tuple[Bytes, Ints]:
    """The bytes of all vectors' numbers, and how many numbers there are up to each row."""
    rows = len(lengths)
    ends = np.empty(rows, np.int64)
    size = np.int64(0)
    for row in range(rows):
        if places[row] >= 0:
            size += np.int64(lengths[row]) & ~3
        ends[row] = size >> 2
    floats = np.empty(size, np.uint8)
    to = 0
    for row in range(rows):
        if places[row] >= 0:
            for index in range(np.int64(lengths[row]) & ~3):
                floats[to] = buffer[places[row] + index]
                to += 1
    return floats, ends


@compiled()
def join_vectors(ends: Ints, places: Places, text_ends: Lengths, data: Bytes) -> tuple[Ints, Bytes]:
    """Texts of numbers, joined to texts of vectors: offsets and bytes."""
    rows = len(ends)
    out = np.empty(len(data) + len(text_ends) + 2 * rows, np.uint8)
    text_offsets = np.empty(rows + 1, np.int64)
    to, number = np.int64(0), np.int64(0)
    for row in range(rows):
        text_offsets[row] = to
        if places[row] < 0:
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

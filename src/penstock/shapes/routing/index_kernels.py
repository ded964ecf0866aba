"""Compiled loops of the router: which shapes want a value, and what that makes of a change.

The index is a table of entries in chains by their hash. A key has one or more parts, each the canonical text
of a column's value. What is looked up is never copied: the canonical text of a value is its beginning, for
numerics without the zeros at the end of the fraction. Entries are compared in full: no answer depends on a
hash. The hash begins with a random number, so that nobody can choose values that share a chain.

Measured per look-up of one value: about 30 ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from penstock.compiling import compiled
from penstock.shapes.routing.program_kernels import (
    BYTES_IN_ARRAY,
    DELETED,
    INSERTED,
    INTS,
    LENGTHS,
    UPDATED,
    Number,
    inlined,
    readonly,
)

_LENGTH_MATRIX, _MATRIX = readonly(types.int32, 2), readonly(types.int64, 2)
_N, _U, _L = (ord(letter) for letter in "NUL")
_tuple_of: Any = types.Tuple
_MULTIPLIER = 1_099_511_628_211
_POINT, _ZERO, _QUOTE, _ESCAPE, _OPEN, _CLOSE, _COMMA = (ord(letter) for letter in '.0"\\{},')


@inlined
def _hashed(state: Number, data: npt.NDArray[np.uint8], at: Number, length: Number) -> Number:
    for index in range(at, at + length):
        state = (state ^ np.int64(data[index])) * _MULTIPLIER
    state = (state ^ length) * _MULTIPLIER
    return state ^ (state >> 29)


@inlined
def _canonical_length(data: npt.NDArray[np.uint8], at: Number, length: Number) -> Number:
    """Of a numeric, without zeros that do not count."""
    for index in range(at, at + length):
        if data[index] == _POINT:
            while data[at + length - 1] == _ZERO:
                length -= 1
            return length - 1 if data[at + length - 1] == _POINT else length
    return length


@compiled(
    types.void(
        types.int64, types.int64, types.int64, INTS, _LENGTH_MATRIX, BYTES_IN_ARRAY,
        types.int64[::1], types.int32[::1], types.int32[::1],
    )
)  # fmt: skip
def chain(
    first: int, last: int, seed: int, key_at: npt.NDArray[np.int64], key_lengths: npt.NDArray[np.int32],
    keys: npt.NDArray[np.uint8], hashes: npt.NDArray[np.int64], following: npt.NDArray[np.int32],
    heads: npt.NDArray[np.int32],
) -> None:  # fmt: skip
    """Put the entries `first` to `last` (exclusive) into their chains."""
    for entry in range(first, last):
        state, at = seed, key_at[entry]
        for part in range(key_lengths.shape[1]):
            state = _hashed(state, keys, at, key_lengths[entry, part])
            at += key_lengths[entry, part]
        hashes[entry] = state
        head = state & (len(heads) - 1)
        following[entry] = heads[head]
        heads[head] = entry


@inlined
def _is_key(
    key: Number, key_lengths: npt.NDArray[np.int32], entry: Number, keys: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8],
) -> bool:  # fmt: skip
    for part in range(len(starts)):
        if key_lengths[entry, part] != lengths[part]:
            return False
        for index in range(lengths[part]):
            if keys[key + index] != data[starts[part] + index]:
                return False
        key += lengths[part]
    return True


@compiled(
    types.int64(
        LENGTHS, _MATRIX, _LENGTH_MATRIX, BYTES_IN_ARRAY, readonly(types.boolean), types.int64,
        INTS, _LENGTH_MATRIX, BYTES_IN_ARRAY, INTS, LENGTHS, LENGTHS, LENGTHS,
        types.int32[::1], types.int32[::1],
    )
)  # fmt: skip
def look_up(
    chosen: npt.NDArray[np.int32], values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8], is_numeric: npt.NDArray[np.bool_], seed: int,
    key_at: npt.NDArray[np.int64], key_lengths: npt.NDArray[np.int32], keys: npt.NDArray[np.uint8],
    hashes: npt.NDArray[np.int64], following: npt.NDArray[np.int32], heads: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32], found_slot: npt.NDArray[np.int32], found_item: npt.NDArray[np.int32],
) -> Any:  # fmt: skip
    """Slots that want the `chosen` items; how many there are, of which as many are written as have room."""
    parts = len(is_numeric)
    starts, cut = np.empty(parts, np.int64), np.empty(parts, np.int32)
    found = 0
    for item in chosen:
        state = seed
        is_known = True
        for part in range(parts):
            length = lengths[part, item]
            if length < 0:
                is_known = False
                break
            start = values[part, item]
            if is_numeric[part]:
                length = _canonical_length(data, start, length)
            starts[part], cut[part] = start, length
            state = _hashed(state, data, start, cut[part])
        if not is_known:
            continue
        entry = heads[state & (len(heads) - 1)]
        while entry >= 0:
            if (
                hashes[entry] == state
                and slots[entry] >= 0
                and _is_key(key_at[entry], key_lengths, entry, keys, starts, cut, data)
            ):
                if found < len(found_slot):
                    found_slot[found], found_item[found] = slots[entry], item
                found += 1
            entry = following[entry]
    return found


@inlined
def _is_null(text: npt.NDArray[np.uint8], begin: Number, end: Number) -> Any:
    if end - begin != 4 or text[begin] != _N or text[begin + 1] != _U:
        return False
    return text[begin + 2] == _L and text[begin + 3] == _L


@compiled(
    _tuple_of((types.int32[::1], types.int64[::1], types.int32[::1], types.uint8[::1]))(
        LENGTHS, INTS, LENGTHS, BYTES_IN_ARRAY
    )
)
def elements(
    chosen: npt.NDArray[np.int32], values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
) -> Any:  # fmt: skip
    """The elements of arrays as Postgres prints them, of all dimensions, without the NULLs: whose each is,
    where its text starts, how long it is, and the texts."""
    size = 0
    for item in chosen:
        size += max(lengths[item], 0)
    owner, start = np.empty(size, np.int32), np.empty(size, np.int64)
    length, text = np.empty(size, np.int32), np.empty(size, np.uint8)
    count, used = 0, np.int64(0)
    for item in chosen:
        at, end = values[item], values[item] + max(lengths[item], 0)
        while at < end and data[at] != _OPEN:  # bounds, where they do not begin at 1
            at += 1
        begin, is_quoted, in_quotes = used, False, False
        while at < end:
            letter = data[at]
            at += 1
            if in_quotes:
                if letter == _QUOTE:
                    in_quotes = False
                    continue
                if letter == _ESCAPE:
                    letter = data[at]
                    at += 1
            elif letter == _QUOTE:
                in_quotes = is_quoted = True
                continue
            elif letter in (_OPEN, _CLOSE, _COMMA):
                if is_quoted or (used > begin and not _is_null(text, begin, used)):
                    owner[count], start[count], length[count] = item, begin, used - begin
                    count += 1
                begin, is_quoted = used, False
                continue
            text[used] = letter
            used += 1
    return owner[:count], start[:count], length[:count], text[:used]


@compiled(_tuple_of((types.int32[::1], types.int32[::1], types.uint8[::1]))(LENGTHS, LENGTHS, types.int64))
def merge_images(slot: npt.NDArray[np.int32], image: npt.NDArray[np.int32], rows: int) -> Any:
    """What the images that shapes want, in any order and maybe several times, make of the changes."""
    pairs = np.empty(len(slot), np.int64)
    for index in range(len(slot)):
        # The old image of a row comes right after the new one.
        row = np.int64(image[index])
        place = 2 * row if row < rows else 2 * (row - rows) + 1
        pairs[index] = (np.int64(slot[index]) << 32) | place
    pairs.sort()
    slots, found = np.empty(len(pairs), np.int32), np.empty(len(pairs), np.int32)
    actions = np.empty(len(pairs), np.uint8)
    count = 0
    previous = np.int64(-1)
    for pair in pairs:
        if pair == previous:
            continue
        if previous >= 0 and pair >> 1 == previous >> 1:
            actions[count - 1] = UPDATED
        else:
            slots[count], found[count] = pair >> 32, (pair & 0xFFFFFFFF) >> 1
            actions[count] = DELETED if pair & 1 else INSERTED
            count += 1
        previous = pair
    return slots[:count], found[:count], actions[:count]


def warm_up() -> None:
    """Importing has compiled, or loaded, everything."""

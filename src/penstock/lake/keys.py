"""Finding keys among keys, exactly: which rows of a table hold one of a million keys.

Every column of a key becomes 64-bit words (integers, days, times, short decimals, floats by their bits)
or stays an Arrow array that Arrow's own hash compares; columns are folded into one number pair by pair,
each pair numbered anew, so that a composite key is compared in full and never by a hash of itself.

Floats are equal as Postgres has it: -0 is 0, NaN is NaN. A null never matches.

Cost of a million 64-bit keys looked up among a million: under 0.1 CPU-seconds.
"""

from __future__ import annotations

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.compiling import read_only

Words = NDArray[np.int64]

NOT_FOUND = -1
_WORD_DIGITS = 18  # decimals of so many digits fit in 64 bits


class KeySet:
    """Distinct keys to look for; the columns are taken in the order of `keys`."""

    def __init__(self, keys: pa.Table) -> None:
        self.names = keys.column_names
        whole = _without_nulls(keys)
        self._columns = [
            _ColumnCodes(flat(column)) for column in (keys if whole is None else keys.take(whole)).columns
        ]
        self._pairs: list[_WordCodes] = []
        codes = self._columns[0].codes
        for column in self._columns[1:]:
            self._pairs.append(_WordCodes(codes * column.count + column.codes))
            codes = self._pairs[-1].codes
        #: The number of each key: equal keys have equal numbers, counted from 0 in order of appearance.
        self.codes = codes
        self.count = int(codes.max()) + 1 if codes.size else 0
        self._position = np.zeros(self.count, np.int64)
        self._position[codes[::-1]] = np.arange(codes.size - 1, -1, -1)
        if whole is not None:
            self._position = whole.to_numpy()[self._position]

    @property
    def first_positions(self) -> Words:
        """For each number, where in `keys` it appears first."""
        return self._position

    def contains(self, table: pa.Table) -> NDArray[np.bool_]:
        """Whether each row's key (columns of the same names) is in the set."""
        found: NDArray[np.bool_] = self.index(table) != NOT_FOUND
        return found

    def index(self, table: pa.Table) -> Words:
        """For each row, the position of its key in `keys`, or -1."""
        if not self.count:
            return np.full(table.num_rows, NOT_FOUND, np.int64)
        columns = [flat(table.column(name)) for name in self.names]
        codes = self._columns[0].find(columns[0])
        for known, pairs, column in zip(self._columns[1:], self._pairs, columns[1:], strict=True):
            others = known.find(column)
            missing = (codes == NOT_FOUND) | (others == NOT_FOUND)
            codes = pairs.find(codes * known.count + others)
            codes[missing] = NOT_FOUND
        return np.where(codes == NOT_FOUND, NOT_FOUND, self._position[codes])


def distinct(keys: pa.Table) -> pa.Table:
    """The keys without nulls and repetitions, in order of first appearance."""
    return keys.take(pa.array(KeySet(keys).first_positions))


def _without_nulls(keys: pa.Table) -> pa.Array | None:
    """Positions of the rows without nulls; None if that is all of them."""
    if not any(column.null_count for column in keys.columns):
        return None
    valid = [column.is_valid().to_numpy() for column in keys.columns]
    return pa.array(np.flatnonzero(np.logical_and.reduce(valid)))


def flat(column: pa.ChunkedArray) -> pa.Array:
    """One contiguous array: taking rows from chunks one by one costs several times as much."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


class _ColumnCodes:
    """One column's values, numbered."""

    def __init__(self, values: pa.Array) -> None:
        assert values.null_count == 0, "a key has no nulls"
        self._type = values.type
        words = words_of(values)
        self._words = None if words is None else _WordCodes(words)
        self.codes: Words
        self.count: int
        if self._words is not None:
            self.codes, self.count = self._words.codes, self._words.count
        else:
            encoded = values.dictionary_encode()
            self._values = encoded.dictionary
            self.codes = encoded.indices.to_numpy().astype(np.int64)
            self.count = len(encoded.dictionary)

    def find(self, values: pa.Array) -> Words:
        if values.type != self._type:
            values = values.cast(self._type)
        if self._words is None:
            found = pc.index_in(values, value_set=self._values, skip_nulls=True)
            numbers: Words = found.fill_null(NOT_FOUND).to_numpy().astype(np.int64)
            return numbers
        words = words_of(values)
        assert words is not None
        codes = self._words.find(words)
        if values.null_count:
            codes[values.is_null().to_numpy(zero_copy_only=False)] = NOT_FOUND
        return codes


class _WordCodes:
    """64-bit words, numbered in order of appearance: by an array where they lie close, else by a hash."""

    def __init__(self, words: Words) -> None:
        self.codes: Words
        self.count: int
        words = read_only(words)
        self._least = int(words.min()) if words.size else 0
        width = int(words.max()) - self._least + 1 if words.size else 0
        self._close = width <= 4 * words.size + 1024
        if self._close:
            self._slots = np.full(width, NOT_FOUND, np.int32)
            self.codes, self.count = _number_close(words, self._least, self._slots)
        else:
            bits = max(4, int(2 * words.size - 1).bit_length())
            self._hashed = np.zeros(1 << bits, np.int64)
            self._slots = np.full(1 << bits, NOT_FOUND, np.int32)
            self.codes, self.count = _number(words, self._hashed, self._slots, 64 - bits)
            self._shift = 64 - bits

    def find(self, words: Words) -> Words:
        words = read_only(words)
        if self._close:
            return _find_close(words, self._least, self._slots)
        return _find(words, self._hashed, self._slots, self._shift)


def words_of(values: pa.Array) -> Words | None:
    """The values as 64-bit words, equal where the values are (anything where null); None: they are longer."""
    kind = values.type
    if pa.types.is_floating(kind):
        floats = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # makes 0 of -0
        return np.where(np.isnan(floats), np.nan, floats).view(np.int64)
    if pa.types.is_decimal128(kind) and kind.precision <= _WORD_DIGITS:
        pairs = np.frombuffer(values.buffers()[1], np.int64)
        return pairs[2 * values.offset : 2 * (values.offset + len(values)) : 2].copy()
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_integer(kind) or kind == pa.uint64():
        return None
    words: Words = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return words


@numba.njit(cache=True, nogil=True)
def _number_close(words: Words, least: int, slots: NDArray[np.int32]) -> tuple[Words, int]:
    codes = np.empty(words.size, np.int64)
    count = 0
    for i in range(words.size):
        slot = words[i] - least
        if slots[slot] < 0:
            slots[slot] = count
            count += 1
        codes[i] = slots[slot]
    return codes, count


@numba.njit(cache=True, nogil=True)
def _find_close(words: Words, least: int, slots: NDArray[np.int32]) -> Words:
    codes = np.empty(words.size, np.int64)
    greatest = least + (slots.size - 1)
    for i in range(words.size):
        # Compared before subtracting: the difference of two far words does not fit in 64 bits.
        codes[i] = slots[words[i] - least] if least <= words[i] <= greatest else -1
    return codes


@numba.njit(cache=True, nogil=True, inline="always")
def _first_slot(word: np.int64, shift: int) -> np.int64:
    return np.int64((np.uint64(word) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(shift))


@numba.njit(cache=True, nogil=True)
def _number(words: Words, hashed: Words, slots: NDArray[np.int32], shift: int) -> tuple[Words, int]:
    codes = np.empty(words.size, np.int64)
    last = slots.size - 1
    count = 0
    for i in range(words.size):
        slot = _first_slot(words[i], shift)
        while slots[slot] >= 0 and hashed[slot] != words[i]:
            slot = (slot + 1) & last
        if slots[slot] < 0:
            hashed[slot] = words[i]
            slots[slot] = count
            count += 1
        codes[i] = slots[slot]
    return codes, count


@numba.njit(cache=True, nogil=True)
def _find(words: Words, hashed: Words, slots: NDArray[np.int32], shift: int) -> Words:
    codes = np.empty(words.size, np.int64)
    last = slots.size - 1
    for i in range(words.size):
        slot = _first_slot(words[i], shift)
        while slots[slot] >= 0 and hashed[slot] != words[i]:
            slot = (slot + 1) & last
        codes[i] = slots[slot]
    return codes

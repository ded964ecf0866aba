"""Where each key of a data file is: sorted keys and row positions, memory-mapped, so that finding the rows
that a batch touches costs by the batch and not by the table.

A data file never changes, so its index is written once, beside the table, by the task that writes the file
or by the first that asks for it. It is a cache: whoever finds it missing or cut short builds it again from
the file's key columns.

A key is 64 bits if it is one column of numbers, dates or times (its own bits, exact), 128 bits if it is one
column of UUIDs (exact); any other key is its SipHash of 128 bits under a secret of the table's own: two keys
of a table of 10^12 rows share one with a chance of 10^-15, and nobody can choose keys that do.

Both sides are sorted, so a lookup walks forward with growing steps: for a million random keys among ten
million it reads the keys about once, in order. Cost of 100,000 keys among a million: 10 ms; building the
index of a million 64-bit keys: 0.15 CPU-seconds.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.compiling import compiled, read_only
from penstock.lake.keys import flat, words_of
from penstock.sip_round import sip_round

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]

_MAGIC = b"PSTKIDX2"
_HEADER = struct.Struct("<8sQQQQ")  # magic, rows of the file, keys, words per key, check of the secret
_SIGN = np.uint64(1 << 63)
_UUID_TEXT = 36


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the keys of a table become words; the same for every file of the table."""

    secret: bytes
    exact_uuid: bool = False
    types: tuple[str, ...] = ()  # of the key's columns

    @property
    def check(self) -> int:
        """Tells indexes that were made by another secret or of other types apart."""
        form = repr((self.secret, self.exact_uuid, self.types)).encode()
        return int.from_bytes(hashlib.sha256(form).digest()[:8], "little")


@dataclass(frozen=True, slots=True)
class KeyWords:
    """Keys as numbers, in ascending order of `high`; `low` is None where 64 bits are the whole key."""

    high: Hashes
    low: Hashes | None
    position: Positions  # of each key in what it was made of; keys with a null are left out

    def __len__(self) -> int:
        return int(self.high.size)


def key_words(keys: pa.Table, form: KeyForm) -> KeyWords:
    """The keys of a table's rows (its key columns, in order), sorted."""
    columns = [flat(column) for column in keys.columns]
    whole = _rows_without_nulls(columns)
    if whole is not None:
        columns = [column.take(pa.array(whole)) for column in columns]
    high, low = _words(columns, form)
    order = np.arange(high.size) if bool(np.all(high[:-1] <= high[1:])) else np.argsort(high)
    position = order.astype(np.int64) if whole is None else whole[order]
    return KeyWords(high[order], None if low is None else low[order], position)


def no_keys() -> KeyWords:
    return KeyWords(np.empty(0, np.uint64), None, np.empty(0, np.int64))


def find(wanted: KeyWords, held: KeyWords) -> tuple[Positions, Positions]:
    """For every row of `held` whose key is wanted: the key's position in `wanted`, and its own."""
    low_wanted, low_held = _lows(wanted), _lows(held)
    if len(wanted) <= len(held):
        first, second = _walk(wanted.high, low_wanted, held.high, low_held)
    else:
        second, first = _walk(held.high, low_held, wanted.high, low_wanted)
    return wanted.position[first], np.asarray(held.position)[second].astype(np.int64)


def write_index(path: Path, words: KeyWords, form: KeyForm, rows: int) -> None:
    """The index of a file of so many rows, whole or not at all under its name.

    A reader may come at any moment, and so may another writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(draft, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, rows, len(words), 1 if words.low is None else 2, form.check))
        file.write(words.high.tobytes())
        if words.low is not None:
            file.write(words.low.tobytes())
        file.write(words.position.astype(np.uint32).tobytes())
        file.flush()
        os.fsync(file.fileno())  # a name must not outlive a power cut that its content does not
    os.replace(draft, path)


def open_index(path: Path, form: KeyForm, rows: int) -> KeyWords | None:
    """The index as a map of its file; None if it is missing, not whole, of another form or other rows."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except (FileNotFoundError, ValueError):
        return None
    if content.size < _HEADER.size:
        return None
    magic, of_rows, count, width, check = _HEADER.unpack(content[: _HEADER.size].tobytes())
    size = _HEADER.size + count * (8 * width + 4)
    if (magic, check, of_rows, content.size) != (_MAGIC, form.check, rows, size):
        return None
    at = _HEADER.size
    high: Any = content[at : at + 8 * count].view(np.uint64)
    low: Any = content[at + 8 * count : at + 16 * count].view(np.uint64) if width == 2 else None
    return KeyWords(high, low, content[size - 4 * count :].view(np.uint32))


def _lows(words: KeyWords) -> Hashes:
    return read_only(np.empty(0, np.uint64) if words.low is None else words.low)


def _rows_without_nulls(columns: list[pa.Array]) -> Positions | None:
    if not any(column.null_count for column in columns):
        return None
    valid = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns]
    return np.flatnonzero(np.logical_and.reduce(valid))


def _words(columns: list[pa.Array], form: KeyForm) -> tuple[Hashes, Hashes | None]:
    if len(columns) == 1:
        words = words_of(columns[0])
        if words is not None:
            return words.view(np.uint64) ^ _SIGN, None
        if form.exact_uuid:
            return _uuid_words(columns[0])
    count = len(columns[0])
    secret = np.frombuffer(form.secret, np.uint64)
    high, low = np.full(count, secret[0]), np.full(count, secret[1])
    for column in columns:
        offsets, data = _bytes(column)
        # The hash so far is the next column's secret: ("a", "bc") and ("ab", "c") differ.
        _siphash(read_only(data), read_only(offsets), high, low)
    return high, low


def _bytes(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Each value as bytes that are equal where the values are."""
    words = words_of(column)
    if words is not None:
        return np.arange(0, 8 * (len(column) + 1), 8), np.ascontiguousarray(words).view(np.uint8)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    binary = column.cast(pa.large_binary())
    _, offsets, data = binary.buffers()
    at = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    return at, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _uuid_words(column: pa.Array) -> tuple[Hashes, Hashes]:
    offsets, data = _bytes(column)
    digits = read_only(data[offsets[0] : offsets[-1]])
    if not bool(np.all(np.diff(offsets) == _UUID_TEXT)):
        raise ValueError("not all of these are UUIDs")
    return _parse_uuids(digits, len(column))


@compiled()
def _parse_uuids(text: NDArray[np.uint8], count: int) -> tuple[Hashes, Hashes]:
    high = np.empty(count, np.uint64)
    low = np.empty(count, np.uint64)
    for i in range(count):
        first = np.uint64(0)
        second = np.uint64(0)
        digits = 0
        for j in range(36):
            character = text[36 * i + j]
            if character == 45:
                continue
            value = character - 48 if character < 58 else (character | 32) - 87
            if digits < 16:
                first = (first << np.uint64(4)) | np.uint64(value)
            else:
                second = (second << np.uint64(4)) | np.uint64(value)
            digits += 1
        high[i] = first
        low[i] = second
    return high, low


@compiled()
def _rounds(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64, count: int
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    for _ in range(count):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return v0, v1, v2, v3


@compiled()
def _siphash(data: NDArray[np.uint8], offsets: NDArray[np.int64], high: Hashes, low: Hashes) -> None:
    """SipHash-2-4 with 128 bits of each value, under (`high`, `low`), in their place."""
    for i in range(high.size):
        start, end = offsets[i], offsets[i + 1]
        k0, k1 = high[i], low[i]
        v0 = k0 ^ np.uint64(0x736F6D6570736575)
        v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
        v2 = k0 ^ np.uint64(0x6C7967656E657261)
        v3 = k1 ^ np.uint64(0x7465646279746573)
        length = end - start
        whole = start + (length // 8) * 8
        for at in range(start, whole, 8):
            word = np.uint64(0)
            for j in range(8):
                word |= np.uint64(data[at + j]) << np.uint64(8 * j)
            v3 ^= word
            v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
            v0 ^= word
        word = np.uint64(length & 0xFF) << np.uint64(56)
        for j in range(end - whole):
            word |= np.uint64(data[whole + j]) << np.uint64(8 * j)
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= word
        v2 ^= np.uint64(0xEE)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
        high[i] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= np.uint64(0xDD)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
        low[i] = v0 ^ v1 ^ v2 ^ v3


@compiled()
def _lower_bound(high: Hashes, wanted: np.uint64, start: int) -> int:
    """The first place from `start` on that is not less: by steps that double, then by halves."""
    step = 1
    below = start
    above = start
    while above < high.size and high[above] < wanted:
        below = above + 1
        above += step
        step *= 2
    above = min(above, high.size)
    while below < above:
        middle = (below + above) // 2
        if high[middle] < wanted:
            below = middle + 1
        else:
            above = middle
    return below


@compiled()
def _walk(few: Hashes, few_low: Hashes, many: Hashes, many_low: Hashes) -> tuple[Positions, Positions]:
    """Pairs of places with equal keys; both are in ascending order of their high words."""
    capacity = max(16, few.size)
    left = np.empty(capacity, np.int64)
    right = np.empty(capacity, np.int64)
    found = 0
    at = 0
    for i in range(few.size):
        at = _lower_bound(many, few[i], at)
        j = at
        while j < many.size and many[j] == few[i]:
            if few_low.size == 0 or few_low[i] == many_low[j]:
                if found == left.size:
                    left = np.concatenate((left, np.empty(left.size, np.int64)))
                    right = np.concatenate((right, np.empty(right.size, np.int64)))
                left[found] = i
                right[found] = j
                found += 1
            j += 1
    return left[:found], right[:found]

"""One form for a value, whichever side it comes from, and the hash of a row in that form.

Both sides are brought to the column's Arrow type first: the source's own words by the casts that the log goes
through (`values.text_casts`), its binary form by those of a load, the table's by reading its files. In that
type every value has one spelling:

- whole numbers, truth values, days, times and instants: their number, as a word of 64 bits. An instant is
  counted from the epoch in UTC, so that one that was shifted by a time zone is another number;
- decimals: their digits as a number at the column's scale, of one word or two;
- floats: their bits as a double, exact; every NaN is the same, and -0 is not 0, as in their text;
- text and bytes: themselves behind their length, with no folding of case, blanks or accents;
- lists: their length, then each element in this form; an empty list is not a null, nor is an empty text.

Two values are equal in this form exactly if the source prints them alike, for types that a table holds by
value; what a table holds as text is that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.compiling import read_only
from penstock.verify import sip_kernels as kernels
from penstock.verify.sip_kernels import Flags, Hashes, States

_WORD_DIGITS = 18  # decimals of so many digits fit in 64 bits
_NO_NULLS = read_only(np.zeros(0, np.bool_))
Secret = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowHashes:
    """128 bits each, of the rows' keys and of the whole rows."""

    key_high: Hashes
    key_low: Hashes
    row_high: Hashes
    row_low: Hashes

    def __len__(self) -> int:
        return int(self.key_high.size)


def hash_rows(columns: Sequence[pa.Array], key_width: int, secret: Secret) -> RowHashes:
    """`columns`: in one order on both sides, those of the key first."""
    states = _begin(len(columns[0]), secret)
    for column in columns[:key_width]:
        _absorb(column, states, secret)
    key_high, key_low = kernels.finish(states)
    for column in columns[key_width:]:
        _absorb(column, states, secret)
    return RowHashes(key_high, key_low, *kernels.finish(states))


def hash_values(column: pa.Array, secret: Secret) -> Hashes:
    """64 bits of each value, to tell which columns of two rows differ."""
    return _hashes(column, secret)[0]


def _hashes(column: pa.Array, secret: Secret) -> tuple[Hashes, Hashes]:
    states = _begin(len(column), secret)
    _absorb(column, states, secret)
    found: tuple[Hashes, Hashes] = kernels.finish(states)
    return found


def _begin(rows: int, secret: Secret) -> States:
    states: States = kernels.begin(rows, np.uint64(secret[0]), np.uint64(secret[1]))
    return states


def _absorb(column: pa.Array, states: States, secret: Secret) -> None:
    kind, null = column.type, _nulls(column)
    if pa.types.is_list(kind):
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        if null.size:  # a null may have a range of its own in Arrow
            column = column.take(pa.array(np.arange(len(column)), mask=null))
            offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        high, low = _hashes(elements, secret)
        kernels.absorb_lists(read_only(offsets), high, low, null, states)
    elif _is_bytes(kind):
        offsets, data = _bytes(column)
        kernels.absorb_bytes(read_only(offsets), read_only(data), null, states)
    else:
        for words in _words(column):
            kernels.absorb_words(read_only(words), null, states)


def _nulls(column: pa.Array) -> Flags:
    if not column.null_count:
        return _NO_NULLS
    null: Flags = read_only(column.is_null().to_numpy(zero_copy_only=False))
    return null


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _bytes(column: pa.Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], kernels.Bytes]:
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    first, count = column.offset, len(column) + 1
    if offsets is None or not offsets.size:  # Arrow lets an array without rows go without
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    at = np.frombuffer(offsets, np.int64 if wide else np.int32)[first : first + count].astype(np.int64)
    return at, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def _words(column: pa.Array) -> list[Hashes]:
    kind = column.type
    if pa.types.is_floating(kind):
        floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return [np.where(np.isnan(floats), np.nan, floats).view(np.uint64)]
    if pa.types.is_decimal128(kind):
        pairs = np.frombuffer(column.buffers()[1], np.uint64)
        pairs = pairs[2 * column.offset : 2 * (column.offset + len(column))]
        halves = [np.ascontiguousarray(pairs[half::2]) for half in (0, 1)]
        return halves[:1] if kind.precision <= _WORD_DIGITS else halves
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        assert kind.unit == "us", "times are held in microseconds"
        column = column.view(pa.int64())
    else:
        assert pa.types.is_integer(kind), f"no table of ours holds {kind}"
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return [numbers.astype(np.int64, copy=False).view(np.uint64)]


def warm_up() -> None:
    """Have all of it compiled."""
    texts, lists = pa.array(["a", None]), pa.array([["a"], None])
    hashes = hash_rows([pa.array([1, None]), texts, lists], 1, (1, 2))
    rows, sums = np.zeros(64, np.int64), np.zeros(64, np.uint64)
    kernels.add_rows(hashes.key_high, hashes.row_high, hashes.row_low, rows, sums, sums.copy())

"""Cuts a range of changes into parts by key, so that each can be folded by itself.

A transaction of any size is folded in bounded memory, and on all cores: each task takes the changes whose
key falls into its bucket. Keys are hashed as the text the source sent, before anything is cast; a float's -0
as 0, which is the same key. An
update that moves a row from one bucket to another is a delete in the first and an insert in the second;
one that lacks values as well (unchanged TOAST) would need the other bucket's row, and makes the range
indivisible. A truncate belongs to every bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lake.change_set import DELETE, INSERT, TRUNCATE, UPDATE, Changes, Flags, Operations
from penstock.lake.keys import flat

Hashes = NDArray[np.uint64]

_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)  # of the 64-bit FNV-1a hash, which is short and spreads well
_PRIME = np.uint64(0x100000001B3)
_MINUS, _ZERO = ord("-"), ord("0")


class IndivisibleError(Exception):
    """A row moves between buckets and lacks values: the range must be folded as a whole."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket `index` of `count`."""

    index: int = 0
    count: int = 1

    def membership(self, text: pa.Table, old: pa.Table, key: Sequence[str], op: Operations) -> Membership:
        """Which changes have their new, and which their old key here."""
        size = len(op)
        if self.count == 1:
            everything = np.ones(size, np.bool_)
            return Membership(everything, everything, op)
        new_key = [pc.coalesce(text.column(name), old.column(name)) for name in key]
        old_key = [pc.coalesce(old.column(name), text.column(name)) for name in key]
        return Membership(self._holds(new_key, size), self._holds(old_key, size), op)

    def _holds(self, columns: Sequence[pa.ChunkedArray], size: int) -> Flags:
        hashes = np.full(size, _OFFSET_BASIS, np.uint64)
        for column in columns:
            array = flat(column)
            offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + size + 1]
            data = array.buffers()[2]
            _hash_text(offsets, np.frombuffer(data or b"\0", np.uint8), hashes)
        held: Flags = hashes % np.uint64(self.count) == self.index
        return held


WHOLE = Bucket()


@dataclass(frozen=True, slots=True)
class Membership:
    new: Flags
    old: Flags
    op: Operations

    @property
    def any(self) -> Flags:
        """Changes that this bucket sees."""
        by_new, by_old = self.op == INSERT, self.op == DELETE
        held: Flags = np.where(by_new, self.new, np.where(by_old, self.old, self.new | self.old))
        held |= self.op == TRUNCATE
        return held

    def halve_moves(self, changes: Changes) -> Changes:
        """`changes` are those of `any`; a row that comes from, or goes to, elsewhere is half a move here."""
        seen = self.any
        new, old = self.new[seen], self.old[seen]
        halves = (changes.op == UPDATE) & (new != old)
        if not halves.any():
            return changes
        if changes.unchanged is not None and (halves & _has_names(changes.unchanged)).any():
            raise IndivisibleError
        op, op_index = changes.op.copy(), changes.op_index.copy()
        op[halves & old] = DELETE
        op[halves & new] = INSERT
        op_index[halves & new] += 1
        return changes.with_operations(op, op_index)


def _has_names(lists: pa.Array) -> Flags:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    has: Flags = lengths > 0
    return has


@numba.njit(cache=True, nogil=True)
def _hash_text(offsets: NDArray[np.int32], data: NDArray[np.uint8], hashes: Hashes) -> None:
    for row in range(offsets.size - 1):
        value = hashes[row]
        first = offsets[row]
        if offsets[row + 1] - first == 2 and data[first] == _MINUS and data[first + 1] == _ZERO:
            first += 1
        for place in range(first, offsets[row + 1]):
            value = (value ^ np.uint64(data[place])) * _PRIME
        # Keeps ("ab", "c") and ("a", "bc") apart.
        hashes[row] = (value ^ np.uint64(0xFF)) * _PRIME

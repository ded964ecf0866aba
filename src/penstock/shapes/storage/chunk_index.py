"""Where a shape's log may be cut into answers: a chunk ends with the item that brings its JSON to the
threshold, whatever transaction that item belongs to.

The cuts depend on the items alone, counted from the log's beginning: not on when they were written, nor in
how many pieces. So they come out the same when transactions are replayed after a crash, and an answer that
some cache holds ends where ours would end.

On disk: 64-byte records `min_tx min_op start_pos key_start max_tx max_op end_pos key_end`, big-endian, one
for each closed chunk. The key positions count key bytes, as if all keys of the log stood one after the
other. A look-up is a binary search in the file; nothing of it is kept in memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.offset import LogOffset

RECORD_BYTES: Final = 64
_RECORD = struct.Struct(">8Q")


class Chunk(NamedTuple):
    min_tx: int
    min_op: int
    start: int
    key_start: int
    max_tx: int
    max_op: int
    end: int
    key_end: int

    @property
    def last(self) -> LogOffset:
        return LogOffset(self.max_tx, self.max_op)

    def moved(self, positions: int) -> Chunk:
        return self._replace(start=self.start + positions, end=self.end + positions)

    def pack(self) -> bytes:
        return _RECORD.pack(*self)


class ItemColumns(NamedTuple):
    """What cutting needs of items: offsets, and where record, key and JSON of each end."""

    tx: npt.NDArray[np.int64]
    op: npt.NDArray[np.int64]
    record_ends: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    json_ends: npt.NDArray[np.int64]

    def slice(self, start: int, stop: int) -> ItemColumns:
        """Items `start:stop`, with ends counted from the first of them."""
        if start == 0:
            return ItemColumns(*(column[:stop] for column in self))
        ends = (column[start:stop] - column[start - 1] for column in self[2:])
        return ItemColumns(self.tx[start:stop], self.op[start:stop], *ends)


class OpenChunk:
    """The chunk that is being filled; `end` and `keys` are where the log ends."""

    __slots__ = ("end", "json", "key_start", "keys", "min_op", "min_tx", "start")

    def __init__(self, start: int = 0, keys: int = 0) -> None:
        self.start = self.end = start
        self.key_start = self.keys = keys
        self.min_tx = self.min_op = 0
        self.json = 0

    def add_below(self, tx: int, op: int, record_bytes: int, key_bytes: int, json_bytes: int) -> None:
        """Items that do not close the chunk; (tx, op) is the first of them."""
        if self.start == self.end:
            self.min_tx, self.min_op = tx, op
        self.end += record_bytes
        self.keys += key_bytes
        self.json += json_bytes

    def add(self, items: ItemColumns, threshold: int) -> list[Chunk]:
        """The chunks that these items close."""
        closed: list[Chunk] = []
        log_end, keys, done = self.end, self.keys, 0
        json_done = 0
        while done < len(items.tx):
            if self.start == self.end:
                self.min_tx, self.min_op = int(items.tx[done]), int(items.op[done])
            closing = int(np.searchsorted(items.json_ends, threshold - self.json + json_done))
            last = min(closing, len(items.tx) - 1)
            self.end = log_end + int(items.record_ends[last])
            self.keys = keys + int(items.key_ends[last])
            self.json += int(items.json_ends[last]) - json_done
            if closing == last:
                closed.append(self.close(int(items.tx[last]), int(items.op[last])))
            json_done, done = int(items.json_ends[last]), last + 1
        return closed

    def close(self, tx: int, op: int) -> Chunk:
        chunk = Chunk(self.min_tx, self.min_op, self.start, self.key_start, tx, op, self.end, self.keys)
        self.start, self.key_start, self.json = self.end, self.keys, 0
        return chunk


class ChunkIndex:
    """The first `count` records of an index file."""

    __slots__ = ("count", "path")

    def __init__(self, path: str, count: int) -> None:
        self.path = path
        self.count = count

    def first_after(self, offset: LogOffset) -> Chunk | None:
        """The first chunk that ends after the offset: where what follows the offset begins."""
        if self.count == 0:
            return None
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            low, high, found = 0, self.count, None
            while low < high:
                middle = (low + high) // 2
                if (chunk := _read(descriptor, middle))[4:6] > (offset.tx, offset.op):
                    high, found = middle, chunk
                else:
                    low = middle + 1
            return found
        finally:
            os.close(descriptor)

    def last(self) -> Chunk | None:
        if self.count == 0:
            return None
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return _read(descriptor, self.count - 1)
        finally:
            os.close(descriptor)

    def all(self) -> list[Chunk]:
        if self.count == 0:
            return []
        with open(self.path, "rb") as file:
            content = file.read(self.count * RECORD_BYTES)
        return [Chunk(*fields) for fields in _RECORD.iter_unpack(content)]


def pack(chunks: Sequence[Chunk]) -> bytes:
    return b"".join(chunk.pack() for chunk in chunks)


def _read(descriptor: int, number: int) -> Chunk:
    return Chunk(*_RECORD.unpack(os.pread(descriptor, RECORD_BYTES, number * RECORD_BYTES)))

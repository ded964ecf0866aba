"""Compiled: what the events of a change stream say, without decoding them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.sources.mongodb.bson_kernels import DOCUMENT, INT64, STRING, TIMESTAMP
from penstock.sources.mongodb.column_kernels import column_of, same
from penstock.sources.mongodb.memory_kernels import load_int32, load_int64, load_uint64
from penstock.text_kernels import Bytes, Indices, Ints


@compiled()
def read_operations(
    buffer: Bytes, kinds: Bytes, positions: Indices, names: Bytes, ends: Ints, slots: Indices
) -> Indices:
    """The number of each event's operation; -1: it is another one."""
    source = np.int64(buffer.ctypes.data)
    operations = np.full(len(kinds), -1, np.int32)
    guess = np.int64(0)
    for row in range(len(kinds)):
        if kinds[row] == STRING:
            at = source + np.int64(positions[row])
            found = column_of(at + 4, load_int32(at) - 1, guess, names, ends, slots)
            operations[row] = found
            guess = found if found > 0 else np.int64(0)
    return operations


@compiled()
def read_times(buffer: Bytes, kinds: Bytes, positions: Indices) -> npt.NDArray[np.uint64]:
    """Timestamps as 64 bits, seconds first; 0: there is none."""
    source = np.int64(buffer.ctypes.data)
    times = np.zeros(len(kinds), np.uint64)
    for row in range(len(kinds)):
        if kinds[row] == TIMESTAMP:
            times[row] = load_uint64(source + np.int64(positions[row]))
    return times


@compiled()
def read_longs(buffer: Bytes, kinds: Bytes, positions: Indices) -> Ints:
    """Integers of 64 bits; -1: there is none."""
    source = np.int64(buffer.ctypes.data)
    numbers = np.full(len(kinds), -1, np.int64)
    for row in range(len(kinds)):
        if kinds[row] == INT64:
            numbers[row] = load_int64(source + np.int64(positions[row]))
    return numbers


@compiled()
def select_documents(buffer: Bytes, kinds: Bytes, positions: Indices) -> tuple[Ints, Ints, Ints]:
    """The rows that have a document there, and where it begins and ends."""
    source = np.int64(buffer.ctypes.data)
    count = 0
    for row in range(len(kinds)):
        count += kinds[row] == DOCUMENT
    rows, starts, ends = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for row in range(len(kinds)):
        if kinds[row] == DOCUMENT:
            at = np.int64(positions[row])
            rows[count], starts[count], ends[count] = row, at, at + load_int32(source + at)
            count += 1
    return rows, starts, ends


@compiled()
def group_documents(buffer: Bytes, starts: Ints, ends: Ints, groups_max: int) -> tuple[Indices, Ints]:
    """Number documents by their bytes: a number for each, and the first document of each number.

    There are few different ones, one after the other in any order; above `groups_max` all numbers are -1.
    """
    source = np.int64(buffer.ctypes.data)
    numbers, firsts = np.empty(len(starts), np.int32), np.empty(groups_max, np.int64)
    groups, last = 0, 0
    for row in range(len(starts)):
        at, size = source + starts[row], ends[row] - starts[row]
        found = -1
        for step in range(groups):
            group = (last + step) % groups
            first = firsts[group]
            if same(at, size, source + starts[first], ends[first] - starts[first]):
                found = group
                break
        if found < 0:
            if groups == groups_max:
                numbers[:] = -1
                return numbers, firsts[:0]
            firsts[groups] = row
            found = groups
            groups += 1
        numbers[row] = found
        last = found
    return numbers, firsts[:groups]

"""Compiled loops of unwrapping: which events are compressed, events side by side, where they end."""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mysql.binlog import event_kernels as events
from penstock.sources.mysql.binlog.packet_kernels import (
    HEADER,
    POSITION_AT,
    SIZE_AT,
    TYPE_AT,
    Bytes,
    Ints,
    little_endian,
)


@compiled()
def find_wrapped(buffer: Bytes, starts: Ints) -> Ints:
    """Which events are compressed."""
    found = np.empty(len(starts), np.int64)
    count = 0
    for number in range(len(starts)):
        kind = buffer[starts[number] + TYPE_AT]
        if kind == events.PAYLOAD or (
            events.MARIADB_COMPRESSED_QUERY <= kind <= events.MARIADB_COMPRESSED_LAST
        ):
            found[count] = number
            count += 1
    return found[:count]


@compiled()
def join_events(buffer: Bytes, starts: Ints, ends: Ints, first: int, last: int) -> tuple[Bytes, Ints]:
    """Events side by side, and where each ends."""
    size = np.int64(0)
    for number in range(first, last):
        size += ends[number] - starts[number]
    joined = np.empty(size, np.uint8)
    joined_ends = np.empty(last - first, np.int64)
    to = np.int64(0)
    for number in range(first, last):
        for at in range(starts[number], ends[number]):
            joined[to] = buffer[at]
            to += 1
        joined_ends[number - first] = to
    return joined, joined_ends


@compiled()
def cut_events(content: Bytes, position: Bytes) -> Ints:
    """Where the whole events end that lie side by side; each gets the position."""
    ends = np.empty(len(content) // HEADER + 1, np.int64)
    count, at = 0, np.int64(0)
    while at + HEADER <= len(content):
        size = little_endian(content, at + SIZE_AT, 4)
        if size < HEADER or at + size > len(content):
            break
        for index in range(4):
            content[at + POSITION_AT + index] = position[index]
        at += size
        ends[count] = at
        count += 1
    return ends[:count]

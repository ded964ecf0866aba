"""Compiled loops over raw bytes of a replication connection: where events are, and whether they are whole.

A packet is 3 bytes of length, 1 of sequence, a status byte, an event. One of 16 MiB - 1 goes on in the next
packet, which has no status byte; its parts are moved together within the buffer. Nothing else is copied.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.checksum_kernels import crc32
from penstock.compiling import compiled
from penstock.word_kernels import load_little

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Places = npt.NDArray[np.int32] | npt.NDArray[np.int64]  # in a buffer; below zero: there is no value
Number: TypeAlias = Any  # a machine integer inside compiled code

HEADER = 19  # of an event: time, type, server id, size, position, flags
TYPE_AT, SIZE_AT, POSITION_AT, FLAGS_AT = 4, 9, 13, 17
FORMAT_DESCRIPTION = 15
CHECKSUM = 4
CHECKSUM_NONE, CHECKSUM_CRC32 = 0, 1
#: why framing stopped before the end of the bytes
MORE, FULL, STATUS, BAD_CHECKSUM, BAD_EVENT = range(5)

_PACKET_HEADER = 4
_LONGEST = 0xFFFFFF


@compiled()
def little_endian(buffer: Bytes, at: Number, size: Number) -> Number:
    return np.int64(load_little(buffer, at, size))


@compiled()
def whole_packets(buffer: Bytes, at: Number, used: Number) -> Number:
    """Where the message at `at` ends, all its packets counted; -1: it is not all there."""
    while at + _PACKET_HEADER <= used:
        length = little_endian(buffer, at, 3)
        at += _PACKET_HEADER + length
        if at > used:
            return np.int64(-1)
        if length < _LONGEST:
            return at
    return np.int64(-1)


@compiled()
def join_packets(buffer: Bytes, at: Number, end: Number) -> Number:
    """Move the payloads of a message of several packets together; where they end now."""
    to = at + _PACKET_HEADER + _LONGEST
    source = to
    while source < end:
        length = little_endian(buffer, source, 3)
        source += _PACKET_HEADER
        for index in range(length):
            buffer[to + index] = buffer[source + index]
        to += length
        source += length
    return to


@compiled()
def frame_events(
    buffer: Bytes, used: int, checksum: int, starts: Ints, ends: Ints
) -> tuple[int, int, int, int]:
    """Note where the events in the first `used` bytes start and end, without their checksums.

    Returns how many there are, up to where bytes are dealt with, why it stopped, and the kind of checksum
    that events after these have: a format description says it for all that follow.
    """
    count = 0
    at: Number = np.int64(0)
    reason = MORE
    while True:
        if count == len(starts):
            reason = FULL
            break
        after = whole_packets(buffer, at, used)
        if after < 0:
            break
        length = little_endian(buffer, at, 3)
        start, end = at + _PACKET_HEADER + 1, at + _PACKET_HEADER + length
        if length == 0 or buffer[start - 1] != 0:
            reason = STATUS
            break
        if length == _LONGEST:
            end = join_packets(buffer, at, after)
        if end - start < HEADER or little_endian(buffer, start + SIZE_AT, 4) != end - start:
            reason = BAD_EVENT
            break
        if buffer[start + TYPE_AT] == FORMAT_DESCRIPTION:
            # It says of itself too whether it can be checked; the 4 bytes are there in any case. A file that
            # is being written has a flag that was not there when the sum was made.
            checksum = int(buffer[end - CHECKSUM - 1])
            buffer[start + FLAGS_AT] &= np.uint8(0xFE)
            end -= CHECKSUM
        elif checksum != CHECKSUM_NONE:
            end -= CHECKSUM
        if checksum == CHECKSUM_CRC32 and crc32(buffer, start, end) != little_endian(buffer, end, 4):
            reason = BAD_CHECKSUM
            break
        starts[count], ends[count] = start, end
        count += 1
        at = after
    return count, at, reason, checksum

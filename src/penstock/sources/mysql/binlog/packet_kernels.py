"""Compiled loops over raw bytes of a replication connection: where events are, and whether they are whole.

A packet is 3 bytes of length, 1 of sequence, a status byte, an event. One of 16 MiB - 1 goes on in the next
packet, which has no status byte; its parts are moved together within the buffer. Nothing else is copied.

Checksums are CRC-32 by 16 tables, 16 bytes a turn.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
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


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Table t has what a byte does to the checksum when t more bytes follow it."""
    tables = np.zeros((16, 256), np.uint32)
    tables[0] = [zlib.crc32(bytes([value]), 0xFFFFFFFF) ^ 0xFFFFFFFF for value in range(256)]
    tables[0] ^= tables[0, 0]
    for number in range(1, 16):
        before = tables[number - 1]
        tables[number] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_CRC = _crc_tables()


@compiled()
def little_endian(buffer: Bytes, at: Number, size: Number) -> Number:
    value = np.int64(0)
    for index in range(size):
        value |= np.int64(buffer[at + index]) << (8 * index)
    return value


@compiled()
def crc32(buffer: Bytes, start: Number, end: Number) -> Number:
    value = np.uint32(0xFFFFFFFF)
    at = start
    while at + 16 <= end:
        mixed = np.uint32(0)
        for index in range(4):
            low = np.uint8((value >> np.uint32(8 * index)) & np.uint32(0xFF))
            mixed ^= _CRC[15 - index, buffer[at + index] ^ low]
        for index in range(4, 16):
            mixed ^= _CRC[15 - index, buffer[at + index]]
        value = mixed
        at += 16
    while at < end:
        value = _CRC[0, np.uint8(value & np.uint32(0xFF)) ^ buffer[at]] ^ (value >> np.uint32(8))
        at += 1
    return np.int64(value ^ np.uint32(0xFFFFFFFF))


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

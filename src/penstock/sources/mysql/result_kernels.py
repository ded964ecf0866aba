"""Compiled: where the values of a result's rows are, in the bytes that the server sends.

A row is a message of its own: for each column a length and so many bytes, or one byte for null. A message
of 16 MiB or more is several packets, whose payloads are moved together within the buffer; nothing else is
copied.
"""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mysql.binlog.packet_kernels import (
    Bytes,
    Ints,
    Lengths,
    Number,
    join_packets,
    little_endian,
    whole_packets,
)
from penstock.sources.mysql.binlog.row_kernels import NULL

#: why `locate_rows` stopped
MORE, FULL, END, ERROR, MALFORMED = range(5)

_PACKET_HEADER = 4
_LONGEST = 0xFFFFFF
_NULL, _TWO, _THREE, _EIGHT, _NONE = 0xFB, 0xFC, 0xFD, 0xFE, 0xFF
_END_BYTES_MAX = 8  # what begins like a value of eight bytes of length and is shorter ends the result


@compiled()
def locate_rows(
    buffer: Bytes, at: Number, used: Number, row: Number, offsets: Ints, lengths: Lengths
) -> tuple[int, int, int]:
    """Fill the matrices (column, row) from `row` on; rows there are then, where the next message is, why."""
    columns, rows_max = lengths.shape
    while True:
        after = whole_packets(buffer, at, used)
        if after < 0:
            return row, at, MORE
        length = little_endian(buffer, at, 3)
        start, end = at + _PACKET_HEADER, at + _PACKET_HEADER + length
        if length == 0:
            return row, at, MALFORMED
        if buffer[start] == _NONE:
            return row, at, ERROR
        if buffer[start] == _EIGHT and length <= _END_BYTES_MAX:
            return row, after, END
        if row == rows_max:
            return row, at, FULL
        if length == _LONGEST:
            end = join_packets(buffer, at, after)
        if not _locate_row(buffer, start, end, columns, row, offsets, lengths):
            return row, at, MALFORMED
        row += 1
        at = after


@compiled()
def _locate_row(
    buffer: Bytes, at: Number, end: Number, columns: Number, row: Number, offsets: Ints, lengths: Lengths
) -> bool:
    """Whether the message is exactly so many values."""
    for column in range(columns):
        if at >= end:
            return False
        first = np.int64(buffer[at])
        at += 1
        if first == _NULL:
            offsets[column, row], lengths[column, row] = NULL, 0
            continue
        length = first
        if first > _NULL:
            size = 2 if first == _TWO else 3 if first == _THREE else 8
            if first == _NONE or at + size > end:
                return False
            length = little_endian(buffer, at, size)
            at += size
        if length < 0 or length > end - at:
            return False
        offsets[column, row] = at
        lengths[column, row] = length
        at += length
    return bool(at == end)


@compiled()
def skip_zeros(buffer: Bytes, offsets: Ints, lengths: Lengths) -> None:
    """Leave out the zeros that ZEROFILL puts before a number: the log does not have them."""
    for row in range(len(lengths)):
        while lengths[row] > 1 and buffer[offsets[row]] == 48 and buffer[offsets[row] + 1] != 46:
            offsets[row] += 1
            lengths[row] -= 1

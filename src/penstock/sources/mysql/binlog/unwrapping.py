"""Compressed events, as if they had never been compressed.

MySQL (`binlog_transaction_compression`) wraps all events of a transaction but its id into one, compressed by
zstd. MariaDB (`log_bin_compress`) compresses rows and statements of single events by zlib. Both are put back
in their place here, so nothing after this knows of them; a batch without any passes as it is.

Bounded: what comes out is cut into batches of at most `BATCH_BYTES_MAX`, or one event; a wrapped transaction
is decompressed as it is read on, however large it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import event_kernels as events
from penstock.sources.mysql.binlog import unwrapping_kernels as kernels
from penstock.sources.mysql.binlog.packet_kernels import HEADER, POSITION_AT, TYPE_AT, Bytes, Ints
from penstock.sources.mysql.binlog.packets import EventBatch

BATCH_BYTES_MAX = 8 << 20
_AT_ONCE_MAX = 1 << 20
_READ_BYTES = 1 << 20
_EVENT_BYTES_MAX = 1 << 30
_END, _WRAPPED_SIZE, _COMPRESSION, _SIZE = range(4)  # fields before what is wrapped
_ZSTD, _NOT_COMPRESSED = 0, 255


def unwrap(batch: EventBatch) -> Iterator[EventBatch]:
    """The same events in the same order, none of them compressed."""
    wrapped = kernels.find_wrapped(batch.buffer, batch.starts)
    if not len(wrapped):
        yield batch
        return
    joined = _Joined()
    done = 0
    pieces: Iterator[tuple[Bytes, Ints]]
    for number in wrapped.tolist():
        joined.add(*kernels.join_events(batch.buffer, batch.starts, batch.ends, done, number))
        done = number + 1
        event = batch.buffer[int(batch.starts[number]) : int(batch.ends[number])]
        if event[TYPE_AT] != events.PAYLOAD:
            rewritten = np.array(bytearray(_rewritten(event.tobytes())), np.uint8)
            pieces = iter([(rewritten, np.array([len(rewritten)], np.int64))])
        else:
            pieces = _unwrapped(event)
        for content, ends in pieces:
            joined.add(content, ends)
            if joined.bytes >= BATCH_BYTES_MAX:
                yield joined.take()
    joined.add(*kernels.join_events(batch.buffer, batch.starts, batch.ends, done, len(batch)))
    if joined.bytes:
        yield joined.take()


class _Joined:
    """Pieces of bytes and where events end in them, on the way to a batch."""

    def __init__(self) -> None:
        self._parts: list[Bytes] = []
        self._ends: list[Ints] = []
        self.bytes = 0

    def add(self, content: Bytes, ends: Ints) -> None:
        if len(ends):
            self._parts.append(content[: int(ends[-1])])
            self._ends.append(ends + self.bytes)
            self.bytes += int(ends[-1])

    def take(self) -> EventBatch:
        ends = np.concatenate(self._ends)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        batch = EventBatch(np.concatenate(self._parts), starts, ends)
        self._parts, self._ends, self.bytes = [], [], 0
        return batch


def _unwrapped(event: Bytes) -> Iterator[tuple[Bytes, Ints]]:
    """Events of a wrapped transaction, each with the position that the whole has in the file."""
    position = event[POSITION_AT : POSITION_AT + 4].copy()
    at, wrapped_size, size, compression = HEADER, 0, 0, _NOT_COMPRESSED
    while at < len(event):
        field, at = events.length_encoded(event, at)
        if field == _END:
            break
        length, at = events.length_encoded(event, at)
        if field == _WRAPPED_SIZE:
            wrapped_size, _ = events.length_encoded(event, at)
        elif field == _COMPRESSION:
            compression, _ = events.length_encoded(event, at)
        elif field == _SIZE:
            size, _ = events.length_encoded(event, at)
        at += length
    rest = np.zeros(0, np.uint8)
    for piece in _decompressed(event[at : at + wrapped_size], compression, size):
        held = np.concatenate([rest, piece]) if len(rest) else piece
        ends = kernels.cut_events(held, position)
        if len(ends):
            yield held, ends
            rest = held[int(ends[-1]) :]
        else:
            rest = held
    if len(rest):
        raise _damaged()


def _decompressed(content: Bytes, compression: int, size: int) -> Iterator[Bytes]:
    """Pieces that may be written to."""
    if compression == _NOT_COMPRESSED:
        yield content.copy()
    elif compression != _ZSTD:
        raise SourceError(
            f"The binary log has a transaction compressed in a way Penstock does not know ({compression}).",
            remedy="Report it with the server's version.",
        )
    else:
        try:
            yield from _from_zstd(pa.py_buffer(content), size)
        except OSError as error:
            raise _damaged() from error


def _from_zstd(content: pa.Buffer, size: int) -> Iterator[Bytes]:
    if 0 < size <= _AT_ONCE_MAX:
        yield _copy(pa.decompress(content, size, "zstd"))
        return
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        while len(piece := stream.read_buffer(_READ_BYTES)):
            yield _copy(piece)


def _copy(buffer: pa.Buffer) -> Bytes:
    return np.frombuffer(buffer, np.uint8).copy()


def _rewritten(event: bytes) -> bytes:
    """One of MariaDB's compressed events as the plain event it was made from."""
    kind = event[TYPE_AT]
    at = HEADER
    if kind == events.MARIADB_COMPRESSED_QUERY:
        at += 13 + event[HEADER + 8] + int.from_bytes(event[HEADER + 11 : HEADER + 13], "little") + 1
        plain = events.QUERY
    else:
        number = kind - events.MARIADB_COMPRESSED_FIRST
        is_second = number >= 3
        plain = (events.WRITE_2 if is_second else events.WRITE_1) + number % 3
        at += 8
        if is_second:
            at += int.from_bytes(event[at : at + 2], "little")
        columns, at = events.length_encoded(np.array(bytearray(event), np.uint8), at)
        at += (columns + 7) // 8 * (2 if number % 3 == 1 else 1)
    return event[:TYPE_AT] + bytes([plain]) + event[TYPE_AT + 1 : at] + _inflated(event[at:])


def _inflated(data: bytes) -> bytes:
    """A byte that says how many bytes of length follow, then what zlib made."""
    digits = data[0] & 0x07
    size = int.from_bytes(data[1 : 1 + digits], "big")
    if not data[0] & 0x80 or data[0] & 0x70 or size > _EVENT_BYTES_MAX:
        raise _damaged()
    try:
        content = zlib.decompressobj().decompress(data[1 + digits :], size)
    except zlib.error as error:
        raise _damaged() from error
    if len(content) != size:
        raise _damaged()
    return content


def _damaged() -> SourceError:
    return SourceError(
        "The binary log has a compressed event that cannot be decompressed.",
        remedy="Run the same command again; if it stays, the server's binary log is damaged on its disk.",
    )

"""Reads `COPY … TO STDOUT (FORMAT binary)` into blocks of rows whose values are located, not yet decoded.

Promise: the blocks hold exactly the rows that the server says it sent, in order, or an error is raised.
It holds because the stream has a frame of its own: a header that is checked, a count of fields and a length
before each value, and a trailer that must be the last bytes; and because the number of rows is compared
with the one in the server's final message. Only a block of whole rows is handed out.

The messages in which the server wraps the rows do not matter, so their contents are laid side by side in
one buffer of `block_bytes`, which is used for every block. A row that is larger makes the buffer grow for
as long as it is needed. Two ways of filling it with the same result: by psycopg, with one bytes object per
row; and by compiled code that calls libpq and copies each row to its place, without a `malloc` and a Python
object per row and without the GIL.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psycopg
from numba.core import types
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from penstock.compiling import compiled
from penstock.sources.postgres import copy_binary_kernels as kernels
from penstock.sources.postgres import libpq
from penstock.sources.postgres.connection import Connection
from penstock.sources.postgres.pgoutput_kernels import Bytes, Ints, Lengths

BLOCK_BYTES = 4 * 1024 * 1024
# The server builds a row in a buffer of at most 1 GiB.
_BUFFER_BYTES_MAX = 2**31 - 1
_SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
_HEADER_BYTES = len(_SIGNATURE) + 8  # flags, length of the extension
_CRITICAL_FLAGS = 0xFFFF0000
_KEPT_BLOCKS = 8  # a buffer of up to so many blocks is kept, one that grew larger is given back
_POLL_IN = 1
_WAIT_MS = 100  # how long compiled code waits before Python may handle a signal
_FULL, _ENDED, _QUIET, _LOST = 0, 1, 2, 3


class CopyFormatError(Exception):
    """The bytes are not the rows that were asked for. Says what is wrong with their form, never a value."""


@dataclass(frozen=True, slots=True)
class BinaryFields:
    """The values of one column: `positions` are where they begin in `raw`, after their length; -1 is null."""

    raw: Bytes
    positions: Lengths


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """Whole rows. Valid until the next block is asked for: the buffer is used again."""

    raw: Bytes
    positions: Lengths  # (column, row)

    @property
    def rows(self) -> int:
        return int(self.positions.shape[1])

    def column(self, index: int) -> BinaryFields:
        return BinaryFields(self.raw, self.positions[index])


def read_copy(
    connection: Connection, query: sql.Composable, columns: int, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[CopyBlock]:
    """The rows of `query`, which has `columns` columns. Raises what psycopg does, or `CopyFormatError`.

    Left before its end, the connection is in the midst of the copy and can only be closed.
    """
    pgconn = connection.pgconn
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(connection)
    _expect(pgconn.exec_(statement), ExecStatus.COPY_OUT)
    stream = CopyStream(open_source(pgconn), columns, block_bytes)
    yield from stream.blocks()
    result = pgconn.get_result()
    assert result is not None
    while pgconn.get_result() is not None:
        pass
    _expect(result, ExecStatus.COMMAND_OK)
    if not stream.complete or result.command_tuples != stream.rows:
        raise CopyFormatError(f"{stream.rows} rows arrived of {result.command_tuples} that were sent.")


def _expect(result: psycopg.pq.abc.PGresult, status: ExecStatus) -> None:
    if result.status != status:
        raise errors.error_from_result(result)


class Source(Protocol):
    """The contents of a copy's messages, one after the other."""

    def fill(self, buffer: Bytes, used: int) -> tuple[int, bool]:
        """Add to the first `used` bytes until `buffer` is full or the copy ends.

        Returns the bytes in use and whether the copy ended. It may have ended by an error, which the
        connection's next result tells.
        """


class CopyStream:
    """Cuts the bytes of a source into blocks of whole rows."""

    def __init__(self, source: Source, columns: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.rows = 0
        self.complete = False  # the trailer was read, and nothing follows it
        self._source = source
        self._block_bytes = max(block_bytes, _HEADER_BYTES)
        self._buffer: Bytes = np.empty(self._block_bytes, np.uint8)
        self._used = 0
        self._ended = False
        rows_max = self._block_bytes // (2 + 4 * columns) + 1
        self._positions: Lengths = np.empty((columns, rows_max), np.int32)

    def blocks(self) -> Iterator[CopyBlock]:
        self._fill()
        if not self._used:
            return
        start = _after_header(self._buffer[: self._used])
        while True:
            rows, rest, outcome = kernels.locate_fields(self._buffer, start, self._used, self._positions)
            if outcome == kernels.BROKEN:
                raise CopyFormatError("A row has another number of values, or a value of no possible length.")
            if rows:
                self.rows += rows
                yield CopyBlock(self._buffer, self._positions[:, :rows])
            if outcome == kernels.DONE:
                self.complete = rest == self._used and self._is_at_end()
                return
            start = rest
            if rows < self._positions.shape[1]:  # it was bytes that ran out, not room for positions
                if self._ended:
                    return
                self._make_room(rest, stuck=rows == 0)
                start = 0
                self._fill()

    def _fill(self) -> None:
        if not self._ended:
            self._used, self._ended = self._source.fill(self._buffer, self._used)

    def _is_at_end(self) -> bool:
        return self._ended or self._source.fill(np.empty(1, np.uint8), 0) == (0, True)

    def _make_room(self, rest: int, *, stuck: bool) -> None:
        """Move what is left to the front; of a buffer twice as large if it is all of one row."""
        left = self._buffer[rest : self._used]
        size = self._buffer.size
        if stuck:
            size = min(2 * size, _BUFFER_BYTES_MAX)
            if size == self._buffer.size:
                raise CopyFormatError("A row is larger than Postgres can send.")
        elif size > _KEPT_BLOCKS * self._block_bytes:
            size = max(self._block_bytes, 2 * left.size)
        buffer = self._buffer if size == self._buffer.size else np.empty(size, np.uint8)
        buffer[: left.size] = left
        self._buffer, self._used = buffer, left.size


def _after_header(received: Bytes) -> int:
    """Where the rows begin."""
    header = received[:_HEADER_BYTES].tobytes()
    if len(header) < _HEADER_BYTES or not header.startswith(_SIGNATURE):
        raise CopyFormatError("The copy does not begin as one in binary format does.")
    flags, extension = struct.unpack(">II", header[len(_SIGNATURE) :])
    if flags & _CRITICAL_FLAGS or extension:
        raise CopyFormatError("The copy has a header that this version does not know.")
    return _HEADER_BYTES


def warm_up() -> None:
    """Compile, or load from the cache, what the first block would otherwise wait for, and with it whoever
    needs the GIL meanwhile."""
    integer, octets = types.int64, types.uint8[::1]
    kernels.locate_fields.compile((octets, integer, integer, types.int32[:, ::1]))  # type: ignore[attr-defined]
    if libpq.LIBRARY is not None:
        _fill.compile((integer, integer, octets, types.int64[::1]))  # type: ignore[attr-defined]


def open_source(pgconn: psycopg.pq.abc.PGconn) -> Source:
    """The fastest that works here for this connection, which must be in the midst of a copy."""
    return NativeSource(pgconn) if libpq.is_usable(pgconn) else MessageSource(pgconn)


class MessageSource:
    """By psycopg: one bytes object per row."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._waiting = memoryview(b"")

    def fill(self, buffer: Bytes, used: int) -> tuple[int, bool]:
        while used < buffer.size:
            if not self._waiting:
                length, data = self._pgconn.get_copy_data(1)
                if length < 0:
                    return used, True
                if length == 0:
                    select.select([self._pgconn.socket], [], [], _WAIT_MS / 1000)
                    self._pgconn.consume_input()
                    continue
                self._waiting = memoryview(data)
            part = self._waiting[: buffer.size - used]
            buffer[used : used + len(part)] = np.frombuffer(part, np.uint8)
            used += len(part)
            self._waiting = self._waiting[len(part) :]
        return used, False


class NativeSource:
    """By compiled code that calls libpq."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._address = libpq.address_of(pgconn)
        self._used: Ints = np.zeros(1, np.int64)

    def fill(self, buffer: Bytes, used: int) -> tuple[int, bool]:
        self._used[0] = used
        outcome = _QUIET
        while outcome == _QUIET:  # between two calls Python handles signals
            outcome = _fill(self._address, self._pgconn.socket, buffer, self._used)
        if outcome == _LOST:
            self._pgconn.consume_input()  # raises what is wrong
        return int(self._used[0]), outcome != _FULL


if libpq.LIBRARY is not None:
    # Copies as much of a row as there is room for, and the rest with the next call.
    _get = libpq.external("PQgetlineAsync", types.int32, types.uintp, types.uintp, types.int32)
    _consume = libpq.external("PQconsumeInput", types.int32, types.uintp)
    _poll = libpq.external("poll", types.int32, types.uintp, types.uintp, types.int32)

    @compiled()
    def _fill(connection: int, socket: int, buffer: Bytes, used: Ints) -> int:
        """Add to `buffer` until it is full, the copy ends, or nothing came for a while."""
        request = np.empty(2, np.int32)  # struct pollfd
        consumed_at = np.int64(-1)
        while used[0] < buffer.size:
            room = min(buffer.size - used[0], 2**30)
            length = np.int64(_get(connection, buffer.ctypes.data + used[0], room))
            if length > 0:
                used[0] += length
                continue
            if length < 0:
                return _ENDED
            # Before it waits, it must have read all there is: under TLS the socket may look empty.
            if consumed_at == used[0]:
                request[0], request[1] = socket, _POLL_IN
                if _poll(request.ctypes.data, 1, _WAIT_MS) == 0:
                    _consume(connection)
                    return _QUIET
            consumed_at = used[0]
            if _consume(connection) == 0:
                return _LOST
        return _FULL

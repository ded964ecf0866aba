"""Takes messages out of libpq and collects them into a batch.

Two ways with the same result. `FrameInbox` asks psycopg for each message: one bytes object per
message. `NativeInbox` calls the same functions of the same libpq from compiled code and copies each
message to its place in the batch at once, without the GIL. Reading a million rows, system calls
included, took 1.9 CPU-seconds the first way and 0.6 to 1.0 the second.
It needs the libpq that psycopg has loaded (see `libpq`); where there is none, the other one is used.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import psycopg
from numba.core import types

from penstock.compiling import compiled
from penstock.sources.postgres import libpq
from penstock.sources.postgres.pgoutput import MessageBatch
from penstock.sources.postgres.pgoutput_kernels import Bytes, Ints

_FULL, _EMPTY, _CLOSED, _BROKEN = 1, 0, -1, -2
_USED, _COUNT, _WAITING_AT, _WAITING_LENGTH = range(4)


class Inbox(Protocol):
    """A batch that fills up, bounded by `bytes_max` (one message may exceed it) and `count_max`."""

    @property
    def bytes(self) -> int: ...

    @property
    def full(self) -> bool: ...

    def drain(self) -> int:
        """Add what the server has sent, without waiting; bytes added, or -1 when the stream has ended."""

    def take(self) -> MessageBatch:
        """Everything added so far; the inbox is empty afterwards."""


class FrameInbox:
    def __init__(self, pgconn: psycopg.pq.abc.PGconn, bytes_max: int, count_max: int) -> None:
        self._pgconn = pgconn
        self._bytes_max, self._count_max = bytes_max, count_max
        self._frames: list[memoryview] = []
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def full(self) -> bool:
        return self._bytes >= self._bytes_max or len(self._frames) >= self._count_max

    def drain(self) -> int:
        get, append = self._pgconn.get_copy_data, self._frames.append
        start = self._bytes
        before = -1
        while not self.full:
            length, data = get(1)
            if length > 0:
                append(data)
                self._bytes += length
            elif length == 0:
                if before == self._bytes:
                    break
                before = self._bytes
                self._pgconn.consume_input()
            else:
                return -1
        return self._bytes - start

    def take(self) -> MessageBatch:
        frames, self._frames, self._bytes = self._frames, [], 0
        return MessageBatch.join(frames)


class NativeInbox:
    def __init__(self, pgconn: psycopg.pq.abc.PGconn, bytes_max: int, count_max: int) -> None:
        self._pgconn = pgconn
        self._address = libpq.address_of(pgconn)
        self._bytes_max, self._count_max = bytes_max, count_max
        self._state: Ints = np.zeros(4, np.int64)
        self._begin()

    def _begin(self) -> None:
        size = max(self._bytes_max, int(self._state[_WAITING_LENGTH]))
        self._buffer = np.empty(size, np.uint8)
        self._ends: Ints = np.empty(self._count_max, np.int64)
        self._state[_USED] = self._state[_COUNT] = 0

    @property
    def bytes(self) -> int:
        return int(self._state[_USED])

    @property
    def full(self) -> bool:
        # A message that waits fits into an empty inbox: `drain` makes it large enough.
        by_bytes = bool(self._state[_WAITING_AT] and self._state[_USED])
        return by_bytes or int(self._state[_COUNT]) == self._count_max

    def drain(self) -> int:
        start = self.bytes
        outcome = _drain(self._address, self._buffer, self._ends, self._state)
        if outcome == _BROKEN:
            self._pgconn.consume_input()  # raises what is wrong
        if outcome < 0 and self.bytes == start:
            return -1
        if self._state[_WAITING_AT] and self.bytes == 0:  # the first message is larger than a batch
            self._begin()
            return self.drain()
        return self.bytes - start

    def take(self) -> MessageBatch:
        used, count = int(self._state[_USED]), int(self._state[_COUNT])
        batch = MessageBatch(self._buffer[:used], self._ends[:count])
        self._begin()
        return batch


def open_inbox(pgconn: psycopg.pq.abc.PGconn, bytes_max: int, count_max: int) -> Inbox:
    """The fastest inbox that works here for this connection."""
    if libpq.is_usable(pgconn):
        return NativeInbox(pgconn, bytes_max, count_max)
    return FrameInbox(pgconn, bytes_max, count_max)


def warm_up() -> None:
    """Compile, or load from the cache, what the first `drain` would otherwise wait for."""
    if libpq.LIBRARY is not None:
        numbers = types.int64[::1]
        _drain.compile((types.int64, types.uint8[::1], numbers, numbers))  # type: ignore[attr-defined]


if libpq.LIBRARY is not None:
    _get = libpq.external("PQgetCopyData", types.int32, types.uintp, types.uintp, types.int32)
    _consume = libpq.external("PQconsumeInput", types.int32, types.uintp)
    _free = libpq.external("PQfreemem", types.void, types.uintp)
    _copy = libpq.external("memcpy", types.uintp, types.uintp, types.uintp, types.uintp)

    @compiled()
    def _drain(connection: int, buffer: Bytes, ends: Ints, state: Ints) -> int:
        """Fill `buffer` until it is full or nothing more is there.

        A message that does not fit stays in libpq's memory, noted in `state`, for the next call.
        """
        message = np.zeros(1, np.uintp)
        used, count = state[_USED], state[_COUNT]
        consumed_at = np.int64(-1)
        outcome = _FULL
        while count < ends.shape[0]:
            if state[_WAITING_AT] == 0:
                length = np.int64(_get(connection, message.ctypes.data, 1))
                if length < 0:
                    outcome = _CLOSED
                    break
                if length == 0:
                    if consumed_at == used:
                        outcome = _EMPTY
                        break
                    consumed_at = used
                    if _consume(connection) == 0:
                        outcome = _BROKEN
                        break
                    continue
                state[_WAITING_AT], state[_WAITING_LENGTH] = np.int64(message[0]), length
            if used + state[_WAITING_LENGTH] > buffer.shape[0]:
                break
            _copy(buffer.ctypes.data + used, state[_WAITING_AT], state[_WAITING_LENGTH])
            _free(state[_WAITING_AT])
            used += state[_WAITING_LENGTH]
            ends[count] = used
            count += 1
            state[_WAITING_AT] = state[_WAITING_LENGTH] = 0
        state[_USED], state[_COUNT] = used, count
        return outcome

"""Transactions that the server sends before they end (protocol 2), told as those that it sends whole.

A transaction too large for the server's memory comes in blocks, between those of others, with the changes of
sub-transactions that may yet be rolled back. Its blocks wait on disk; when it commits they are given on as
protocol 1 would have sent them: Begin, the changes in their order without those that were rolled back,
Commit. Whatever reads them numbers operations at the commit, over what is left, and need not know that
the transaction was streamed (correctness 23). A block is memory-bounded because a batch is; at the commit
one block at a time is read back.

What waits is of no use after a crash: the server sends a transaction again from its beginning as long as its
end was not acknowledged, and that lies ahead. So nothing here is made durable, and what an earlier process
left behind is swept.

A relation's description stays although its sub-transaction was rolled back: the server describes a relation
once per transaction, and again when it has changed.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock import durable
from penstock.sources.postgres.pgoutput import MessageBatch
from penstock.sources.postgres.streamed_kernels import control_messages, without_ids

SPOOL_DIRECTORY = "spool"
_HEADER = 25  # of a message: 'w', start, end, send time
_NO_TRANSACTION = -1


@dataclass(slots=True)
class _Waiting:
    path: Path
    blocks: int = 0
    bytes: int = 0
    rolled_back: set[int] = field(default_factory=set)


class StreamedTransactions:
    """Used from one thread. `waiting_bytes` is on disk, not in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: dict[int, _Waiting] = {}
        self._inside = _NO_TRANSACTION

    @property
    def waiting_bytes(self) -> int:
        return sum(each.bytes for each in self._waiting.values())

    def whole(self, batch: MessageBatch) -> Iterator[MessageBatch]:
        """What the batch brings to its end, in the order of commits. Must be read to its end."""
        marks = control_messages(batch.buffer, batch.ends)
        if not len(marks) and self._inside == _NO_TRANSACTION:
            yield batch
            return
        begin = 0
        for mark in map(int, marks):
            yield from self._between(batch, begin, mark)
            yield from self._obey(batch.payload(mark))
            begin = mark + 1
        yield from self._between(batch, begin, len(batch))

    def close(self) -> None:
        """Remove what waits: ours alone, since another process may have begun to use the directory."""
        for waiting in self._waiting.values():
            waiting.path.unlink(missing_ok=True)
        self._waiting.clear()
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _between(self, batch: MessageBatch, begin: int, end: int) -> Iterator[MessageBatch]:
        """Messages between two marks: of the transaction that is being streamed, or of none."""
        if begin == end:
            return
        part = _part(batch, begin, end)
        if self._inside == _NO_TRANSACTION:
            yield part
        else:
            self._put_aside(self._waiting[self._inside], part)

    def _obey(self, message: bytes) -> Iterator[MessageBatch]:
        letter, xid = message[:1], int.from_bytes(message[1:5])
        if letter == b"S":
            self._inside = xid
            if xid not in self._waiting:
                self._waiting[xid] = _Waiting(self._directory / f"{xid}-{secrets.token_hex(4)}")
        elif letter == b"E":
            self._inside = _NO_TRANSACTION
        elif letter == b"A":
            self._roll_back(xid, int.from_bytes(message[5:9]))
        elif letter == b"c":
            yield from self._commit(xid, message[5:])

    def _put_aside(self, waiting: _Waiting, part: MessageBatch) -> None:
        sizes = np.array([len(part.ends), len(part.buffer)], np.int64)
        with durable.storage_errors(f"Could not put a large transaction aside in {self._directory}."):
            self._directory.mkdir(parents=True, exist_ok=True)
            with waiting.path.open("ab") as file:
                for piece in (sizes, part.ends, part.buffer):
                    file.write(np.ascontiguousarray(piece).data)
        waiting.blocks += 1
        waiting.bytes += sum(piece.nbytes for piece in (sizes, part.ends, part.buffer))

    def _roll_back(self, xid: int, part: int) -> None:
        waiting = self._waiting.get(xid)
        if waiting is None:
            return
        if part == xid:
            del self._waiting[xid]
            waiting.path.unlink(missing_ok=True)
        else:
            waiting.rolled_back.add(part)

    def _commit(self, xid: int, fields: bytes) -> Iterator[MessageBatch]:
        """`fields`: flags, the commit's position, its end, its time."""
        flags, position, end, at = fields[:1], fields[1:9], fields[9:17], fields[17:25]
        waiting = self._waiting.pop(xid, None)
        header = b"w" + bytes(_HEADER - 1)
        yield MessageBatch.join([header + b"B" + position + at + xid.to_bytes(4)])
        if waiting is not None and waiting.blocks:
            yield from self._blocks(waiting)
            waiting.path.unlink(missing_ok=True)
        yield MessageBatch.join([header + b"C" + flags + position + end + at])

    def _blocks(self, waiting: _Waiting) -> Iterator[MessageBatch]:
        rolled_back = np.array(sorted(waiting.rolled_back), np.int64)
        with (
            durable.storage_errors(f"Could not read a large transaction back from {self._directory}."),
            waiting.path.open("rb") as file,
        ):
            for _ in range(waiting.blocks):
                count, size = np.fromfile(file, np.int64, 2)
                ends = np.fromfile(file, np.int64, int(count))
                buffer = np.fromfile(file, np.uint8, int(size))
                kept = MessageBatch(*without_ids(buffer, ends, rolled_back))
                if len(kept):
                    yield kept


def warm_up() -> None:
    """Compile, or load from the cache, what the first batches would otherwise wait for."""
    batch = MessageBatch.join([b"w" + bytes(24) + b"I" + bytes(12)])
    # As in `pgoutput.warm_up`: memory that is written to again is another type to a compiler.
    for buffer in (batch.buffer, batch.buffer.copy()):
        control_messages(buffer, batch.ends)
        without_ids(buffer, batch.ends, np.zeros(0, np.int64))


def sweep_spool(directory: Path) -> None:
    """Remove what waits there; the server sends it again."""
    shutil.rmtree(directory, ignore_errors=True)


def _part(batch: MessageBatch, begin: int, end: int) -> MessageBatch:
    if begin == 0 and end == len(batch):
        return batch
    start = int(batch.ends[begin - 1]) if begin else 0
    return MessageBatch(batch.buffer[start : int(batch.ends[end - 1])], batch.ends[begin:end] - start)

"""Parts of shapes as bodies: JSON arrays, or server-sent events, in pieces of bounded size.

What is in memory and small is read at once, in the loop's thread; files are read in a few threads. A live
answer is the same for all who wait at the same offset: its body is made once, and once for each encoding.
Long bodies are read as the client takes them: of one that does not, a piece or two are held. Each generator
closes the one it reads from, so that a client that leaves leaves no open file behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import TypeVar

from penstock.core.offset import LogOffset
from penstock.shapes.http.compression import Body, Compressor, Encoding
from penstock.shapes.http.message import PIECE_BYTES_MAX, Pieces
from penstock.shapes.shape import Shape
from penstock.shapes.storage import SnapshotChunk

READ_THREADS = 8
CACHE_BYTES_MAX = 32 * 1024 * 1024
_ENTRY_BYTES = 1024  # what an entry takes besides
SEPARATOR = b",\n"
T = TypeVar("T")

#: Whose body: the handle, and its part of the shape.
BodyKey = tuple[str, object, object]


class Bodies:
    """Bodies that were made, and threads that read."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READ_THREADS, "shape-reading")
        self._cache: OrderedDict[BodyKey, Body] = OrderedDict()
        self._cached_bytes = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def made(self, key: BodyKey) -> Body | None:
        body = self._cache.get(key)
        if body is not None:
            self._cache.move_to_end(key)
        return body

    def keep(self, key: BodyKey, body: Body) -> None:
        # An encoding that is made later is not counted: it is smaller than the body itself.
        if (before := self._cache.get(key)) is not None:
            self._cached_bytes -= len(before.raw) + _ENTRY_BYTES
        self._cache[key] = body
        self._cached_bytes += len(body.raw) + _ENTRY_BYTES
        while self._cached_bytes > CACHE_BYTES_MAX:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest.raw) + _ENTRY_BYTES

    async def compressed(self, pieces: Pieces, encoding: Encoding | None) -> Pieces:
        """The pieces, encoded off the loop."""
        async with aclosing(pieces):
            if encoding is None:
                async for piece in pieces:
                    yield piece
                return
            compressor = Compressor(encoding)
            async for piece in pieces:
                encoded = await self.off_loop(lambda piece=piece: compressor.add(piece))  # type: ignore[misc]
                if encoded:
                    yield encoded
            yield await self.off_loop(compressor.finish)

    async def steps(self, blocks: Iterator[bytes]) -> Pieces:
        """What an iterator over files gives, each step in a thread. It is closed there too: a step that
        nobody waits for any more may still be under way."""
        turn = threading.Lock()

        def step() -> bytes | None:
            with turn:
                return next(blocks, None)

        def close() -> None:
            with turn:
                getattr(blocks, "close", _nothing)()

        try:
            while (block := await self.off_loop(step)) is not None:
                yield block
        finally:
            with suppress(RuntimeError):  # the process ends
                self._threads.submit(close)

    async def blocks(self, blocks: Iterator[bytes]) -> Pieces:
        """The same in pieces of bounded size."""
        async with aclosing(self.steps(blocks)) as steps:
            async for block in steps:
                for start in range(0, len(block), PIECE_BYTES_MAX):
                    yield block[start : start + PIECE_BYTES_MAX]


def _nothing() -> None:
    pass


async def array(items: Pieces, last: bytes | None = None) -> Pieces:
    """A JSON array of items that come joined by `SEPARATOR`, and one more at its end."""
    opening = b"["
    async with aclosing(items):
        async for piece in items:
            yield opening + piece
            opening = b""
    if last is None:
        yield opening + b"]"
    else:
        yield (opening or SEPARATOR) + last + b"]"


def whole_array(items: bytes, last: bytes | None = None) -> bytes:
    if last is None:
        return b"[" + items + b"]"
    return b"[" + items + (SEPARATOR if items else b"") + last + b"]"


def events(items: bytes) -> bytes:
    """Items as server-sent events. A newline stands between items only: JSON text has none inside strings."""
    return b"data: " + items.replace(SEPARATOR, b"\n\ndata: ") + b"\n\n"


def read_small(shape: Shape, start: LogOffset, end: LogOffset) -> bytes | Iterator[bytes]:
    """The items in (start, end], joined; or an iterator over them if they are more than one piece."""
    blocks = shape.storage.get_log_stream(start, end)
    first = next(blocks, b"")
    second = next(blocks, None)
    if second is None and len(first) <= PIECE_BYTES_MAX:
        return first
    return _chained(first, second, blocks)


def _chained(first: bytes, second: bytes | None, rest: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield first
        if second is not None:
            yield second
        yield from rest
    finally:
        getattr(rest, "close", _nothing)()


async def growing(
    chunk_of: Callable[[], SnapshotChunk | None], grown: Callable[[int], Awaitable[None]], bodies: Bodies
) -> Pieces:
    """A chunk of a snapshot, read as it is written. `grown` waits until it has more than so many bytes."""
    start = 0
    while True:
        chunk = await bodies.off_loop(chunk_of)
        if chunk is None:
            raise FileNotFoundError("the shape went away")
        async with aclosing(bodies.blocks(chunk.blocks(start))) as pieces:
            async for piece in pieces:
                yield piece
        if chunk.complete:
            return
        start = chunk.size
        await grown(start)

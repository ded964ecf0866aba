"""Live changes as server-sent events: one response that stays open for a minute.

Each batch is followed by an up-to-date message whose lsn is one above the batch's last transaction. Clients
resume at `<lsn>_0`: that is then behind everything they were sent, and before whatever comes next, since no
two commit records are one byte apart (correctness 45). A client takes its offset from these messages alone,
so a batch always goes on until it is up to date.

A client that does not read holds a piece or two: the next one is read from the shape when the last was sent.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from penstock.core.offset import LogOffset
from penstock.shapes.http.answers import up_to_date
from penstock.shapes.http.bodies import Bodies, events, read_small
from penstock.shapes.http.compression import Body
from penstock.shapes.http.message import Pieces
from penstock.shapes.http.watch import Watch
from penstock.shapes.shape import Shape

KEEP_ALIVE = b": keep-alive\n\n"


async def event_stream(
    shape: Shape, start: LogOffset, bodies: Bodies, *, timeout_s: float, keep_alive_s: float
) -> Pieces:
    """If there is something already, that alone, so that a cache has a whole answer; else what comes."""
    last = shape.last_offset
    if last > start:
        async with aclosing(_batch(shape, start, last, bodies)) as pieces:
            async for piece in pieces:
                yield piece
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    with Watch(shape) as watch:
        while (left := end - loop.time()) > 0:
            position = start
            moved = await watch.until(
                lambda position=position: shape.state == "gone" or shape.last_offset > position,  # type: ignore[misc]
                min(keep_alive_s, left),
            )
            if shape.state == "gone":
                return
            if not moved:
                if loop.time() < end:
                    yield KEEP_ALIVE
                continue
            last = shape.last_offset
            async with aclosing(_batch(shape, start, last, bodies)) as pieces:
                async for piece in pieces:
                    yield piece
            start = last


async def _batch(shape: Shape, start: LogOffset, end: LogOffset, bodies: Bodies) -> Pieces:
    """What is in (start, end], and the up-to-date message."""
    key = (shape.handle, ("sse", start), end)
    made = bodies.made(key)
    if made is not None:
        yield made.raw
        return
    closing = events(up_to_date(end.tx + 1))
    if shape.storage.is_buffered(start):
        found = read_small(shape, start, end)
    else:
        found = await bodies.off_loop(lambda: read_small(shape, start, end))
    if isinstance(found, bytes):
        body = Body((events(found) if found else b"") + closing)
        bodies.keep(key, body)
        yield body.raw
        return
    async with aclosing(bodies.steps(found)) as blocks:
        async for block in blocks:
            yield events(block.removeprefix(b",\n"))
    yield closing

"""Subset requests: rows of a shape by a condition, an order and a limit of their own, read from the source.

The answer's offset is one that the client can go on from: the one it has, or what the shape had before the
rows were read. What comes twice that way, the client tells apart by the snapshot that the answer names.
"""

from __future__ import annotations

import asyncio

from penstock.core.offset import LogOffset
from penstock.shapes.http.asked import Asked
from penstock.shapes.http.definitions import Definitions
from penstock.shapes.http.message import Answer, Stream
from penstock.shapes.http.serving import ShapeServing
from penstock.shapes.shape import Shape, ShapeApi
from penstock.shapes.source.subset import SubsetReader, SubsetRequest, define_subset


class SubsetServing:
    def __init__(
        self, api: ShapeApi, reader: SubsetReader, shapes: ShapeServing, definitions: Definitions
    ) -> None:
        self._api = api
        self._definitions = definitions
        self._reader = reader
        self._lookup = shapes.lookup
        self._delivery = shapes.delivery

    async def serve(self, asked: Asked, request: SubsetRequest) -> Answer:
        subset = await self._definitions.off_loop(lambda: define_subset(asked.definition, request))
        shape = await self._lookup.load(asked)
        self._api.touch(shape)
        if asked.request.offset == LogOffset.BEFORE_ALL:
            await self._lookup.started(shape)
        end = _resume_from(asked, shape)
        found = await asyncio.wrap_future(self._reader.read(asked.definition, subset, shape))
        bodies = self._delivery.bodies
        body = Stream(bodies.compressed(bodies.blocks(found.pieces()), asked.encoding))
        body.on_close(found.close)
        return self._delivery.maker.of_subset(shape, end, body, asked.encoding)


def _resume_from(asked: Asked, shape: Shape) -> LogOffset:
    offset = asked.request.offset
    if offset == "now":
        return shape.last_offset
    assert isinstance(offset, LogOffset)
    return LogOffset.FIRST if offset == LogOffset.BEFORE_ALL else offset

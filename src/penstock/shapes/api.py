"""`LiveShapes`: what the HTTP side asks of the engine (`ShapeApi`), in the loop's thread."""

from __future__ import annotations

import asyncio
import time

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.engine import Engine
from penstock.shapes.shape import ApiStatus, Shape, SnapshotPoint
from penstock.shapes.subquery.watch import Cut, NoCut


class LiveShapes:
    """However many ask for a shape that is not there, it is made once. Hidden shapes are found by nobody."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._being_made: dict[str, asyncio.Future[Shape]] = {}
        self.status: ApiStatus = "starting"

    @property
    def replayed(self) -> bool:
        return self._engine.replayed

    @property
    def global_last_seen_lsn(self) -> int:
        return self._engine.collector.delivery.lsn.last_processed

    def existing(self, definition: ShapeDefinition) -> Shape | None:
        found = self._engine.registry.existing(definition)
        return None if found is None or found.hidden else found

    async def resolve(self, definition: ShapeDefinition) -> Shape:
        existing = self.existing(definition)
        if existing is not None:
            return existing
        making = self._being_made.get(definition.identity)
        if making is None:
            making = asyncio.wrap_future(self._engine.create(definition))
            self._being_made[definition.identity] = making
            making.add_done_callback(lambda _: self._being_made.pop(definition.identity, None))
        return await asyncio.shield(making)

    def find(self, handle: str) -> Shape | None:
        found = self._engine.registry.find(handle)
        return None if found is None or found.hidden else found

    def touch(self, shape: Shape) -> None:
        shape.last_read = time.time()

    async def drop(self, shape: Shape, reason: str) -> None:
        await asyncio.wrap_future(self._engine.submit(lambda: self._engine.drop(shape, reason)))

    def all(self) -> list[Shape]:
        return self._engine.registry.all()

    async def watch(self, shape: Shape, after: str | None) -> str | None:
        if not self.replayed:
            return None
        layers = self._engine.subqueries.layers
        return await asyncio.wrap_future(self._engine.submit(lambda: layers.watch(shape, after)))

    async def cut(self, watch: str, point: SnapshotPoint) -> Cut | NoCut:
        return await asyncio.wrap_future(
            self._engine.submit(lambda: self._engine.subqueries.cut(watch, point))
        )

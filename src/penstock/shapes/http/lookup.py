"""The shape that a request is about: found by its handle, or by its definition, or made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.http.asked import Asked, RefetchError
from penstock.shapes.http.watch import Watch
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, ShapeApi, SnapshotProblem


class ShapeLookup:
    """Used in the loop's thread."""

    def __init__(self, api: ShapeApi, settings: ShapeSettings) -> None:
        self._api = api
        self._settings = settings
        self._making: dict[str, asyncio.Task[Shape]] = {}

    async def load(self, asked: Asked) -> Shape:
        """The shape of the request; `RefetchError` if its handle is not that shape's."""
        handle, definition = asked.request.handle, asked.definition
        if handle is not None:
            shape = self.with_handle(handle, definition)
            if shape is not None:
                return shape
        right = self._api.existing(definition) or await self._made(definition)
        if handle is not None:
            raise RefetchError(right.handle)
        return right

    def with_handle(self, handle: str, definition: ShapeDefinition) -> Shape | None:
        """The shape with this handle, if it is one of this definition."""
        shape = self._api.find(handle)
        if shape is None or shape.hidden or shape.state == "gone":
            return None
        return shape if shape.definition.identity == definition.identity else None

    async def _made(self, definition: ShapeDefinition) -> Shape:
        """A client that goes away does not keep others from the shape that is being made, nor does one that
        asks again have it made once more."""
        identity = definition.identity
        making = self._making.get(identity)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._api.resolve(definition))
            self._making[identity] = making
            making.add_done_callback(lambda done: self._forget(identity, done))
        try:
            async with asyncio.timeout(self._settings.snapshot_started_timeout.total_seconds()):
                return await asyncio.shield(making)
        except TimeoutError:
            raise SnapshotProblem(503, "Timeout waiting for the shape to be made", 10) from None

    def _forget(self, identity: str, making: asyncio.Task[Shape]) -> None:
        del self._making[identity]
        if not making.cancelled():
            making.exception()  # who waits for it is told; if nobody does, it is nobody's

    async def started(self, shape: Shape) -> None:
        """Wait until there is something of the shape to read."""
        timeout_s = self._settings.snapshot_started_timeout.total_seconds()
        if not await self.until(shape, lambda: shape.snapshot_started, timeout_s):
            raise SnapshotProblem(503, "Timeout waiting for the snapshot to start", 10)

    async def until(self, shape: Shape, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true in time; raises if the shape went away meanwhile."""
        with Watch(shape) as watch:
            await watch.until(
                lambda: condition() or shape.error is not None or shape.state == "gone", timeout_s
            )
        self.require(shape)
        return condition()

    def require(self, shape: Shape) -> None:
        """That it is still there."""
        if shape.error is not None:
            raise shape.error
        if shape.state == "gone":
            raise RefetchError(self.replacement(shape))
        if shape.storage.is_gone:  # it is about to be dropped, and until then there is no other
            raise SnapshotProblem(503, "The shape is being removed", 1)

    def replacement(self, shape: Shape) -> str | None:
        """The handle of the shape that has taken its place."""
        if shape.replacement is not None:
            return shape.replacement
        newer = self._api.existing(shape.definition)
        return None if newer is None or newer is shape else newer.handle

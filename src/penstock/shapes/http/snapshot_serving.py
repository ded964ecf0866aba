"""Chunks of snapshots, also while they are being written. A chunk's answer is the same for ever."""

from __future__ import annotations

from penstock.core.offset import LogOffset
from penstock.shapes.http.asked import Asked
from penstock.shapes.http.bodies import array, growing, whole_array
from penstock.shapes.http.compression import Body
from penstock.shapes.http.delivery import Delivery
from penstock.shapes.http.lookup import ShapeLookup
from penstock.shapes.http.message import PIECE_BYTES_MAX, Answer, Pieces
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, SnapshotProblem

_WHOLE_BYTES_MAX = PIECE_BYTES_MAX // 2


class SnapshotServing:
    def __init__(self, lookup: ShapeLookup, delivery: Delivery, settings: ShapeSettings) -> None:
        self._lookup = lookup
        self._delivery = delivery
        self._timeout_s = settings.snapshot_chunk_timeout.total_seconds()

    async def chunk(self, asked: Asked, shape: Shape, number: int) -> Answer | None:
        """None: the snapshot is complete, and has no such chunk."""
        if not await self._is_there(shape, number):
            return None
        end = LogOffset(0, number)
        known = self._delivery.not_modified(asked, shape, end, up_to_date=False)
        if known is not None:
            return known
        bodies, key = self._delivery.bodies, (shape.handle, "chunk", number)
        body = bodies.made(key)
        if body is None:
            items = await bodies.off_loop(lambda: _small_chunk(shape, number))
            if items is None:
                pieces = array(self._as_written(shape, number))
                return self._delivery.streamed(asked, shape, end, pieces, up_to_date=False)
            body = Body(whole_array(items))
            bodies.keep(key, body)
        return await self._delivery.whole(asked, shape, end, body, up_to_date=False)

    async def _is_there(self, shape: Shape, number: int) -> bool:
        """Whether there is such a chunk, once that is known."""
        storage = shape.storage
        is_known = await self._lookup.until(
            shape,
            lambda: storage.snapshot_chunks > number or storage.snapshot_state == "complete",
            self._timeout_s,
        )
        if not is_known:
            raise SnapshotProblem(503, "Timeout waiting for the snapshot's next rows", 10)
        return storage.snapshot_chunks > number

    def _as_written(self, shape: Shape, number: int) -> Pieces:
        async def grown(size: int) -> None:
            def has_grown() -> bool:
                chunk = shape.storage.snapshot_chunk(number)
                return chunk is not None and (chunk.size > size or chunk.complete)

            if not await self._lookup.until(shape, has_grown, self._timeout_s):
                raise TimeoutError("the snapshot does not go on")

        return growing(lambda: shape.storage.snapshot_chunk(number), grown, self._delivery.bodies)


def _small_chunk(shape: Shape, number: int) -> bytes | None:
    """All of a chunk; None if it is not written to its end, or too large to be sent as a whole."""
    chunk = shape.storage.snapshot_chunk(number)
    if chunk is None or not chunk.complete or chunk.size > _WHOLE_BYTES_MAX:
        return None
    return b"".join(chunk.blocks())

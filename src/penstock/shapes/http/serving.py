"""GET and POST of `/v1/shape`: from a checked request to the part of the shape it asks for.

An offset says what a client has. Before the snapshot (-1) and within it (`0_n`) it gets the next chunk, as
far as that is written; at its end or later the log from there on, up to a chunk's end or the newest offset. A
live request that has everything waits.
"""

from __future__ import annotations

import math

from penstock.core.offset import LogOffset
from penstock.shapes.http.admission import Admission
from penstock.shapes.http.answers import AnswerMaker
from penstock.shapes.http.asked import Asked
from penstock.shapes.http.bodies import Bodies
from penstock.shapes.http.delivery import Delivery
from penstock.shapes.http.log_serving import LogServing
from penstock.shapes.http.lookup import ShapeLookup
from penstock.shapes.http.message import Answer
from penstock.shapes.http.snapshot_serving import SnapshotServing
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, ShapeApi, SnapshotProblem


class ShapeServing:
    """Used in the loop's thread."""

    def __init__(self, api: ShapeApi, bodies: Bodies, admission: Admission, settings: ShapeSettings) -> None:
        self._api = api
        self.delivery = Delivery(AnswerMaker(settings), bodies)
        self.lookup = ShapeLookup(api, settings)
        self._snapshots = SnapshotServing(self.lookup, self.delivery, settings)
        self.logs = LogServing(api, self.lookup, self.delivery, admission, settings)

    async def serve(self, asked: Asked) -> Answer:
        shape = await self.lookup.load(asked)
        self._api.touch(shape)
        try:
            return await self._of(asked, shape)
        except FileNotFoundError:
            self.lookup.require(shape)  # it has gone meanwhile
            raise

    async def _of(self, asked: Asked, shape: Shape) -> Answer:
        offset = asked.request.offset
        if offset == "now":
            return self.logs.now(asked, shape)
        assert isinstance(offset, LogOffset)
        if offset == LogOffset.BEFORE_ALL:
            return await self._first(asked, shape)
        if offset.tx == 0 and offset.op != math.inf:
            answer = await self._snapshots.chunk(asked, shape, int(offset.op) + 1)
            if answer is not None:
                return answer
        return await self.logs.after(asked, shape, max(offset, LogOffset.LAST_BEFORE_REAL))

    async def _first(self, asked: Asked, shape: Shape) -> Answer:
        await self.lookup.started(shape)
        answer = await self._snapshots.chunk(asked, shape, 0)
        if answer is None:
            raise SnapshotProblem(503, "The snapshot cannot be read", 10)
        return answer

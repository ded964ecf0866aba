"""`BrokenShapes`: shapes that cannot go on, from when that is found out until they are ended.

What is promised: of a transaction in which a shape breaks, nobody reads a part. What was rendered for all
shapes is appended without it from then on (`without`), what was held back of it is forgotten, and since no
boundary of it moves before the last fragment, readers see nothing of what came before in the same
transaction. It is ended after the fragment (`take`), so the pass over the changes goes on for all others.

A change may make a shape impossible only if it is news to it, and that is not known before its snapshot is:
until then it is a `Doubt`, a bounded number of which the shape keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from penstock import logs
from penstock.shapes.engine.consumer import Consumer, Doubt
from penstock.shapes.engine.consumer_registry import ConsumerRegistry
from penstock.shapes.engine.delivery import Delivery
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.shape import Shape

_DOUBTS_MAX = 100  # each keeps its changes


class BrokenShapes:
    """Belongs to the engine's thread."""

    def __init__(self, slots: ConsumerRegistry, delivery: Delivery) -> None:
        self._slots = slots
        self._delivery = delivery
        self._reasons: dict[int, str] = {}  # by slot

    def __contains__(self, shape: Shape) -> bool:
        return shape.slot in self._reasons

    def add(self, consumers: Iterable[Consumer], reason: str, error: Exception | None = None) -> None:
        for consumer in consumers:
            self._reasons.setdefault(consumer.shape.slot, reason)
        if error is not None:
            logs.log_unexpected("the live lane", error)

    def doubt(self, consumer: Consumer, doubt: Doubt) -> None:
        """The shape cannot go on, if these changes are news to it; that may not be known yet."""
        if consumer.doubts is None:
            if consumer.concerns(doubt):
                self.add([consumer], doubt.reason)
        elif len(consumer.doubts) < _DOUBTS_MAX:
            consumer.doubts.append(doubt)
        else:
            self.add([consumer], doubt.reason)

    def forget(self, shape: Shape) -> None:
        """It has been ended, for whatever reason."""
        self._reasons.pop(shape.slot, None)

    def without(self, chosen: list[Chosen]) -> list[Chosen]:
        """What is left for shapes that go on; of the others nothing is held back any more."""
        if not self._reasons:
            return chosen
        for slot in self._reasons:
            if slot in self._slots.consumers:  # it may have been dropped since
                self._delivery.forget(self._slots.consumers[slot].shape)
        broken = np.fromiter(self._reasons, np.int32)
        return [part.where(~np.isin(part.slots, broken)) for part in chosen]

    def take(self) -> Iterator[tuple[Shape, str]]:
        """Those that must go, with the reason. Ending one may end others: they are passed over."""
        broken, self._reasons = self._reasons, {}
        for slot, reason in broken.items():
            if slot in self._slots.consumers:
                yield self._slots.consumers[slot].shape, reason

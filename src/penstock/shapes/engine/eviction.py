"""`Eviction`: which shapes have to go though nothing is wrong with them, or though nobody says what is.

Those that nobody has read for the longest time make room for others: when there are too many, or when they
take too much on disk. Those that nobody has read for long go in any case, and so do inner shapes whose outer
one was never made. Inner shapes of others are read by them, and go with them.

A shape that makes no progress would hold back the source's log for all: it is asked once, and goes if it is
still where it was. Only for its own fault: while storage cannot write anything, nobody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from penstock.shapes.engine.delivery import Delivery
from penstock.shapes.engine.registry import ShapeRegistry
from penstock.shapes.shape import Shape
from penstock.shapes.storage import ShapeStore

_UNUSED_S = 300.0
_logger = structlog.get_logger("penstock.shapes")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many shapes, and how much of them, there may be; those not read for the longest time go."""

    shapes_max: int = 100_000
    disk_bytes_max: int = 64 << 30
    unread_s_max: float = float("inf")
    stuck_s_max: float = 60.0


class Eviction:
    """`drop` ends a shape, in the engine's thread; `later` has something called there."""

    def __init__(
        self,
        limits: Limits,
        registry: ShapeRegistry,
        store: ShapeStore,
        delivery: Delivery,
        drop: Callable[[Shape, str], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._store = store
        self._delivery = delivery
        self._drop = drop
        self._later = later
        self._failures = 0  # of storage, up to the last look for shapes that are stuck

    def make_room(self) -> None:
        """For another one, in the engine's thread; with many shapes for more than one, since each look
        costs."""
        count = len(self._registry) + 1 - self._limits.shapes_max
        if count > 0:
            for shape in self._registry.longest_unread(max(count, self._limits.shapes_max // 100)):
                self._drop(shape, "too many shapes")

    def drop_stuck(self, now: float) -> None:
        """Those whose own fault it is, in the engine's thread."""
        failures = self._store.failures
        if self._store.problem is not None or failures != self._failures:
            self._failures = failures
            self._delivery.tracker.excuse(now)
            return
        asked, overdue = self._delivery.tracker.challenge(self._limits.stuck_s_max, now)
        for handle in asked:
            _logger.warning("shape makes no progress", handle=handle)
        for handle in overdue:
            if (shape := self._registry.find(handle)) is not None:
                self._drop(shape, "no progress")

    def drop_unread(self) -> None:
        """Have those gone that nobody has read for long, or that take too much room. In any thread: with many
        shapes it takes a while to find them."""
        now = time.time()
        for shape in self._registry.all():
            if self._registry.is_inner(shape):
                continue  # those that have it are read, or go
            if shape.hidden and shape.last_read < now - _UNUSED_S:
                self._later(partial(self._drop_unneeded, shape))
            elif not shape.hidden and shape.last_read < now - self._limits.unread_s_max and not shape.waiting:
                self._later(partial(self._drop, shape, "not read"))
        excess = self._store.bytes_on_disk - self._limits.disk_bytes_max
        if excess > 0:
            for shape in self._registry.longest_unread(len(self._registry)):
                if excess <= 0:
                    break
                excess -= shape.storage.bytes_on_disk
                self._later(partial(self._drop, shape, "too much on disk"))

    def _drop_unneeded(self, shape: Shape) -> None:
        """An inner shape whose outer one was never made."""
        if not self._registry.is_inner(shape):
            self._drop(shape, "not needed")

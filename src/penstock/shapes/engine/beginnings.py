"""`Beginnings`: how far each new shape has come, from asking for its snapshot to when a crash spares it.

What is promised: a shape is kept over a restart from the commit on that has both its whole snapshot and all
that was kept for it meanwhile, and not before. First rows that come in one block are shown when that commit
is durable, so whoever has them has a handle that a crash does not take; of a larger snapshot, readers are
told when it has begun.

Why it holds: `keep` puts the shape into the next commit and is called when the snapshot is completed, in the
engine's thread, which also appended all that waited when the snapshot became known. A shape that is completed
without having been shown waits in `_unshown` until storage says that it is kept. One with subqueries lacks
rows until its layers have settled: what is told of its snapshot meanwhile is remembered in `_unsettled`, and
counts from then on.

With a shape is kept what its snapshot shows (`SnapshotPoint`), for transactions may come again after a crash;
that is let go when everything the snapshot shows lies before what is on disk. With a shape that has
subqueries what it holds is kept instead, again with each commit that changes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.shapes.engine.delivery import Delivery
from penstock.shapes.engine.kept_shape import KeptShape
from penstock.shapes.engine.measures import ShapeMeasures
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.subquery.layers import DependencyLayers


class Beginnings:
    """Belongs to the engine's thread. `on_change`: there is something for the next commit."""

    def __init__(
        self,
        delivery: Delivery,
        layers: DependencyLayers,
        measures: ShapeMeasures,
        on_change: Callable[[], None],
    ) -> None:
        self._delivery = delivery
        self._layers = layers
        self._measures = measures
        self._on_change = on_change
        self._asked: dict[str, float] = {}  # when the snapshots were asked for that are being taken
        # What snapshots show that are being taken, or that transactions may come again of after a crash.
        self._points: dict[str, SnapshotPoint] = {}
        self._unshown: dict[str, Shape] = {}  # whole, and shown once they outlive a crash
        self._unsettled: dict[str, set[str]] = {}  # shapes with subqueries, and what they are told meanwhile
        self._kept: set[str] = set()  # of those, the ones that outlive a crash

    def resume(self, shape: Shape, point: SnapshotPoint | None) -> None:
        """It was there before a restart, and so was what it is kept with."""
        if shape.has_subqueries:
            self._kept.add(shape.handle)
        elif point is not None:
            self._points[shape.handle] = point

    def begin(self, shape: Shape) -> None:
        """Its snapshot is about to be asked for."""
        if shape.has_subqueries:
            self._unsettled[shape.handle] = set()
        self._asked[shape.handle] = time.monotonic()

    def forget(self, shape: Shape) -> bool:
        """It is gone; whether its snapshot was being taken."""
        self._points.pop(shape.handle, None)
        self._unshown.pop(shape.handle, None)
        self._unsettled.pop(shape.handle, None)
        self._kept.discard(shape.handle)
        return self._asked.pop(shape.handle, None) is not None

    # How its snapshot goes

    def known(self, shape: Shape, point: SnapshotPoint) -> None:
        self._on_change()
        shape.state = "ready"
        self._points[shape.handle] = point

    def started(self, shape: Shape) -> None:
        if shape.handle in self._unsettled:
            self._unsettled[shape.handle].add("started")
        else:
            self._show(shape)

    def completed(self, shape: Shape) -> None:
        if shape.handle in self._unsettled:
            self._unsettled[shape.handle].add("completed")
            return
        asked = self._asked.pop(shape.handle, None)
        if asked is None:
            return
        self._measures.snapshot_taken(time.monotonic() - asked)
        self._keep(shape)
        if shape.snapshot_started:
            self._delivery.touched.add(shape)
        else:
            self._unshown[shape.handle] = shape

    def settled(self, shape: Shape) -> None:
        """A shape with subqueries has what its snapshot lacks: now it can be read, and kept."""
        told = self._unsettled.pop(shape.handle, set())
        self._on_change()
        if "started" in told:
            self._show(shape)
        if "completed" in told:
            self.completed(shape)

    def _show(self, shape: Shape) -> None:
        shape.snapshot_started = True
        self._delivery.touched.add(shape)

    # Over a restart

    def keep_again(self, shape: Shape) -> None:
        """What is kept of it is another now. One whose snapshot is being taken is not kept yet."""
        if shape.handle not in self._asked:
            self._keep(shape)

    def _keep(self, shape: Shape) -> None:
        """Over a restart, from the next commit on."""
        self._on_change()
        if shape.has_subqueries:  # with what it holds then, which belongs to the commit
            self._kept.add(shape.handle)
            self._layers.note_dirty(shape)
        else:
            KeptShape.of(shape, point=self._points.get(shape.handle)).make_ready(shape.storage)

    def keep_held(self) -> None:
        """Before a commit: what shapes with subqueries hold by now belongs to it."""
        for shape in self._layers.take_dirty():
            if shape.handle in self._kept:
                KeptShape.of(shape, held=self._layers.held(shape)).make_ready(shape.storage)

    def show_kept(self) -> None:
        """After a commit: those that outlive a crash by now."""
        for shape in [each for each in self._unshown.values() if each.storage.is_kept]:
            del self._unshown[shape.handle]
            self._show(shape)

    def forget_points(self, held: int) -> None:
        """Of snapshots that are kept, those that show nothing behind `held`, which is on disk."""
        for handle in [handle for handle, point in self._points.items() if point.lsn <= held]:
            if handle not in self._asked:
                del self._points[handle]

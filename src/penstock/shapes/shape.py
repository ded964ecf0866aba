"""One shape as its readers see it, and what the HTTP side asks of the engine.

Attributes are read from any thread and changed by the engine's alone. A reader that waits subscribes, looks
again, and only then waits: whatever changes after that calls it, in the loop's thread, once for each batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock.core.offset import LogOffset

if TYPE_CHECKING:
    from penstock.shapes.definition import ShapeDefinition
    from penstock.shapes.storage import ShapeStorage
    from penstock.shapes.subquery.watch import Cut, NoCut

ShapeState = Literal["creating", "ready", "gone"]
ApiStatus = Literal["starting", "waiting", "active"]


class SnapshotProblem(Exception):  # noqa: N818 - it is what clients are told
    """Why a shape has no snapshot, as its clients are told: words for them, nothing of the query's."""

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_s: int | None = None,
        *,
        known: bool = True,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.known = known
        self.code = code


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """What a snapshot shows. `lsn`: where the log was written right after it was taken (correctness 10)."""

    xmin: int
    xmax: int
    xip: tuple[int, ...]
    lsn: int

    def shows(self, xids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of these transactions it shows, of those that committed below `lsn`."""
        running = np.array(self.xip, np.uint64)
        return (xids < np.uint64(self.xmin)) | ((xids < np.uint64(self.xmax)) & ~np.isin(xids, running))


class SnapshotListener(Protocol):
    """Who is told how a shape's snapshot goes, from any thread; returns at once."""

    def snapshot_shows_enough(self, shape: Shape, point: SnapshotPoint) -> bool:
        """Whether it shows all that was handed out before the shape was routed: else it is of no use."""

    def snapshot_known(self, shape: Shape, point: SnapshotPoint) -> None:
        """It is taken, and reading begins: what was buffered can be told apart."""

    def snapshot_started(self, shape: Shape) -> None:
        """There is something to read, or it is known that there are no rows."""

    def snapshot_grown(self, shape: Shape) -> None:
        """Another chunk, or more of one: for readers that wait for it."""

    def snapshot_completed(self, shape: Shape) -> None: ...

    def snapshot_failed(self, shape: Shape, problem: SnapshotProblem) -> None: ...


class SnapshotSource(Protocol):
    """Takes snapshots, in threads of its own."""

    def start(self, shape: Shape, listener: SnapshotListener) -> None:
        """Have it published, and a snapshot of it taken, soon; returns at once."""

    def start_over(self) -> None:
        """All shapes are gone, and nobody remembers what was handed out before. Returns at once."""

    def cancel(self, shape: Shape) -> None:
        """Nobody wants it any more. It may still be told of."""


class Shape:
    """One handle. `replacement`: the handle to use instead, if there is one; `error`: why it is gone."""

    __slots__ = (
        "_callbacks",
        "definition",
        "error",
        "handle",
        "hidden",
        "last_offset",
        "last_read",
        "replacement",
        "slot",
        "snapshot_started",
        "state",
        "storage",
    )

    def __init__(
        self,
        handle: str,
        definition: ShapeDefinition,
        slot: int,
        storage: ShapeStorage,
        *,
        hidden: bool = False,
    ) -> None:
        self.handle = handle
        self.definition = definition
        self.slot = slot
        self.storage = storage
        self.hidden = hidden  # an inner shape of a subquery, never given to clients
        self.state: ShapeState = "creating"
        self.snapshot_started = False
        self.last_offset = LogOffset.LAST_BEFORE_REAL  # readers may have everything up to here
        self.replacement: str | None = None
        self.error: SnapshotProblem | None = None
        self.last_read = time.time()
        self._callbacks: set[Callable[[], None]] | None = None

    @property
    def has_subqueries(self) -> bool:
        return self.definition.has_subqueries

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have it called when anything here changes: from the loop's thread, in the loop's thread."""
        if self._callbacks is None:
            self._callbacks = set()
        self._callbacks.add(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        if self._callbacks is not None:
            self._callbacks.discard(callback)
            if not self._callbacks:
                self._callbacks = None

    def wake(self) -> None:
        """Tell those who wait. In the loop's thread."""
        for callback in list(self._callbacks or ()):
            callback()

    @property
    def waiting(self) -> int:
        return len(self._callbacks or ())


class ShapeApi(Protocol):
    """What the HTTP side asks for. All in the loop's thread."""

    @property
    def status(self) -> ApiStatus:
        """`waiting`: another instance leads; what there is, is served."""

    @property
    def replayed(self) -> bool:
        """Whether all that was there at the start has been read again (correctness 43)."""

    @property
    def global_last_seen_lsn(self) -> int:
        """The newest transaction, or position without one, that all shapes have."""

    def existing(self, definition: ShapeDefinition) -> Shape | None: ...

    async def resolve(self, definition: ShapeDefinition) -> Shape:
        """The shape with this definition, made if need be. `SnapshotProblem` if it cannot be. Its snapshot
        may not have begun (`snapshot_started`, `error`), and its handle outlives a crash only once that is
        whole (`engine`)."""

    def find(self, handle: str) -> Shape | None:
        """A shape by its handle; None once it is gone."""

    def touch(self, shape: Shape) -> None:
        """Somebody reads it: it is not the one to be evicted."""

    async def drop(self, shape: Shape, reason: str) -> None:
        """Have it gone; waiting readers are told. Returns when nobody can find it any more."""

    def all(self) -> list[Shape]: ...

    async def watch(self, shape: Shape, after: str | None) -> str | None:
        """Have noted what happens to a shape with subqueries, for one `cut`; None: it is not possible yet.
        `after`: a watch whose place it takes."""

    async def cut(self, watch: str, point: SnapshotPoint) -> Cut | NoCut:
        """How it can be held against a snapshot that was taken since."""


def seen_lsn(api: ShapeApi, shape: Shape) -> int:
    """What a shape's clients have seen if they have all that they can. Asked before its newest offset is."""
    lsn, last = api.global_last_seen_lsn, shape.last_offset
    return min(lsn, last.tx) if shape.storage.last_seen_txn_offset > last else lsn

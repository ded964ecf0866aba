"""`Consumer`: which changes one shape gets, from its snapshot on.

    initializing → buffering → streaming → terminating

A shape is registered for routing before its snapshot is taken, and keeps what concerns it (buffering) until
it is known what the snapshot shows. Then each of those changes, and each later one, is either in the snapshot
or appended, never both and never neither (correctness 10):

- The snapshot shows exactly the transactions that `SnapshotPoint.shows` names, of those that had committed.
  `lsn` was read after it was taken, so a transaction whose commit lies beyond is not in it: up to there each
  is asked about, beyond there none, in whatever order their ids are.
- A transaction that was handed out before the shape was registered, and that the snapshot does not show,
  would be in neither. There can be such: a commit is in the log before it is visible, and stays invisible
  for as long as it waits for a standby. `RecentTransactions` remembers the last ones of each table since it
  had its first shape; a snapshot that does not show one of them is not used. What was handed out before
  that is waited for before the table is queried for the first time (`source.earlier_writers`).

What waits is bounded in bytes; beyond that the shape goes, and its clients fetch anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import ChangeRows
from penstock.core.offset import LogOffset
from penstock.core.stream import StreamId
from penstock.ledger.flush_tracker import align_offset_to_txn_boundary
from penstock.shapes.rendering.renderer import View
from penstock.shapes.shape import Shape, SnapshotPoint

ConsumerState = Literal["initializing", "buffering", "streaming", "terminating"]
_RECENT_MAX = 1024


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows of a batch that concern one shape, and how (`router`)."""

    changes: ChangeRows
    rows: npt.NDArray[np.int32]
    actions: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tx(self) -> npt.NDArray[np.int64]:
        return self.changes.tx[self.rows]

    def where(self, kept: npt.NDArray[np.bool_]) -> RoutedRows:
        return RoutedRows(self.changes, self.rows[kept], self.actions[kept])


@dataclass(frozen=True, slots=True)
class Doubt:
    """Changes that a shape cannot go on from, if they are news to it."""

    changes: ChangeRows
    rows: npt.NDArray[np.intp]
    reason: str


class SnapshotFilter:
    """What of the log a snapshot does not show."""

    __slots__ = ("point",)

    def __init__(self, point: SnapshotPoint) -> None:
        self.point = point

    def keeps(self, tx: npt.NDArray[np.int64], xid: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        return (tx >= self.point.lsn) | ~self.point.shows(xid)

    def is_passed(self, end: int) -> bool:
        """Whether everything that the snapshot may show lies before `end`."""
        return end >= self.point.lsn


class Consumer:
    """Belongs to the engine's thread. `since_tx`: what was handed out before it was there."""

    __slots__ = (
        "buffer",
        "doubts",
        "feeds_layers",
        "filter",
        "needs_layers",
        "shape",
        "since_tx",
        "state",
        "txn_offset_mapping",
        "view",
    )

    def __init__(self, shape: Shape, since_tx: int) -> None:
        self.shape = shape
        self.view = View.of(shape.definition)
        self.since_tx = since_tx
        self.state: ConsumerState = "initializing"
        self.filter: SnapshotFilter | None = None
        self.buffer: list[RoutedRows] | None = None
        self.doubts: list[Doubt] | None = None
        self.needs_layers = shape.has_subqueries
        self.feeds_layers = False  # it is a subquery of others
        self.txn_offset_mapping: dict[LogOffset, LogOffset] | None = None

    @property
    def is_special(self) -> bool:
        """Whether its changes are looked at one shape at a time."""
        return self.needs_layers or self.feeds_layers or self.filter is not None or self.state != "streaming"

    def begin_buffering(self) -> None:
        self.state = "buffering"
        self.buffer, self.doubts = [], []

    def begin_streaming(self, point: SnapshotPoint | None) -> tuple[list[RoutedRows], list[Doubt]]:
        """The changes that waited and that the snapshot does not show, and what was left in doubt.

        `point` is None if nothing that the snapshot may show is to come.
        """
        waiting, doubts = self.buffer or [], self.doubts or []
        self.buffer = self.doubts = None
        self.state = "streaming"
        self.filter = None if point is None else SnapshotFilter(point)
        return [kept for routed in waiting if (kept := self._not_shown(routed))], doubts

    def _not_shown(self, routed: RoutedRows) -> RoutedRows:
        if self.filter is None:
            return routed
        changes, rows = routed.changes, routed.rows
        return routed.where(self.filter.keeps(changes.tx[rows], changes.xid[rows]))

    def concerns(self, doubt: Doubt) -> bool:
        """Whether any of these changes is news to this shape."""
        if self.filter is None:
            return len(doubt.rows) > 0
        changes, rows = doubt.changes, doubt.rows
        return bool(self.filter.keeps(changes.tx[rows], changes.xid[rows]).any())

    def sent(self, own: LogOffset, boundary: LogOffset) -> None:
        """Its items up to `own` are those of transactions up to `boundary`."""
        if self.txn_offset_mapping is None:
            self.txn_offset_mapping = {}
        self.txn_offset_mapping[own] = boundary

    def flushed(self, own: LogOffset) -> LogOffset:
        """What that means for the transactions."""
        if self.txn_offset_mapping is None:
            return own
        aligned = align_offset_to_txn_boundary(own, self.txn_offset_mapping)
        if not self.txn_offset_mapping:
            self.txn_offset_mapping = None
        return aligned


class RecentTransactions:
    """The last transactions of each table that has or had a shape, as they were handed out; 16 KiB for a
    table at most."""

    def __init__(self) -> None:
        self._streams: dict[StreamId, npt.NDArray[np.int64]] = {}  # two lines: tx, xid

    def begin(self, stream: StreamId) -> None:
        """Remember those of a table from now on."""
        self._streams.setdefault(stream, np.empty((2, 0), np.int64))

    def knows(self, stream: StreamId) -> bool:
        """Whether it has or had a shape."""
        return stream in self._streams

    def note(self, changes: ChangeRows) -> None:
        known = self._streams.get(changes.stream)
        if known is None:
            return
        firsts = np.concatenate(([0], np.flatnonzero(np.diff(changes.tx)) + 1))[-_RECENT_MAX:]
        new = np.stack((changes.tx[firsts], changes.xid[firsts].astype(np.int64)))
        self._streams[changes.stream] = np.concatenate((known, new), axis=1)[:, -_RECENT_MAX:].copy()

    def missed(self, stream: StreamId, point: SnapshotPoint, up_to_tx: int) -> bool:
        """Whether there is one up to there that a snapshot does not show."""
        known = self._streams.get(stream)
        if known is None or not known.size:
            return False
        ids = known[1, known[0] <= up_to_tx]
        return not bool(point.shows(ids.astype(np.uint64)).all())


class WaitingChanges:
    """How much the changes take that shapes keep until their snapshots are known; each counts once, and so do
    all slices of the same rows."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._holders: dict[int, int] = {}  # by where it is: those that hold it keep it there
        self.bytes = 0

    def hold(self, routed: RoutedRows) -> bool:
        """Whether there is room for it. It counts until it is released, either way."""
        key, size = routed.changes.memory
        if key not in self._holders:
            self.bytes += size
        self._holders[key] = self._holders.get(key, 0) + 1
        return self.bytes <= self._bytes_max

    def release(self, waiting: Iterable[RoutedRows]) -> None:
        for routed in waiting:
            key, size = routed.changes.memory
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.bytes -= size

"""`Starting`: what a shape with subqueries waits for after its first snapshot, and whether that is of use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.capture.transactions import ChangeRows
from penstock.core.stream import StreamId
from penstock.shapes.engine.consumer import RoutedRows
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.subquery.outer import Flip
from penstock.shapes.subquery.values import bytes_of

_TRANSACTIONS_MAX = 1_000_000
_FLIPS_BYTES_MAX = 256 << 20


@dataclass(slots=True)
class Starting:
    """`seen` are the transactions of all its tables, as they were handed out since it is there, which is
    after `since_tx`."""

    streams: Collection[StreamId]
    since_tx: int
    point: SnapshotPoint | None = None
    rows: list[RoutedRows] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    flips_bytes: int = 0  # about
    seen: dict[int, int] = field(default_factory=dict)
    has_turned: bool = False  # nulls came or went meanwhile, which concerns more values than are told

    def note(self, changes: ChangeRows) -> None:
        if changes.stream in self.streams:
            firsts = np.concatenate(([0], np.flatnonzero(np.diff(changes.tx)) + 1))
            self.seen.update(zip(changes.tx[firsts].tolist(), changes.xid[firsts].tolist(), strict=True))

    def keep(self, flips: Sequence[Flip]) -> None:
        """Those of a transaction. When it is too much, none: the shape is given up."""
        self.flips.extend(flips)
        self.flips_bytes += sum(bytes_of(flip.value) for flip in flips)
        if self.is_too_much:
            self.flips.clear()

    @property
    def is_too_much(self) -> bool:
        return self.flips_bytes > _FLIPS_BYTES_MAX or len(self.seen) > _TRANSACTIONS_MAX

    def is_passed(self, position: int) -> bool:
        """Whether all that the snapshot may show was handed out."""
        return self.point is not None and self.point.lsn <= position

    def cut(self) -> int | None:
        """The last transaction that the snapshot shows, if it shows all before that one; else None."""
        assert self.point is not None
        order = sorted(self.seen)
        shown = self.point.shows(np.array([self.seen[tx] for tx in order], np.uint64))
        shown &= np.array(order, np.int64) < self.point.lsn
        count = int(np.count_nonzero(shown))
        if not shown[:count].all():
            return None
        return max(self.since_tx, order[count - 1] if count else 0)

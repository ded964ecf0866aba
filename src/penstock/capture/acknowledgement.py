"""What the source may forget: the least position that every lane holds durably.

Rules (correctness 3, 4, 5, 39): nothing is acknowledged until every lane is known; never a position beyond
the log's durable end; never a lower one than before. Every transaction concerns every lane, so what
the log has sealed is handed to all of them at once. A lane reports a boundary P, the end of a commit record
or a keepalive's position: it holds every transaction whose commit record begins before P, which for the
tracker is the offset (P - 1, ∞). All offsets here have that form, and the boundary behind a tracker's
`flushed` is the position one above.

With `acknowledge_log` the lanes no longer count, only the log does: a lane that is behind catches up from
there, and the log is kept for it (`least`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.ledger.flush_tracker import FlushTracker

NOTHING = Lsn(0)  # to Postgres, a flushed position of zero is no news


class AcknowledgementTracker:
    """Safe to use from several threads. `lanes`: each one's durable position, None while it has none."""

    def __init__(self, lanes: Mapping[str, Lsn | None], confirmed: Lsn, log_end: Lsn) -> None:
        self._lanes = dict(lanes)
        self._confirmed = confirmed
        self._log_end = max(confirmed, log_end)
        self._limit: Lsn | None = None
        self._by_log = False
        self._lock = threading.Lock()
        self._tracker = self._begin()

    def _begin(self) -> FlushTracker:
        """Track the lanes there are now: each may need whatever is not acknowledged."""
        tracker = FlushTracker(_offset(self._confirmed))
        for lane, position in self._lanes.items():
            if position is not None:
                tracker.notify_flushed(lane, _offset(position))
        if self._log_end > self._confirmed:
            tracker.transactions(int(self._confirmed), _offset(self._log_end), self._lanes)
        return tracker

    def add_lane(self, lane: str, position: Lsn | None) -> None:
        """Count a lane in, or anew; with None nothing is acknowledged until it says how far it is."""
        with self._lock:
            self._lanes[lane] = position
            self._tracker = self._begin()

    def drop_lane(self, lane: str) -> None:
        """Nobody needs anything for this one any more."""
        with self._lock:
            self._lanes.pop(lane, None)
            self._tracker = self._begin()

    def lane_flushed(self, lane: str, position: Lsn) -> None:
        """A lane holds everything up to `position` durably. Going back is not news, nor is a lane that
        was dropped."""
        with self._lock:
            before = self._lanes.get(lane)
            if lane in self._lanes and (before is None or position > before):
                self._lanes[lane] = position
                self._tracker.notify_flushed(lane, _offset(position))

    def log_sealed(self, end: Lsn) -> None:
        """The log holds everything up to `end`, which is handed to every lane by that."""
        with self._lock:
            if end > self._log_end:
                self._tracker.transactions(int(self._log_end), _offset(end), self._lanes)
                self._log_end = end

    def limit(self, position: Lsn | None) -> None:
        """Acknowledge nothing beyond `position` until further notice; None lifts the limit."""
        self._limit = position

    def acknowledge_log(self, on: bool) -> None:
        """Whether to acknowledge what the log holds, whatever the lanes do."""
        self._by_log = on

    def lanes(self) -> dict[str, Lsn | None]:
        """How far each lane is; None for one that has not said it."""
        with self._lock:
            return dict(self._lanes)

    def least(self) -> Lsn | None:
        """What every lane holds, for the retention of the log; None while one is not known."""
        positions = self.lanes().values()
        known = [position for position in positions if position is not None]
        return min(known) if known and len(known) == len(positions) else None

    def acknowledged(self) -> Lsn:
        """The position to report as flushed; `NOTHING` while a lane is not known."""
        with self._lock:
            if self._by_log:
                held = self._log_end
            elif not self._lanes or None in self._lanes.values():
                return NOTHING
            else:
                held = Lsn(self._tracker.flushed + 1)
            self._confirmed = max(self._confirmed, held if self._limit is None else min(held, self._limit))
            return self._confirmed


def _offset(boundary: Lsn) -> LogOffset:
    """The last offset that lies before the boundary."""
    return LogOffset(int(boundary) - 1, math.inf)

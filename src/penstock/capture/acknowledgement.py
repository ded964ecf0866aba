"""What Postgres may forget: the least position that every lane holds durably.

Rules (correctness 3, 4, 5): nothing is acknowledged until every configured lane is known; never a
position beyond the log's durable end; never a lower one than before.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.position import Lsn

NOTHING = Lsn(0)  # Postgres reads a flushed position of zero as "no news"


class AcknowledgementTracker:
    def __init__(self, lanes: Mapping[str, Lsn | None], confirmed: Lsn, log_end: Lsn) -> None:
        self._lanes = dict(lanes)
        self._confirmed = confirmed
        self._log_end = log_end
        self._limit: Lsn | None = None

    def lane_flushed(self, lane: str, position: Lsn) -> None:
        """A lane holds everything up to `position` durably. Going back is not news."""
        before = self._lanes.get(lane)
        self._lanes[lane] = position if before is None else max(before, position)

    def log_sealed(self, end: Lsn) -> None:
        self._log_end = max(self._log_end, end)

    def limit(self, position: Lsn | None) -> None:
        """Acknowledge nothing beyond `position` until further notice; None lifts the limit."""
        self._limit = position

    def acknowledged(self) -> Lsn:
        """The position to report as flushed; `NOTHING` while a lane is not known."""
        known = [position for position in self._lanes.values() if position is not None]
        if not self._lanes or len(known) < len(self._lanes):
            return NOTHING
        bounds = [*known, self._log_end, *([] if self._limit is None else [self._limit])]
        self._confirmed = max(self._confirmed, min(bounds))
        return self._confirmed

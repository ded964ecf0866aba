"""What the live lane counts, as samples for the supervisor (`metrics`)."""

from __future__ import annotations

import time
from collections import Counter

from penstock import metrics
from penstock.capture.transactions import TransactionFragment
from penstock.metrics import Sample


class ShapeMeasures:
    """Counted by the engine's thread, read by any."""

    def __init__(self) -> None:
        self.created = 0
        self._snapshots = 0
        self._snapshot_s = 0.0
        self._dropped: Counter[str] = Counter()
        self._lag_s = 0.0

    def handed_out(self, fragment: TransactionFragment) -> None:
        if fragment.at is not None and fragment.changes:
            self._lag_s = max(0.0, time.time() - fragment.at)
        elif fragment.at is not None:
            self._lag_s = 0.0

    def snapshot_taken(self, seconds: float) -> None:
        self._snapshots += 1
        self._snapshot_s += seconds

    def dropped(self, reason: str) -> None:
        self._dropped[reason] += 1

    def samples(self, *, shapes: int, waiting: int, routed: int, bytes_on_disk: int) -> list[Sample]:
        return [
            (metrics.SHAPES.name, {}, shapes),
            (metrics.SHAPES_CREATED.name, {}, self.created),
            (metrics.SHAPE_CLIENTS_WAITING.name, {}, waiting),
            (metrics.SHAPE_CHANGES.name, {}, routed),
            (metrics.SHAPE_BYTES.name, {}, bytes_on_disk),
            (metrics.SHAPE_LAG_SECONDS.name, {}, self._lag_s),
            (metrics.SHAPE_SNAPSHOTS.name, {}, self._snapshots),
            (metrics.SHAPE_SNAPSHOT_SECONDS.name, {}, self._snapshot_s),
            *(
                (metrics.SHAPES_DROPPED.name, {"reason": reason}, count)
                for reason, count in self._dropped.copy().items()
            ),
        ]

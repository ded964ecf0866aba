"""What a stream lane has done and how fresh its target is, as samples.

Counted over the terms of a process: a counter never falls. Freshness is from the source's commit time to the
moment the target was seen to have it, so the clocks of both hosts are in it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import pyarrow.compute as pc

from penstock import metrics
from penstock.capture.transactions import ChangeRows
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.metrics import Sample
from penstock.streams.events import Batch
from penstock.streams.publish_measures import publish_measures
from penstock.streams.publisher import Publisher

_LOOK_EVERY_S = 0.01
_SEND_EVERY_S = 1.0
_WAITING_MAX = 10_000


class StreamMeasures:
    """Counted by the lane's thread; looked at and sent by another."""

    def __init__(self, lane: str) -> None:
        self._lane = {"lane": lane}
        self._published = publish_measures(lane)
        self._events: Counter[str] = Counter()
        self._bytes = 0
        self._waiting: deque[tuple[Lsn, float]] = deque(maxlen=_WAITING_MAX)  # end, commit time of its oldest
        self._news = threading.Event()
        self._freshness: float | None = None
        self._publisher: Publisher | None = None
        self.is_paused = False
        self.loading = 0
        self.gaps = 0
        self.read_anew: Counter[StreamId] = Counter()

    def watch(self, publisher: Publisher | None) -> None:
        """From now on it is this one that tells what is at the target."""
        self._publisher = publisher
        self._waiting.clear()
        self._freshness = None

    def handed_over(self, batch: Batch, changes: Sequence[ChangeRows]) -> None:
        for events in batch.events:
            self._events[str(events.stream)] += len(events)
        self._bytes += batch.bytes
        if changes and batch.is_last:
            oldest = min(pc.min(each.rows.column(log_columns.COMMIT_TS)).as_py() for each in changes)
            self._waiting.append((batch.end, oldest.timestamp()))
            self._news.set()

    def send(self, to: Callable[[list[Sample]], None], ended: threading.Event) -> None:
        """Until `ended`."""
        next_at = time.monotonic()
        while not ended.wait(_LOOK_EVERY_S if self._waiting else 0.0):
            if not self._waiting:
                self._news.wait(max(0.0, next_at - time.monotonic()))
                self._news.clear()
            self._look()
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + _SEND_EVERY_S
                to(self.samples())

    def samples(self) -> list[Sample]:
        found: list[Sample] = [
            (metrics.STREAM_LANE_EVENTS.name, {**self._lane, "stream": stream}, float(count))
            for stream, count in list(self._events.items())
        ]
        found += [
            (metrics.STREAM_LANE_BYTES.name, self._lane, float(self._bytes)),
            (metrics.STREAM_LANE_PAUSED.name, self._lane, float(self.is_paused)),
            (metrics.STREAM_LANE_LOADING.name, self._lane, float(self.loading)),
            (metrics.STREAM_LANE_GAPS.name, self._lane, float(self.gaps)),
            *self._published.unproven(),
        ]
        found += [
            (metrics.STREAM_LANE_READ_ANEW.name, {**self._lane, "stream": str(stream)}, float(count))
            for stream, count in list(self.read_anew.items())
        ]
        if self._freshness is not None:
            found.append((metrics.STREAM_LANE_FRESHNESS_SECONDS.name, self._lane, self._freshness))
        publisher = self._publisher
        return found if publisher is None else [*found, *publisher.samples()]

    def _look(self) -> None:
        """What has reached the target since."""
        publisher = self._publisher
        if publisher is None or not self._waiting:
            return
        position, now = publisher.standing.position, time.time()
        while self._waiting and self._waiting[0][0] <= position:
            _, committed = self._waiting.popleft()
            self._freshness = max(0.0, now - committed)

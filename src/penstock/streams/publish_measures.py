"""What publishers have done, as samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from penstock import metrics
from penstock.metrics import Sample


class PublishMeasures:
    """Written by the publisher's threads; a count may lag by what another thread adds at the same moment."""

    def __init__(self, lane: str) -> None:
        self._lane = {"lane": lane}
        self._retries = 0
        self._publishes = 0
        self._seconds = 0.0
        self._events = 0
        self._unproven: Counter[str] = Counter()

    @contextmanager
    def publishing(self, events: int) -> Iterator[None]:
        """One commit, or one call."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started
        self._publishes += 1
        self._events += events

    def retried(self) -> None:
        self._retries += 1

    def unproved(self, times: Mapping[str, int]) -> None:
        """What a target could not find out, by why."""
        self._unproven.update(times)

    def unproven(self) -> list[Sample]:
        """Found out when a target is opened, so it is told whether there is a publisher or not."""
        return [
            (metrics.STREAM_UNPROVEN.name, self._lane | {"reason": reason}, float(count))
            for reason, count in list(self._unproven.items())
        ]

    def samples(
        self, dead_letters: Mapping[tuple[str, str], int], blocked_keys: int, in_flight: tuple[int, int]
    ) -> list[Sample]:
        found = [
            (metrics.STREAM_PUBLISHES.name, self._lane, float(self._publishes)),
            (metrics.STREAM_PUBLISH_SECONDS.name, self._lane, self._seconds),
            (metrics.STREAM_PUBLISHED.name, self._lane, float(self._events)),
            (metrics.STREAM_RETRIES.name, self._lane, float(self._retries)),
            (metrics.STREAM_BLOCKED_KEYS.name, self._lane, float(blocked_keys)),
            (metrics.STREAM_IN_FLIGHT.name, self._lane, float(in_flight[0])),
            (metrics.STREAM_IN_FLIGHT_BYTES.name, self._lane, float(in_flight[1])),
        ]
        for (stream, code), count in dead_letters.items():
            labels = self._lane | {"stream": stream, "code": code}
            found.append((metrics.STREAM_DEAD_LETTERS.name, labels, float(count)))
        return found


@cache
def publish_measures(lane: str) -> PublishMeasures:
    """One for all terms of a process: counters never fall."""
    return PublishMeasures(lane)

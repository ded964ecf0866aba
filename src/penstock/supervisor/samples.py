"""What the processes last said in numbers.

Each process says all its samples at once, and the newest word replaces the one before, so that what is kept
is bounded by what the processes know. It holds for `HOLDS_S`: a process that hangs, or that no longer leads,
has no numbers rather than old ones. A sample by a name that `metrics` does not list, with other labels than
it has, or beyond `SAMPLES_MAX`, is dropped and counted: a process can say nothing that breaks those who read.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.metrics import BY_NAME, Metric, Sample

HOLDS_S = 15.0  # processes say theirs once a second
SAMPLES_MAX = 100_000  # of one process: some ten for each of ten thousand streams


class Samples:
    """Written by the threads that listen to processes, read by those that serve them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[float, list[Sample]]] = {}
        self._dropped = 0
        self._lock = threading.Lock()

    def say(self, process: str, samples: Any) -> None:
        """`process` says this now, and nothing of what it said before."""
        given = samples if isinstance(samples, list) else []
        kept = list(_known(given[:SAMPLES_MAX]))
        with self._lock:
            self._said[process] = (self._clock(), kept)
            self._dropped += len(given) - len(kept)

    def forget(self, process: str) -> None:
        """The process is gone, and what it said holds no more."""
        with self._lock:
            self._said.pop(process, None)

    def all(self) -> list[Sample]:
        with self._lock:
            oldest = self._clock() - HOLDS_S
            return [sample for at, said in self._said.values() if at > oldest for sample in said]

    @property
    def dropped(self) -> int:
        with self._lock:
            return self._dropped


class SampleView:
    """Samples by metric and label."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, value in samples:
            self._values.setdefault(name, {})[tuple(labels.values())] = value

    def one(self, metric: Metric) -> float | None:
        """Of a metric without labels."""
        return self._values.get(metric.name, {}).get(())

    def by_label(self, metric: Metric) -> dict[str, float]:
        """By the first label; values that differ in the others only are added up."""
        sums: dict[str, float] = {}
        for labels, value in self._values.get(metric.name, {}).items():
            sums[labels[0]] = sums.get(labels[0], 0.0) + value
        return sums


def _known(samples: Iterable[Any]) -> Iterator[Sample]:
    for sample in samples:
        match sample:
            case [str(name), dict(labels), int() | float() as value] if math.isfinite(value):
                metric = BY_NAME.get(name)
                if metric is not None and set(labels) == set(metric.labels):
                    yield name, {label: str(labels[label]) for label in metric.labels}, float(value)

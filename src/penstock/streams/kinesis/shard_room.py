"""How many calls may be under way for each shard at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.streams.publisher import StoppedError


class ShardRoom:
    """A call takes a place in every shard that it writes to, all of them or none."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._under_way: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._is_stopped = False

    @contextmanager
    def taken(self, shards: Sequence[str]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._has_room(shards))
            if self._is_stopped:
                raise StoppedError
            self._under_way.update(shards)
        try:
            yield
        finally:
            with self._changed:
                self._under_way.subtract(shards)
                self._under_way += Counter()  # forgets those without any
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _has_room(self, shards: Sequence[str]) -> bool:
        return all(self._under_way[shard] < self._calls_max for shard in shards)

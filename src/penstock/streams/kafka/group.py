"""What was written since the last commit: who sends which rows, and what the broker's complaints are about.

With one bucket, or as soon as anything but a change behind the last position is among the events, one
producer sends all of them (a *whole* commit). Otherwise each bucket sends the rows of its keys, and a bucket
that is ahead leaves out those it has (`marks`). Events are kept until they are committed, up to a limit:
beyond it they are known to have arrived, and cannot be what is refused. So much is a whole commit: what comes
last may be something that no divided one has, and then all of it would have to be begun again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.core.position import Lsn
from penstock.streams.events import Events
from penstock.streams.kafka.partitions import NO_KEY, partitions_of
from penstock.streams.kafka.producer import Failure, texts
from penstock.streams.kafka.writers import ALONE

KEPT_BYTES_MAX = 32 << 20
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Suspect:
    part: int
    row: int
    code: str
    bytes: int


class Group:
    """`behind` is the last position committed: None if there is none, and then nothing is divided."""

    def __init__(
        self,
        buckets: int,
        behind: Lsn | None = None,
        ahead: Mapping[int, Lsn] | None = None,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        self.parts: dict[int, Events] = {}
        self.is_complete = True
        self.is_divided = buckets > 1 and behind is not None
        self._buckets = buckets
        self._behind = behind
        self._ahead = dict(ahead or {})
        self._apart = apart
        self._count = 0
        self._bytes = 0
        self._begun = time.monotonic()

    def __len__(self) -> int:
        return self._count

    @property
    def age_s(self) -> float:
        """Since the first was written."""
        return time.monotonic() - self._begun if self._count else 0.0

    @property
    def is_full(self) -> bool:
        return self._bytes > KEPT_BYTES_MAX

    def add(self, events: Events) -> int:
        """Its number in this group."""
        part = self._count
        if not part:
            self._begun = time.monotonic()
        self.parts[part] = events
        self._bytes += events.bytes
        self._count += 1
        return part

    def is_of_tail(self, events: Events) -> bool:
        """Whether they are nothing but changes behind the last position, of a stream that was followed."""
        if self._behind is None or events.chunk or str(events.stream) in self._apart:
            return False
        return not len(events) or int(events.tx.min()) >= self._behind

    def gather(self) -> None:
        self.is_divided = False

    def forget_arrived(self) -> None:
        self.parts, self._bytes, self.is_complete = {}, 0, False

    def shares(self, events: Events) -> Iterator[tuple[int, Rows | None]]:
        """Buckets and the rows they send; None: all."""
        if not self.is_divided and not self._ahead:
            yield ALONE, None
            return
        owners = partitions_of(events.key, self._buckets)
        owners[owners == NO_KEY] = ALONE
        keep = np.ones(len(events), np.bool_)
        if self.is_of_tail(events):
            for bucket, position in self._ahead.items():
                keep &= (owners != bucket) | (events.tx >= position)
        if not self.is_divided:
            yield ALONE, np.flatnonzero(keep)
            return
        for bucket in range(self._buckets):
            rows = np.flatnonzero(keep & (owners == bucket))
            if len(rows):
                yield bucket, rows

    def find(self, failures: Iterable[Failure]) -> list[Suspect]:
        """The events that were refused, by what was sent of them. Equal ones are all found."""
        codes = {(failure.topic, failure.key, failure.value): failure.code for failure in failures}
        if not codes:
            return []
        return [
            Suspect(part, row, codes[events.route, key, value], len(key or b"") + len(value or b""))
            for part, events in self.parts.items()
            for row, (key, value) in enumerate(zip(texts(events.key), texts(events.value), strict=True))
            if (events.route, key, value) in codes
        ]

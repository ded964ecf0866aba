"""From where each shard would have to be read back, to find all that was sent and is not behind the standing.

A bound of a shard is a place in it behind which everything lies that is sent from now on: the newest sequence
number that was answered, or a moment some minutes ago, or the shard's beginning. A call notes all bounds
before it is sent. What a call has written therefore lies behind its bounds, and behind those of every earlier
call; in a shard that it does not know, anywhere. So the bounds of the oldest call that is not done with cover
everything that may be read for: they are the checkpoint, and nobody needs to know which call wrote where.
A call is done with when everything up to its newest event is behind the standing.

That may take for ever, if a record is not taken and others go past it. So of many calls that were begun one
after the other, two become one: with the bounds of the older, done with when both are. It reads more than it
must, and never less.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

#: Clocks may differ so much from the service's: it refuses requests that are signed further off.
CLOCKS_DIFFER_S = 300.0
#: A shard without news is read from a moment instead, so that the bound never gets older than what is kept.
_NEWS_S = 600.0
#: More calls than that are never remembered, but for those that are under way.
_CALLS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Bound:
    """Behind this sequence number, or from this moment on; neither: from the shard's beginning."""

    sequence: int | None = None
    moment: float | None = None

    def to_json(self) -> dict[str, Any]:
        if self.sequence is not None:
            return {"sequence": str(self.sequence)}
        return {} if self.moment is None else {"moment": self.moment}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Bound:
        sequence = told.get("sequence")
        return cls(None if sequence is None else int(sequence), told.get("moment"))


BEGINNING = Bound()
Bounds = Mapping[str, Bound]


def moment_ago() -> Bound:
    return Bound(moment=time.time() - CLOCKS_DIFFER_S)


@dataclass(frozen=True, slots=True)
class Call:
    number: int
    last: int
    bounds: Bounds
    begun_at: float  # by the clock
    lost_at: float | None = None


class BoundKeeper:
    """Used by all threads that send."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = dict(bounds)
        self._heard: dict[str, float] = {}
        self._calls: dict[int, Call] = {}
        self._next = 0
        self._lock = threading.Lock()

    def begin(self, last: int) -> Call:
        with self._lock:
            if len(self._calls) >= _CALLS_MAX:
                self._calls = _in_pairs(list(self._calls.values()))
            call = Call(self._next, last, dict(self._bounds), time.time())
            self._calls[self._next] = call
            self._next += 1
            return call

    def heard(self, newest: Mapping[str, int]) -> None:
        """The newest sequence number of each shard that a call was answered with."""
        now = time.monotonic()
        with self._lock:
            for shard, sequence in newest.items():
                known = self._bounds.get(shard, BEGINNING).sequence
                if known is None or known < sequence:
                    self._bounds[shard] = Bound(sequence)
                self._heard[shard] = now

    def forget(self, call: Call) -> None:
        """It has written nothing."""
        with self._lock:
            if self._calls.get(call.number) is call:  # else others are one with it, and may have written
                del self._calls[call.number]

    def lose(self, call: Call) -> None:
        """Whether it has written anything is not known."""
        with self._lock:
            number = max((each for each in self._calls if each <= call.number), default=None)
            if number is not None:
                self._calls[number] = replace(self._calls[number], lost_at=time.monotonic())

    def lost(self) -> Call | None:
        """The oldest that was lost, with the moment at which the newest was."""
        with self._lock:
            lost = [call for call in self._calls.values() if call.lost_at is not None]
        if not lost:
            return None
        return replace(lost[0], lost_at=max(call.lost_at or 0.0 for call in lost))

    def meet(self, shards: Iterable[str]) -> None:
        """Shards that are new: nothing of them was read or written yet."""
        with self._lock:
            for shard in shards:
                self._bounds.setdefault(shard, BEGINNING)

    def drop(self, listed: Iterable[str]) -> None:
        """Shards that are no longer listed have nothing left to be read."""
        keep = set(listed)
        with self._lock:
            self._bounds = {shard: bound for shard, bound in self._bounds.items() if shard in keep}

    def done(self, last: int) -> Bounds:
        """Everything up to event `last` is behind the standing: from where the rest is read back."""
        now, ago = time.monotonic(), moment_ago()
        with self._lock:
            self._calls = {number: call for number, call in self._calls.items() if call.last > last}
            for shard in self._bounds:
                if now - self._heard.setdefault(shard, now) > _NEWS_S:
                    self._bounds[shard], self._heard[shard] = ago, now
            oldest = next(iter(self._calls.values()), None)
            return oldest.bounds if oldest else dict(self._bounds)

    @property
    def since(self) -> float:
        """From which moment on the stream must have kept what was sent, for the rest to be found in it."""
        with self._lock:
            return next((call.begun_at for call in self._calls.values()), time.time())

    @property
    def is_idle(self) -> bool:
        """Whether every call is done with."""
        with self._lock:
            return not self._calls


def _in_pairs(calls: list[Call]) -> dict[int, Call]:
    """Two that follow each other as one, under the number of the older: numbers in between mean that one."""
    found = {}
    for older, newer in zip(calls[::2], calls[1::2], strict=False):
        lost = [at for at in (older.lost_at, newer.lost_at) if at is not None]
        found[older.number] = Call(
            older.number,
            max(older.last, newer.last),
            older.bounds,
            older.begun_at,
            max(lost, default=None),
        )
    if len(calls) % 2:
        found[calls[-1].number] = calls[-1]
    return found

"""Which records may go into the next call, so that each key's records arrive in their order.

A call holds no key twice, and no key of a record that is under way or waits to be tried again. That is
enough: of a key's records that are still here only the first is ever chosen, and the next only when it is
gone. Others go past those that wait, so a hot key, or one that fails, delays nobody else.

Records wait in lines, one for each stream and route. Of a line as many are looked at as a call may have, and
more only if few of those may go, up to a window of many calls' size; where chunk or headers change it ends,
until it is empty. What of a key is looked at first is also the first of its key that is here.

Measured: 0.3 ms a call of 500 records whose keys are all different.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from penstock.core.stream import StreamId
from penstock.streams.batcher import MicroBatcher
from penstock.streams.blocked_keys import Rows
from penstock.streams.events import Int64s
from penstock.streams.parcels import Parcel, joined

_WINDOW_CALLS_MAX = 32


class _Line:
    """`window` is looked at in the rows `left`; those of it that are gone are cut out now and then."""

    def __init__(self) -> None:
        self.waiting: deque[Parcel] = deque()
        self.window: Parcel | None = None
        self.left: Rows = np.empty(0, np.intp)
        self.since = 0.0

    @property
    def is_empty(self) -> bool:
        return not len(self.left) and not self.waiting

    def fill(self, rows_min: int) -> bool:
        """Have so many rows in the window, if there are any; whether it got more."""
        more: list[Parcel] = []
        count = len(self.left)
        first = self.window if count else None
        while self.waiting and count < rows_min:
            if not (first or self.waiting[0]).joins(self.waiting[0]):
                break
            first = first or self.waiting[0]
            more.append(self.waiting.popleft())
            count += len(more[-1])
        if more:
            before = [] if self.window is None or not len(self.left) else [self.window.take(self.left)]
            self.window = joined([*before, *more])
            self.left = np.arange(len(self.window))
        return bool(more)

    def remove(self, rows: Rows) -> None:
        """They are no longer in the window, which they were."""
        if len(rows):
            self.left = np.delete(self.left, np.searchsorted(self.left, rows))

    def rest(self) -> list[Parcel]:
        """All that is here."""
        shown = [] if self.window is None or not len(self.left) else [self.window.take(self.left)]
        return [*shown, *self.waiting]


class CallOrder:
    """For one thread.

    `taken_out` says which of some rows of a parcel must not be sent, and takes care of them. It is asked of
    all rows that are looked at (False), and once more (True) of those that would go next.
    """

    def __init__(self, taken_out: Callable[[Parcel, Rows, bool], Rows]) -> None:
        self._taken_out = taken_out
        self._lines: dict[tuple[StreamId, str, bool], _Line] = {}
        self._under_way: dict[int, Int64s] = {}
        self._calls = 0
        self._retries: list[tuple[float, Parcel]] = []
        self._linger_due = math.inf

    @property
    def calls_under_way(self) -> int:
        return len(self._under_way)

    def add(self, parcel: Parcel, now: float) -> None:
        where = (parcel.events.stream, parcel.events.route, parcel.is_replay)
        line = self._lines.setdefault(where, _Line())
        if line.is_empty:
            line.since = now
        line.waiting.append(parcel)

    def again(self, parcel: Parcel, due: float) -> None:
        """To be tried again then; until it has arrived its keys wait."""
        self._retries.append((due, parcel))

    def remove(self, ids: Int64s) -> None:
        """Forget these, of which none is under way."""
        for line in self._lines.values():
            rest = (parcel.without(np.flatnonzero(np.isin(parcel.ids, ids))) for parcel in line.rest())
            line.waiting = deque(parcel for parcel in rest if len(parcel))
            line.left = line.left[:0]

    def next_call(self, batcher: MicroBatcher, now: float) -> tuple[int, Parcel] | None:
        """What goes into a call now, and the call's number, for `ended`."""
        chosen = self._due(batcher, now) or self._from_lines(batcher, now)
        if chosen is None:
            return None
        self._calls += 1
        self._under_way[self._calls] = chosen.keys
        return self._calls, chosen

    def ended(self, call: int) -> None:
        """Before anything of it is given to `again`."""
        del self._under_way[call]

    def wait_s(self, now: float, most_s: float) -> float:
        """How long until a call can be made that could not be made before, if nothing else happens."""
        due = min([self._linger_due, *(due for due, _ in self._retries)])
        return max(0.0, min(most_s, due - now))

    def _due(self, batcher: MicroBatcher, now: float) -> Parcel | None:
        for number, (due, parcel) in enumerate(self._retries):
            if due <= now:
                del self._retries[number]
                size = batcher.cut(parcel.sizes)
                if size < len(parcel):
                    self._retries.append((due, parcel.take(np.arange(size, len(parcel)))))
                return parcel.take(np.arange(size))
        return None

    def _from_lines(self, batcher: MicroBatcher, now: float) -> Parcel | None:
        self._linger_due = math.inf
        busy = np.sort(np.concatenate([np.empty(0, np.int64), *self._busy()]))
        for where in list(self._lines):
            line = self._lines.pop(where)
            if line.is_empty:
                continue
            self._lines[where] = line  # behind the others, which come first next time
            if (chosen := self._from(line, batcher, busy, now)) is not None:
                return chosen
        return None

    def _from(self, line: _Line, batcher: MicroBatcher, busy: Int64s, now: float) -> Parcel | None:
        looked_at = batcher.count_max
        line.fill(looked_at)
        free = self._free(line, looked_at, busy)
        while len(free) < batcher.count_max:
            if len(line.left) >= looked_at:
                if looked_at >= _WINDOW_CALLS_MAX * batcher.count_max:
                    break
                looked_at *= 2
                line.fill(looked_at)
            elif not line.fill(looked_at):
                break
            free = self._free(line, looked_at, busy)
        window = line.window
        if window is None or not len(free):
            return None
        if (wait_s := batcher.wait_s(window.sizes[free], now - line.since)) > 0:
            self._linger_due = min(self._linger_due, now + wait_s)
            return None
        chosen = free[: batcher.cut(window.sizes[free])]
        line.remove(chosen)
        line.since = now
        return window.take(chosen)

    def _free(self, line: _Line, looked_at: int, busy: Int64s) -> Rows:
        """Of so many rows, those that may go now: the first ones of their keys, of keys that are not busy."""
        if line.window is None:
            return line.left
        while True:
            rows = line.left[:looked_at]
            if self._take_out(line, rows, False):
                continue  # others have come into sight, which must be asked about too
            keys = line.window.keys[rows]
            _, firsts = np.unique(keys, return_index=True)
            firsts.sort()
            free = rows[firsts[~_are_among(keys[firsts], busy)] if len(busy) else firsts]
            if not self._take_out(line, free, True):
                return free

    def _take_out(self, line: _Line, rows: Rows, first: bool) -> bool:
        assert line.window is not None
        gone = self._taken_out(line.window, rows, first) if len(rows) else rows
        line.remove(gone)
        return len(gone) > 0

    def _busy(self) -> Iterator[Int64s]:
        yield from self._under_way.values()
        yield from (parcel.keys for _, parcel in self._retries)


def _are_among(keys: Int64s, ordered: Int64s) -> npt.NDArray[np.bool_]:
    """Five times as fast as `np.isin`, which hashes the others every time."""
    places = np.searchsorted(ordered, keys)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == keys
    return found

"""`Watches`: what happens to a shape with subqueries while a comparison holds it against its SELECT.

A comparison has a watch begun, takes a snapshot S of the shape's tables, and asks for the *cut* (`Cut`): a
transaction up to which S shows all of what these tables' changes are in the log, and behind which it shows
none. As of there, and in the order in which things happened here, the shape had

- what its log has up to that transaction, and up to the item that was the newest when the cut was told;
- without the splices that came later, though they are told as of a transaction before (`Cut.late`). That
  goes for those of the shapes inside it as well: what they bring about in this one's log has their
  transaction;
- rows by the effective activity of values. That is the one that S shows, but for those that were held, in it
  or in a shape inside it. `Cut.unsettled` has all that were at any time of the watch, which are no fewer.

A cut may lie anywhere between the last transaction that S shows and the first that it does not: its tables
are the same there. The latest is taken, as of which the fewest values are held. One that lies before the
watch began is of no use.

S must show what was handed out before the watch began, since the watch knows nothing of that. Whoever asks
waits for that (`source.earlier_writers`), and has another watch begin then, which takes over what
transactions the first one saw: so values that were held while it waited do not count.

Belongs to the engine's thread. A watch that nobody asks for ends by itself, since what it keeps is bounded.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import ChangeRows
from penstock.core.offset import LogOffset
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.subquery.outer import Flip, OuterShape
from penstock.shapes.subquery.values import Value, bytes_of

_WATCHES_MAX = 8
_TRANSACTIONS_MAX = 1_000_000
_VALUES_BYTES_MAX = 16 << 20
#: `behind`: not all that the snapshot may show was handed out. `out of order`: it shows a transaction and not
#: an earlier one, or not one that was handed out before the watch. `over`: there is no such watch any more.
NoCut = Literal["behind", "out of order", "over"]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What was not told yet of a shape, at some time: by subquery, which values were held; those of which a
    null came or went, which may concern any value; and the same of the shapes inside."""

    held: tuple[tuple[Value, ...], ...]
    whole: tuple[int, ...]
    inside: tuple[Unsettled | None, ...]

    def to_json(self) -> dict[str, Any]:
        inside = [None if each is None else each.to_json() for each in self.inside]
        return {"held": self.held, "whole": self.whole, "inside": inside}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Unsettled:
        held = tuple(tuple(tuple(value) for value in values) for values in fields["held"])
        inside = (None if each is None else cls.from_json(each) for each in fields["inside"])
        return cls(held, tuple(fields["whole"]), tuple(inside))


@dataclass(frozen=True, slots=True)
class Cut:
    """`offset`: the newest item there was; `unsettled`: None if nothing was held."""

    tx: int
    offset: LogOffset
    late: tuple[int, ...]
    unsettled: Unsettled | None

    def to_json(self) -> dict[str, Any]:
        unsettled = None if self.unsettled is None else self.unsettled.to_json()
        return {"tx": self.tx, "offset": str(self.offset), "late": self.late, "unsettled": unsettled}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cut:
        unsettled = fields["unsettled"] and Unsettled.from_json(fields["unsettled"])
        return cls(fields["tx"], LogOffset.parse(fields["offset"]), tuple(fields["late"]), unsettled)


def cut_between(seen: Mapping[int, int], point: SnapshotPoint, position: int) -> int | None:
    """The last moment before the first of these transactions (with their ids) that a snapshot does not show,
    or before `position` if there is none; None if it shows one behind that."""
    order = sorted(seen)
    shown = point.shows(np.array([seen[tx] for tx in order], np.uint64))
    shown &= np.array(order, np.int64) < point.lsn
    count = int(np.count_nonzero(shown))
    if not shown[:count].all():
        return None
    return (order[count] if count < len(order) else position) - 1


@dataclass(slots=True)
class _Held:
    """Of one shape, since the watch began."""

    values: list[set[Value]]
    whole: set[int] = field(default_factory=set)


class _Watch:
    def __init__(self, outer: OuterShape, shapes: Sequence[OuterShape], since_tx: int) -> None:
        self.outer = outer
        self.since_tx = since_tx
        self.held = {each.slot: _Held([set(values) for values in each.held]) for each in shapes}
        self.splices: list[tuple[int, int]] = []  # as of which transaction they are told, and were made
        self._seen: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]] = []
        self._transactions = 0
        self._bytes = 0
        for each in shapes:
            self._count(value for values in each.held for value in values)
            self.held[each.slot].whole.update(each.turning())

    def note(self, changes: ChangeRows) -> None:
        if changes.stream in self.outer.streams and len(changes):
            firsts = np.concatenate(([0], np.flatnonzero(np.diff(changes.tx)) + 1))
            self._seen.append((changes.tx[firsts].copy(), changes.xid[firsts].copy()))
            self._transactions += len(firsts)

    def hold(self, outer: OuterShape, flips: Iterable[Flip]) -> None:
        held = self.held[outer.slot]
        coming = [flip for flip in flips if flip.after]
        for flip in coming:
            held.values[flip.subquery].add(flip.value)
        held.whole.update(outer.turning())
        self._count(flip.value for flip in coming)

    def follow(self, other: _Watch) -> None:
        """What it saw, this one has seen."""
        self._seen, self._transactions = other._seen, other._transactions

    def _count(self, values: Iterable[Value]) -> None:
        self._bytes += sum(map(bytes_of, values))

    @property
    def is_too_much(self) -> bool:
        return self._transactions > _TRANSACTIONS_MAX or self._bytes > _VALUES_BYTES_MAX

    def seen(self) -> dict[int, int]:
        return {
            tx: xid for txs, xids in self._seen for tx, xid in zip(txs.tolist(), xids.tolist(), strict=True)
        }


class Watches:
    """`outers` are the shapes with subqueries, by slot."""

    def __init__(self, outers: Mapping[int, OuterShape]) -> None:
        self._outers = outers
        self._open: dict[str, _Watch] = {}

    def begin(self, outer: OuterShape, since_tx: int, after: str | None = None) -> str:
        """Its name. `since_tx`: what was handed out before; `after`: the watch whose place it takes, and
        without which it is over. Of many that nobody asks for any more the oldest ends."""
        name = secrets.token_hex(8)
        watch = _Watch(outer, [outer, *self._inside(outer)], since_tx)
        if after is not None:
            before = self._open.pop(after, None)
            if before is None or before.outer is not outer:
                return name
            watch.follow(before)
        while len(self._open) >= _WATCHES_MAX:
            del self._open[next(iter(self._open))]
        self._open[name] = watch
        return name

    def _inside(self, outer: OuterShape) -> list[OuterShape]:
        found = []
        for made in outer.materializers:
            inner = self._outers.get(made.shape.slot)
            if inner is not None:
                found += [inner, *self._inside(inner)]
        return found

    # What happens

    def note(self, changes: Iterable[ChangeRows]) -> None:
        """These are handed out."""
        if self._open:
            for each in changes:
                for watch in self._open.values():
                    watch.note(each)
            self._open = {name: watch for name, watch in self._open.items() if not watch.is_too_much}

    def held(self, outer: OuterShape, flips: Iterable[Flip]) -> None:
        """Of these values, which came or went, the shape holds those that came."""
        for watch in self._open.values():
            if outer.slot in watch.held:
                watch.hold(outer, flips)

    def spliced(self, outer: OuterShape, tx: int, as_of: int) -> None:
        """Rows are told as of `tx` that are as after `as_of`."""
        for watch in self._open.values():
            if outer.slot in watch.held:
                watch.splices.append((tx, as_of))

    def forget(self, slot: int) -> None:
        """The shape goes, and with it what depends on it."""
        self._open = {name: watch for name, watch in self._open.items() if slot not in watch.held}

    # What is asked

    def end(self, name: str, point: SnapshotPoint, position: int) -> Cut | NoCut:
        """All that the snapshot may show was handed out, of which `position` is the end."""
        watch = self._open.pop(name, None)
        if watch is None or watch.is_too_much:
            return "over"
        tx = cut_between(watch.seen(), point, position)
        if tx is None or tx < watch.since_tx:
            return "out of order"
        late = tuple(told for told, as_of in watch.splices if told <= tx < as_of)
        offset = watch.outer.shape.storage.last_seen_offset
        return Cut(tx, offset, late, self._unsettled(watch, watch.outer))

    def _unsettled(self, watch: _Watch, outer: OuterShape) -> Unsettled | None:
        held = watch.held[outer.slot]
        inner = [self._outers.get(made.shape.slot) for made in outer.materializers]
        inside = tuple(None if each is None else self._unsettled(watch, each) for each in inner)
        if not held.whole and not any(held.values) and not any(inside):
            return None
        values = tuple(tuple(each) for each in held.values)
        return Unsettled(values, tuple(sorted(held.whole)), inside)

"""Rows that come into a shape because values of a subquery did: asked for, waited for, spliced in.

The package says why the result is exact. One query is under way for a shape at a time; values that become
active meanwhile are held for the next one, and those that become inactive again cost nothing.

A null that comes into what NOT IN asks about makes every value inactive, and activates them all when it goes.
It does not count before the rows of any value are there: their values are those that are told of.

What is remembered meanwhile is bounded, in transactions and in bytes, and so is an answer; beyond that the
shape goes and its clients fetch anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.capture.transactions import DELETE
from penstock.capture.transactions import INSERT as INSERTED
from penstock.core.offset import LogOffset
from penstock.shapes.engine.consumer import RoutedRows, SnapshotFilter
from penstock.shapes.rendering.assembly import CLOSE
from penstock.shapes.rendering.renderer import INSERT, Renderer
from penstock.shapes.rendering.row_lines import snapshot_end
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.moving import MovedRows
from penstock.shapes.storage import LogItems
from penstock.shapes.subquery.outer import Judged, OuterShape, log_items
from penstock.shapes.subquery.values import Value

TRANSACTIONS_MAX = 1000
BYTES_MAX = 64 << 20
_LINE_END = b"}}\n"
_IS_MOVE_IN = b',"is_move_in":true'
Pattern = tuple[int, str]


class TooMuchError(Exception):
    """More waits, or has come, than is kept."""


@dataclass(slots=True)
class Flight:
    """A query and what happens while it is under way. `values` by subquery; `whole`: the subqueries of which
    rows of any value are asked for; `since_tx`: what was handed out before it was asked."""

    values: list[frozenset[Value]]
    whole: frozenset[int]
    since_tx: int
    transactions_max: int = TRANSACTIONS_MAX
    point: SnapshotPoint | None = None
    answer: list[MovedRows] = field(default_factory=list)
    is_complete: bool = False
    _remembered: list[RoutedRows] = field(default_factory=list)
    _transactions: int = 0
    _last_tx: int = 0
    _bytes: int = 0

    def remember(self, routed: RoutedRows) -> None:
        tx = routed.changes.tx[routed.rows]
        self._transactions += len(np.unique(tx)) - int(len(tx) > 0 and tx[0] == self._last_tx)
        self._last_tx = int(tx[-1]) if len(tx) else self._last_tx
        self._bytes += routed.changes.rows.nbytes
        self._remembered.append(routed)
        if self._transactions > self.transactions_max or self._bytes > BYTES_MAX:
            raise TooMuchError

    def unseen(self) -> list[RoutedRows]:
        """What was remembered and is not in the answer's snapshot."""
        assert self.point is not None
        keeps = SnapshotFilter(self.point).keeps
        found = []
        for routed in self._remembered:
            changes, rows = routed.changes, routed.rows
            kept = routed.where(keeps(changes.tx[rows], changes.xid[rows]))
            if len(kept.rows):
                found.append(kept)
        return found


def begin_flight(outer: OuterShape, since_tx: int, transactions_max: int) -> Flight:
    held = [frozenset(each) for each in outer.held]
    return Flight(held, frozenset(outer.turning()), since_tx, transactions_max)


def splice(outer: OuterShape, flight: Flight, offset: LogOffset) -> LogItems | None:
    """Activate what was asked for and is still held; what the log is told of it, None if nothing is left.

    What comes is told before what goes: a row that has another reason to be there than before stays.
    """
    assert flight.point is not None
    patches = _latest(outer, flight.unseen())

    def judged() -> tuple[list[Judged], list[Judged]]:
        fetched = [outer.judge(part.columns, len(part.lines.ends)) for part in flight.answer]
        return fetched, [outer.judge_changes(part.changes, part.rows, new=True) for part in patches.parts]

    fetched, patched = judged()
    coming, xids = _activate(outer, flight)
    fetched_after, patched_after = judged()
    pairs = list(zip([*fetched, *patched], [*fetched_after, *patched_after], strict=True))
    turned, going = _turned(outer, flight, pairs)
    coming += turned
    if not coming and not going:
        return None
    items = outer.events("move-in", coming, xids) + outer.events("move-out", going, xids)
    for part, before, after in zip(flight.answer, fetched, fetched_after, strict=True):
        items += _fetched_items(outer, part, before, after, patches.touched)
    for routed, before, after in zip(patches.parts, patched, patched_after, strict=True):
        items += _patched_items(outer, routed, before, after)
    if coming:
        items.append(("e", b"", snapshot_end(flight.point)))
    return log_items(offset, items)


def _activate(outer: OuterShape, flight: Flight) -> tuple[list[Pattern], list[int]]:
    patterns, xids = [], []
    for subquery, asked in enumerate(flight.values):
        if subquery in flight.whole:
            xids += outer.turn_nulls(subquery)
            continue
        held = outer.held[subquery]
        for value in [each for each in held if each in asked]:
            xids.append(held.pop(value))
            patterns += outer.patterns(subquery, value)
    return patterns, xids


def _turned(
    outer: OuterShape, flight: Flight, pairs: Sequence[tuple[Judged, Judged]]
) -> tuple[list[Pattern], list[Pattern]]:
    """What came and what went with nulls, of the values that rows have. Rows that are not there need none:
    they do not meet the rest of the disjuncts with such a position, and are told anew once they do."""
    found: tuple[dict[Pattern, None], dict[Pattern, None]] = {}, {}
    for position in [each for subquery in flight.whole for each in outer.positions(subquery)]:
        for before, after in pairs:
            own, is_active = after.values[position], after.active[position]
            assert own is not None, "it is a subquery's"
            for row in np.flatnonzero(before.active[position] != is_active).tolist():
                found[0 if is_active[row] else 1][position, outer.tags.slot(position, own[row])] = None
    return list(found[0]), list(found[1])


@dataclass(frozen=True, slots=True)
class _Patches:
    """Rows that transactions have written which the answer does not show, each as it is by now."""

    parts: list[RoutedRows]
    touched: set[bytes]


def _latest(outer: OuterShape, unseen: Sequence[RoutedRows]) -> _Patches:
    latest: dict[bytes, tuple[int, int] | None] = {}
    for part, routed in enumerate(unseen):
        changes, rows = routed.changes, routed.rows
        ops = changes.op[rows].tolist()
        old, new = outer.keys(changes, rows, new=False), outer.keys(changes, rows, new=True)
        for number, op in enumerate(ops):
            if op != INSERTED:
                latest[old[number]] = None
            if op != DELETE:
                latest[new[number]] = part, number
    chosen: list[list[int]] = [[] for _ in unseen]
    for place in latest.values():
        if place is not None:
            chosen[place[0]].append(place[1])
    parts = []
    for routed, numbers in zip(unseen, chosen, strict=True):
        kept = np.zeros(len(routed.rows), np.bool_)
        kept[numbers] = True
        if numbers:
            parts.append(routed.where(kept))
    return _Patches(parts, set(latest))


def _fetched_items(
    outer: OuterShape, part: MovedRows, before: Judged, after: Judged, touched: set[bytes]
) -> list[tuple[str, bytes, bytes]]:
    lines = part.lines
    found = []
    for row in np.flatnonzero(after.inside & ~before.inside).tolist():
        key = lines.keys[int(lines.key_ends[row - 1]) if row else 0 : int(lines.key_ends[row])]
        if key in touched:
            continue
        line = lines.content[int(lines.ends[row - 1]) if row else 0 : int(lines.ends[row])]
        slots, active = outer.slots_of(after, row), after.active[:, row].tolist()
        text = line.removesuffix(_LINE_END) + outer.tags.headers(slots, active) + CLOSE
        for sink in outer.sinks:
            value = tuple(part.columns[name][row].as_py() for name in sink.columns)
            sink.put(key, value, slots, active)
        found.append(("i", key, text))
    return found


def _patched_items(
    outer: OuterShape, routed: RoutedRows, before: Judged, after: Judged
) -> list[tuple[str, bytes, bytes]]:
    changes = routed.changes
    places = np.flatnonzero(after.inside & ~before.inside)
    if not len(places):
        return []
    rows = routed.rows[places]
    rendered = Renderer(changes).render(outer.consumer.view, rows, np.full(len(rows), INSERT, np.uint8))
    keys, json = rendered.keys.tobytes(), rendered.json.tobytes()
    found = []
    for number, place in enumerate(places.tolist()):
        key = keys[int(rendered.key_ends[number - 1]) if number else 0 : int(rendered.key_ends[number])]
        text = json[int(rendered.json_ends[number - 1]) if number else 0 : int(rendered.json_ends[number])]
        slots, active = outer.slots_of(after, place), after.active[:, place].tolist()
        for sink in outer.sinks:
            value = tuple(changes.new(name)[int(rows[number])].as_py() for name in sink.columns)
            sink.put(key, value, slots, active)
        found.append(("i", key, text + _IS_MOVE_IN + outer.tags.headers(slots, active) + CLOSE))
    return found


def trigger_at(tx: int, last_op: int) -> LogOffset:
    """Where what a transaction brings about is told: behind its own changes."""
    return LogOffset(tx, last_op + 2)

"""An item of the tail as shapes with subqueries get it: collected, then dealt with by transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import ChangeRows
from penstock.core.stream import StreamId
from penstock.shapes.engine.consumer import RoutedRows
from penstock.shapes.subquery.materializer import Materializer
from penstock.shapes.subquery.values import Counts, added, bytes_of


class Item:
    """What was handed in of an item of the tail, until all of it was: rows of shapes with subqueries, what
    became of the values of inner shapes, and which operation of each transaction was the last."""

    def __init__(self) -> None:
        self.rows: dict[int, list[RoutedRows]] = {}
        self.counts: list[tuple[Materializer, int, int, Counts]] = []
        self.bytes = 0  # that are kept, each once for all shapes
        self.counts_bytes = 0  # about
        self._memory: set[int] = set()
        self._last: list[tuple[StreamId, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []

    def note(self, changes: Iterable[ChangeRows]) -> None:
        for each in changes:
            if len(each):
                lasts = np.concatenate((np.flatnonzero(np.diff(each.tx)), [len(each) - 1]))
                self._last.append((each.stream, each.tx[lasts].copy(), each.op_index[lasts].copy()))

    def hold(self, slot: int, found: list[RoutedRows]) -> None:
        self.rows.setdefault(slot, []).extend(found)
        for each in found:
            place, size = each.changes.memory
            if place not in self._memory:
                self._memory.add(place)
                self.bytes += size

    def count(self, made: Materializer, found: list[RoutedRows]) -> None:
        if made.state != "waiting":
            for routed in found:
                for tx, xid, counts in made.changes(routed):
                    self.counts.append((made, tx, xid, counts))
                    self.counts_bytes += sum(map(bytes_of, counts))

    def sets_changed(self) -> tuple[dict[int, dict[Materializer, Counts]], dict[int, int]]:
        """By transaction, what inner shapes without subqueries select, and its id. A transaction may come in
        several parts: a value that goes in one and comes in the next has not moved."""
        sets: dict[int, dict[Materializer, Counts]] = {}
        xids: dict[int, int] = {}
        for made, tx, xid, counts in self.counts:
            if made.state != "ready":
                made.do(partial(made.values.apply, counts))
                continue
            whole = sets.setdefault(tx, {}).setdefault(made, {})
            for value, count in counts.items():
                added(whole, value, count)
            xids[tx] = xid
        return sets, xids

    def last_op(self, tx: int, streams: Collection[StreamId]) -> int:
        last = 0
        for stream, txs, ops in self._last:
            if stream in streams:
                at = int(np.searchsorted(txs, tx))
                if at < len(txs) and txs[at] == tx:
                    last = max(last, int(ops[at]))
        return last


class Cursor:
    """Changes of one table, given out up to one transaction after the other."""

    def __init__(self, rows: Sequence[RoutedRows]) -> None:
        self._rows = [each for each in rows if len(each.rows)]

    @property
    def next_tx(self) -> int:
        if not self._rows:
            return 1 << 62
        first = self._rows[0]
        return int(first.changes.tx[first.rows[0]])

    def up_to(self, tx: int) -> list[RoutedRows]:
        found = []
        while self._rows:
            first = self._rows[0]
            count = int(np.searchsorted(first.changes.tx[first.rows], tx, side="right"))
            if count:
                found.append(RoutedRows(first.changes, first.rows[:count], first.actions[:count]))
            if count < len(first.rows):
                self._rows[0] = RoutedRows(first.changes, first.rows[count:], first.actions[count:])
                break
            self._rows.pop(0)
        return found

    def rest(self) -> list[RoutedRows]:
        rows, self._rows = self._rows, []
        return rows


def ids(routed: RoutedRows) -> dict[int, int]:
    changes, rows = routed.changes, routed.rows
    return dict(zip(changes.tx[rows].tolist(), changes.xid[rows].tolist(), strict=True))

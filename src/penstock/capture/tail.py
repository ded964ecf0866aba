"""The newest changes in memory, for lanes that follow them as they come (correctness 38).

What a reader may rely on, and why it holds:

- *Whole transactions only.* Rows wait in `_open` until `committed` says that their transaction has ended; a
  piece that reaches into the open one is cut at its first row.
- *Nothing is left out.* Groups follow one another without a gap. Only what a manifest holds is ever let go,
  and then the reader is told to read the log up to the newest manifest. What no manifest holds stays: when
  there is too much of it, `full` asks capture to seal a step, instead of anything being given up.
- *Any reader, any position.* A reader is nothing but the position it has read to; a position inside a group
  is answered with the rest of it. A slow reader holds up nobody and has no queue: it asks for the next item
  when it has sent the last one, and finds itself behind the groups in memory, or not.
- *Bounded.* At most `bytes_max` and `groups_max`, and one batch of capture's. A slice that keeps more than
  twice its size in memory is copied. A group is at most `_group_bytes_max`, so that it can be sent as one
  message; more is cut between transactions, and a transaction that is larger goes by the log: its rows are
  dropped, capture is asked to seal, and then readers are told. So does one of which the log says that changes
  are missing: what tells it is the manifest.

A group is encoded when the first reader wants it, in that reader's thread, and once for all of them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.tail_items import (
    NOTHING,
    Origin,
    Piece,
    Transactions,
    item_of,
    log_line,
    origin_line,
    transactions_item,
)
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns

_GROUP_BYTES_MAX = 16 << 20
_GROUPS_MAX = 8192  # of one small commit each, they take 64 MiB at ten columns
_COLUMN_BYTES = 1024  # what a column of a small batch takes beside its values


class TailSink(Protocol):
    """What is told of everything that goes to the log, in order and from one thread."""

    def rows(self, schema: TableSchema, leaf: StreamId, rows: pa.RecordBatch) -> None:
        """A piece, as it was given to the log."""

    def untold(self, tx: int) -> None:
        """The log says of this transaction that changes are missing in it."""

    def committed(self, end: Lsn, open_tx: int | None) -> None:
        """What was told with `_tx` below `open_tx`, or all if that is None, is whole and ends at `end`."""

    def sealed(self, end: Lsn) -> None:
        """The log holds everything up to `end`."""

    @property
    def full(self) -> bool:
        """Whether a step should be sealed as soon as it may."""


@dataclass(frozen=True, slots=True)
class Served:
    """An item as it is sent: the reader has everything up to `end` after it."""

    end: Lsn
    batch: pa.RecordBatch
    line: bytes


class Tail:
    """A `TailSink`, and where readers read. One for each term; `close` ends its readers."""

    def __init__(self, bytes_max: int, groups_max: int = _GROUPS_MAX) -> None:
        self._bytes_max, self._groups_max = bytes_max, groups_max
        self._group_bytes_max = min(_GROUP_BYTES_MAX, bytes_max // 4)
        self._changed = threading.Condition()
        self._origin = Origin("", 0, Lsn(0), Lsn(0))
        self._groups: list[_Group] = []
        self._start = self._sealed = self._position = Lsn(0)
        self._by_log_end = Lsn(0)  # of the newest group that only the log has
        self._held_bytes = self._unsealed_bytes = self._unsealed_groups = 0
        self._open: list[Piece] = []
        self._by_log_tx: int | None = None  # the open transaction, if it is too large for us
        self._untold: list[int] = []
        self._closed = False

    def identify(self, system_id: str, timeline: int, epoch: Lsn, position: Lsn) -> None:
        """Whose changes will come, and that the log holds what is before: everything up to `position`."""
        self._origin = Origin(system_id, timeline, epoch, position)
        self._start = self._sealed = self._position = position

    @property
    def epoch(self) -> Lsn:
        return self._origin.epoch

    @property
    def position(self) -> Lsn:
        return self._position

    @property
    def bytes(self) -> int:
        """What is in memory, for readers or until it may be."""
        return self._held_bytes + _size(self._open)

    def rows(self, schema: TableSchema, leaf: StreamId, rows: pa.RecordBatch) -> None:
        if self._by_log_tx is not None:
            rows = _on_its_own(rows.slice(_first_from(rows, self._by_log_tx + 1)))
        if rows.num_rows:
            self._open.append(Piece(schema.stream, leaf, schema.id, rows))

    def untold(self, tx: int) -> None:
        self._untold.append(tx)

    def committed(self, end: Lsn, open_tx: int | None) -> None:
        groups: list[_Group] = []
        start = self._position
        if self._by_log_tx is not None and open_tx != self._by_log_tx:
            groups.append(_Group(start, Lsn(self._by_log_tx + 1), None))
            start, self._by_log_tx = groups[-1].end, None
        whole = self._open
        if open_tx is not None:
            whole, still_open = _cut(whole, open_tx)
            self._open = _on_their_own(still_open)
            if _size(self._open) > self._group_bytes_max:
                self._by_log_tx, self._open = open_tx, []
        else:
            self._open = []
        if whole:
            groups += _grouped(whole, start, end, self._group_bytes_max)
        if any(open_tx is None or tx < open_tx for tx in self._untold):
            groups = [_Group(self._position, end, None)]
            # One that a crash of the source cut off ends where it began: the next range has it.
            self._untold = [tx for tx in self._untold if tx >= end]
        if groups:
            # Positions between transactions are as good as the end of the last one, but not as round.
            groups[-1].end = end
        if groups or end > self._position:
            self._add(groups, end)

    def sealed(self, end: Lsn) -> None:
        with self._changed:
            waiting = self._waits_for_log
            newly = [group.bytes for group in self._groups if self._sealed < group.end <= end]
            self._unsealed_bytes -= sum(newly)
            self._unsealed_groups -= len(newly)
            self._sealed = end
            self._let_go()
            if waiting:
                self._changed.notify_all()

    @property
    def full(self) -> bool:
        return (
            self._unsealed_bytes > self._bytes_max
            or self._unsealed_groups > self._groups_max
            or self._waits_for_log
        )

    def close(self) -> None:
        """The term is over: readers are sent away."""
        with self._changed:
            self._closed = True
            self._groups, self._held_bytes = [], 0
            self._changed.notify_all()

    def hello(self) -> Served:
        return Served(Lsn(0), NOTHING, origin_line(replace(self._origin, position=self._position)))

    def nothing_to(self, end: Lsn) -> Served:
        """Nothing happened up to `end`; a sign of life, if the reader knows that already."""
        return Served(end, *transactions_item(end, time.time(), ()))

    def read(self, after: Lsn, wait_s: float) -> Served | None:
        """What comes after `after`; None if nothing has come in `wait_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_news(after), wait_s)
            if self._closed:
                raise CaptureAwayError(
                    "Capture's term is over: its newest changes are not served any more.",
                    remedy="Ask again with the next term.",
                )
            if not self._has_news(after):
                return None
            group = self._next(after)
            if after < self._start or (group is not None and group.is_by_log):
                return Served(self._sealed, NOTHING, log_line(self._sealed, self.epoch))
            if group is None:
                return self.nothing_to(self._position)
        return Served(group.end, *group.item(after))

    @property
    def _waits_for_log(self) -> bool:
        """Whether readers can go on only when the log has what came by it."""
        return self._by_log_end > self._sealed

    def _add(self, groups: list[_Group], end: Lsn) -> None:
        with self._changed:
            if self._closed:
                return
            self._groups += groups
            self._held_bytes += sum(group.bytes for group in groups)
            # A transaction that was cut off may end where the log does: no step will ever be sealed for it.
            unsealed = [group.bytes for group in groups if group.end > self._sealed]
            self._unsealed_bytes += sum(unsealed)
            self._unsealed_groups += len(unsealed)
            self._position = max(self._position, end)
            self._by_log_end = max([self._by_log_end, *(group.end for group in groups if group.is_by_log)])
            self._let_go()
            self._changed.notify_all()

    def _let_go(self) -> None:
        """Forget the oldest groups, as far as there is too much and the log has them."""
        gone = 0
        for group in self._groups:
            too_much = self._held_bytes > self._bytes_max or len(self._groups) - gone > self._groups_max
            if group.end > self._sealed or not (too_much or group.is_by_log):
                break
            self._held_bytes -= group.bytes
            self._start = group.end
            gone += 1
        del self._groups[:gone]

    def _next(self, after: Lsn) -> _Group | None:
        at = bisect_right(self._groups, after, key=lambda group: group.end)
        return self._groups[at] if at < len(self._groups) else None

    def _has_news(self, after: Lsn) -> bool:
        if after < self._start:
            return True
        group = self._next(after)
        if group is not None and group.is_by_log:
            return self._sealed >= group.end
        return self._position > after


class _Group:
    """Whole transactions that are sent as one item; without pieces, those that the log alone has."""

    def __init__(self, start: Lsn, end: Lsn, pieces: Sequence[Piece] | None, size: int = 0) -> None:
        self.end = end
        self.at = time.time()
        self.is_by_log = pieces is None
        self.bytes = size
        self._start = start
        self._pieces = pieces
        self._item: tuple[pa.RecordBatch, bytes] | None = None
        self._encoding = threading.Lock()

    def item(self, after: Lsn) -> tuple[pa.RecordBatch, bytes]:
        """What is sent to a reader that has read to `after`."""
        with self._encoding:
            if self._item is None:
                assert self._pieces is not None
                self._item = transactions_item(self.end, self.at, self._pieces)
                self._pieces = None
        if after <= self._start:
            return self._item
        whole = item_of(*self._item)
        assert isinstance(whole, Transactions)
        return transactions_item(self.end, self.at, _cut(whole.pieces, after)[1])


def _grouped(pieces: list[Piece], start: Lsn, end: Lsn, bytes_max: int) -> list[_Group]:
    """Groups of whole transactions; a transaction that is larger than a group may be goes by the log."""
    size = _size(pieces)
    if size <= bytes_max:
        return [_Group(start, end, _on_their_own(pieces), size)]
    transactions = np.unique(np.concatenate([_transactions(piece.rows) for piece in pieces]))
    if len(transactions) == 1:
        return [_Group(start, end, None)]
    half = len(transactions) // 2
    first, rest = _cut(pieces, int(transactions[half]))
    boundary = Lsn(int(transactions[half - 1]) + 1)
    return _grouped(first, start, boundary, bytes_max) + _grouped(rest, boundary, end, bytes_max)


def _cut(pieces: Iterable[Piece], tx: int) -> tuple[list[Piece], list[Piece]]:
    """Rows of transactions below `tx`, and the others."""
    below: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        first = _first_from(piece.rows, tx)
        if first == piece.rows.num_rows:
            below.append(piece)
        elif first == 0:
            rest.append(piece)
        else:
            below.append(replace(piece, rows=piece.rows.slice(0, first)))
            rest.append(replace(piece, rows=piece.rows.slice(first)))
    return below, rest


def _on_their_own(pieces: Iterable[Piece]) -> list[Piece]:
    return [replace(piece, rows=_on_its_own(piece.rows)) for piece in pieces]


def _on_its_own(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, in memory of their own if what they are a slice of is much larger."""
    if rows.get_total_buffer_size() <= 2 * _rows_size(rows):
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _first_from(rows: pa.RecordBatch, tx: int) -> int:
    """The first row whose transaction is not below `tx`: rows of a piece are in the order of the log."""
    return int(np.searchsorted(_transactions(rows), tx))


def _transactions(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows.column(log_columns.TX).to_numpy()
    return found


def _size(pieces: Iterable[Piece]) -> int:
    """Of what will be sent, and what holds it: found ten times faster than `nbytes` is."""
    return sum(_rows_size(piece.rows) for piece in pieces)


def _rows_size(rows: pa.RecordBatch) -> int:
    size: int = pa.ipc.get_record_batch_size(rows) + _COLUMN_BYTES * rows.num_columns
    return size

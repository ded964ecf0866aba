"""Transactions whose changes a stream's filter cannot decide: like those that the log does not tell.

Whether an update is inside is not known if a value that the filter reads was left out (`core.row_filter`).
That shows in the rows, and so a fragment at a time. Where it shows, the fragment says of the transaction that
it is missing (`untold`), as do those behind it up to the end of the item: the stream stands still from there
on, by the rules for what is missing (`loading`, 8.). Of a transaction that is in several fragments, what came
before may have been told; it is not told again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.capture.transactions import ChangeRows, TransactionFragment
from penstock.core.stream import StreamId

FindUndecided = Callable[[ChangeRows], tuple[int, ...]]


class Undecided:
    """`find`: such transactions among changes of a stream. Fragments are given one after the other."""

    def __init__(self, find: FindUndecided) -> None:
        self._find = find
        self._open: dict[StreamId, tuple[int, ...]] = {}  # of the item that goes on

    def noted(self, fragment: TransactionFragment) -> TransactionFragment:
        """The fragment, with such transactions among what is missing."""
        for changes in fragment.changes:
            if found := self._find(changes):
                self._open[changes.stream] = (*self._open.get(changes.stream, ()), *found)
        if not self._open:
            return fragment
        untold = dict(fragment.untold)
        for stream, txs in self._open.items():
            untold[stream] = tuple(sorted({*untold.get(stream, ()), *txs}))
        if fragment.is_last:
            self._open = {}
        return replace(fragment, untold=untold)

"""`TailFeed`: capture's changes as fragments, read by a thread of its own, with a bound.

So that the lane reads the next changes while it sends some, and looks after its loads while nothing comes.

Small fragments that wait become one. Encoding and sending cost a few calls per fragment, whatever is in it,
and capture's items may hold one row each: so the more of them come, the fewer are handed over. What is joined
is the same changes in the same order: whole fragments that follow each other, and of each table the changes
of one version, one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import ChangeRows, MessageConverter, TransactionFragment
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

_WAITING_BYTES_MAX = 8 << 20  # and one fragment, of some 4 MiB
_FRAGMENT_BYTES = 1 << 10  # what one without changes counts for
_JOINED_BYTES_MAX = 256 << 10
_END_WITHIN_S = 5.0


class TailFeed:
    """Entered once; an error of the tail comes out of `next`, behind what was read before it."""

    def __init__(self, reader: TailReader, after: Lsn) -> None:
        self._items: Iterator[Transactions] = reader.follow(after)
        self._converter = MessageConverter()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[TransactionFragment, int]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="stream-tail", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(_END_WITHIN_S)  # a sign of life comes every second

    def next(self, within_s: float) -> TransactionFragment | None:
        """What comes next, and what has come behind it; None if nothing comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error, within_s)
            if not self._waiting:
                if self._error is not None:
                    raise self._error
                return None
            taken = self._taken()
        return joined(taken)

    def _taken(self) -> list[TransactionFragment]:
        """The first that waits, and those behind it that may be joined to it."""
        taken: list[TransactionFragment] = []
        total = 0
        while self._waiting:
            fragment, size = self._waiting[0]
            if taken and not (taken[-1].is_last and fragment.is_last and total + size <= _JOINED_BYTES_MAX):
                break
            self._waiting.popleft()
            taken.append(fragment)
            total += size
        self._bytes -= total
        self._changed.notify_all()
        return taken

    def _read(self) -> None:
        try:
            for item in self._items:
                for fragment in self._converter.fragments(item):
                    if not self._put(fragment):
                        return
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            with contextlib.suppress(ValueError):  # it runs no more
                self._items.close()  # type: ignore[attr-defined]  # a generator

    def _put(self, fragment: TransactionFragment) -> bool:
        size = _FRAGMENT_BYTES + sum(each.rows.get_total_buffer_size() for each in fragment.changes)
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._bytes < _WAITING_BYTES_MAX)
            self._waiting.append((fragment, size))
            self._bytes += size
            self._changed.notify_all()
            return not self._ended


def joined(fragments: Sequence[TransactionFragment]) -> TransactionFragment:
    """One of several that follow each other, each with the end of a transaction."""
    if len(fragments) == 1:
        return fragments[0]
    runs: dict[StreamId, list[list[ChangeRows]]] = {}
    for fragment in fragments:
        for changes in fragment.changes:
            of_stream = runs.setdefault(changes.stream, [])
            if of_stream and _are_alike(of_stream[-1][-1], changes):
                of_stream[-1].append(changes)
            else:
                of_stream.append([changes])
    filled = [fragment for fragment in fragments if fragment.changes]
    return TransactionFragment(
        filled[0].first_tx if filled else 0,
        filled[-1].last_tx if filled else 0,
        fragments[-1].end,
        [_one(run) for of_stream in runs.values() for run in of_stream],
        at=next((fragment.at for fragment in filled), fragments[-1].at),
        untold=_all_untold(fragments),
    )


def _all_untold(fragments: Sequence[TransactionFragment]) -> dict[StreamId, tuple[int, ...]]:
    found: dict[StreamId, set[int]] = {}
    for fragment in fragments:
        for stream, txs in fragment.untold.items():
            found.setdefault(stream, set()).update(txs)
    return {stream: tuple(sorted(txs)) for stream, txs in found.items()}


def _are_alike(one: ChangeRows, other: ChangeRows) -> bool:
    return (one.leaf, one.schema_id) == (other.leaf, other.schema_id)


def _one(run: Sequence[ChangeRows]) -> ChangeRows:
    first = run[0]
    if len(run) == 1:
        return first
    rows = pa.concat_batches([changes.rows for changes in run])
    return ChangeRows(first.stream, first.leaf, first.schema_id, rows)

"""Which changes of a shape's log a snapshot of the source shows."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.shapes.shape import SnapshotPoint

_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES_MAX = 40
_XIDS = 1 << 32  # clients, and so items, have the lower half of a transaction's number
#: Of transactions that commit below the snapshot's position, those that began after it was taken: as many as
#: can begin between the two, and far fewer than would make the number of an old one look like one of them.
_BEGUN_SINCE_MAX = 1 << 24


class MixedError(Exception):
    """An item has changes of several transactions, and the snapshot shows some of them."""


class Visible:
    def __init__(self, point: SnapshotPoint) -> None:
        self._lsn = point.lsn
        self._next = point.xmax
        self._running = frozenset(xid % _XIDS for xid in point.xip)

    def shows(self, lsn: int, xids: Sequence[int]) -> bool:
        """Whether it shows a change of these transactions, the last of which commits at `lsn`."""
        shown = [self._shows(xid) for xid in xids]
        if lsn >= self._lsn:
            shown[-1] = False
        if any(shown) != all(shown):
            raise MixedError
        return all(shown)

    def _shows(self, xid: int) -> bool:
        return xid not in self._running and (xid - self._next) % _XIDS >= _BEGUN_SINCE_MAX


def reached_at(lsn: int) -> int:
    """Where the log ends for who reads it, if nothing is written behind that position: the header of a page
    is part of the position at which the next record would begin, and of no record that there is."""
    into_page = lsn % _PAGE_BYTES
    return lsn - into_page if into_page <= _PAGE_HEADER_BYTES_MAX else lsn

"""`LsnTracker`: how far the whole lane is, as clients are told with "up-to-date".

A client that was told n must never be given anything with a lower lsn that it could not have had before
(its other shapes may show what is newer than this one). So n only ever follows what has been appended to all
shapes: the commit of the newest transaction, or one below a position up to which nothing happened, since the
next transaction's commit may begin right there.
"""

from __future__ import annotations

from penstock.core.position import Lsn


class LsnTracker:
    """Written by the engine's thread, read by any."""

    __slots__ = ("last_processed",)

    def __init__(self, position: Lsn = Lsn(0)) -> None:  # noqa: B008 - a number
        self.last_processed = max(int(position) - 1, 0)

    def transaction(self, tx: int) -> None:
        """All shapes have this transaction and those before."""
        self.last_processed = max(self.last_processed, tx)

    def nothing_up_to(self, end: Lsn) -> None:
        """Nothing concerns a shape up to `end` but what they have."""
        self.last_processed = max(self.last_processed, int(end) - 1)

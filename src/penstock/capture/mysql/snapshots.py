"""Positions for loads: these servers share no snapshots (correctness 54), so nothing is kept for anybody.

A load that begins at such a position reads its chunks later, each at a moment of its own; what the log brings
from the position on comes over them. That holds only if everything before it can be seen by then, which is
asked of the server (`sources.mysql.server.visible_place`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.capture.spec import ExportedSnapshot
from penstock.core.place import Place
from penstock.core.position import Lsn


class Positions:
    """A `Snapshots`."""

    def __init__(self, visible: Callable[[], tuple[Lsn, Place]], clock: Callable[[], Lsn]) -> None:
        self._visible, self._clock = visible, clock

    def take(self, lane: str) -> ExportedSnapshot:
        position, place = self._visible()
        return ExportedSnapshot("", position, 0, place)

    def take_plain(self, lane: str) -> ExportedSnapshot:
        """What is read by a cursor knows rounds by a number that grows: the server's clock."""
        return ExportedSnapshot("", self._clock(), 0)

    def release(self, lane: str) -> None:
        return None

    def release_main(self) -> None:
        return None

    def close(self) -> None:
        return None

"""Positions for loads: these servers share no snapshots (correctness 54), so nothing is kept for anybody.

A load that begins at such a position reads its chunks later, each at a moment of its own; what the log brings
from the position on comes over them. That holds only if everything before it can be seen by then, which is
asked of the server (`sources.mysql.server.visible_place`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.capture.spec import ExportedSnapshot
from penstock.core.position import Lsn


class Positions:
    """A `Snapshots`."""

    def __init__(self, visible_position: Callable[[], Lsn]) -> None:
        self._visible_position = visible_position

    def take(self, lane: str) -> ExportedSnapshot:
        return ExportedSnapshot("", self._visible_position(), 0)

    def take_plain(self, lane: str) -> ExportedSnapshot:
        return self.take(lane)

    def release(self, lane: str) -> None:
        return None

    def release_main(self) -> None:
        return None

    def close(self) -> None:
        return None

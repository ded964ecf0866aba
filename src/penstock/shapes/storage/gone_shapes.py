"""`GoneShapes`: shapes that are gone stay so, whenever a crash comes.

A shape that is gone gets nothing more, so it must not be there after a crash at any later position. Its
directory is out of the way, durably, before the next commit is written (`move_away` comes before each); if it
cannot be moved, that is an error, and it is tried again by the next call like the commit itself.
"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.durable import sync_directory
from penstock.shapes.storage.shape_storage import ShapeStorage


class GoneShapes:
    """Added in any thread, moved away in one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[ShapeStorage] = []  # whose directories are to be moved out of the way

    def add(self, storage: ShapeStorage) -> None:
        with self._lock:
            self._waiting.append(storage)

    def move_away(self) -> None:
        """Have recovery not find them, whatever happens from now on."""
        with self._lock:
            gone = list(self._waiting)
        if not gone:
            return
        for storage in gone:
            storage.move_away()
        sync_directory(Path(gone[0].directory).parent)
        with self._lock:
            del self._waiting[: len(gone)]

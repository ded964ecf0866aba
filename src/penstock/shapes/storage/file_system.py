"""One call that puts everything a file system was given on disk.

Many small files that are due together take one journal commit this way instead of one or two each: 20 ms for
1,024 of them. Since Linux 5.8 it reports failed writes, if the descriptor was open before them. What other
processes wrote to that file system goes to disk with it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class FileSystem:
    """The one that holds a directory."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Returns when everything written before is on disk. `OSError` if some of it could not be."""
        if _syncfs is None:
            os.sync()
        elif _syncfs(self._descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        os.close(self._descriptor)

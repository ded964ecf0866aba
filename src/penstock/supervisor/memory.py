"""How much memory a process and its descendants have, where the system tells (`/proc`)."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSES_MAX = 1000


def resident_bytes(pid: int) -> int:
    """Pages that processes share are counted for each; 0 if the system does not tell."""
    pages, pending, seen = 0, [pid], 0
    while pending and seen < _PROCESSES_MAX:
        each = pending.pop()
        seen += 1
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
            pending += _children(each)
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:  # the thread ended meanwhile
            continue
    return found

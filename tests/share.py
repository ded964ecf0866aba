"""A part of a long suite: with SHARE=3 in the environment a third of it, another one with each commit."""

from __future__ import annotations

import os
import subprocess
import zlib
from functools import cache
from pathlib import Path


def is_in_share(name: str) -> bool:
    of = int(os.environ.get("SHARE") or 1)
    return of == 1 or (zlib.crc32(name.encode()) + _commit()) % of == 0


@cache
def _commit() -> int:
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(found.stdout or "0", 16)  # without a repository always the same part

"""A part of a long suite: with SHARE=3 in the environment a third of it, another one when code changes."""

from __future__ import annotations

import os
import subprocess
import zlib
from functools import cache
from pathlib import Path


def is_in_share(name: str) -> bool:
    of = int(os.environ.get("SHARE") or 1)
    return of == 1 or (zlib.crc32(name.encode()) + _code()) % of == 0


@cache
def _code() -> int:
    """Of what is committed of the package and its tests."""
    command = ["git", "rev-parse", "HEAD:src", "HEAD:tests"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return 0  # without a repository always the same part
    return sum(int(tree, 16) for tree in found.stdout.split())

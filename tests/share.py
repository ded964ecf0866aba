"""A part of a long suite: with SHARE=3 in the environment a third of it, another one when code changes; with
PART=2/4 the second of four parts, each of what follows each other, which together are all of it."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


def is_in_share(name: str) -> bool:
    of = int(os.environ.get("SHARE") or 1)
    return of == 1 or (zlib.crc32(name.encode()) + _code()) % of == 0


def of_part(items: Sequence[Item]) -> Sequence[Item]:
    """Those that are asked for. Whoever draws cases at random has to draw the same ones in each part."""
    part, _, of = (os.environ.get("PART") or "1/1").partition("/")
    assert 1 <= int(part) <= int(of), "PART is 1/4 to 4/4, or as many more"
    return items[len(items) * (int(part) - 1) // int(of) : len(items) * int(part) // int(of)]


@cache
def _code() -> int:
    """Of what is committed of the package and its tests."""
    command = ["git", "rev-parse", "HEAD:src", "HEAD:tests"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return 0  # without a repository always the same part
    return sum(int(tree, 16) for tree in found.stdout.split())

"""A shape as its clients get it, asked of the service that has it, a chunk at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from penstock.core.offset import LogOffset
from penstock.shapes.admin import ask, ask_part

_LOOK_EVERY_S = 0.05
Item = dict[str, Any]


class ShapeGoneError(Exception):
    """It was dropped, or its table was truncated or altered, while it was read."""


class BehindError(Exception):
    """The service did not get as far as the position in time."""


def shapes_there(admin: Path) -> list[dict[str, Any]]:
    """Handle, state and definition of each."""
    found: list[dict[str, Any]] = ask(admin, {"request": "definitions"})["shapes"]
    return found


class ServedShape:
    def __init__(self, admin: Path, handle: str) -> None:
        self._admin = admin
        self._handle = handle
        self.offset = LogOffset.LAST_BEFORE_REAL  # what was read last

    def first_rows(self) -> Iterator[list[Item]]:
        number, chunks = 0, 1
        while number < chunks:
            head, items = self._part(chunk=number)
            yield items
            number, chunks = number + 1, head["chunks"]

    def changes(self, up_to: int, within_s: float) -> Iterator[list[Item]]:
        """From the first on until all is there that was committed below `up_to`, and what came after it."""
        deadline = time.monotonic() + within_s
        while True:
            head, items = self._part(after=str(self.offset), up_to=up_to)
            if items:
                yield items
            is_further = LogOffset.parse(head["offset"]) > self.offset
            self.offset = LogOffset.parse(head["offset"])
            if head["is_all"]:
                return
            if is_further:
                continue
            if time.monotonic() > deadline:
                raise BehindError
            time.sleep(_LOOK_EVERY_S)

    def _part(self, **which: Any) -> tuple[dict[str, Any], list[Item]]:
        head, content = ask_part(self._admin, {"request": "part", "handle": self._handle, **which})
        if head.get("gone"):
            raise ShapeGoneError
        return head, orjson.loads(b"[" + content + b"]")

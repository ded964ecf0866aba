"""A shape as its clients get it, asked of the service that has it, a chunk at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from penstock.core.offset import LogOffset
from penstock.shapes.admin import ask, ask_part
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.subquery.watch import Cut, NoCut

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


class NotReadyError(Exception):
    """What its first rows lack is not known yet."""


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
        return self._log(within_s, up_to=up_to)

    def changes_between(self, after: LogOffset, until: LogOffset, within_s: float) -> Iterator[list[Item]]:
        """Those behind `after`, up to an offset that there is or that there are items behind."""
        self.offset = after
        return self._log(within_s, until=str(until))

    def _log(self, within_s: float, **how_far: Any) -> Iterator[list[Item]]:
        deadline = time.monotonic() + within_s
        while True:
            head, items = self._part(after=str(self.offset), **how_far)
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

    def watch(self, after: str | None = None) -> str:
        """Have noted what happens to a shape with subqueries: the watch's name."""
        name: str | None = self._asked("watch", after=after)[0]["watch"]
        if name is None:
            raise NotReadyError
        return name

    def cut(self, watch: str, point: SnapshotPoint, within_s: float) -> Cut | NoCut:
        """How it can be held against a snapshot that was taken since, once it has all that this may show."""
        deadline = time.monotonic() + within_s
        asked = [point.xmin, point.xmax, point.xip, point.lsn]
        while True:
            head, _ = self._asked("cut", watch=watch, point=asked)
            if "cut" in head:
                return Cut.from_json(head["cut"])
            no_cut: NoCut = head["no_cut"]
            if no_cut != "behind":
                return no_cut
            if time.monotonic() > deadline:
                raise BehindError
            time.sleep(_LOOK_EVERY_S)

    def _part(self, **which: Any) -> tuple[dict[str, Any], list[Item]]:
        head, content = self._asked("part", **which)
        return head, orjson.loads(b"[" + content + b"]")

    def _asked(self, request: str, **more: Any) -> tuple[dict[str, Any], bytes]:
        head, content = ask_part(self._admin, {"request": request, "handle": self._handle, **more})
        if head.get("gone"):
            raise ShapeGoneError
        return head, content

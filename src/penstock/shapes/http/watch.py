"""Waiting for a shape to change, in the loop's thread.

Subscribe, look, wait, look again: what changes after the subscription wakes, so nothing between a look and
the wait is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from penstock.shapes.shape import Shape


class Watch:
    """While entered, changes of the shape are noted."""

    __slots__ = ("_changed", "_shape")

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        self._shape.subscribe(self._changed.set)
        return self

    def __exit__(self, *error: object) -> None:
        self._shape.unsubscribe(self._changed.set)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true in time."""
        if condition():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._changed.clear()
                    if condition():
                        return True
                    await self._changed.wait()
        except TimeoutError:
            return condition()

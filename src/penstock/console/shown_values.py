"""How much of values one answer shows: of each its beginning, and of all together so much.

A row may have a value of a gigabyte, and a page hundreds of rows.
"""

from __future__ import annotations

from typing import Any

CHARACTERS_MAX = 10_000
CHARACTERS_OF_ALL_MAX = 4_000_000
NOT_SHOWN = "(not shown: too much for one page)"


class ShownValues:
    """Of one answer."""

    def __init__(self) -> None:
        self._left = CHARACTERS_OF_ALL_MAX

    def of(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if self._left <= 0:
            return NOT_SHOWN
        shown = value[:CHARACTERS_MAX]
        self._left -= len(shown)
        more = len(value) - len(shown)
        return f"{shown}… ({more:,} more characters)" if more else value

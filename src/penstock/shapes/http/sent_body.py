"""Bodies of requests as they come, bounded twice: each one, and those of all connections together.

A body is kept in one piece: it may come in pieces of a byte, and as objects of their own those would take
thirty times as much. It is kept until its request is understood, or gone; a client that does not read its
answer pins nothing of it.
"""

from __future__ import annotations

from typing import Literal

ALL_BYTES_MAX = 256 * 1024 * 1024

Refusal = Literal["too large", "no room"]


class SentBodies:
    """What the bodies of all connections take. Used in the loop's thread."""

    def __init__(self, bytes_max: int, all_bytes_max: int = ALL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.all_bytes_max = max(all_bytes_max, bytes_max)  # one that is allowed has room, if it is alone
        self.used_bytes = 0

    def open(self) -> SentBody:
        return SentBody(self)


class SentBody:
    """One body. What it takes is given back when it is taken, dropped or collected."""

    __slots__ = ("_all", "_content", "refusal")

    def __init__(self, bodies: SentBodies) -> None:
        self._all = bodies
        self._content = bytearray()
        self.refusal: Refusal | None = None  # what is sent of it from then on is not kept

    def __len__(self) -> int:
        return len(self._content)

    def add(self, piece: bytes) -> None:
        if self.refusal is not None:
            return
        if len(self._content) + len(piece) > self._all.bytes_max:
            self._refuse("too large")
        elif self._all.used_bytes + len(piece) > self._all.all_bytes_max:
            self._refuse("no room")
        else:
            self._all.used_bytes += len(piece)
            self._content += piece

    def take(self) -> bytes:
        """All of it, once."""
        content = bytes(self._content)
        self.drop()
        return content

    def drop(self) -> None:
        if self._content:  # who collects what was dropped may be another thread, and counts nothing
            self._all.used_bytes -= len(self._content)
            self._content = bytearray()

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.drop()

    def __del__(self) -> None:
        self.drop()

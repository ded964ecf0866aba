"""Positions: how far a source's log was read, as a number of 64 bits.

An `Lsn` is an integer that prints as Postgres prints it (`2D9/AD00445A`). Two meanings are kept
apart everywhere (correctness 1): `LogOffset.tx` is the *start* of a commit record; step bounds,
state, checkpoints and acknowledgements are its *end*, or a keepalive's position.

Other sources name their places otherwise; each place has one such number, and a later place a greater one
(`binlog_place.py`, `resume_token.py`). Transactions have numbers of the same kind, so that for every source
one belongs to a range exactly if `from <= tx < to`.
"""

from __future__ import annotations

import re
from typing import Self

_TEXT = re.compile(r"\A([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


class Lsn(int):
    """A position in the write-ahead log."""

    def __new__(cls, value: int = 0) -> Self:
        if not 0 <= value < 2**64:
            raise ValueError(f"a log position is a 64-bit number, not {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"not a log position: {text!r} (expected e.g. 2D9/AD00445A)")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if not spec or spec[-1] in "s<>^" else int.__format__(self, spec)

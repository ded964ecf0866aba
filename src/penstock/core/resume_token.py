"""Resume tokens of MongoDB's change streams, and the positions that ledger and log know them by. Pure.

The `_data` of a token is hexadecimal text whose order is the order of the stream. It begins with the
cluster time (byte 0x82, four bytes of seconds, four of a counter), then its version and its kind: the token
of an *event* stands behind that event, a *high water mark* before all events of its time. The rest is left
alone.

A position is a cluster time as 64 bits; a place at position P holds every event of an earlier time and none
of P or later. So a high water mark of time t is at t, and the token of a transaction's last event is at t +
1. Whether an event was its transaction's last cannot be seen in the token: whoever notes a place knows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from penstock.core.position import Lsn

_DATA = re.compile(r"\A82[0-9A-Fa-f]{16}(?:[0-9A-Fa-f]{2})*\Z")
_TIME = slice(2, 18)
_KINDS: dict[int, Literal["mark", "event"]] = {0: "mark", 128: "event"}
#: Version 1, of the kind mark, the first operation, of no invalidation, and of no document.
_MARK = "2B0229296E04"
# How small numbers are written in a token: 0 is a byte of its own, others say how many bytes follow.
_ZERO, _ONE_BYTE, _TWO_BYTES = "29", "2B", "2C"


@dataclass(frozen=True, slots=True)
class ResumeToken:
    data: str

    def __post_init__(self) -> None:
        if _DATA.match(self.data) is None:
            raise ValueError("not a resume token (expected hexadecimal text that begins with 82)")

    @classmethod
    def before(cls, position: Lsn) -> ResumeToken:
        """The high water mark of a time, as servers write it: everything earlier is held, and no more."""
        return cls(f"82{int(position):016X}{_MARK}")

    @property
    def time(self) -> Lsn:
        """The cluster time; seconds in the upper 32 bits."""
        return Lsn(int(self.data[_TIME], 16))

    @property
    def kind(self) -> Literal["mark", "event"] | None:
        """None: of a server so old that its tokens do not say."""
        version, rest = _number(self.data[_TIME.stop :].upper())
        kind, _ = _number(rest) if version else (None, "")
        return None if kind is None else _KINDS.get(kind)

    @property
    def position_behind(self) -> Lsn:
        """Of the last token of a whole transaction: everything up to it is held."""
        return self.time if self.kind == "mark" else Lsn(self.time + 1)

    def fits(self, position: Lsn) -> bool:
        """Whether a place at this position can have this token."""
        return position in (self.time, self.time + 1)


def _number(text: str) -> tuple[int | None, str]:
    """The small number that `text` begins with, and what follows it."""
    if text.startswith(_ZERO):
        return 0, text[2:]
    digits = {_ONE_BYTE: 2, _TWO_BYTES: 4}.get(text[:2])
    if digits is None or len(text) < 2 + digits:
        return None, text
    return int(text[2 : 2 + digits], 16) >> 1, text[2 + digits :]

"""`LogOffset`: the total order over all operations of a source.

`tx` is the start of the transaction's commit record, `op` the operation's index inside it, in steps
of two, so that an update that changes the key can become a delete at `op` and an insert at `op + 1`.
Offsets are never renumbered by a filter (correctness 35).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, order=True, slots=True)
class LogOffset:
    tx: int
    op: float  # an int, or infinity in `LAST_BEFORE_REAL` alone

    BEFORE_ALL: ClassVar[LogOffset]
    FIRST: ClassVar[LogOffset]
    LAST_BEFORE_REAL: ClassVar[LogOffset]

    def __post_init__(self) -> None:
        if self.op != math.inf and (self.op != int(self.op) or self.op < 0):
            raise ValueError(f"an operation index is a whole number, not {self.op}")

    @classmethod
    def parse(cls, text: str) -> LogOffset:
        if text == "-1":
            return cls.BEFORE_ALL
        tx, separator, op = text.partition("_")
        if not separator or not tx.isdigit() or not (op.isdigit() or op == "inf"):
            raise ValueError(f"not an offset: {text!r} (expected e.g. 26800664_4, 0_inf or -1)")
        return cls(int(tx), math.inf if op == "inf" else int(op))

    def __str__(self) -> str:
        if self == LogOffset.BEFORE_ALL:
            return "-1"
        return f"{self.tx}_{'inf' if self.op == math.inf else int(self.op)}"


LogOffset.BEFORE_ALL = LogOffset(-1, 0)
LogOffset.FIRST = LogOffset(0, 0)
LogOffset.LAST_BEFORE_REAL = LogOffset(0, math.inf)

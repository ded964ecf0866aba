"""What the pipeline file may have a column held as in the table: `types: {amount: "decimal(38,9)"}`.

A choice is a word, or `decimal(precision,scale)`. Which of them a column of the source can have is for the
source to say; here is only what can be written at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["text", "decimal", "time", "list"]
DECIMAL_DIGITS_MAX = 38

_DECIMAL = re.compile(r"decimal\s*\(\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)")


@dataclass(frozen=True, slots=True)
class HeldAs:
    kind: Kind
    precision: int = 0
    scale: int = 0

    @classmethod
    def parse(cls, text: str) -> HeldAs:
        """ValueError says what may be written."""
        words = text.strip().lower()
        if match := _DECIMAL.fullmatch(words):
            precision, scale = int(match[1]), int(match[2])
            if not (1 <= precision <= DECIMAL_DIGITS_MAX and scale <= precision):
                raise ValueError(
                    f"a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, at most all of them behind the point"
                )
            return cls("decimal", precision, scale)
        for kind in get_args(Kind):
            if words == kind != "decimal":
                return cls(kind)
        raise ValueError("should be text, time, list or decimal(precision,scale)")

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind == "decimal" else self.kind

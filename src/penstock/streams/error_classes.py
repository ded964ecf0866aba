"""What a target's error means: for the record, for the target, or for this leader.

Only errors of a record are dead letters (correctness 50). Whatever concerns the target as a whole, such as
throttling, missing rights or the network, holds the position and is tried without end. What nobody has put
into a table is taken for an error of the record that may pass: it is tried a number of times.

A target keeps its table beside its own code, by the codes of its service; where one code means two things, by
a part of the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ErrorClass(Enum):
    POISON = "poison"  # the record will never be taken: a dead letter at once
    RECORD = "record"  # may pass: tried `retry_max_attempts` times, then a dead letter
    TARGET = "target"  # not the record's fault: tried without end
    STALE = "stale"  # a later leader writes: nothing more is sent


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """`by_message`: (code, part of the message in lower case), asked before `by_code`."""

    by_code: Mapping[str, ErrorClass]
    by_message: Mapping[tuple[str, str], ErrorClass] = field(default_factory=dict)
    otherwise: ErrorClass = ErrorClass.RECORD

    def classify(self, code: str, message: str = "") -> ErrorClass:
        said = message.lower()
        for (of, part), meaning in self.by_message.items():
            if of == code and part in said:
                return meaning
        return self.by_code.get(code, self.otherwise)

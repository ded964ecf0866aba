"""How many requests are served at the same time: those that may make a shape, and those that have one, apart.

A flood of first requests can then never keep clients from the changes they wait for, nor the other way round.
"""

from __future__ import annotations

from typing import Literal

from penstock.shapes.http.message import Answer, Stream

RequestKind = Literal["initial", "existing"]


class Admission:
    """Used in the loop's thread."""

    def __init__(self, initial_max: int, existing_max: int) -> None:
        self.limits: dict[RequestKind, int] = {"initial": initial_max, "existing": existing_max}
        self.present: dict[RequestKind, int] = {"initial": 0, "existing": 0}

    def enter(self, kind: RequestKind) -> bool:
        """False: there are too many; whoever got True must `leave`."""
        if self.present[kind] >= self.limits[kind]:
            return False
        self.present[kind] += 1
        return True

    def leave(self, kind: RequestKind, count: int = 1) -> None:
        assert self.present[kind] >= count
        self.present[kind] -= count

    def leave_after(self, answer: Answer, kind: RequestKind) -> None:
        """A request counts until its answer is sent; one that is whole is as good as sent."""
        if isinstance(answer.body, Stream):
            answer.body.on_close(lambda: self.leave(kind))
        else:
            self.leave(kind)

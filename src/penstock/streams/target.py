"""What a target must be able to do: one of these two, in one module of its own.

A `CommitTarget` takes events and standing at once, all or nothing: Kafka's transactions, a file. A
`RecordTarget` takes records one by one and says of each what became of it: Kinesis. Order per key, limits,
retries, dead letters and the frontier are not its business (`commit_publisher`, `record_publisher`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from penstock.streams.events import Events, Int64s
from penstock.streams.publisher import Standing, Term


@dataclass(frozen=True, slots=True)
class Refused:
    """An event that the target will never take: `row` of `events[part]` of the batch."""

    part: int
    row: int
    code: str
    reason: str  # without any value of the row


class RefusedEventsError(Exception):
    """Nothing of the batch was taken, because of these."""

    def __init__(self, refused: Sequence[Refused]) -> None:
        super().__init__(f"{len(refused)} events were refused")
        self.refused = tuple(refused)


class CommitTarget(Protocol):
    """Errors: `RefusedEventsError`; `StaleTermError`, a later term is there; `TargetError`, again later."""

    def open(self, term: Term) -> Standing | None:
        """As `Publisher.open`."""

    def write(self, events: Events) -> None:
        """Part of the next commit; may be sent already, but nobody reads it before."""

    def commit(self, standing: Standing) -> None:
        """All events since the last commit, and the standing, or nothing.

        Whether a commit whose answer was lost has happened is found out before it returns or raises.
        """

    def abort(self) -> None:
        """Forget what was written since the last commit."""

    def stop(self) -> None:
        """From any thread: whoever waits in one of these is let go with `StoppedError`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of each record of a call: `failed` by its number, all others are at the target.

    But for those that are `unknown`: their answer was lost, and each may be there or not. `places`: in which
    part of the target each belongs, of which one may be in trouble while others are not; empty, if there is
    but one.
    """

    failed: dict[int, tuple[str, str]] = field(default_factory=dict)  # number: code, message
    unknown: frozenset[int] = frozenset()
    places: Int64s = field(default_factory=lambda: np.empty(0, np.int64), compare=False)


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Of one `send`, and how many of them may be under way at once."""

    records: int
    bytes: int  # as `RecordTarget.sizes` counts them
    record_bytes: int
    calls: int


class RecordTarget(Protocol):
    """Errors: `StaleTermError`, and `TargetError` for what concerns no single record.

    `send`, `look_again` and `is_there` are called by several threads at once, no two with the same key.
    """

    @property
    def limits(self) -> RecordLimits:
        """As they are now: read before each call."""

    def open(self, term: Term) -> Standing | None:
        """As `Publisher.open`; reads back what lies behind the standing."""

    def is_there(self, events: Events) -> Sequence[bool]:
        """Which of them were found at the target when it was opened, or by `look_again`."""

    def sizes(self, events: Events) -> Int64s:
        """How many bytes each of them is, as it is sent."""

    def send(self, events: Events, last: int) -> Sent:
        """Within the limits, no key twice. `last` is the number of the newest event in it, in their order."""

    def look_again(self, events: Events) -> None:
        """Read back whether these, which were `unknown`, are there. Of others nothing need be found."""

    def note(self, standing: Standing, last: int) -> None:
        """Everything up to there, and up to event `last`, is at the target: durable when it returns.

        The next `open` begins reading back there.
        """

    @property
    def unproven(self) -> Mapping[str, int]:
        """What `open` could not find out about the target, counted by why."""

    def stop(self) -> None:
        """From any thread: whoever waits is let go with `StoppedError`."""

    def close(self) -> None: ...

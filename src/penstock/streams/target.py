"""What a target must be able to do: one of these two, in one module of its own.

A `CommitTarget` takes events and standing at once, all or nothing: Kafka's transactions, a file. A
`RecordTarget` takes records one by one and says of each what became of it: Kinesis. Order per key, limits,
retries, dead letters and the frontier are not its business (`commit_publisher`, `record_publisher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.streams.events import Events
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
    """Errors: `RefusedEventsError`; `StaleTermError`, a later term is there; `TargetError`, try again later."""

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

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of each record of a call: `failed` by its number, all others are at the target.

    `unknown`: the call was lost, and each record may be there or not.
    """

    failed: dict[int, tuple[str, str]] = field(default_factory=dict)  # number: code, message
    unknown: bool = False


class RecordTarget(Protocol):
    """Errors: `StaleTermError`, and `TargetError` for what concerns no single record."""

    def open(self, term: Term) -> Standing | None:
        """As `Publisher.open`; reads back what lies behind the standing."""

    def is_there(self, events: Events) -> Sequence[bool]:
        """Which of them were found at the target when it was opened, or by `look_again`."""

    def send(self, events: Events) -> Sent:
        """One call; within the target's limits, no key twice."""

    def look_again(self, events: Events) -> None:
        """Read back whether events of an `unknown` call are there."""

    def note(self, standing: Standing) -> None:
        """Everything up to there is at the target: the next `open` begins reading back there."""

    def close(self) -> None: ...

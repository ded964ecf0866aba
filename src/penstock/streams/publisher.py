"""What the lane needs of whoever publishes, and what a target is asked to remember.

A target holds events and a `Standing`: how far it has everything, of which source, written by which term.
Where it can, it takes both at once (`CommitTarget`); where it cannot, what lies behind the standing is read
back (`RecordTarget`). A standing is the end of whole transactions, never anything in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from penstock.core.position import Lsn
from penstock.metrics import Sample
from penstock.streams.events import Batch
from penstock.streams.lease import Lease
from penstock.streams.trouble import Trouble


class StoppedError(Exception):
    """The publisher was stopped while somebody waited for it."""


@dataclass(frozen=True, slots=True)
class Term:
    """Who publishes: `epoch` grows with each leader; `identity` names the pipeline's lane, whoever leads.

    `lease` is for targets that cannot shut a former leader out. `is_ordered`: a person has ordered the lane
    to send everything again, so it begins also if the target was written with another state than this one.
    `leaves_letters`: whether, by what the target holds, the lane is to do without dead letters that are
    elsewhere: an order that cannot be carried out is none.
    """

    identity: str
    epoch: Lsn
    system_id: str
    timeline: int
    lease: Lease = field(default_factory=Lease, compare=False)
    is_ordered: bool = False
    leaves_letters: Callable[[Standing], bool] = field(default=lambda _: False, compare=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a target holds: everything up to `position`, and of loads what `loads` says.

    `batches` and `replays` are counted by the publisher over all terms. They tell, after a crash, which dead
    letters are of events that come again, and which have been replayed. `orders`: which of people's orders
    were carried out to come here (`Orders.mark`). `letters`: which file of dead letters went with it
    (`DeadLetters.mark`); None where nobody has said.
    """

    position: Lsn
    epoch: Lsn
    system_id: str
    timeline: int
    loads: Mapping[str, Any] = field(default_factory=dict)
    batches: int = 0
    replays: int = 0
    orders: str = ""
    letters: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"format": 1, "position": str(self.position), "epoch": str(self.epoch)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Standing:
        return cls(
            Lsn.parse(fields["position"]),
            Lsn.parse(fields["epoch"]),
            fields["system_id"],
            fields["timeline"],
            fields.get("loads", {}),
            fields.get("batches", 0),
            fields.get("replays", 0),
            fields.get("orders", ""),
            fields.get("letters"),
        )


class Publisher(Protocol):
    """Used by one thread, but for `standing`, `trouble` and `stop`."""

    def open(self, term: Term) -> Standing | None:
        """Shut out earlier terms, then say what the target holds: None, if nothing of this lane.

        A `StaleTermError` if a later term has written. Called once per term, before anything else.
        """

    def begin(self, standing: Standing) -> None:
        """Go on from there: written down, if it is not what the target holds."""

    def publish(self, batch: Batch) -> None:
        """Take it, in order; waits for room. Raises what has failed with any batch before."""

    @property
    def standing(self) -> Standing:
        """What the target is known to hold now."""

    @property
    def trouble(self) -> Trouble | None:
        """What holds it there, if the target does not take something."""

    def drain(self, within_s: float) -> bool:
        """Wait until everything that was taken is at the target; whether it is."""

    def stop(self) -> None:
        """From any thread: nothing more is sent, and whoever waits is let go (with `StoppedError`)."""

    def close(self) -> None: ...

    def samples(self) -> list[Sample]:
        """What is under way and what became of events, as numbers; from any thread."""

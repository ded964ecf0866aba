"""What capture asks of the database it reads: all that its common parts know of one.

`capture.open` makes a `CaptureSource` of a spec; it serves one sync or one term, and nothing is asked of the
server until it is used. First the `lock` is taken, and with it an epoch; then the source is set up, which
gives its log from where the change log ends (`LogReading`). Meanwhile snapshots are kept for lanes that load,
and a `Monitor` looks at how the source does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.capture.leadership import Lock
from penstock.capture.log_reading import LogReading
from penstock.capture.spec import ExportedSnapshot
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.load_record import LoadPoint
from penstock.metrics import Sample


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a source is set up for. `full_identity`: streams of which a lane needs old rows as a whole;
    `lanes`: each lane's durable position, None while it has none."""

    streams: tuple[StreamId, ...]
    full_identity: frozenset[StreamId]
    lanes: Mapping[str, Lsn | None]


class Snapshots(Protocol):
    """Kept for the lanes that load under them. May be used from several threads.

    Of each, the log brings what it does not show: every transaction from `consistent_point` on. Where readers
    cannot share one, it is that position alone, without a name: each chunk shows a time of its own, between
    two that are noted around it (`CaptureSource.position_now`; correctness 54).
    """

    def take(self, lane: str) -> ExportedSnapshot: ...

    def take_plain(self, lane: str) -> ExportedSnapshot:
        """For loads that no changes follow."""

    def release(self, lane: str) -> None:
        """Let go of those that the lane was given."""

    def release_main(self) -> None:
        """Let go of one that the set-up took itself, if no lane was given it."""

    def close(self) -> None: ...


class Monitor(Protocol):
    """Looks at the source now and then, in a thread of its own. What was seen may be asked from any."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def log_end(self) -> Lsn | None:
        """Where the source's log ended when it was looked at; None: it was not yet."""

    def lag_bytes(self, position: Lsn, received: Lsn | None) -> int | None:
        """How much the source has logged after `position`, as far as is known: by what was seen of it, or by
        what was `received`."""

    @property
    def is_pressed(self) -> bool:
        """Whether the source keeps so much for us that it may forget whatever the change log holds."""

    def status(self) -> dict[str, Any]:
        """What people are shown."""

    def samples(self, received: Lsn | None) -> list[Sample]:
        """`received`: None while nothing is read."""


def distance(position: Lsn, *ends: Lsn | None) -> int | None:
    """From `position` to the last of the ends that are known, where positions count bytes."""
    known = [end for end in ends if end is not None]
    return max(0, max(known) - position) if known else None


class CaptureSource(Protocol):
    """Several threads may ask at the same time."""

    @property
    def snapshots(self) -> Snapshots: ...

    def lock(self, lease_s: float) -> Lock:
        """The lock of those who read this source for this pipeline; not taken yet."""

    def new_epoch(self) -> Lsn:
        """Greater than any before it, of any instance; for who holds the lock."""

    def position_now(self) -> Lsn:
        """After everything that is committed now."""

    def set_up(self, wanted: Wanted, take_lead: Callable[[], Lsn]) -> LogReading[Any]:
        """Bring the source to where it can be read, each step with its own error.

        `take_lead` returns when the lock is held, with the epoch: not before it is called may anything be
        changed at the source, nor the change log be looked at. A log that does not go on from ours is a
        `PositionGoneError` or an `AnotherSourceError`.
        """

    def begin_at(self, points: Mapping[StreamId, LoadPoint]) -> dict[StreamId, LoadPoint]:
        """Before anything was set up: have the change log begin where another tool's copies of tables end, at
        the least of these points, or say why that cannot be. They come back as this source's own, and by
        then whoever sets up finds the beginning, however late."""

    def publish(
        self, streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> tuple[StreamId, ...]:
        """Have the log hold changes of these streams too; those of which it did not until now."""

    def lacking(self, streams: Sequence[StreamId]) -> Sequence[SourceError]:
        """Those whose changes come without some of their columns: why, and the way out."""

    def confirmed(self, wanted: Lsn, within_s: float, go_on: Callable[[], None]) -> Lsn:
        """What the source knows that it may forget, once that is `wanted`, which it was told by
        `LogStream.report`; a source that is not told has nothing to confirm. `go_on` raises if waiting has
        become pointless."""

    def forget_lost(self) -> None:
        """The change log is begun anew: remove what would keep the source from being set up for that."""

    def monitor(self, note: Callable[[str], None]) -> Monitor:
        """`note` is told what people should know."""

    def heals(self, error: Exception) -> bool:
        """Whether an error that is none of ours is the driver's, and time can heal it."""

    def close(self) -> None: ...

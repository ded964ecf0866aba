"""What a lane needs of capture, whether that is a child of ours or a service it shares with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

from penstock.capture.spec import ExportedSnapshot
from penstock.core.position import Lsn


class Capture(Protocol):
    def snapshot(self) -> ExportedSnapshot:
        """A snapshot with the position that separates what it shows from what the log will bring."""

    def plain_snapshot(self) -> ExportedSnapshot:
        """A snapshot without a slot."""

    def release_snapshot(self) -> None: ...

    def note_target(self) -> Lsn:
        """A position after everything that is committed now."""

    def read_to(self, target: Lsn) -> None:
        """Have everything up to `target` in the log soon; returns at once."""

    def reached(self, within_s: float | None = None) -> Lsn | None:
        """The log's end once the target is reached; None if that takes longer."""

    def acknowledge(self, lane: str, position: Lsn) -> Lsn:
        """`lane` holds everything up to `position` durably; what the source may forget then."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Whether an instance of capture leads; if not, why. `reading`: whether it has opened the log; `turn`:
    whether the lane that asks may join, or others come first."""

    leading: bool
    epoch: Lsn | None
    reason: str
    reading: bool = False
    turn: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """Of this term. `log_end` is sealed, `position` is only received, `unsealed_bytes` lie between them."""

    position: Lsn
    log_end: Lsn
    unsealed_bytes: int
    rows: int
    bytes: int
    transactions: int
    acknowledged: Lsn

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        positions = {name: Lsn.parse(document[name]) for name in ("position", "log_end", "acknowledged")}
        return cls(**document | positions)


@dataclass(frozen=True, slots=True)
class LaneStanding:
    """A lane that capture knows. `position`: what it holds durably, None while it has not said; `dropped`:
    it was given up, and nothing is held for it until it joins again."""

    lane: str
    position: Lsn | None
    configured: bool
    lag_bytes: int | None
    since: str | None
    dropped: bool = False

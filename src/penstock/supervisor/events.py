"""What happens in a run, as values: for the screen, for lines of text, for lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["listening", "started", "state", "note", "failed", "died", "parked", "stopping", "stopped"]

#: A run of its own, beside the processes it starts.
SUPERVISOR = "supervisor"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Event:
    """`message`: one line for people; `fields`: the same for programs."""

    kind: Kind
    process: str
    message: str
    fields: dict[str, Any] = field(default_factory=dict)
    at: str = field(default_factory=now)

    def to_json(self) -> dict[str, Any]:
        named = {"at": self.at, "event": self.kind, "process": self.process, "message": self.message}
        return named | self.fields

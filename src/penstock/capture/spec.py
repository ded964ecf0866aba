"""What is said to the capture process and what it says, as values that travel as JSON lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.core.position import Lsn
from penstock.core.stream import StreamId

PublicationMode = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """`lanes`: each configured lane's durable position, None while it has none."""

    url: str
    slot: str
    publication: str
    log_directory: Path
    checkpoint_path: Path
    streams: tuple[StreamId, ...]
    full_identity: frozenset[StreamId] = frozenset()
    step_bytes_max: int = 256 << 20
    publication_mode: PublicationMode = "auto"
    lanes: dict[str, Lsn | None] = field(default_factory=dict)
    replica_url: str | None = None  # where tables are read, if not at `url`
    replica_wait_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "slot": self.slot,
            "publication": self.publication,
            "log_directory": str(self.log_directory.absolute()),
            "checkpoint_path": str(self.checkpoint_path.absolute()),
            "streams": [[stream.namespace, stream.name] for stream in self.streams],
            "full_identity": [[stream.namespace, stream.name] for stream in sorted(self.full_identity)],
            "step_bytes_max": self.step_bytes_max,
            "publication_mode": self.publication_mode,
            "lanes": {lane: None if at is None else str(at) for lane, at in self.lanes.items()},
            "replica_url": self.replica_url,
            "replica_wait_s": self.replica_wait_s,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CaptureSpec:
        return cls(
            url=fields["url"],
            slot=fields["slot"],
            publication=fields["publication"],
            log_directory=Path(fields["log_directory"]),
            checkpoint_path=Path(fields["checkpoint_path"]),
            streams=tuple(StreamId(*stream) for stream in fields["streams"]),
            full_identity=frozenset(StreamId(*stream) for stream in fields["full_identity"]),
            step_bytes_max=fields["step_bytes_max"],
            publication_mode=fields["publication_mode"],
            lanes={lane: None if at is None else Lsn.parse(at) for lane, at in fields["lanes"].items()},
            replica_url=fields["replica_url"],
            replica_wait_s=fields["replica_wait_s"],
        )


@dataclass(frozen=True, slots=True)
class Started:
    """The source as it was found. `slot_position`: the slot's confirmed position."""

    system_id: str
    timeline: int
    server_version: int
    slot_created: bool
    slot_position: Lsn
    log_end: Lsn | None
    epoch: Lsn
    published: tuple[StreamId, ...] = ()  # streams that were not in the publication until now

    def to_json(self) -> dict[str, Any]:
        return {
            "system_id": self.system_id,
            "timeline": self.timeline,
            "server_version": self.server_version,
            "slot_created": self.slot_created,
            "slot_position": str(self.slot_position),
            "log_end": None if self.log_end is None else str(self.log_end),
            "epoch": str(self.epoch),
            "published": [str(stream) for stream in self.published],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Started:
        end = fields["log_end"]
        return cls(
            **{
                **fields,
                "slot_position": Lsn.parse(fields["slot_position"]),
                "log_end": None if end is None else Lsn.parse(end),
                "epoch": Lsn.parse(fields["epoch"]),
                "published": tuple(map(StreamId.parse, fields["published"])),
            }
        )


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot others can read under while the session with `held_by_pid` keeps it."""

    name: str
    consistent_point: Lsn
    held_by_pid: int

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "consistent_point": str(self.consistent_point),
            "held_by_pid": self.held_by_pid,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ExportedSnapshot:
        return cls(fields["name"], Lsn.parse(fields["consistent_point"]), fields["held_by_pid"])


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """Counted since the process started; `log_end` is sealed, `position` is only received."""

    rows: int
    bytes: int
    transactions: int
    position: Lsn
    log_end: Lsn
    target: Lsn | None

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "bytes": self.bytes,
            "transactions": self.transactions,
            "position": str(self.position),
            "log_end": str(self.log_end),
            "target": None if self.target is None else str(self.target),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CaptureProgress:
        target = fields["target"]
        return cls(
            rows=fields["rows"],
            bytes=fields["bytes"],
            transactions=fields["transactions"],
            position=Lsn.parse(fields["position"]),
            log_end=Lsn.parse(fields["log_end"]),
            target=None if target is None else Lsn.parse(target),
        )

"""What is said to the capture process and what it says, as values that travel as JSON lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.capture.source_spec import SourceSpec, source_of_json
from penstock.core.binlog_place import position_at
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

AcknowledgeAt = Literal["lanes", "log"]
OnWalPressure = Literal["hold", "acknowledge_log"]

LAKE_LANE = "lake"
SYNC_HEARTBEAT_S = 30.0  # nobody takes over from a sync: its lease only has to end some time


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Where capture answers lanes. `certificate` and `key` are paths of PEM files, for TCP."""

    address: str  # grpc+unix://… or grpc+tls://host:port
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """A `source`, and what is told whichever kind it is of.

    `lanes`: each configured lane's durable position, None while it has none; `renewable`: those of them that
    can be made anew from the source, so that a gap in the log is nothing to stop for. `epoch_above`: one that
    others are known to have led under, for sources whose epochs may go back.

    With a `service` capture is always on: it waits for the lead, answers lanes there, reads without a target.
    `streams` are for the other mode, where one lane starts it.
    """

    source: SourceSpec
    log_directory: Path
    checkpoint_path: str | Path  # or the address of an object
    streams: tuple[StreamId, ...] = ()
    full_identity: frozenset[StreamId] = frozenset()
    step_bytes_max: int = 256 << 20
    lanes: dict[str, Lsn | None] = field(default_factory=dict)
    renewable: frozenset[str] = frozenset()
    service: ServiceSpec | None = None
    heartbeat_s: float = SYNC_HEARTBEAT_S
    seal_every_s: float = 10.0
    tail_bytes_max: int = 64 << 20
    log_retention_s: float = 7 * 86400.0
    acknowledge_at: AcknowledgeAt = "lanes"
    wal_max_retained: int = 10 << 30
    on_wal_pressure: OnWalPressure = "hold"
    checkpoint_interval_s: float = 10.0
    checkpoint_history: int = 20
    lanes_path: Path | None = None  # where every lane that ever joined is written down
    epoch_above: Lsn | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source.to_json(),
            "log_directory": str(self.log_directory.absolute()),
            "checkpoint_path": _place(self.checkpoint_path),
            "streams": [[stream.namespace, stream.name] for stream in self.streams],
            "full_identity": [[stream.namespace, stream.name] for stream in sorted(self.full_identity)],
            "step_bytes_max": self.step_bytes_max,
            "lanes": {lane: None if at is None else str(at) for lane, at in self.lanes.items()},
            "renewable": sorted(self.renewable),
            "service": None if self.service is None else self.service.to_json(),
            "heartbeat_s": self.heartbeat_s,
            "seal_every_s": self.seal_every_s,
            "tail_bytes_max": self.tail_bytes_max,
            "log_retention_s": self.log_retention_s,
            "acknowledge_at": self.acknowledge_at,
            "wal_max_retained": self.wal_max_retained,
            "on_wal_pressure": self.on_wal_pressure,
            "checkpoint_interval_s": self.checkpoint_interval_s,
            "checkpoint_history": self.checkpoint_history,
            "lanes_path": None if self.lanes_path is None else _place(self.lanes_path),
            "epoch_above": None if self.epoch_above is None else str(self.epoch_above),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CaptureSpec:
        service, lanes_path, above = fields["service"], fields["lanes_path"], fields["epoch_above"]
        return cls(
            **{
                **fields,
                "source": source_of_json(fields["source"]),
                "log_directory": Path(fields["log_directory"]),
                "streams": tuple(StreamId(*stream) for stream in fields["streams"]),
                "full_identity": frozenset(StreamId(*stream) for stream in fields["full_identity"]),
                "lanes": {
                    lane: None if at is None else Lsn.parse(at) for lane, at in fields["lanes"].items()
                },
                "renewable": frozenset(fields["renewable"]),
                "service": None if service is None else ServiceSpec(**service),
                "lanes_path": None if lanes_path is None else Path(lanes_path),
                "epoch_above": None if above is None else Lsn.parse(above),
            }
        )


def _place(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())


@dataclass(frozen=True, slots=True)
class Started:
    """The source as it was found. `slot_created`: nothing held its log for us until now; `slot_position`:
    from where on it is held, at Postgres the slot's confirmed position."""

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
    """A snapshot others can read under while the session with `held_by_pid` keeps it.

    `place`: its point in the source's words, where the number does not say it.
    """

    name: str
    consistent_point: Lsn
    held_by_pid: int
    place: Place | None = None

    def position_of(self, place: Place) -> Lsn | None:
        """Of a place that is not before this snapshot's; None if they are not of one server's counting."""
        assert self.place is not None, "asked of a source whose positions have places"
        return position_at(place, self.place, self.consistent_point)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "consistent_point": str(self.consistent_point),
            "held_by_pid": self.held_by_pid,
            "place": None if self.place is None else self.place.to_json(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ExportedSnapshot:
        place = fields.get("place")
        return cls(
            fields["name"],
            Lsn.parse(fields["consistent_point"]),
            fields["held_by_pid"],
            None if place is None else Place.from_json(place),
        )


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

"""What a pipeline says about itself: while it works, when it is done, and when asked.

Values only. The pipeline makes them, the command line and people's scripts read them; `to_json()` is
the form that `--json` prints, and its keys are public.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

#: What a sync is doing to a stream while it reports progress.
Phase = Literal["load", "capture", "apply"]
PlannedAction = Literal["load", "resume load", "follow", "read on", "recover", "stand still"]
#: new: nothing loaded yet; loaded: follows no log; catching up: behind the others; paused: until resumed.
StreamState = Literal["new", "loading", "loaded", "following", "catching up", "paused"]


class ProgressListener(Protocol):
    """Told how a sync goes on. Calls come from several threads, and are cheap to ignore."""

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None: ...

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None:
        """`rows_total` and `bytes_total` count from the start of this stream's phase."""

    def stream_finished(self, stream: str, phase: str, rows: int) -> None: ...

    def note(self, message: str) -> None:
        """Something a person should know, in one sentence."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What one sync did to one stream."""

    stream: str
    rows_loaded: int = 0
    rows_repaired: int = 0  # that differed from the source's and were written (`resync --diff`)
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    dead_letters: int = 0
    seconds: float = 0.0

    @property
    def changes(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one sync did; every stream holds all that was committed at the source up to `position`."""

    streams: list[StreamReport]
    position: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """What the next sync would do to a stream."""

    stream: str
    action: PlannedAction
    rows_estimated: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableHealth:
    """How an Iceberg table is for its readers, by its metadata alone."""

    data_files: int
    file_bytes: int  # of data and deletes
    small_file_ratio: float  # files that compaction would spare, of all data files
    delete_files: int
    delete_ratio: float  # rows that are marked as deleted, of all in the data files
    spare_manifests: int
    snapshots: int
    oldest_snapshot_age_s: float


@dataclass(frozen=True, slots=True)
class CompactedStream:
    """What was due to a table, and what was done; `after` is None if nothing was to be changed."""

    stream: str
    due: tuple[str, ...]
    before: TableHealth
    after: TableHealth | None = None
    snapshots_expired: int = 0
    orphans_removed: int = 0


@dataclass(frozen=True, slots=True)
class CompactReport:
    streams: list[CompactedStream]
    notes: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How far a stream is. `rows` and `files` are those of the table readers see; None: no table yet."""

    stream: str
    mode: str
    write: str
    state: StreamState
    rows: int | None = None
    files: int | None = None
    committed_to: str | None = None
    chunks_left: int = 0
    dead_letters: int = 0
    dead_keys: int | None = None  # keys whose newest version is a dead letter; None: the table has no such
    dead_letters_path: str | None = None
    paused: PausedStatus | None = None
    health: TableHealth | None = None  # of Iceberg tables that can be read

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PausedStatus:
    """Since when and why a stream stands still, and how much of the change log waits for it."""

    since: str
    reason: str
    log_steps_kept: int
    log_bytes_kept: int


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Where the pipeline and its source stand. Positions are log positions as the source prints them.

    `slot_position` and `retained_wal_bytes` are None when the source could not be asked or has no slot.
    """

    position: str | None
    slot_position: str | None
    retained_wal_bytes: int | None
    log_bytes: int
    streams: list[StreamStatus]
    notes: list[str]
    running: dict[str, Any] | None = None  # what the instance that leads says of itself, if there is one

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

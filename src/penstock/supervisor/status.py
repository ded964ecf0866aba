"""Where an instance of `penstock run` stands, as a value made from what its processes last said."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from penstock import metrics
from penstock.capture.spec import LAKE_LANE
from penstock.config.shapes import SHAPES_LANE
from penstock.core.errors import PositionGoneError
from penstock.core.position import Lsn
from penstock.metrics import Sample
from penstock.supervisor.samples import SampleView

CAPTURE = "capture"
CONSOLE = "console"

Role = Literal["starting", "standby", "leading", "reconnecting", "stopping", "down"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """`state`: one of `channel.STATES`, or `restarting` (it died and waits to be started again), `parked` (it
    failed too often and waits for somebody, or for `next_try`) or `stopped`. `error`: the last words of one
    that died. `on_trial`: it was parked, is being tried again, and has not lived for long yet."""

    name: str
    state: str
    reason: str
    since: str
    pid: int | None
    restarts: int
    memory_bytes: int = 0
    error: dict[str, str] | None = None
    next_try: str | None = None
    on_trial: bool = False

    @property
    def is_up(self) -> bool:
        return self.pid is not None

    @property
    def is_parked(self) -> bool:
        """Also while it is tried again: whoever was told is not told that all is well until it is."""
        return self.state == "parked" or self.on_trial


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """`known`: the lane has said how far it is; until then the source forgets nothing.

    Of a stream lane, also: `freshness_s`, from commit at the source to the target having it; `events` sent
    since its process started; `paused`; `loading`, how many streams' rows are on their way; `gaps`, how many
    stand still because changes are missing; `dead_letters`, events that the target refused and those behind
    them. `configured`: the run has a process for it; the source keeps what any other one lacks, until it is
    dropped. `retries`: how often its process tried something again. `commit_s`: what a round of the lake, or
    a commit or call of a target, took on the average since its process started. Events of the lane `shapes`
    are changes, counted for each shape that they concern.
    """

    lane: str
    known: bool
    lag_bytes: int | None
    lag_seconds: float | None
    freshness_s: float | None = None
    events: int | None = None
    paused: bool = False
    loading: int = 0
    gaps: int = 0
    configured: bool = True
    dead_letters: int = 0
    retries: int | None = None
    commit_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamFreshness:
    """`freshness_s`: from commit at the source to commit in the table, of the newest round. `lag_s`: age of
    the oldest change that the table does not show; `lag_bytes`: what those take in the change log."""

    stream: str
    freshness_s: float | None
    lag_s: float | None
    rows_applied: int
    dead_letters: int
    rows: int | None = None  # that readers of the table see
    files: int | None = None
    load_rows: int | None = None  # while it is loaded: rows read
    load_rows_estimated: int | None = None
    differences: int = 0  # rows that are known to differ from the source
    lag_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The slot and the log that the source keeps for it; None where nothing was said (yet). How much of the
    log is not received is told in bytes, or in seconds where positions are times."""

    slot_healthy: bool | None
    retained_wal_bytes: int | None
    safe_wal_bytes: int | None
    wal_pressure: bool | None
    capture_lag_bytes: int | None
    acknowledged: str | None
    epoch: str | None
    checkpoint_age_s: float | None
    checkpoint_failures: int | None = None
    capture_lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """What capture has read since its process started, and what it has on disk; None where nothing was
    said. `seal_s`: what making a step of the change log durable took on the average. `spilled_bytes`:
    transactions in progress that wait on disk.
    """

    rows: int | None
    bytes: int | None
    transactions: int | None
    log_bytes: int | None
    unsealed_bytes: int | None
    reconnects: int | None
    steps_sealed: int | None = None
    seal_s: float | None = None
    spilled_bytes: int | None = None
    tail_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """`live`: the supervisor does its rounds."""

    host: str
    pid: int
    since: str
    role: Role
    live: bool
    processes: tuple[ProcessStatus, ...]
    lanes: tuple[LaneStatus, ...]
    streams: tuple[StreamFreshness, ...]
    source: SourceStatus
    capture: CaptureStatus

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def role_of(capture: ProcessStatus) -> Role:
    if capture.state in ("leading", "running"):
        return "leading"
    if capture.state == "standby":
        return "standby"
    if capture.state in ("starting", "waiting"):
        return "starting"
    if capture.state in ("reconnecting", "restarting"):
        return "reconnecting"
    return "stopping" if capture.state == "stopping" else "down"


def lanes_of(view: SampleView, configured: Collection[str]) -> tuple[LaneStatus, ...]:
    known = view.by_label(metrics.LANE_KNOWN)
    in_bytes = view.by_label(metrics.LANE_LAG_BYTES)
    in_seconds = view.by_label(metrics.LANE_LAG_SECONDS)
    fresh = view.by_label(metrics.STREAM_LANE_FRESHNESS_SECONDS)
    events = view.by_label(metrics.STREAM_LANE_EVENTS)
    if (changes := view.one(metrics.SHAPE_CHANGES)) is not None:
        events[SHAPES_LANE] = changes
    paused = view.by_label(metrics.STREAM_LANE_PAUSED)
    loading, gaps = view.by_label(metrics.STREAM_LANE_LOADING), view.by_label(metrics.STREAM_LANE_GAPS)
    letters = view.by_label(metrics.STREAM_DEAD_LETTERS)
    retries = view.by_label(metrics.ROUND_RETRIES)
    for lane, count in view.by_label(metrics.STREAM_RETRIES).items():
        retries[lane] = retries.get(lane, 0.0) + count
    commits = _means(view.by_label(metrics.STREAM_PUBLISH_SECONDS), view.by_label(metrics.STREAM_PUBLISHES))
    if (round_s := _mean(view.one(metrics.ROUND_SECONDS), view.one(metrics.ROUNDS))) is not None:
        commits[LAKE_LANE] = round_s
    return tuple(
        LaneStatus(
            lane,
            bool(known.get(lane)),
            _whole(in_bytes.get(lane)),
            in_seconds.get(lane),
            fresh.get(lane),
            _whole(events.get(lane)),
            bool(paused.get(lane)),
            int(loading.get(lane, 0)),
            int(gaps.get(lane, 0)),
            lane in configured,
            int(letters.get(lane, 0)),
            _whole(retries.get(lane)),
            commits.get(lane),
        )
        for lane in sorted({*known, *in_bytes, *in_seconds})
    )


def streams_of(view: SampleView) -> tuple[StreamFreshness, ...]:
    fresh, lag = view.by_label(metrics.FRESHNESS_SECONDS), view.by_label(metrics.STREAM_LAG_SECONDS)
    applied, dead = view.by_label(metrics.ROWS_APPLIED), view.by_label(metrics.DEAD_LETTERS)
    rows, files = view.by_label(metrics.TABLE_ROWS), view.by_label(metrics.TABLE_FILES)
    read, estimated = view.by_label(metrics.LOAD_ROWS), view.by_label(metrics.LOAD_ROWS_ESTIMATED)
    differences = view.by_label(metrics.VERIFY_DIFFERENCES)
    lag_bytes = view.by_label(metrics.STREAM_LAG_BYTES)
    return tuple(
        StreamFreshness(
            stream,
            fresh.get(stream),
            lag.get(stream),
            int(applied.get(stream, 0)),
            int(dead.get(stream, 0)),
            _whole(rows.get(stream)),
            _whole(files.get(stream)),
            _whole(read.get(stream)),
            _whole(estimated.get(stream)),
            int(differences.get(stream, 0)),
            _whole(lag_bytes.get(stream)),
        )
        for stream in sorted({*fresh, *lag, *applied, *dead, *rows, *read})
    )


def capture_of(view: SampleView) -> CaptureStatus:
    return CaptureStatus(
        rows=_whole(view.one(metrics.ROWS_CAPTURED)),
        bytes=_whole(view.one(metrics.BYTES_CAPTURED)),
        transactions=_whole(view.one(metrics.TRANSACTIONS_CAPTURED)),
        log_bytes=_whole(view.one(metrics.LOG_BYTES)),
        unsealed_bytes=_whole(view.one(metrics.LOG_UNSEALED_BYTES)),
        reconnects=_whole(view.one(metrics.RECONNECTS)),
        steps_sealed=_whole(view.one(metrics.STEPS_SEALED)),
        seal_s=_mean(view.one(metrics.SEAL_SECONDS), view.one(metrics.STEPS_SEALED)),
        spilled_bytes=_whole(view.one(metrics.SPILLED_BYTES)),
        tail_bytes=_whole(view.one(metrics.TAIL_BYTES)),
    )


def source_of(view: SampleView) -> SourceStatus:
    return SourceStatus(
        slot_healthy=_truth(view.one(metrics.SLOT_HEALTHY)),
        retained_wal_bytes=_whole(view.one(metrics.RETAINED_WAL_BYTES)),
        safe_wal_bytes=_whole(view.one(metrics.SAFE_WAL_BYTES)),
        wal_pressure=_truth(view.one(metrics.WAL_PRESSURE)),
        capture_lag_bytes=_whole(view.one(metrics.CAPTURE_LAG_BYTES)),
        acknowledged=_position(view.one(metrics.ACKNOWLEDGED)),
        epoch=_position(view.one(metrics.EPOCH)),
        checkpoint_age_s=view.one(metrics.CHECKPOINT_AGE_SECONDS),
        checkpoint_failures=_whole(view.one(metrics.CHECKPOINT_FAILURES)),
        capture_lag_s=view.one(metrics.CAPTURE_LAG_SECONDS),
    )


def with_last_words(source: SourceStatus, capture: ProcessStatus) -> SourceStatus:
    """A capture that ended for want of log says nothing any more: its slot is not healthy for that."""
    is_gone = not capture.is_up and (capture.error or {}).get("code") == PositionGoneError.code
    return replace(source, slot_healthy=False) if is_gone else source


def run_status(
    host: str,
    pid: int,
    since: str,
    processes: Sequence[ProcessStatus],
    samples: Sequence[Sample],
    *,
    live: bool,
    stopping: bool,
) -> RunStatus:
    view = SampleView(samples)
    capture = next(process for process in processes if process.name == CAPTURE)
    return RunStatus(
        host=host,
        pid=pid,
        since=since,
        role="stopping" if stopping else role_of(capture),
        live=live,
        processes=tuple(processes),
        lanes=lanes_of(view, {process.name for process in processes}),
        streams=streams_of(view),
        source=with_last_words(source_of(view), capture),
        capture=capture_of(view),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _mean(total: float | None, times: float | None) -> float | None:
    return None if total is None or not times else total / times


def _means(totals: dict[str, float], times: dict[str, float]) -> dict[str, float]:
    means = {label: _mean(total, times.get(label)) for label, total in totals.items()}
    return {label: mean for label, mean in means.items() if mean is not None}


def _truth(value: float | None) -> bool | None:
    return None if value is None else bool(value)


def _position(value: float | None) -> str | None:
    return None if value is None or not 0 <= value < 2**64 else str(Lsn(int(value)))

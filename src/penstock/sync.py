"""One bounded sync: load what is not loaded, read the log to a position noted at the start, apply it.

`turns` says why a turn is exact. A stream that must be loaded again (its columns changed beyond repair, it
was rewritten or emptied while it was read) takes another turn in the same sync, with the others that must:
so a small table that is truncated every few seconds is read in the end. A lock would not help, but stop the
source: who waits to truncate a table stands in the way of our own reads of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from penstock.capture.client import CaptureProcess
from penstock.capture.from_config import spec_of
from penstock.capture.spec import LAKE_LANE, CaptureProgress, CaptureSpec
from penstock.config import Config
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener, StreamReport, SyncReport
from penstock.core.stream import StreamId
from penstock.lake.lane import LakeLane
from penstock.lake.lane_state import LaneStream
from penstock.lake.light import changes_are_light
from penstock.lake.upkeep import after_sync
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.locking import only_one
from penstock.log.retention import apply_retention, bound
from penstock.resolution import resolve_from_source
from penstock.turns import Turns, spark_starter
from penstock.verify.differences import comparer_of

TURNS_MAX = 16
ROUND_EVERY_S = 5.0  # while others are loaded: a round costs Spark jobs that the load could use


class Sync:
    """One run of `penstock sync` over a pipeline's configuration."""

    def __init__(
        self,
        config: Config,
        listener: ProgressListener,
        reload: Sequence[StreamId] = (),
        *,
        by_difference: bool = False,
    ) -> None:
        self._config = config
        self._listener = listener
        self._reload = reload
        self._by_difference = by_difference
        self._rows_captured = 0
        self._spark = spark_starter(config)
        self._every_round_needs_spark = False

    def run(self) -> SyncReport:
        begun = time.monotonic()
        with only_one(self._config.state), ExitStack() as stack:
            stack.enter_context(self._spark)
            if self._config.destination.type == "iceberg":
                self._spark.begin_java()
            with CaptureProcess(on_progress=self._captured) as capture:
                capture.begin()
                streams = resolve_from_source(self._config)
                capture.use(self._capture_spec(streams))
                lane = self._run(capture, streams)
                position = self._finish(lane)
            after_sync(self._config, self._spark, list(lane.streams), self._listener)
        seconds = time.monotonic() - begun
        return SyncReport(_reports(lane, seconds), position, round(seconds, 3))

    def _run(self, capture: CaptureProcess, streams: Sequence[LaneStream]) -> LakeLane:
        turns = Turns(
            self._config,
            self._listener,
            self._spark,
            capture,
            round_every_s=ROUND_EVERY_S,
            rows_captured=lambda: self._rows_captured,
            comparer=comparer_of(self._config, self._spark, self._listener),
        )
        follows = any(stream.reads_log for stream in streams)
        lane = turns.open(streams, capture.start, reload=self._reload, by_difference=self._by_difference)
        self._every_round_needs_spark = not lane.is_light_to_change()
        taken = 0
        while taken < TURNS_MAX:
            turns.take(lane, follows=follows)
            if not lane.streams_to_load() and not lane.streams_to_advance():
                return lane
            # A load that let its snapshot go has come further; the others were disturbed.
            taken += not lane.was_postponed()
            lane.use_tables(resolve_from_source(self._config))
        if turns.lost is not None:
            raise turns.lost
        waiting = ", ".join(map(str, [*lane.streams_to_load(), *lane.streams_to_advance()]))
        raise SourceError(
            f"The source kept changing these tables while they were read: {waiting}.",
            detail="\n".join(f"{stream}: {reason}." for stream, reason in lane.reasons_to_load().items()),
            remedy="Run sync again when they are not truncated, altered or vacuumed in full all the time, "
            "nor updated by sessions that leave values out (binlog_row_image).",
        )

    def _finish(self, lane: LakeLane) -> str:
        flushed = lane.flushed()
        if flushed is not None:
            self._apply_retention(flushed)
        lane.carried_out()
        lane.sweep(self._config.readers.grace.total_seconds())
        return str(lane.position() or "")

    def _apply_retention(self, flushed: Lsn) -> None:
        """Steps go when every lane holds them and they are older than `log.retention`."""
        state, kept_s = self._config.state, self._config.log.retention.total_seconds()
        positions = LaneRegistry(state / LANES_FILE).positions()
        others = [at for lane, at in positions.items() if lane != LAKE_LANE and at is not None]
        log, least = state / "log", min([flushed, *others])
        apply_retention(log, bound(log, least, kept_s, time.time()))

    def _capture_spec(self, streams: Sequence[LaneStream]) -> CaptureSpec:
        followed = [stream for stream in streams if stream.reads_log]
        return spec_of(
            self._config,
            [stream.info.stream for stream in followed],
            [stream.info.stream for stream in followed if stream.full_identity],
        )

    def _captured(self, progress: CaptureProgress) -> None:
        self._rows_captured = progress.rows
        if progress.rows and (
            self._every_round_needs_spark or not changes_are_light(progress.rows, progress.bytes)
        ):
            self._spark.begin()
        self._listener.progressed("change log", "capture", progress.rows, progress.bytes)


def _reports(lane: LakeLane, seconds: float) -> list[StreamReport]:
    return [
        StreamReport(
            stream=str(stream),
            rows_loaded=totals.rows_loaded,
            rows_repaired=totals.rows_repaired,
            inserts=totals.operations.get("i", 0),
            updates=totals.operations.get("u", 0),
            deletes=totals.operations.get("d", 0),
            truncates=totals.operations.get("t", 0),
            dead_letters=totals.dead_letters,
            seconds=round(seconds, 3),
        )
        for stream, totals in lane.totals.items()
    ]

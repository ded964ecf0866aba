"""One term: one leadership of one capture process, from the lock to the loss of it.

Besides what lanes ask for (`server`), a term looks after itself once in a while: it tells the source what it
may forget, writes down the lanes, removes what no lane needs from the log, watches the source, and says how
it stands. None of that ends the term: only the loss of the lock or of the stream does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog

from penstock import metrics
from penstock.capture.anew import decides
from penstock.capture.reading import Reading
from penstock.capture.server import CaptureServer
from penstock.capture.spec import CaptureSpec
from penstock.core.errors import CaptureAwayError, PenstockError, PositionGoneError, StateError
from penstock.core.position import Lsn
from penstock.ledger.lanes import LaneRegistry
from penstock.log import retention
from penstock.metrics import Sample

TICK_S = 1.0
_TURN_POLL_S = 0.05
_READ_ALONE_AFTER_HEARTBEATS = 20  # lanes come sooner, unless they are down; and so often it is tried again
_HOUSEKEEPING_EVERY_S = 60.0
_MAIN_SNAPSHOT_KEPT_S = 600.0
_STOP_WITHIN_S = 10.0
_REQUESTS = frozenset(
    {
        "join",
        "snapshot",
        "plain_snapshot",
        "release_snapshot",
        "note_target",
        "demand",
        "sealed",
        "progress",
        "heard",
        "flushed",
    }
)
_logger = structlog.get_logger("penstock.capture")


class Term:
    def __init__(self, spec: CaptureSpec, note: Callable[[str], None]) -> None:
        assert spec.lanes_path is not None, "an always-on capture writes its lanes down"
        self._spec = spec
        self._note = note
        self._lanes_path = spec.lanes_path
        self._background = ThreadPoolExecutor(1, "capture-housekeeping")
        self._housekeeping: Future[None] | None = None
        self._housekept = self._saved_at = self._began = time.monotonic()
        self._log_bytes = 0
        self._read_alone_at = -math.inf  # not before
        self._said_alone = ""
        self._stopped = threading.Event()
        self.server = CaptureServer(spec, lambda _event: None)
        self._monitor = self.server.source.monitor(note)

    @property
    def epoch(self) -> Lsn | None:
        return self.server.epoch

    @property
    def was_lost(self) -> bool:
        """Whether somebody else may lead by now."""
        return self.server.leadership is None or self.server.leadership.is_lost

    @property
    def has_sealed(self) -> bool:
        return self.server.reading is not None and self.server.reading.counters.steps_sealed > 0

    @property
    def has_sealed_changes(self) -> bool:
        """Not only that the log's end has moved, which the message that begins a term does already."""
        return self.server.reading is not None and self.server.reading.counters.steps_with_changes > 0

    def lead(self, stop: threading.Event, on_waiting: Callable[[], None]) -> bool:
        """Wait for the lead; False if `stop` was set before."""
        led = self.server.lead(stop, on_waiting)
        if led:
            self._began = time.monotonic()
            self._monitor.start()
        return led

    def attend(self) -> None:
        """What is due about once a second. Raises if the term is over."""
        if self.server.over.wait(TICK_S):
            assert self.server.failure is not None
            raise self.server.failure
        assert self.server.leadership is not None
        self.server.leadership.require()
        reading = self.server.reading
        now = time.monotonic()
        if reading is None:
            if now >= self._read_alone_at and self._is_alone_for_long():
                self._read_alone_at = now + _READ_ALONE_AFTER_HEARTBEATS * self._spec.heartbeat_s
                self._begin_alone()
            return
        if now - self._began > _MAIN_SNAPSHOT_KEPT_S:
            self.server.snapshots.release_main()
        reading.tracker.acknowledge_log(self._spec.acknowledge_at == "log" or self._monitor.is_pressed)
        reading.acknowledge()
        if self.server.lanes is not None and now - self._saved_at >= self._spec.checkpoint_interval_s:
            self._saved_at = now
            _unless_storage_fails(self.server.lanes.save)
        if now - self._housekept >= _HOUSEKEEPING_EVERY_S and (
            self._housekeeping is None or self._housekeeping.done()
        ):
            self._housekept = now
            self._housekeeping = self._background.submit(_unless_storage_fails, self._keep_house)

    def carry_out(self, request: str, arguments: dict[str, Any]) -> Any:
        """A lane's request, which must be one of this term."""
        if request not in _REQUESTS:
            raise LookupError(f"unknown request {request!r}")
        if request != "join" and arguments.get("epoch") != str(self.epoch):
            raise CaptureAwayError("Capture has begun another term.", remedy="Join it.")
        if request == "join":
            self._wait_for_turn(arguments["lane"])
        return self.server.carry_out(request, arguments)

    def is_turn_of(self, lane: str) -> bool:
        """A lane that does not decide over the log does not open it: who does may find that it was left
        behind, and is to be set aside. If nobody comes who does, for as long as we would wait before reading
        alone, it goes first."""
        return decides(self._spec, lane) or self.server.reading is not None or self._is_alone_for_long()

    def _wait_for_turn(self, lane: str) -> None:
        while not self.is_turn_of(lane):
            if self._stopped.wait(_TURN_POLL_S) or self.server.over.is_set():
                raise CaptureAwayError("Capture's term is over.", remedy="Join the next one.")

    def _is_alone_for_long(self) -> bool:
        alone_for = (time.monotonic() - self._began) / self._spec.heartbeat_s
        return alone_for >= _READ_ALONE_AFTER_HEARTBEATS

    def lanes(self) -> list[dict[str, Any]]:
        """How each lane stands that is configured or ever joined."""
        reading, registry = self.server.reading, self._registry()
        written, dropped = registry.lanes(), registry.dropped()
        known = {lane: each.position for lane, each in written.items()}
        positions = self._spec.lanes | (known if reading is None else reading.tracker.lanes())
        return [
            {
                "lane": lane,
                "position": None if position is None else str(position),
                "configured": lane in self._spec.lanes,
                "lag_bytes": None if position is None else self._lag_bytes(position),
                "since": written[lane].since if lane in written else None,
                "dropped": lane in dropped,
            }
            for lane, position in sorted(positions.items())
        ]

    def drop_lane(self, lane: str) -> None:
        """Hold nothing for `lane` any more."""
        self.server.snapshots.release(lane)
        self._registry().drop(lane, is_configured=lane in self._spec.lanes)
        if self.server.reading is not None:
            self.server.reading.tracker.drop_lane(lane)
            self.server.reading.acknowledge()

    def status(self) -> dict[str, Any]:
        reading = self.server.reading
        found: dict[str, Any] = {"lanes": self.lanes(), **self._monitor.status()}
        if reading is not None:
            saved = reading.checkpoints.saved
            progress = reading.progress()
            found |= {
                "position": str(progress.position),
                "log_end": str(progress.log_end),
                "acknowledged": str(progress.acknowledged),
                "checkpoint": None if saved is None else str(saved),
                "wal_pressure": self._monitor.is_pressed,
            }
        return found

    def samples(self) -> list[Sample]:
        """What is true of this moment; what is counted is `counted`."""
        found: list[Sample] = [(metrics.EPOCH.name, {}, int(self.epoch or 0))]
        reading = self.server.reading
        # What the source keeps for us grows also while no lane is there to read it for.
        found += self._monitor.samples(None if reading is None else reading.position)
        if reading is None:
            return found
        counters, tail = reading.counters, reading.tail
        found += [
            (metrics.LOG_UNSEALED_BYTES.name, {}, counters.unsealed_bytes),
            (metrics.SPILLED_BYTES.name, {}, counters.spilled_bytes),
            (metrics.LOG_BYTES.name, {}, self._log_bytes),
            (metrics.TAIL_BYTES.name, {}, tail.bytes if tail is not None else 0),
            (metrics.WAL_PRESSURE.name, {}, float(self._monitor.is_pressed)),
            (metrics.ACKNOWLEDGED.name, {}, reading.tracker.acknowledged()),
            *reading.checkpoints.samples(),
        ]
        return found + self._lane_samples(reading)

    def counted(self) -> dict[str, float]:
        """What this term has counted up to now, by the metric's name."""
        reading = self.server.reading
        if reading is None:
            return {}
        counters = reading.counters
        return {
            metrics.ROWS_CAPTURED.name: counters.rows,
            metrics.BYTES_CAPTURED.name: counters.bytes,
            metrics.TRANSACTIONS_CAPTURED.name: counters.transactions,
            metrics.STEPS_SEALED.name: counters.steps_sealed,
            metrics.SEAL_SECONDS.name: counters.seal_seconds,
            metrics.CHECKPOINTS_SAVED.name: reading.checkpoints.saves,
            metrics.CHECKPOINT_FAILURES.name: reading.checkpoints.failures,
        }

    def stop(self, *, in_order: bool) -> None:
        """End the term, and with `in_order` seal and acknowledge before, if that can be done in time."""
        self._stopped.set()
        self._monitor.stop()
        self._background.shutdown(wait=False, cancel_futures=True)
        if in_order:
            self.server.stop_in_order(_STOP_WITHIN_S)
        else:
            self.server.stop()

    def _begin_alone(self) -> None:
        try:
            self.server.read_alone()
        except PenstockError as error:
            if isinstance(error, PositionGoneError | StateError):  # time does not mend it
                self._read_alone_at = math.inf
            if error.message != self._said_alone:
                self._said_alone = error.message
                self._note(f"No lane is there, and reading on without one is not possible. {error.message}")

    def _keep_house(self) -> None:
        reading, log = self.server.reading, self._spec.log_directory
        least = reading.tracker.least() if reading is not None else None
        if least is not None:
            retention.apply_retention(
                log, retention.bound(log, least, self._spec.log_retention_s, time.time())
            )
        self._log_bytes = retention.size(log)

    def _registry(self) -> LaneRegistry:
        """Before a lane has joined, too, nobody writes it who does not lead any more."""
        leadership = self.server.leadership
        require = None if leadership is None else leadership.require
        return self.server.lanes or LaneRegistry(self._lanes_path, require)

    def _lane_samples(self, reading: Reading[Any]) -> list[Sample]:
        found: list[Sample] = []
        for lane, position in reading.tracker.lanes().items():
            label = {"lane": lane}
            found.append((metrics.LANE_KNOWN.name, label, float(position is not None)))
            if position is not None:
                found.append((metrics.LANE_LAG_SECONDS.name, label, reading.age_s(position)))
                if (lag_bytes := self._lag_bytes(position)) is not None:
                    found.append((metrics.LANE_LAG_BYTES.name, label, lag_bytes))
        return found

    def _lag_bytes(self, position: Lsn) -> int | None:
        reading = self.server.reading
        return self._monitor.lag_bytes(position, None if reading is None else reading.position)


def _unless_storage_fails(work: Callable[[], None]) -> None:
    """A write that is not needed for going on is tried again at the next turn."""
    try:
        work()
    except (PenstockError, OSError) as error:
        _logger.warning("could not write", kind=type(error).__name__)

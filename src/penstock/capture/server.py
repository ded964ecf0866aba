"""The capture process's inside: carries out requests, tells what happens.

One of it serves a bounded sync, or one term of an always-on capture. Requests may come from several threads;
reading from the server goes on in threads of its own meanwhile. What those find out (target reached,
progress, failure) is said as events. After a failure every further request gets that same error.

A sync sends `start`, which takes the lock, and `read_to`. In a term the lock is taken first (`lead`), then
each lane sends `join`: the first one sets the source up and has it read without a target, later ones add
streams.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

import structlog

from penstock import logs
from penstock.capture.anew import begin_anew, may_begin_anew
from penstock.capture.leadership import Leadership
from penstock.capture.open import open_source
from penstock.capture.reading import Reading
from penstock.capture.source import Wanted
from penstock.capture.spec import LAKE_LANE, CaptureProgress, CaptureSpec, Started
from penstock.core.errors import (
    AnotherServerError,
    AnotherSourceError,
    CaptureAwayError,
    PenstockError,
    PositionGoneError,
    SourceError,
    told_of,
)
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.lanes import LaneRegistry
from penstock.log.manifest import newest_manifest

_CONFIRM_TIMEOUT_S = 120.0
_SEALED_WAIT_MAX_S = 10.0
_logger = structlog.get_logger("penstock.capture")
Events = Callable[[dict[str, Any]], None]
Arguments = dict[str, Any]


class CaptureServer:
    def __init__(self, spec: CaptureSpec, tell: Events) -> None:
        self._spec = spec
        self._tell = tell
        self.source = open_source(spec)
        self.snapshots = self.source.snapshots
        self.leadership: Leadership | None = None
        self.epoch: Lsn | None = None
        self.reading: Reading[Any] | None = None
        self.lanes: LaneRegistry | None = None  # from the first join of a term on
        self.over = threading.Event()  # set by a failure
        self.failure: BaseException | None = None
        self._streams: frozenset[StreamId] = frozenset()
        self._failing, self._joining = threading.Lock(), threading.Lock()
        self._requests: dict[str, Callable[[Arguments], Any]] = {
            "start": lambda _: self.start().to_json(),
            "join": self._join,
            "snapshot": lambda given: self.snapshots.take(_lane(given)).to_json(),
            "plain_snapshot": lambda given: self.snapshots.take_plain(_lane(given)).to_json(),
            "release_snapshot": lambda given: self.snapshots.release(_lane(given)),
            "note_target": lambda _: str(self.source.position_now()),
            "read_to": lambda given: self._read().loop().read_to(Lsn.parse(given["target"])),
            "demand": lambda given: self._read().loop().demand(Lsn.parse(given["target"])),
            "sealed": self._sealed,
            "progress": lambda _: _as_json(asdict(self._read().progress())),
            "heard": self._heard,
            "flushed": lambda given: str(self.flushed(given["lane"], Lsn.parse(given["position"]))),
            "acknowledge": lambda given: str(self.acknowledge(given["lane"], Lsn.parse(given["position"]))),
            "stop": lambda _: self.stop(),
        }

    def carry_out(self, request: str, arguments: Arguments) -> Any:
        """Answer one request, or raise."""
        if self.failure is not None and request != "stop":
            raise self.failure
        if request not in self._requests:
            raise LookupError(f"unknown request {request!r}")
        try:
            return self._requests[request](arguments)
        except AnotherServerError as error:
            self.fail(error)  # whoever begins anew finds its place at the new one
            raise

    def start(self) -> Started:
        """For a sync: take the lock and set the source up. Nothing is read yet."""
        self._begin_leadership()
        return self._set_up(self._acquire, self._spec.streams, self._spec.full_identity)

    def lead(self, stop: threading.Event, on_waiting: Callable[[], None]) -> bool:
        """For a term: wait for the lock; False if `stop` was set before."""
        if not self._begin_leadership().wait(stop, on_waiting):
            return False
        self.epoch = self.source.new_epoch()
        return True

    def join(self, lane: str, streams: Sequence[StreamId], full_identity: Collection[StreamId]) -> Started:
        """Have these streams read, and hold the source's log for `lane` from now on.

        The lake lets a stream stand still whose changes lack columns; any other lane is told that it cannot
        have it.
        """
        if lane != LAKE_LANE:
            for error in self.source.lacking(streams):
                raise error
        with self._joining:
            self.snapshots.release(lane)
            if self.reading is None:
                assert self.epoch is not None, "the lock is taken before a lane can join"
                started = self._set_up_term(self.epoch, streams, full_identity)
            else:
                # The lane that was to have it compared the catalog with it, and may be another process now.
                self.snapshots.release_main()
                started = self._add(self.reading, streams, full_identity)
            assert self.lanes is not None
            started = replace(started, published=self.lanes.join(lane, streams, started.published))
            reading = self._read()
            reading.tracker.add_lane(lane, None)
            reading.loop().follow()
            return started

    def read_alone(self) -> None:
        """Read on for lanes that joined earlier terms, if none has joined this one and the log goes on.

        Otherwise nobody could tell the source to forget anything while they are down. Nothing is published:
        what they follow was, when they joined.
        """
        with self._joining:
            assert self.epoch is not None
            assert self._spec.lanes_path is not None
            written = LaneRegistry(self._spec.lanes_path).lanes().values()
            followed = any(lane.streams for lane in written)
            if self.reading is None and followed and newest_manifest(self._spec.log_directory) is not None:
                epoch = self.epoch
                self._set_up(lambda: epoch, (), ())
                self._read().loop().follow()

    def flushed(self, lane: str, position: Lsn) -> Lsn:
        """Note the lane's durable position; what the source is told then, without waiting for it."""
        reading = self._read()
        if self.lanes is not None:
            self.lanes.flushed(lane, position)
        reading.tracker.lane_flushed(lane, position)
        return reading.acknowledge()

    def acknowledge(self, lane: str, position: Lsn) -> Lsn:
        """Note the lane's durable position; returns once the source has confirmed the least of all lanes."""
        reading = self._read()
        reading.tracker.lane_flushed(lane, position)
        reading.tracker.limit(reading.checkpoints.save_before_acknowledging())
        wanted = reading.tracker.acknowledged()
        reading.loop().send_status_now()
        return self.source.confirmed(wanted, _CONFIRM_TIMEOUT_S, self._require_no_failure)

    def stop(self) -> None:
        if self.reading is not None:
            self.reading.close()
        self.snapshots.close()
        if self.leadership is not None:
            self.leadership.release()
        self.source.close()

    def stop_in_order(self, within_s: float) -> None:
        """Seal what has come, save a checkpoint and tell the source, as far as there is time; then stop."""
        reading = self.reading
        if reading is not None and self.failure is None:
            deadline = time.monotonic() + within_s
            reading.loop().demand(reading.position)
            reading.sealed(reading.position, within_s)
            try:
                if self.lanes is not None:
                    self.lanes.save()
                reading.tracker.limit(reading.checkpoints.save_before_acknowledging())
                reading.loop().send_status_now()
                left_s = max(0.0, deadline - time.monotonic())
                self.source.confirmed(reading.tracker.acknowledged(), left_s, self._require_no_failure)
            except PenstockError as error:
                _logger.warning("could not end in order", reason=error.message)
        self.stop()

    def fail(self, error: BaseException) -> None:
        """Nothing more is sealed or answered; the first reason is kept."""
        with self._failing:
            if self.failure is not None:
                return
            self.failure = error
        if self.reading is not None:
            self.reading.abort()
        self.over.set()
        log_unexpected(error)
        self._tell({"event": "failed", "error": error_to_json(error)})

    def _begin_leadership(self) -> Leadership:
        self.leadership = Leadership(self.source.lock, self.fail, self._spec.heartbeat_s)
        return self.leadership

    def _acquire(self) -> Lsn:
        assert self.leadership is not None
        self.leadership.acquire()
        return self.source.new_epoch()

    def _join(self, given: Arguments) -> dict[str, Any]:
        streams = [StreamId(*stream) for stream in given["streams"]]
        full_identity = {StreamId(*stream) for stream in given["full_identity"]}
        return self.join(given["lane"], streams, full_identity).to_json()

    def _set_up_term(
        self, epoch: Lsn, streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> Started:
        try:
            return self._set_up(lambda: epoch, streams, full_identity)
        except (PositionGoneError, AnotherSourceError) as error:
            if not may_begin_anew(self._spec):
                raise
            _logger.warning("the change log is begun anew", code=error.code, reason=error.message)
            begin_anew(self._spec, self.source)
            return self._set_up(lambda: epoch, streams, full_identity)

    def _set_up(
        self,
        take_lead: Callable[[], Lsn],
        streams: Sequence[StreamId],
        full_identity: Collection[StreamId],
    ) -> Started:
        spec = self._spec
        lanes = dict(spec.lanes)
        if spec.service is not None and spec.lanes_path is not None:
            require = None if self.leadership is None else self.leadership.require
            self.lanes = LaneRegistry(spec.lanes_path, require)
            lanes |= self.lanes.positions()
            for dropped in self.lanes.dropped():
                lanes.pop(dropped, None)
        log = self.source.set_up(Wanted(tuple(streams), frozenset(full_identity), lanes), take_lead)
        leadership = self.leadership
        self.reading = Reading(
            spec,
            log,
            lanes,
            may_commit=leadership.require if leadership is not None and spec.service is not None else None,
            may_save=leadership.require if leadership is not None else None,
            on_reached=self._reached,
            on_progress=self._progressed,
            on_failed=self.fail,
        )
        # What other lanes follow is in the log from the first row on, whoever is there first: one that goes
        # on where it was must not find a gap. What was not published of it, it is told when it joins.
        self._streams = frozenset(streams) | self._followed_by_others(streams)
        self.reading.add(sorted(self._streams.difference(streams)))
        if self.failure is not None:  # meanwhile, before there was anything to abort
            self.reading.abort()
        return log.started

    def _followed_by_others(self, streams: Sequence[StreamId]) -> frozenset[StreamId]:
        path = self._spec.lanes_path
        registry = self.lanes or (None if path is None else LaneRegistry(path))
        lanes = registry.lanes().values() if registry is not None else ()
        return frozenset(stream for lane in lanes for stream in lane.streams).difference(streams)

    def _add(
        self, reading: Reading[Any], streams: Sequence[StreamId], full_identity: Collection[StreamId]
    ) -> Started:
        """Publish further streams and keep their rows; the lane hears which it may have missed some of."""
        published = self.source.publish(streams, full_identity)
        new = [stream for stream in streams if stream not in self._streams]
        reading.add(new)
        self._streams |= frozenset(new)
        return replace(
            reading.log.started,
            slot_created=False,
            log_end=reading.writer.end,
            published=tuple(dict.fromkeys([*published, *new])),
        )

    def _heard(self, given: Arguments) -> None:
        streams = given.get("streams")
        if self.lanes is not None:
            named = None if streams is None else [StreamId(*stream) for stream in streams]
            self.lanes.heard(given["lane"], named)

    def _sealed(self, given: Arguments) -> str | None:
        within_s = min(float(given["within_s"]), _SEALED_WAIT_MAX_S)
        end = self._read().sealed(Lsn.parse(given["target"]), within_s)
        return None if end is None else str(end)

    def _read(self) -> Reading[Any]:
        if self.reading is None:
            if self._spec.service is not None:
                raise CaptureAwayError("No lane has joined this term yet.", remedy="Join first.")
            raise SourceError("Capture has not been started.", remedy="Call start() first.")
        return self.reading

    def _reached(self, position: Lsn) -> None:
        self._tell({"event": "reached", "position": str(position)})

    def _progressed(self, progress: CaptureProgress) -> None:
        self._tell({"event": "progress", **progress.to_json()})

    def _require_no_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def _lane(given: Arguments) -> str:
    return str(given.get("lane", ""))


def _as_json(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Lsn) else value for name, value in fields.items()}


def log_unexpected(error: BaseException) -> None:
    """Say where an error of no kind of ours came from."""
    logs.log_unexpected("capture", error)


def error_to_json(error: BaseException) -> dict[str, str]:
    """What may be said of an error, and which class it is to become again."""
    told = told_of("capture", error)
    return {"class": type(told).__name__, **told.to_json()}

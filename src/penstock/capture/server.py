"""The capture process's inside: carries out requests, tells what happens.

Requests come one after the other and are answered in order; reading from the server goes on in
threads of its own meanwhile. What those threads find out (target reached, progress, failure) is said
as events. After a failure every further request gets that same error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Any

import structlog

from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.checkpoints import CheckpointSaver
from penstock.capture.leadership import Leadership, mark_position
from penstock.capture.loop import ReplicationLoop
from penstock.capture.relations import Relations
from penstock.capture.rows import TransactionIds
from penstock.capture.setup import Source, set_up
from penstock.capture.snapshots import SnapshotKeeper, connect_patiently
from penstock.capture.spec import CaptureSpec, Started
from penstock.capture.steps import StepBuilder
from penstock.core.errors import PenstockError, SourceError
from penstock.core.position import Lsn
from penstock.log import retention
from penstock.log.writer import LogWriter, open_writer
from penstock.sources.postgres import inbox, pgoutput
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.postgres.replica import Replica
from penstock.sources.postgres.replication import ReplicationStream
from penstock.sources.postgres.streamed import SPOOL_DIRECTORY, StreamedTransactions, sweep_spool

_CONFIRM_TIMEOUT_S = 30.0
_logger = structlog.get_logger("penstock.capture")
Events = Callable[[dict[str, Any]], None]


class CaptureServer:
    def __init__(self, spec: CaptureSpec, tell: Events) -> None:
        self._spec = spec
        self._tell = tell
        replica = Replica(spec.url, spec.replica_url, spec.replica_wait_s) if spec.replica_url else None
        self._snapshots = SnapshotKeeper(spec.url, replica)
        self._leadership: Leadership | None = None
        self._connection: Connection | None = None
        self._source: Source | None = None
        self._writer: LogWriter | None = None
        self._tracker: AcknowledgementTracker | None = None
        self._loop: ReplicationLoop | None = None
        self._relations: Relations | None = None
        self._checkpoints: CheckpointSaver | None = None
        self._failure: BaseException | None = None
        self._failure_lock = threading.Lock()

    def carry_out(self, request: str, arguments: dict[str, Any]) -> Any:
        """Answer one request, or raise."""
        if self._failure is not None and request != "stop":
            raise self._failure
        if request == "start":
            return self.start().to_json()
        if request == "snapshot":
            return self._snapshots.take().to_json()
        if request == "plain_snapshot":
            return self._snapshots.take_plain().to_json()
        if request == "release_snapshot":
            return self._snapshots.release()
        if request == "note_target":
            return str(mark_position(self._ordinary()))
        if request == "read_to":
            return self._replication().read_to(Lsn.parse(arguments["target"]))
        if request == "acknowledge":
            return str(self.acknowledge(arguments["lane"], Lsn.parse(arguments["position"])))
        if request == "stop":
            return self.stop()
        raise LookupError(f"unknown request {request!r}")

    def start(self) -> Started:
        spec = self._spec
        threading.Thread(target=_warm_up, name="capture-warm-up", daemon=True).start()
        self._leadership = Leadership(spec.url, spec.slot, self._fail)
        source = set_up(spec, self._ordinary(), self._leadership, self._snapshots)
        started = source.started
        # Only now, under the lock, is it certain that nobody writes there.
        retention.sweep(spec.log_directory, unsealed=True)
        sweep_spool(spec.log_directory / SPOOL_DIRECTORY)
        self._writer = open_writer(
            spec.log_directory,
            system_id=started.system_id,
            timeline=started.timeline,
            epoch=started.epoch,
            newest=source.newest,
            start=source.read_from,
        )
        self._checkpoints = CheckpointSaver(spec.checkpoint_path, self._writer)
        self._tracker = AcknowledgementTracker(spec.lanes, started.slot_position, self._writer.end)
        self._source = source
        return started

    def acknowledge(self, lane: str, position: Lsn) -> Lsn:
        """Note the lane's durable position; returns once Postgres has confirmed the least of all lanes."""
        loop = self._replication()
        assert self._tracker is not None
        assert self._checkpoints is not None
        self._tracker.lane_flushed(lane, position)
        self._tracker.limit(self._checkpoints.save_before_acknowledging())
        wanted = self._tracker.acknowledged()
        loop.send_status_now()
        deadline = time.monotonic() + _CONFIRM_TIMEOUT_S
        while True:
            confirmed = self._confirmed()
            if confirmed >= wanted:
                return confirmed
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise SourceError(
                    f"Postgres did not confirm position {wanted} for slot {self._spec.slot}.",
                    remedy="Run the same command again; nothing is lost or done twice.",
                )
            time.sleep(0.005)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()
            self._loop = None
        if self._writer is not None:
            self._writer.abandon()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._relations is not None:
            self._relations.close()
        self._snapshots.close()
        if self._leadership is not None:
            self._leadership.release()
        if self._connection is not None:
            self._connection.close()

    def _replication(self) -> ReplicationLoop:
        """Streaming begins when it is first needed: until then the slot's first snapshot stays usable."""
        if self._loop is not None:
            return self._loop
        if self._source is None or self._writer is None or self._tracker is None:
            raise SourceError("Capture has not been started.", remedy="Call start() first.")
        spec = self._spec
        connection = connect_patiently(spec.url, "penstock-capture", replication=True)
        stream = ReplicationStream(connection, spec.slot, spec.publication, self._source.read_from)
        self._relations = Relations(spec.streams, lambda: connect_patiently(spec.url, "penstock-catalog"))
        builder = StepBuilder(
            self._writer,
            self._relations,
            TransactionIds(self._source.next_xid),
            StreamedTransactions(spec.log_directory / SPOOL_DIRECTORY),
            spec.step_bytes_max,
        )
        self._loop = ReplicationLoop(
            stream,
            builder,
            self._writer,
            self._tracker,
            status_interval_s=self._source.status_interval_s,
            on_reached=self._reached,
            on_progress=lambda progress: self._tell({"event": "progress", **progress.to_json()}),
            on_failed=self._fail,
        )
        self._loop.start()
        return self._loop

    def _reached(self, position: Lsn) -> None:
        if self._checkpoints is not None:
            self._checkpoints.sealed()
        self._tell({"event": "reached", "position": str(position)})

    def _fail(self, error: BaseException) -> None:
        with self._failure_lock:
            if self._failure is not None:
                return
            self._failure = error
        if self._loop is not None:
            self._loop.abort()
        log_unexpected(error)
        self._tell({"event": "failed", "error": error_to_json(error)})

    def _ordinary(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_patiently(self._spec.url, "penstock-control")
        return self._connection

    def _confirmed(self) -> Lsn:
        with query_errors("reading pg_replication_slots"):
            row = (
                self._ordinary()
                .execute(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                    (self._spec.slot,),
                )
                .fetchone()
            )
        if row is None or row[0] is None:
            raise SourceError(
                f"The replication slot {self._spec.slot} has disappeared.", remedy="Run `penstock check`."
            )
        return Lsn.parse(row[0])


def _warm_up() -> None:
    pgoutput.warm_up()
    inbox.warm_up()


def log_unexpected(error: BaseException) -> None:
    """Say where an error of no kind of ours came from: places only, since messages may quote rows."""
    if isinstance(error, PenstockError):
        return
    places = [f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in extract_tb(error.__traceback__)]
    _logger.error("capture failed unexpectedly", kind=type(error).__name__, places=places)


def error_to_json(error: BaseException) -> dict[str, str]:
    """What may be said of an error: ours in full, anything else by its kind alone (it may quote rows)."""
    if isinstance(error, PenstockError):
        return {"class": type(error).__name__, **error.to_json()}
    return {
        "class": "PenstockError",
        "message": f"Capture failed unexpectedly ({type(error).__name__}).",
        "remedy": "The log on stderr says where; please report it.",
    }

"""A pipeline opened for a comparison: who reads the log, and who keeps the snapshot.

While `penstock run` is at work, its capture seals the log as far as it is asked to, and goes on; the snapshot
is kept by a process of our own that does nothing else, so that it is gone when we are, however we end. Where
nobody has to keep one, because snapshots are times (MongoDB) or are held by whoever reads under them (MySQL),
that capture is asked, which knows how positions are counted.

Otherwise the pipeline is opened as a sync opens it: what an earlier run left open is settled, the lock is
held, and capture, a child of ours, reads the log on. No table is loaded and no round is carried out; what is
read stays in the log for the next sync.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from penstock.capture.base import Progress
from penstock.capture.client import CaptureProcess
from penstock.capture.from_config import spec_of
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import ExportedSnapshot
from penstock.config import Config
from penstock.core.errors import CaptureAwayError, SourceError, StateError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.lake.lane import LakeLane
from penstock.lake.spark_starter import SparkStarter
from penstock.ledger.run_file import read_running
from penstock.ledger.store import StateStore
from penstock.locking import only_one
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source
from penstock.turns import Turns

_LOOK_EVERY_S = 0.5
LANE = "verify"  # as capture knows us; it never joins, so nothing is held for it


class Snapshots(Protocol):
    def snapshot(self) -> ExportedSnapshot: ...

    def release_snapshot(self) -> None: ...


class LogReader(Protocol):
    def note_target(self) -> Lsn: ...

    def read_to(self, target: Lsn) -> None: ...

    def reached(self, within_s: float | None = None) -> Lsn | None: ...

    def progress(self) -> Progress: ...


def log_read_to(log: LogReader, target: Lsn, still_s: float) -> Lsn:
    """The log's end once everything up to `target` is sealed, however long that takes while it goes on.

    A `SourceError` once nothing has come nearer to it for so long: a snapshot is held meanwhile, and with it
    what the source would else clean up.
    """
    log.read_to(target)
    standing, since = None, time.monotonic()
    while (end := log.reached(_LOOK_EVERY_S)) is None:
        now = _standing(log.progress(), target)
        if now != standing:
            standing, since = now, time.monotonic()
        elif time.monotonic() - since > still_s:
            raise SourceError(
                f"The log is to be read to {target}, and stands at {now[0]} since {still_s:.0f} seconds.",
                remedy="`penstock status` and `penstock check` say what keeps capture from reading on; "
                "compare again when it does.",
            )
    return end


def _standing(now: Progress, target: Lsn) -> tuple[Lsn, Lsn, int]:
    """What changes while the log comes nearer to `target`. What is received beyond it does not count."""
    if now.position < target:
        return now.log_end, now.position, now.bytes
    return now.log_end, target, 0


@dataclass(frozen=True, slots=True)
class Opened:
    """`lane`: ours, where nobody else runs the pipeline. `waiting`: streams that are to be loaded first."""

    snapshots: Snapshots
    log: LogReader
    lane: LakeLane | None = None
    waiting: Sequence[StreamId] = ()


@contextmanager
def opened(config: Config, listener: ProgressListener, spark: SparkStarter) -> Iterator[Opened]:
    running = read_running(config.state)
    if running is None:
        with _alone(config, listener, spark) as pipeline:
            yield pipeline
        return
    token = config.tail.token
    secret = None if token is None else token.get_secret_value()
    found = running.capture
    with beside(config, found["address"], secret, found.get("certificate")) as pipeline:
        yield pipeline


@contextmanager
def beside(
    config: Config, address: str, token: str | None = None, certificate: str | None = None
) -> Iterator[Opened]:
    """Beside an instance whose capture answers at `address`."""
    with RemoteCapture(address, LANE, token, certificate) as capture:
        hello = capture.hello()
        if not hello.leading:
            raise CaptureAwayError(
                f"Capture does not lead. {hello.reason}", remedy="Run the command where the leader runs."
            )
        capture.epoch = hello.epoch
        if config.source.type != "postgres":
            yield Opened(capture, capture)
            return
        with CaptureProcess(spec_of(config)) as snapshots:
            yield Opened(snapshots, capture)


@contextmanager
def _alone(config: Config, listener: ProgressListener, spark: SparkStarter) -> Iterator[Opened]:
    with only_one(config.state), CaptureProcess() as capture:
        if StateStore(config.state).load() is None or not _is_held(config):
            raise StateError(
                "This pipeline was never synced, or its slot is gone: there is nothing to compare.",
                remedy="Run `penstock sync` first.",
            )
        streams = resolve_from_source(config)
        followed = [stream for stream in streams if stream.reads_log]
        capture.use(
            spec_of(
                config,
                [stream.info.stream for stream in followed],
                [stream.info.stream for stream in followed if stream.full_identity],
            )
        )
        turns = Turns(config, listener, spark, capture, round_every_s=0.0)
        lane = turns.open(streams, capture.start)
        yield Opened(capture, capture, lane, tuple(lane.streams_to_load()))


def _is_held(config: Config) -> bool:
    """Whether the source still knows the pipeline; a MySQL server keeps its log for nobody in particular."""
    return config.source.type == "mysql" or open_source(config.source).hold() is not None

"""A stream lane as a process: the lane in the main thread, the supervisor's channel, positions and numbers.

It ends when the supervisor asks for it, or with an error that somebody must look at. What is under way to the
target has a part of the supervisor's time to arrive; then it is let go, and the next start finds out what the
target has of it.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

from penstock import logs
from penstock.capture.remote import RemoteCapture
from penstock.channel import Channel
from penstock.config import Config
from penstock.core.errors import ConfigError, told_of
from penstock.heap import set_heap
from penstock.streams.bulk import BulkEncoder
from penstock.streams.lane import StreamLane
from penstock.streams.lane_measures import StreamMeasures
from penstock.streams.settings import StreamSettings

_MAPPED_BYTES = 256 << 10


def run(channel: Channel, bulk: BulkEncoder | None = None) -> int:
    """The process's exit code. `bulk`: who encodes backlogs; None: the lane itself."""
    _keep_memory_together()
    who = f"the lane {channel.spec['lane']}"
    try:
        _serve(channel, bulk)
    except Exception as error:
        logs.log_unexpected(who, error)
        told = told_of(who, error)
        channel.failed(told.to_json())
        return told.exit_code
    return 0


def _keep_memory_together() -> None:
    """Batches are made by one thread and let go by another: a heap for each keeps a multiple of what is used.

    So does Arrow's own pool, once a large transaction has gone through, and a heap where the megabytes of a
    batch lie between what is small and stays: those are mapped one by one.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    set_heap(arenas=2, mapped_from=_MAPPED_BYTES)


def _serve(channel: Channel, bulk: BulkEncoder | None) -> None:
    settings = _settings(channel)
    where = channel.spec["capture"]
    measures = StreamMeasures(settings.lane)
    ended = threading.Event()
    with RemoteCapture(
        where["address"], settings.lane, where.get("token"), where.get("certificate")
    ) as capture:
        lane = StreamLane(settings, capture, measures, channel.state, channel.note, bulk)
        channel.on_stop(lambda: _let_go_after(settings.drain_s, lane))
        helpers = [
            threading.Thread(target=measures.send, args=(channel.metrics, ended), daemon=True),
            threading.Thread(target=lane.reporter.run, args=(ended,), daemon=True),
        ]
        for helper in helpers:
            helper.start()
        try:
            lane.run(channel.stop_asked)
        finally:
            ended.set()
            lane.reporter.wake()
    channel.state("stopping")


def _settings(channel: Channel) -> StreamSettings:
    path = Path(channel.spec["config"])
    config = Config.load(path)
    lane = channel.spec["lane"]
    if lane not in config.lanes.streams:
        raise ConfigError(
            f"The pipeline file has no lane {lane} any more.",
            remedy="Stop `penstock run` and start it again.",
        )
    return StreamSettings.of_pipeline(config, lane, path)


def _let_go_after(seconds: float, lane: StreamLane) -> None:
    timer = threading.Timer(seconds, lane.let_go)
    timer.daemon = True
    timer.start()

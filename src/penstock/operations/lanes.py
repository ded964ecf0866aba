"""Lanes: who is given every change, how far each is, and what people tell a stream lane to do."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.capture.base import LaneStanding
from penstock.capture.from_config import lanes_of
from penstock.capture.spec import LAKE_LANE
from penstock.config import Config
from penstock.core.errors import CaptureAwayError, ConfigError
from penstock.core.position import Lsn
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.run_file import read_running
from penstock.locking import only_one
from penstock.operations.streams import stream_id
from penstock.streams.orders import OrderBook, Orders, lane_directory

if TYPE_CHECKING:
    from penstock.capture.remote import RemoteCapture


def standings(config: Config) -> list[LaneStanding]:
    """Every lane that ever joined; asked of capture, if an instance leads, else as it was last saved."""
    with _running_capture(config) as capture, suppress(CaptureAwayError):
        if capture is not None:
            return capture.lanes()
    registry, configured = LaneRegistry(config.state / LANES_FILE), lanes_of(config)
    found = [
        LaneStanding(name, lane.position, name in configured, None, lane.since)
        for name, lane in registry.lanes().items()
    ]
    found += [
        LaneStanding(name, None, True, None, None, dropped=True)
        for name in registry.dropped().intersection(configured)
    ]
    return sorted(found, key=lambda each: each.lane)


def orders_of(config: Config) -> dict[str, Orders]:
    """What each stream lane has been told."""
    return {name: OrderBook(lane_directory(config.state, name)).read() for name in config.lanes.streams}


def pause(config: Config, lane: str, reason: str = "") -> None:
    """Let a stream lane stand still; nothing of its changes is lost."""
    _write(config, lane, lambda orders: orders.pause(reason))


def resume(config: Config, lane: str) -> None:
    """Let a lane that was paused go on, or one that is parked try again."""
    _write(config, lane, Orders.resume)


def rewind(config: Config, lane: str, to: str) -> Lsn:
    """Have a stream lane send everything after a position again, as far as the change log reaches back."""
    from penstock.log.reader import ChangeLog

    try:
        position = Lsn.parse(to)
    except ValueError:
        raise ConfigError(
            f"{to!r} is no position.", remedy="Write it as Postgres does: 0/1A2B3C4D."
        ) from None
    begins = ChangeLog(config.state / "log").start()
    if begins is None or position < begins:
        raise ConfigError(
            f"The change log does not reach back to {position}; it begins at {begins or 'no position yet'}.",
            remedy=f"Choose a later one, or run `penstock resync --lane {lane} --yes`; `log.retention` says "
            "how long the log is kept.",
        )
    _write(config, lane, lambda orders: orders.rewind(position))
    return position


def resync(config: Config, lane: str, streams: tuple[str, ...]) -> None:
    """Have a stream lane load these streams anew, or all; those whose rows it does not send go on."""
    for stream in streams:
        if not any(each.id.matches(stream_id(stream)) for each in config.streams):
            raise ConfigError(
                "This stream is not part of the pipeline.",
                stream=stream,
                remedy="Run `penstock status` to see the streams there are.",
            )
    _write(config, lane, lambda orders: orders.load_anew(streams))


def drop(config: Config, lane: str) -> None:
    """Give a lane up: the source no longer keeps what it lacks.

    Not the lake's: where its state is lost, its tables are gone on with from the source's position, which
    says that they have everything up to there. Nor the last one: nothing is acknowledged without a lane.
    """
    if lane == LAKE_LANE:
        raise ConfigError(
            "The lake lane cannot be given up: its tables would lack changes that the source has forgotten.",
            remedy="Start it. For the source to keep less meanwhile, set `wal.on_wal_pressure: "
            "acknowledge_log`; `penstock teardown` gives the whole pipeline up.",
        )
    registry = LaneRegistry(config.state / LANES_FILE)
    if registry.lanes().keys() | set(lanes_of(config)) - registry.dropped() <= {lane}:
        raise ConfigError(
            f"The lane {lane} is the last one: without any, the source is told nothing and keeps everything.",
            remedy="`penstock teardown` gives the whole pipeline up.",
        )
    with _running_capture(config) as capture:
        if capture is not None:
            capture.drop_lane(lane)
            return
    with only_one(config.state):
        LaneRegistry(config.state / LANES_FILE).drop(lane, is_configured=lane in lanes_of(config))


def require_stream_lane(config: Config, lane: str) -> None:
    if lane not in config.lanes.streams:
        there = ", ".join(config.lanes.streams) or "none"
        raise ConfigError(
            f"There is no stream lane {lane} in the pipeline file.", remedy=f"Stream lanes there: {there}."
        )


def _write(config: Config, lane: str, change: Callable[[Orders], Orders]) -> None:
    require_stream_lane(config, lane)
    OrderBook(lane_directory(config.state, lane)).change(change)
    running = read_running(config.state)
    if running is not None and running.host == socket.gethostname():
        with suppress(OSError):
            os.kill(running.pid, signal.SIGHUP)  # a lane that is parked is started again


@contextmanager
def _running_capture(config: Config) -> Iterator[RemoteCapture | None]:
    """The capture of the instance that leads, if one runs on this state directory."""
    running = read_running(config.state)
    if running is None:
        yield None
        return
    address = running.capture["address"]
    if address.startswith("grpc+unix:") and running.host != socket.gethostname():
        raise CaptureAwayError(
            f"The instance that leads runs on {running.host}, and its capture can be asked there only.",
            remedy=f"Run this command on {running.host}, or have capture listen on TCP: `tail.listen`.",
        )
    from penstock.capture.remote import RemoteCapture

    token = config.tail.token
    with RemoteCapture(
        address,
        "command line",
        token=None if token is None else token.get_secret_value(),
        certificate=running.capture.get("certificate"),
    ) as capture:
        yield capture

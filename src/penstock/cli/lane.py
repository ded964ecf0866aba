"""`penstock lane`: who is given every change, and how to give one up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.settings import Settings, settings_of
from penstock.cli.tables import size, table, text
from penstock.core.errors import CaptureAwayError, ConfigError
from penstock.core.stream import StreamId

if TYPE_CHECKING:
    from penstock.capture.base import LaneStanding
    from penstock.capture.remote import RemoteCapture
    from penstock.config import Config
    from penstock.ledger.run_file import Running
    from penstock.streams.orders import Orders

_HELP = "Look at lanes: who is given every change. The source keeps what any of them lacks."
_COLUMNS = ("lane", "holds up to", "behind", "")

_StreamLane = Annotated[str, typer.Argument(metavar="NAME", help="The lane: kafka, kinesis or file.")]

app = typer.Typer(no_args_is_help=True, help=_HELP)


@app.callback()
def _group() -> None:
    """Look at lanes: who is given every change. The source keeps what any of them lacks."""


@app.command("list")
def list_lanes(context: typer.Context) -> None:
    """Show every lane that ever joined, and how far it is."""
    settings = settings_of(context)
    found = _lanes(settings)
    if settings.json:
        settings.emit_json({"lanes": [asdict(each) | {"position": _position(each)} for each in found]})
        return
    paused = _paused(settings)
    rows = [_row(each, paused.get(each.lane)) for each in found]
    settings.out.print(table(_COLUMNS, rows, right=("behind",)))


@app.command()
def drop(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lane.")],
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, give it up.")] = False,
) -> None:
    """Give a lane up: the source no longer keeps what it lacks."""
    settings = settings_of(context)
    if name not in (known := [each.lane for each in _lanes(settings)]):
        raise ConfigError(
            f"There is no lane {name}.", remedy=f"There are: {', '.join(known)}." if known else ""
        )
    if not yes:
        raise ConfigError(
            f"This gives the lane {name} up.",
            detail="The source may forget changes that it does not hold; when it comes back it begins anew.",
            remedy="Add --yes if that is what you want.",
        )
    _drop(settings, name)
    if settings.json:
        settings.emit_json({"dropped": name})
    else:
        settings.out.print(f"The lane {name} is given up.", markup=False, highlight=False)


@app.command()
def pause(
    context: typer.Context,
    name: _StreamLane,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown by `status`.")] = "",
) -> None:
    """Let a stream lane stand still; nothing of its changes is lost.

    They are kept until it is resumed: watch the disk of the source and of the change log meanwhile.
    """
    _order(context, name, lambda orders: orders.pause(reason), f"The lane {name} stands still.")


@app.command()
def resume(context: typer.Context, name: _StreamLane) -> None:
    """Let a lane that was paused go on, or one that is parked try again."""
    _order(context, name, lambda orders: orders.resume(), f"The lane {name} goes on.")


@app.command()
def rewind(
    context: typer.Context,
    name: _StreamLane,
    to: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="A position of the source's log: 0/1A2B3C4D.")
    ],
) -> None:
    """Have a stream lane send everything after a position again, as far as the change log reaches back.

    What the target has from there on is there twice then, by the same offsets.
    """
    from penstock.core.position import Lsn
    from penstock.log.reader import ChangeLog

    try:
        position = Lsn.parse(to)
    except ValueError:
        raise ConfigError(
            f"{to!r} is no position.", remedy="Write it as Postgres does: 0/1A2B3C4D."
        ) from None
    begins = ChangeLog(_config(settings_of(context)).state / "log").start()
    if begins is None or position < begins:
        raise ConfigError(
            f"The change log does not reach back to {position}; it begins at {begins or 'no position yet'}.",
            remedy=f"Choose a later one, or run `penstock resync --lane {name} --yes`; `log.retention` says "
            "how long the log is kept.",
        )
    _order(
        context,
        name,
        lambda orders: orders.rewind(position),
        f"The lane {name} sends everything after {position} again.",
    )


def order_resync(settings: Settings, name: str, streams: tuple[str, ...]) -> None:
    """Have a stream lane load these streams anew, or all; those whose rows it does not send go on."""
    config = _config(settings)
    for stream in streams:
        if not any(StreamId.parse(each.table).matches(_stream_id(stream)) for each in config.streams):
            raise ConfigError(
                "This stream is not part of the pipeline.",
                stream=stream,
                remedy="Run `penstock status` to see the streams there are.",
            )
    _write_orders(settings, name, lambda orders: orders.load_anew(streams))


def _stream_id(text: str) -> StreamId:
    try:
        return StreamId.parse(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a stream id.", remedy="Write schema.table.") from None


def _order(context: typer.Context, name: str, change: Callable[[Orders], Orders], said: str) -> None:
    settings = settings_of(context)
    _write_orders(settings, name, change)
    if settings.json:
        settings.emit_json({"lane": name, "ordered": said})
    else:
        settings.out.print(said, markup=False, highlight=False)


def _write_orders(settings: Settings, name: str, change: Callable[[Orders], Orders]) -> None:
    from penstock.ledger.run_file import read_running
    from penstock.streams.orders import OrderBook, lane_directory

    config = _config(settings)
    if name not in config.lanes.streams:
        there = ", ".join(config.lanes.streams) or "none"
        raise ConfigError(
            f"There is no stream lane {name} in the pipeline file.", remedy=f"Stream lanes there: {there}."
        )
    book = OrderBook(lane_directory(config.state, name))
    book.write(change(book.read()))
    running = read_running(config.state)
    if running is not None and running.host == socket.gethostname():
        with suppress(OSError):
            os.kill(running.pid, signal.SIGHUP)  # a lane that is parked is started again


def _lanes(settings: Settings) -> list[LaneStanding]:
    from penstock.capture.base import LaneStanding
    from penstock.capture.from_config import lanes_of
    from penstock.ledger.lanes import LANES_FILE, LaneRegistry

    config = _config(settings)
    if (capture := _running_capture(config)) is not None:
        return capture.lanes()
    registered = LaneRegistry(config.state / LANES_FILE).lanes()
    return [
        LaneStanding(name, lane.position, name in lanes_of(config), None, lane.since)
        for name, lane in sorted(registered.items())
    ]


def _drop(settings: Settings, name: str) -> None:
    from penstock.ledger.lanes import LANES_FILE, LaneRegistry
    from penstock.locking import only_one

    config = _config(settings)
    if (capture := _running_capture(config)) is not None:
        capture.drop_lane(name)
        return
    with only_one(config.state):
        LaneRegistry(config.state / LANES_FILE).drop(name)


def _running_capture(config: Config) -> RemoteCapture | None:
    """The capture of the instance that leads, if one runs on this state directory."""
    from penstock.ledger.run_file import read_running

    running = read_running(config.state)
    if running is None:
        return None
    _refuse_from_elsewhere(running)
    from penstock.capture.remote import RemoteCapture

    token = config.tail.token
    return RemoteCapture(
        running.capture["address"],
        "command line",
        token=None if token is None else token.get_secret_value(),
        certificate=running.capture.get("certificate"),
    )


def _refuse_from_elsewhere(running: Running) -> None:
    address = running.capture["address"]
    if address.startswith("grpc+unix:") and running.host != socket.gethostname():
        raise CaptureAwayError(
            f"The instance that leads runs on {running.host}, and its capture can be asked there only.",
            remedy=f"Run this command on {running.host}, or have capture listen on TCP: `tail.listen`.",
        )


def _config(settings: Settings) -> Config:
    from penstock.config import Config

    return Config.load(settings.config_path)


def _paused(settings: Settings) -> dict[str, str]:
    """The stream lanes that stand still, and why."""
    from penstock.streams.orders import OrderBook, lane_directory

    config = _config(settings)
    orders = {name: OrderBook(lane_directory(config.state, name)).read() for name in config.lanes.streams}
    return {
        name: f"paused since {each.paused_since}" + (f" ({each.reason})" if each.reason else "")
        for name, each in orders.items()
        if each.is_paused
    }


def _row(lane: LaneStanding, paused: str | None) -> tuple[str, ...]:
    notes = [] if lane.configured else ["not in the pipeline file: it holds the source back until dropped"]
    if lane.position is None:
        notes.append("has not said how far it is")
    if paused is not None:
        notes.append(paused)
    return lane.lane, text(_position(lane)), size(lane.lag_bytes), "; ".join(notes)


def _position(lane: LaneStanding) -> str | None:
    return None if lane.position is None else str(lane.position)

"""`penstock lane`: who is given every change, and how to give one up."""

from __future__ import annotations

import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.settings import Settings, settings_of
from penstock.cli.tables import size, table, text
from penstock.core.errors import CaptureAwayError, ConfigError

if TYPE_CHECKING:
    from penstock.capture.base import LaneStanding
    from penstock.capture.remote import RemoteCapture
    from penstock.config import Config
    from penstock.ledger.run_file import Running

_HELP = "Look at lanes: who is given every change. The source keeps what any of them lacks."
_COLUMNS = ("lane", "holds up to", "behind", "")

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
    settings.out.print(table(_COLUMNS, [_row(each) for each in found], right=("behind",)))


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


def _row(lane: LaneStanding) -> tuple[str, ...]:
    notes = [] if lane.configured else ["not in the pipeline file: it holds the source back until dropped"]
    if lane.position is None:
        notes.append("has not said how far it is")
    return lane.lane, text(_position(lane)), size(lane.lag_bytes), "; ".join(notes)


def _position(lane: LaneStanding) -> str | None:
    return None if lane.position is None else str(lane.position)

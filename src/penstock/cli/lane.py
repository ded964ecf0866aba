"""`penstock lane`: who is given every change, and how to give one up."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.settings import Settings, settings_of
from penstock.cli.tables import size, table, text
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.capture.base import LaneStanding
    from penstock.config import Config

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
    from penstock.operations import lanes

    settings = settings_of(context)
    config = _config(settings)
    found = lanes.standings(config)
    if settings.json:
        settings.emit_json({"lanes": [asdict(each) | {"position": _position(each)} for each in found]})
        return
    paused = {
        name: f"paused since {each.paused_since}" + (f" ({each.reason})" if each.reason else "")
        for name, each in lanes.orders_of(config).items()
        if each.is_paused
    }
    rows = [_row(each, paused.get(each.lane)) for each in found]
    settings.out.print(table(_COLUMNS, rows, right=("behind",)))


@app.command()
def drop(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lane.")],
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, give it up.")] = False,
) -> None:
    """Give a lane up: the source no longer keeps what it lacks."""
    from penstock.operations import lanes

    settings = settings_of(context)
    config = _config(settings)
    if name not in (known := [each.lane for each in lanes.standings(config)]):
        raise ConfigError(
            f"There is no lane {name}.", remedy=f"There are: {', '.join(known)}." if known else ""
        )
    if not yes:
        raise ConfigError(
            f"This gives the lane {name} up.",
            detail="The source may forget changes that it does not hold; when it comes back it begins anew.",
            remedy="Add --yes if that is what you want.",
        )
    lanes.drop(config, name)
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
    from penstock.operations import lanes

    settings = settings_of(context)
    lanes.pause(_config(settings), name, reason)
    _say(settings, name, f"The lane {name} stands still.")


@app.command()
def resume(context: typer.Context, name: _StreamLane) -> None:
    """Let a lane that was paused go on, or one that is parked try again."""
    from penstock.operations import lanes

    settings = settings_of(context)
    lanes.resume(_config(settings), name)
    _say(settings, name, f"The lane {name} goes on.")


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
    from penstock.operations import lanes

    settings = settings_of(context)
    position = lanes.rewind(_config(settings), name, to)
    _say(settings, name, f"The lane {name} sends everything after {position} again.")


def _say(settings: Settings, name: str, said: str) -> None:
    if settings.json:
        settings.emit_json({"lane": name, "ordered": said})
    else:
        settings.out.print(said, markup=False, highlight=False)


def _config(settings: Settings) -> Config:
    from penstock.config import Config

    return Config.load(settings.config_path)


def _row(lane: LaneStanding, paused: str | None) -> tuple[str, ...]:
    notes = [] if lane.configured else ["not in the pipeline file: it holds the source back until dropped"]
    if lane.dropped:
        notes.append("given up: nothing is held for it until it joins again")
    elif lane.position is None:
        notes.append("has not said how far it is")
    if paused is not None:
        notes.append(paused)
    return lane.lane, text(_position(lane)), size(lane.lag_bytes), "; ".join(notes)


def _position(lane: LaneStanding) -> str | None:
    return None if lane.position is None else str(lane.position)

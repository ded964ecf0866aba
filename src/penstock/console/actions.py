"""What people can do by the console: each action by the function that the command line calls, written down
before.

An action is a name and texts; what is not one of those here, or has a text too many, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.operations import lanes, letters, shapes, streams
from penstock.streams.letter_requests import Action as LetterAction

_TEXT_MAX = 1000
_WAIT_S = 5.0

Given = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """`needs`: texts that must be there; `may`: texts that may. What `carry_out` returns is told to the
    person.
    """

    carry_out: Callable[[Config, Given], str]
    needs: tuple[str, ...]
    may: tuple[str, ...] = ()


def _told(told: str, done: str, ordered: str) -> str:
    return done if told == "done" else ordered


def _pause_stream(config: Config, given: Given) -> str:
    name = given["stream"]
    told = streams.pause(config, [name], given.get("reason", ""), wait_s=_WAIT_S)
    return _told(told, f"{name} is paused.", f"{name} will be paused when the turn under way is over.")


def _resume_stream(config: Config, given: Given) -> str:
    name = given["stream"]
    told = streams.resume(config, [name], wait_s=_WAIT_S)
    return _told(told, f"{name} goes on.", f"{name} goes on when the turn under way is over.")


def _resync_stream(config: Config, given: Given) -> str:
    name = given["stream"]
    told = streams.resync(config, [name], wait_s=_WAIT_S)
    return _told(
        told, f"{name} is loaded again.", f"{name} will be loaded again, with the next turn, run or sync."
    )


def _pause_lane(config: Config, given: Given) -> str:
    lanes.pause(config, given["lane"], given.get("reason", ""))
    return f"The {given['lane']} lane stands still."


def _resume_lane(config: Config, given: Given) -> str:
    lanes.resume(config, given["lane"])
    return f"The {given['lane']} lane goes on."


def _rewind_lane(config: Config, given: Given) -> str:
    position = lanes.rewind(config, given["lane"], given["to"])
    return f"The {given['lane']} lane sends everything after {position} again."


def _drop_lane(config: Config, given: Given) -> str:
    if given["lane"] in ("lake", "shapes", *config.lanes.streams):
        raise ConfigError(
            f"The lane {given['lane']} is in the pipeline file.",
            remedy="Take it out there first, then start the run again: a lane that runs is not given up.",
        )
    lanes.drop(config, given["lane"])
    return f"The lane {given['lane']} is given up."


def _replay_letters(config: Config, given: Given) -> str:
    return _ask_letters(config, given, "replay")


def _drop_letters(config: Config, given: Given) -> str:
    return _ask_letters(config, given, "drop")


def _ask_letters(config: Config, given: Given, action: LetterAction) -> str:
    letter = given.get("letter")
    if letter is not None and not (letter.isascii() and letter.isdigit()):
        raise ConfigError("A letter has a number.")
    stream = given.get("stream")
    number = None if letter is None else int(letter)
    return letters.ask(config, given["lane"], action, stream, number, _WAIT_S).said


def _drop_shape(config: Config, given: Given) -> str:
    shapes.drop(config.state, handle=given["handle"])
    return "The shape is dropped; its clients fetch anew."


ACTIONS: dict[str, Action] = {
    "stream.pause": Action(_pause_stream, ("stream",), ("reason",)),
    "stream.resume": Action(_resume_stream, ("stream",)),
    "stream.resync": Action(_resync_stream, ("stream",)),
    "lane.pause": Action(_pause_lane, ("lane",), ("reason",)),
    "lane.resume": Action(_resume_lane, ("lane",)),
    "lane.rewind": Action(_rewind_lane, ("lane", "to")),
    "lane.drop": Action(_drop_lane, ("lane",)),
    "letters.replay": Action(_replay_letters, ("lane",), ("stream", "letter")),
    "letters.drop": Action(_drop_letters, ("lane",), ("stream", "letter")),
    "shape.drop": Action(_drop_shape, ("handle",)),
}


def given_of(action: Action, fields: Any) -> Given | None:
    """The texts of a request, if they are as they should be."""
    if not isinstance(fields, dict) or not set(action.needs) <= set(fields) <= {*action.needs, *action.may}:
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _TEXT_MAX for each in fields.values()):
        return None
    return None if any(not each.isprintable() for each in fields.values()) else fields

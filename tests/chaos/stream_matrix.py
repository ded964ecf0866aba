"""What is struck of stream lanes: failpoints x scenarios x targets, as much as `PENSTOCK_CHAOS` asks for.

Who comes by a failpoint is told by its name: `streams.kafka_…`, `kinesis_…` and `file_…` are of one target;
`commit_…` is of targets that take events and position at once, `record_…` of the others; `load_…` is reached
while a lane loads, `letter_…` with dead letters, `ordered` when a person has told a lane to begin anew. All
others are passed by every lane that follows changes.
"""

from __future__ import annotations

from penstock.failpoints import FAILPOINTS
from tests.chaos.matrix import ASKED

TARGETS = ("file", "kafka", "kinesis")
#: Targets that refuse something: a file takes whatever fits on its disk.
REFUSING = ("kafka", "kinesis")
_OF: dict[str, tuple[str, ...]] = {
    "file_": ("file",),
    "kafka_": ("kafka",),
    "kinesis_": ("kinesis",),
    "commit_": ("file", "kafka"),
    "record_": ("kinesis",),
    "letter_": REFUSING,
}
#: Reached in the other scenarios only.
_NOT_FOLLOWING = ("load_", "letter_", "ordered")
#: Where something is at the target and nobody knows yet: all that `short` strikes, on those that are quick.
UNKNOWN = {
    "file": "streams.file_committed",
    "kafka": "streams.kafka_committed",
    "kinesis": "streams.record_sent",
}
#: How often each of `make chaos` is struck later than the first time.
_TIMES = 3
_QUICK = ("file", "kafka")

Case = tuple[str, str]


def has(target: str, name: str) -> bool:
    place = name.removeprefix("streams.")
    return target in next((targets for prefix, targets in _OF.items() if place.startswith(prefix)), TARGETS)


def _named(prefix: str) -> list[str]:
    return [name for name in FAILPOINTS if name.startswith(f"streams.{prefix}")]


FOLLOWING = [
    name for name in _named("") if not name.startswith(tuple(f"streams.{p}" for p in _NOT_FOLLOWING))
]
LOADING = _named("load_")
LETTERS = _named("letter_")
ORDERED = _named("ordered")


def cases(names: list[str], level: str = ASKED, targets: tuple[str, ...] = TARGETS) -> list[Case]:
    """Pairs of target and rule, as `PENSTOCK_FAILPOINT` has it, each target's together."""
    if level == "rest":
        short = cases(names, "short", targets)
        return [case for case in cases(names, "once", targets) if case not in short]
    if level == "short":
        return [(t, f"{UNKNOWN[t]}=kill@1") for t in targets if t in _QUICK and UNKNOWN[t] in names]
    times = range(1, _TIMES + 1) if level == "full" else (1,)
    return [(t, f"{name}=kill@{nth}") for t in targets for name in names if has(t, name) for nth in times]

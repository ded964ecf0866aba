"""Whether what comes now goes on from what a lane has: the same log, with nothing missing in between.

It does not if the server is another one, by its system identifier; if its timeline branched off before the
lane's position, so that the same positions mean something else; if the slot is new, so that changes may have
come and gone before it; or if the change log does not reach back to the lane's position any more
(correctness 43). A lane asks before it tells anybody that it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.capture.spec import Started
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog

#: Of two timelines: where the first was left on the way to the second; None if it is not an ancestor.
SwitchPoint = Callable[[int, int], Lsn | None]


@dataclass(frozen=True, slots=True)
class Followed:
    """Whose changes a lane has."""

    system_id: str
    timeline: int


def why_not_on(
    started: Started, before: Followed | None, position: Lsn, switch_point: SwitchPoint, log_directory: Path
) -> str:
    """Why a lane that has everything up to `position` cannot go on from there; empty if it can."""
    another = _why_another(started, before, position, switch_point, log_directory)
    return another or _why_gone(started, position, log_directory)


def _why_another(
    started: Started, before: Followed | None, position: Lsn, switch_point: SwitchPoint, log_directory: Path
) -> str:
    if before is None:
        return ""
    if before.system_id != started.system_id:
        return "another server"
    if started.slot_created:
        return "a new slot"
    if before.timeline != started.timeline:
        # Where the source cannot say it, the change log can, which was found to go on there.
        switch = switch_point(before.timeline, started.timeline)
        switch = ChangeLog(log_directory).left(before.timeline) if switch is None else switch
        if switch is None or position > switch:
            return "another timeline"
    return ""


def _why_gone(started: Started, position: Lsn, log_directory: Path) -> str:
    begins = ChangeLog(log_directory).start() or started.slot_position
    return f"the change log begins at {begins}" if position < begins else ""

"""Whether what comes now goes on from what a lane has: the same log, with nothing missing in between.

It does not if the server is another one, by its system identifier; if its timeline branched off before the
lane's position, so that the same positions mean something else; if the slot is new, so that changes may have
come and gone before it; or if the change log does not reach back to the lane's position any more
(correctness 43). A lane asks before it tells anybody that it follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.capture.spec import Started
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.timelines import switch_point


@dataclass(frozen=True, slots=True)
class Followed:
    """Whose changes a lane has."""

    system_id: str
    timeline: int


def why_not_on(
    started: Started, before: Followed | None, position: Lsn, source_url: str, log_directory: Path
) -> str:
    """Why a lane that has everything up to `position` cannot go on from there; empty if it can."""
    return _why_another(started, before, position, source_url) or _why_gone(started, position, log_directory)


def _why_another(started: Started, before: Followed | None, position: Lsn, source_url: str) -> str:
    if before is None:
        return ""
    if before.system_id != started.system_id:
        return "another server"
    if started.slot_created:
        return "a new slot"
    if before.timeline != started.timeline:
        with connect(source_url, application_name="penstock lane", replication=True) as source:
            switch = switch_point(source, before.timeline, started.timeline)
        if switch is None or position > switch:
            return "another timeline"
    return ""


def _why_gone(started: Started, position: Lsn, log_directory: Path) -> str:
    begins = ChangeLog(log_directory).start() or started.slot_position
    return f"the change log begins at {begins}" if position < begins else ""

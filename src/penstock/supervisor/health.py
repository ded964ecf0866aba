"""Whether an instance is as it should be, from what its processes say: a function of values.

live    somebody answers, and it does not help to start the instance again. A parked process does not change
        that: it was started again often enough, and is tried again when that can help.
ready   the instance does its part: it leads, and every lane runs; or it stands by and could take over. What
        reads this is a rollout, which must not go on to the next instance before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.supervisor.status import CAPTURE, CONSOLE, RunStatus


@dataclass(frozen=True, slots=True)
class Health:
    live: bool
    ready: bool
    role: str
    reasons: list[str]  # why it is not ready

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def health(status: RunStatus) -> Health:
    reasons = [] if status.live else ["The supervisor stands still."]
    for process in status.processes:
        if process.name == CONSOLE:  # nothing depends on it
            continue
        if process.state not in _good_states(process.name, status.role == "leading"):
            why = f": {process.reason}" if process.reason else "."
            if process.next_try is not None:
                why = f" and tried again at {process.next_try}{why}"
            reasons.append(f"{process.name} is {process.state}{why}")
    return Health(status.live, not reasons, status.role, reasons)


def _good_states(process: str, leads: bool) -> tuple[str, ...]:
    if process == CAPTURE:
        return ("leading", "standby")
    # While another instance leads, a lane waits; on the leader it waits only until capture answers.
    return ("running",) if leads else ("running", "waiting")

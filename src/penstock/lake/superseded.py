"""A state that another instance has left behind.

Instances of `penstock run` that stand by for each other may each have a state directory of their own. Whoever
leads writes its epoch into its state before it writes to any table. So a table with a newer epoch than the
state has was written by somebody with another state: ours ends somewhere before that, and so may our log,
while the slot has moved on. It is set aside whole, and made anew from the tables' markers and the slot, as if
it had been lost (`rebuild`). The list of lanes stays, so that nothing is acknowledged before each has joined
or was dropped; how far they are is forgotten, for the other instance may have moved the slot past that.

A log is large, so only the newest `KEPT` of what was set aside stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from penstock import durable
from penstock.core.position import Lsn
from penstock.ledger.lanes import LANES_FILE, LaneRegistry

KEPT = 2
_PREFIX = "superseded-"
# The state itself goes last, and of it the file: until then it still says that it is to be set aside.
_SET_ASIDE = ("log", "load", "checkpoint*", "maintenance.json", "state.history", "state.json")


def is_superseded(epoch: Lsn | None, table_epochs: Iterable[Lsn]) -> bool:
    """Whether somebody with another state wrote to a table after `epoch`, the last leader of this one."""
    return epoch is not None and any(each > epoch for each in table_epochs)


def set_aside(state: Path) -> Path:
    """Move a state and its log into a directory of their own, and say which. Nobody may be using them."""
    place = state / f"{_PREFIX}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}"
    with durable.storage_errors(f"Could not set the state in {state} aside."):
        LaneRegistry(state / LANES_FILE).forget_positions()
        place.mkdir()
        for pattern in _SET_ASIDE:
            for path in sorted(state.glob(pattern)):
                path.rename(place / path.name)
        durable.sync_directory(place)
        durable.sync_directory(state)
    for older in sorted(state.glob(f"{_PREFIX}*"))[:-KEPT]:
        shutil.rmtree(older, ignore_errors=True)  # what cannot go now goes the next time
    return place

"""A state that another instance has left behind.

Instances of `penstock run` that stand by for each other may each have a state directory of their own. Whoever
leads writes its epoch into its state before it writes to any table. So a table with a newer epoch than the
state has was written by somebody with another state: ours ends somewhere before that, and so may our log,
while the slot has moved on. It is set aside whole, and made anew from the tables' markers and the slot, as if
it had been lost (`rebuild`). The list of lanes stays, so that nothing is acknowledged before each has joined
or was dropped; how far they are is forgotten, for the other instance may have moved the slot past that.

Only a term whose epoch is later than the tables' does so. They would refuse what an earlier one makes, and it
would be taken for left behind in its turn: again and again, until what was first set aside is removed.

A log is large, so only the newest `KEPT` of what was set aside stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock import durable
from penstock.core.errors import HistoryUnknownError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination
from penstock.destinations.records import TableRecord
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.store import StateStore
from penstock.ledger.threads import origin_of
from penstock.log.reader import ChangeLog

KEPT = 2
_PREFIX = "superseded-"
# The state itself goes last, and of it the file: until then it still says that it is to be set aside.
_SET_ASIDE = ("log", "load", "checkpoint*", "maintenance.json", "state.history", "state.json")


def is_superseded(epoch: Lsn | None, table_epochs: Iterable[Lsn]) -> bool:
    """Whether somebody with another state wrote to a table after `epoch`, the last leader of this one."""
    return epoch is not None and any(each > epoch for each in table_epochs)


@dataclass(frozen=True, slots=True)
class Leaders:
    """Under which epochs a state, or its log, and tables were last written; None: they were not."""

    of_state: Lsn | None
    of_tables: Lsn | None

    @property
    def newest(self) -> Lsn:
        return max(self.of_state or Lsn(), self.of_tables or Lsn())

    @property
    def left_state_behind(self) -> bool:
        """Whether another instance has led since the one whose state this is."""
        return is_superseded(self.of_state, () if self.of_tables is None else (self.of_tables,))

    def precede(self, epoch: Lsn) -> bool:
        """Whether a term of this epoch is later than all of them, or the one that the state is of.

        If not, nothing may be made of what they say: tables would refuse whatever comes of it.
        """
        return epoch > self.newest or epoch == self.newest == self.of_state


def leaders(state: Path, destination: Destination, streams: Sequence[StreamId], slot: str) -> Leaders:
    """The state is read after the tables: its leader writes an epoch there before any table has it. So a
    state that is shared is never taken for one that was left behind, however long we slept in between."""
    of_tables = max(_table_epochs(state, destination, streams, slot), default=None)
    return Leaders(_state_epoch(state), of_tables)


def _state_epoch(state: Path) -> Lsn | None:
    """Whose state this is; of one that was never written, whose log."""
    document = StateStore(state).load()
    if document is not None and document.epoch is not None:
        return document.epoch
    newest = ChangeLog(state / "log").newest()
    return None if newest is None else newest.epoch


def _table_epochs(state: Path, destination: Destination, streams: Sequence[StreamId], slot: str) -> list[Lsn]:
    """Of tables that the state knows, and of others that were written through our slot."""
    document = StateStore(state).load()
    known = document.streams if document is not None else ()
    epochs = []
    for stream in {*known, *streams}:
        with suppress(HistoryUnknownError):  # recovery takes such a table over, or says what to do
            record = destination.table(stream).record()
            if record is not None and (stream in known or _is_of(slot, record)):
                epochs.append(record.epoch)
    return epochs


def _is_of(slot: str, record: TableRecord) -> bool:
    return record.marker is not None and origin_of(record.marker.generation).endswith(f".{slot}")


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

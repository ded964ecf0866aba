"""Where a term of a lane goes on from: what its target holds, as people's orders and the source change it.

A position that capture cannot go on from (`capture.continuity`) is an error, and concerns the whole lane.

A stream that the lane has followed, and that was not in the publication for a while, lacks the changes of
that time: nobody has them. It has a *gap* from then on: it stands still, the log is kept for it, and all
others flow on. A person decides: `resync --lane` loads it anew; where its rows are not sent, its changes go
on from where it stood. The gap is written at the target with the term's beginning, and capture is told only
then that it was heard of (`missed`), so no crash in between can forget it. So it is with a stream whose
changes the source did not log, or in a form that cannot be read: the change log says where (`Loads.stop`).

That a stream was followed is known from the target: `Standing.loads` has an entry for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.capture.continuity import Followed, why_not_on
from penstock.capture.spec import Started
from penstock.core.errors import PositionGoneError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from penstock.streams.followed import FollowedStream
from penstock.streams.load_state import LoadState, least_point
from penstock.streams.orders import Orders
from penstock.streams.publisher import Standing
from penstock.streams.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Ordered:
    """What people have ordered, and where the log begins: read once, so that a term goes by the same."""

    orders: Orders
    log_start: Lsn | None

    @classmethod
    def read(cls, orders: Orders, log_directory: Path) -> Ordered:
        return cls(orders, ChangeLog(log_directory).start() if orders.position is not None else None)

    def left(self, held: Standing | None) -> Orders:
        """What is not carried out yet."""
        return self.orders if held is None else self.orders.beyond(held.orders)

    def goes_back_to(self, held: Standing) -> Lsn | None:
        """Where a rewind takes the lane; None, if none is ordered, or it cannot be done."""
        to = self.left(held).position
        if to is None or self.log_start is None or not self.log_start <= to <= held.position:
            return None
        return to

    def leaves_letters(self, held: Standing) -> bool:
        """Whether the lane is to go on without dead letters that are elsewhere."""
        return self.left(held).resync == () or self.goes_back_to(held) is not None


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """`standing`: None, if the lane begins anew. `missed`: streams that were found to have a gap just now."""

    standing: Standing | None
    missed: tuple[StreamId, ...] = ()


@dataclass(frozen=True, slots=True)
class Beginning:
    """What decides it. `note` is told what a person should know."""

    settings: StreamSettings
    streams: Mapping[StreamId, FollowedStream]
    started: Started
    note: Callable[[str], None]

    def point(self, held: Standing | None, ordered: Ordered) -> StartingPoint:
        """By what is ordered and not carried out yet."""
        standing = self._ordered(held, ordered)
        if standing is None:
            return StartingPoint(None)
        if reason := self.why_not_on(standing):
            lane = self.settings.lane
            raise PositionGoneError(
                f"The lane {lane} cannot go on from what its target holds: changes that it lacks are not "
                f"there any more ({reason}).",
                remedy=f"Run `penstock resync --lane {lane} --yes`: the rows there are are sent again, then "
                "their changes.",
            )
        published = [stream for stream in self.started.published if stream in self.streams]
        missed = tuple(stream for stream in published if str(stream) in standing.loads)
        fresh = [str(each) for each in published if each not in missed and not self.streams[each].is_loaded]
        if fresh:
            names = ", ".join(fresh)
            self.note(f"{names} was not in the publication until now: earlier changes are not sent.")
        stopped = {str(each): _stopped(standing, str(each)) for each in missed}
        return StartingPoint(replace(standing, loads={**standing.loads, **stopped}), missed)

    def why_not_on(self, standing: Standing) -> str:
        settings = self.settings
        return why_not_on(
            self.started,
            Followed(standing.system_id, standing.timeline),
            flushed(standing),
            settings.source.switch_point,
            settings.log_directory,
        )

    def _ordered(self, held: Standing | None, ordered: Ordered) -> Standing | None:
        """What the lane goes on from by the orders that there are; the target has yet to write it down."""
        orders = ordered.left(held)
        if held is None or orders.resync == ():
            return None
        standing = held
        if orders.resync is not None:
            standing = replace(standing, loads=self._resynced(standing, orders.resync))
        if (to := ordered.goes_back_to(held)) is not None:
            return replace(standing, position=to)
        if orders.position is not None:
            self.note(
                f"The lane cannot go back to {orders.position}: the change log begins at "
                f"{ordered.log_start}, and the target has everything up to {standing.position}."
            )
        return standing

    def _resynced(self, standing: Standing, names: tuple[str, ...]) -> dict[str, Any]:
        """Without the states of these streams: they are new. Those whose rows are not sent go on instead."""
        loads = {name: load for name, load in standing.loads.items() if name not in names}
        for stream, followed in self.streams.items():
            if str(stream) in names and str(stream) in standing.loads and not followed.is_loaded:
                state = LoadState.from_json(standing.loads[str(stream)]).gone_on()
                loads[str(stream)] = state.to_json(standing.position)
        return loads


def _stopped(standing: Standing, stream: str) -> dict[str, Any]:
    state = LoadState.from_json(standing.loads[stream])
    return state.stopped_at(standing.position).to_json(standing.position)


def gap_told(lane: str, streams: list[StreamId]) -> str:
    """What a person is told of streams that stand still; empty if none does."""
    if not streams:
        return ""
    names = " ".join(map(str, streams))
    verb = "stands" if len(streams) == 1 else "stand"
    return (
        f"{', '.join(map(str, streams))} {verb} still: changes are missing that the source's log does not "
        "have (the publication was without the table for a while, or they were logged in a way that does not "
        f"tell rows); `penstock resync --lane {lane} {names} --yes` goes on"
    )


def flushed(standing: Standing) -> Lsn:
    """Everything up to there is at the target, of streams that load too."""
    point = least_point(standing.loads)
    return standing.position if point is None else min(standing.position, point)

"""The snapshots that loads read under: taken in a thread of their own, while the lane goes on.

A snapshot may have to wait for transactions that run. Tables are looked up before and after it is taken, so
that they are under it as they are said to be. Where readers cannot share one, a connection holds one of a
single table (`hold`), with a point of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock import failpoints
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import ExportedSnapshot
from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.base import TextSession
from penstock.sources.chunk import TableRewrittenError
from penstock.sources.tables import SourceTable
from penstock.streams.load_chunks import LoadSettings

_SETTLE_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, and the tables as the catalog had them before and after it was taken."""

    snapshot: ExportedSnapshot
    tables: Mapping[StreamId, SourceTable]


class LoadSnapshots:
    """Used by the lane's thread."""

    def __init__(self, capture: RemoteCapture, settings: LoadSettings) -> None:
        self._capture = capture
        self._settings = settings

    def take(self, streams: Sequence[StreamId]) -> Future[Taken]:
        """A snapshot under which these tables are as the catalog says."""
        return _aside(lambda: self._take(streams))

    def hold(self, stream: StreamId, taken: Taken, session: TextSession) -> Future[Taken]:
        """A table as one connection sees it from then on, with the point of that."""
        return _aside(lambda: self._hold(stream, taken, session))

    def release(self) -> None:
        self._capture.release_snapshot()

    def is_held_alone(self, table: SourceTable) -> bool:
        """Whether nobody can share a snapshot of this table: `hold` has one."""
        reading = self._settings.reading
        return reading.finds_place and not reading.shows_one_moment(table)

    def _take(self, streams: Sequence[StreamId]) -> Taken:
        for _ in range(_SETTLE_ATTEMPTS):
            before = self._look_up(streams)
            self._capture.release_snapshot()
            snapshot = self._capture.snapshot()
            after = self._look_up(streams)
            if all(after[stream].schema.lasting == before[stream].schema.lasting for stream in streams):
                failpoints.reach("streams.load_begun")
                return Taken(snapshot, after)
        raise SourceError(
            "Tables were changed each time their load was begun.",
            remedy="None needed: it is tried again. If it goes on, stop what alters the tables.",
        )

    def _look_up(self, streams: Sequence[StreamId]) -> dict[StreamId, SourceTable]:
        found = {table.stream: table for table in self._settings.source.tables(streams)}
        missing = [stream for stream in streams if stream not in found]
        if missing:
            raise SourceError("The table is gone.", stream=str(missing[0]), remedy="Run `penstock check`.")
        return {stream: found[stream] for stream in streams}

    def _hold(self, stream: StreamId, taken: Taken, session: TextSession) -> Taken:
        place = session.hold(taken.tables[stream])
        assert place is not None, "a source whose readers cannot share a snapshot says where theirs is"
        point = taken.snapshot.position_of(place)
        if point is None:
            raise SourceError(
                "Another server answers than the one whose log is read.",
                stream=str(stream),
                remedy="None needed: the lane begins anew with it.",
            )
        table = self._look_up([stream])[stream]
        if table.schema.lasting != taken.tables[stream].schema.lasting:
            raise TableRewrittenError(str(stream))
        failpoints.reach("streams.load_begun")
        return Taken(replace(taken.snapshot, consistent_point=point), {stream: table})


_Made = TypeVar("_Made")


def _aside(make: Callable[[], _Made]) -> Future[_Made]:
    made: Future[_Made] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="stream-load-snapshot", daemon=True).start()
    return made

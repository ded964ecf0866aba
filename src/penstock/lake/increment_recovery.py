"""What an earlier run left of incremental streams, settled before anything is read.

The decisions are in `ledger.incremental`; what they go by is asked of the tables. A table whose marker says
another cursor than the state is believed: the state was put back, or is gone. So a state directory that was
lost costs nothing: each table knows how far it is read.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.stream import StreamId
from penstock.destinations.records import TableRecord
from penstock.lake.lane_state import LaneState, LaneStream
from penstock.ledger import incremental
from penstock.ledger.threads import origin_of

OTHER_LOAD = "the table is of another load than the state: one of the two was put back"


class IncrementRecovery:
    """Made before anything else is settled, as long as it can be told whether there was a state."""

    def __init__(self, lane: LaneState, record: Callable[[StreamId], TableRecord | None]) -> None:
        self._lane = lane
        self._record = record
        self._state_is_lost = not lane.ledger.document.streams and not lane.ledger.document.was_emptied

    def recover(self) -> None:
        """Settle rounds that an earlier run left open; believe a table that is ahead of the state."""
        for stream, configured in self._lane.streams.items():
            if configured.mode != "incremental":
                continue
            if self._state_is_lost:
                self._take_up(stream, configured)
            found = incremental.recover(self._lane.ledger.document, stream, self._is_thread_committed)
            self._lane.ledger.write(found.document)
            self._adopt_cursor(stream)
            self._reload_if_read_otherwise(stream, configured)

    def _is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        record = self._record(stream)
        return record is not None and record.has_thread(thread_id)

    def _take_up(self, stream: StreamId, configured: LaneStream) -> None:
        """Go on with a table that is there although the state is gone, if its own marker says how far it is.

        Not with a partitioned one: its list of leaves was in the state.
        """
        assert configured.cursor is not None, "the configuration has one for this mode"
        document, record = self._lane.ledger.document, self._record(stream)
        marker = record.marker if record is not None else None
        if document.stream(stream) is not None or configured.info.kind == "partitioned" or marker is None:
            return
        from_here = origin_of(marker.generation) == self._lane.settings.origin
        ours = from_here and self._lane.is_layout_of(stream, record)
        names = configured.cursor.names
        if ours and marker.cursor is not None and set(marker.cursor) <= set(names):
            self._lane.listener.note(f"{stream}: there is no state, but a table; going on from its cursor.")
            self._lane.ledger.write(
                incremental.take_up(document, stream, names, generation=marker.generation, held=marker.cursor)
            )

    def _adopt_cursor(self, stream: StreamId) -> None:
        document = self._lane.ledger.document
        state, names = document.stream(stream), incremental.cursor_names(document, stream)
        record = self._record(stream)
        marker = record.marker if record is not None else None
        if state is None or not state.has_completed_backfill or names is None or marker is None:
            return
        if marker.generation != state.generation:
            if state.load_generation == state.generation:
                self._lane.reload(stream, OTHER_LOAD)
            return
        if marker.cursor is None:
            return
        if marker.cursor != incremental.cursors(document, stream, names):
            self._lane.listener.note(f"{stream}: the table is not where the state says; going on from there.")
            self._lane.ledger.write(incremental.adopt(document, stream, marker.cursor))

    def _reload_if_read_otherwise(self, stream: StreamId, configured: LaneStream) -> None:
        document = self._lane.ledger.document
        state, names = document.stream(stream), incremental.cursor_names(document, stream)
        assert configured.cursor is not None, "the configuration has one for this mode"
        if state is not None and state.has_completed_backfill and names != configured.cursor.names:
            self._lane.reload(stream, "it is to be read by another cursor")

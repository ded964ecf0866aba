"""`LoadStates`: what the target is told of each stream of a lane, as the proof in `loading` counts it.

A stream's `LoadState` says which rows and which changes were told. It changes in the ways that the proof
names, each of them a method here, and in no other; what is read, and where it is sent, is not known here.
Between two batches the states speak of exactly what was given so far, so they can be written down with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.capture.transactions import ChangeRows
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.load_state import LoadState, Place


class LoadStates:
    """`loads` is what the target holds. A stream of `streams` that it does not have, or whose rows it was not
    told, is new: it has no state until its snapshot has a point. `without_rows`: streams of which only
    changes are told. `lane`: the lane's position, the end of whole transactions."""

    def __init__(
        self,
        streams: Collection[StreamId] = (),
        without_rows: Collection[StreamId] = (),
        loads: Mapping[str, Any] | None = None,
        lane: Lsn = Lsn(0),  # noqa: B008 - a value
    ) -> None:
        held = {} if loads is None else loads
        self.streams = tuple(sorted(streams))
        self.without_rows = tuple(sorted(without_rows))
        self.lane = lane
        known = {
            stream: LoadState.from_json(held[str(stream)]) for stream in self.streams if str(stream) in held
        }
        self._states = {stream: state for stream, state in known.items() if state.has_rows}
        self.new = frozenset(self.streams).difference(self._states)
        for stream in self.without_rows:
            self._states[stream] = LoadState.from_json(held.get(str(stream), {})).without_rows()
        self._first_followed = [stream for stream in self.without_rows if str(stream) not in held]

    def __getitem__(self, stream: StreamId) -> LoadState:
        return self._states[stream]

    def to_json(self) -> dict[str, Any]:
        return {str(stream): state.to_json(self.lane) for stream, state in self._states.items()}

    # What is so

    @property
    def wanting(self) -> list[StreamId]:
        """Streams whose rows are not all told, and that do not stand still."""
        return [
            stream
            for stream in self.streams
            if stream in self.new or (self._states[stream].next and not self._states[stream].has_gap)
        ]

    @property
    def behind(self) -> list[StreamId]:
        """Streams whose rows are told, and whose changes are not."""
        return [stream for stream, state in self._states.items() if state.is_behind and not state.has_gap]

    @property
    def unknown(self) -> frozenset[StreamId]:
        """Streams without a state: new, and their snapshot is still to come."""
        return self.new.difference(self._states)

    @property
    def gaps(self) -> list[StreamId]:
        """Streams that stand still, because changes of theirs are missing."""
        return [stream for stream, state in self._states.items() if state.has_gap]

    @property
    def points(self) -> list[Lsn]:
        """From where on the log is needed for streams that load."""
        return [state.point for state in self._states.values() if state.is_loading]

    @property
    def is_level(self) -> bool:
        """Whether no change of a stream that has a state is left out."""
        return not any(state.is_loading or state.point > self.lane for state in self._states.values())

    def is_loading(self, stream: StreamId) -> bool:
        state = self._states.get(stream)
        return stream in self.streams if state is None else state.is_loading

    def keep(self, changes: ChangeRows, untold: Sequence[int]) -> ChangeRows | None:
        """What the lane tells of changes that it follows (2.): nothing of a stream that loads, or from the
        first transaction on that is `untold` and not passed."""
        stream = changes.stream
        if self.is_loading(stream):
            return None
        state = self._states.get(stream)
        point = Lsn(0) if state is None else state.point
        return changes.between(point, _first_from(point, untold))

    # What happens

    def begin_following(self) -> None:
        """Of streams without rows that the target does not know yet, changes are told from here on."""
        for stream in self._first_followed:
            self._states[stream] = replace(self._states[stream], since=self.lane)

    def begin(self, stream: StreamId, state: LoadState) -> None:
        """Its point is known, or it is read anew (5., 7.)."""
        self._states[stream] = state

    def rows_told(self, stream: StreamId, count: int) -> None:
        """Rows of a chunk (1.), maybe not all of it (6.)."""
        state = self._states[stream]
        self._states[stream] = replace(state, rows=state.rows + count)

    def chunk_told(self, stream: StreamId, after: Place | None) -> None:
        """All rows of a chunk (1.); if there is none after it, of the table (3.)."""
        self._states[stream] = replace(self._states[stream], next=after, is_behind=after is None)

    def changes_told(self, stream: StreamId, point: Lsn) -> None:
        """Up to there, whole transactions (3., 4.)."""
        self._states[stream] = replace(self._states[stream], point=point)

    def cannot_go_on(self, stream: StreamId) -> None:
        """Its rows must be read anew (4.), and a term that comes after a crash must know that."""
        self._states[stream] = replace(self._states[stream], storage="")

    def meet_lane(self, stream: StreamId) -> bool:
        """Whether a stream whose rows are told has come to the lane (3.); it follows with it then."""
        state = self._states[stream]
        if not state.is_behind or state.point < self.lane:
            return False
        self._states[stream] = LoadState(state.point, has_rows=state.has_rows, since=state.since)
        return True

    def stop_behind(self, stream: StreamId, tx: int) -> None:
        """The log does not tell what a transaction changed (8.)."""
        self._states[stream] = self._states[stream].stopped_behind(tx)

    def stop(self, untold: Mapping[StreamId, Sequence[int]], end: Lsn) -> bool:
        """These streams lack what such a transaction changed, and stand still behind it (8.); whether any
        does that did not before. One that loads comes there by itself. `end`: the lane's position."""
        stopped = {
            stream: state.stopped_behind(tx)
            for stream, txs in untold.items()
            if (state := self._states.get(stream)) and not state.is_loading
            if (tx := _first_from(state.point, txs)) is not None
        }
        if stopped:
            self._states |= stopped
            self.lane = end
        return bool(stopped)


def _first_from(point: Lsn, transactions: Sequence[int]) -> Lsn | None:
    return min((Lsn(tx) for tx in transactions if tx >= point), default=None)

"""`Loads`: the rows that streams have when a lane begins, as events with `op` `r`, and then their changes.

What is promised: of each stream, every change that commits after its first point P is told exactly once and
in order; and whoever applies the events of a key in their order has, once the stream follows, the rows of the
source. (Rows of tables without a key are told exactly once as long as the snapshot lives, see the end.)

The snapshot has a point P, and is taken after the stream was published: a transaction is in it ⇔ `tx < P`,
and of every other one the log has all rows. What is open while chunks are read commits after P: no chunk
shows it, however late that chunk is read. A row that moves between chunks meanwhile moves in a version that
no chunk sees. Where that is so:

- *Postgres*: the snapshot is exported by the creation of a slot with consistent point P (correctness 8, 9).
- *MongoDB*: it is a cluster time, for as long as the server keeps that state. When it is gone the load goes
  on under a later one (4.).
- *MySQL*: readers share no snapshot. One connection holds one of a single table, and finds its place in the
  log (`TextSession.hold`), so each table has a point of its own, at or behind the one that the load began
  with. The table is read by that connection alone, all chunks of it, and then comes the next one.

A capped collection of MongoDB has no such states: its rows are as they were when they were read, which is
after P. Its changes from P on follow them like those of others, so a row may be told as it became by a change
that comes behind it. Applied in order they still give the source's rows, for every change has its whole row
or says which values it left as they were.

What the target holds of a stream that loads is its `LoadState`, written in the same commit as the events it
speaks of, or behind them (a `RecordTarget`, which skips what it finds there already). Its invariant:

    told are the rows of all chunks before `next`, and of the changes exactly those with P ≤ tx < `point`;
    applied in the order they were told, they give for every key of those chunks its row at `point`.

Each thing that happens keeps it (`LoadStates` has a method for each that changes a state):

1. *A chunk* under the snapshot of `point`: its rows are those at `point`; `next` moves behind it.
2. *Changes* of the stream that the lane meets meanwhile are left out (`keep`): nothing happens.
3. *The last chunk*: `next` is gone, the stream is `behind`. Its changes are read again from the log, which
   capture keeps from `point` on (`least_point` is what it is told), from `point` up to the lane's position X,
   and told; `point` moves with whole transactions. When it comes to X, the same batch says that the stream
   follows: changes below X are told, and the lane brings those from X on (`keep` lets them pass). If the
   lane has not come to `point` yet, it follows at once, and what lies below `point` is left out.
4. *A crash, or a lost snapshot*: the state at the target stands. A new snapshot has a later point P'. First
   the changes from `point` to P' are told: `point` is P'. Then the chunks from `next` on are read under the
   new snapshot, 1. holds of them, and the keys of the chunks before have their rows at P' by the changes.
   A key of a chunk before `next` is told by changes alone; that is enough unless a change lacks a value
   (unchanged TOAST) of a row that no chunk has told: one that came from beyond `next`. With key ranges that
   takes a change of the key, with page ranges any update may have moved a row. Such a stream is read anew,
   which the same batch writes down.
5. *Read anew*: `next` goes to the beginning under the same P'. Every key is told again, as it is at P', or
   was deleted by a change before. Also if the table's files changed (VACUUM FULL, TRUNCATE, a rewriting
   ALTER, correctness 11), found after a chunk was read or when a load goes on, whatever rows were told.
6. *Part of a chunk* may be at the target after a crash or before 5.: rows as they were at `point`, which the
   next chunk tells again, after the changes up to its own point.
7. *A stream that is added* begins like any other, with a point of its own, while the others are followed. Its
   state is at the target before its first row is (`held`): of rows whose point nobody knows, nobody could
   tell the deletes between that point and the next. So it is with a table whose point is found when its turn
   comes: until then nothing of it is told, so its state may say a later point than it did.
8. *A stream that has a gap* (`LoadState.has_gap`) is left out like one that loads, and nothing is done about
   it: `point` stays, so that the log is kept, until somebody decides (`starting_point`). It has one from a
   transaction on of which the log says that changes are missing (`stop`, `ChangesAgain.untold`), or of which
   its filter cannot say what it is to the stream (`undecided`): what is before that is told, the transaction
   is passed over as a whole, and `point` is behind it.

Streams whose rows are not wanted take part too, without a load: the target has a state of each, which says
that it was followed. Of a stream that it has none of, no change can be missing.

A table without a key has rows that cannot be told from each other: when its snapshot is lost it is read anew,
and rows that were told before are told twice. That is counted (`read_anew`).

Bounded: what is read ahead (`load_chunks`), and batches of changes by fragments (`capture.transactions`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from penstock import failpoints
from penstock.capture.remote import RemoteCapture
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import ChangeRows
from penstock.core.errors import CaptureAwayError, SnapshotLostError
from penstock.core.position import Lsn
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.sources.base import TextSession
from penstock.sources.chunk import TableRewrittenError
from penstock.streams.events import Batch, Events
from penstock.streams.load_changes import Encode, changes_again
from penstock.streams.load_chunks import (
    ChunkPart,
    ChunkReaders,
    LoadSettings,
    plan_reads,
)
from penstock.streams.load_snapshots import LoadSnapshots, Taken
from penstock.streams.load_state import BEGINNING, LoadState, least_point
from penstock.streams.load_states import LoadStates
from penstock.streams.publisher import StoppedError
from penstock.streams.undecided import FindUndecided

__all__ = ["LoadSettings", "Loads", "least_point"]

_LOOK_EVERY_S = 0.2
_logger = structlog.get_logger("penstock.streams")

_Step = tuple[Sequence[Events], bool]  # events, and whether the state speaks of all that were given so far


class Loads:
    """Of one term of a lane, used by the lane's thread. `encode` makes events of changes and of loaded rows.

    `held` says what the target is known to hold (`Standing.loads`); then streams that are added to a lane
    begin while it follows. Without, `begin` waits for the snapshot, and its `state` must be written down
    before the first batch is. `read_anew` counts over all terms how often each table was.
    """

    def __init__(
        self,
        capture: RemoteCapture,
        log_directory: Path,
        settings: LoadSettings,
        selections: Mapping[StreamId, Selection],
        encode: Encode,
        held: Callable[[], Mapping[str, Any]] | None = None,
        undecided: FindUndecided = lambda _: (),
        read_anew: Counter[StreamId] | None = None,
    ) -> None:
        self._capture = capture
        self._log_directory = log_directory
        self._settings = settings
        self._snapshots = LoadSnapshots(capture, settings)
        self._selections = selections
        self._encode = encode
        self._held = held
        self._undecided = undecided
        self._states = LoadStates()
        self._within_s = 0.0
        self._work: Iterator[_Step | None] | None = None
        self._is_open = self._begins_again = False  # a batch that was not the last was given; see next_batch
        self.read_anew: Counter[StreamId] = Counter() if read_anew is None else read_anew

    def begin(
        self,
        streams: Collection[StreamId],
        loads: Mapping[str, Any],
        position: Lsn | None,
        stop: threading.Event | None = None,
        *,
        without_rows: Collection[StreamId] = (),
    ) -> Lsn:
        """Take up the loads of these streams, which are all that the lane loads; where it follows from.

        `loads` and `position` are what the target holds. A stream that `loads` does not have is new. Where it
        has to wait for the snapshot, `stop` ends that with a `StoppedError`. `without_rows`: the lane's other
        streams, of which only changes are told.
        """
        lane = position if position is not None else Lsn(0)
        states = self._states = LoadStates(streams, without_rows, loads, lane)
        wanting = states.wanting
        if position is None and not wanting:
            raise ValueError("a lane that loads nothing says where it begins")
        taken = self._snapshots.take(wanting) if wanting else None
        if taken is not None and (position is None or self._held is None):
            while not wait([taken], _LOOK_EVERY_S).done:
                if stop is not None and stop.is_set():
                    raise StoppedError("the end was asked for while the source made a snapshot")
            self._note(taken.result())
            if position is None:
                states.lane = taken.result().snapshot.consistent_point
        states.begin_following()
        self._work = self._run(taken) if wanting or states.behind else None
        return states.lane

    @property
    def is_active(self) -> bool:
        return self._work is not None

    def is_loading(self, stream: StreamId) -> bool:
        return self._states.is_loading(stream)

    @property
    def state(self) -> dict[str, Any]:
        """What `Standing.loads` is with all that was given so far."""
        return self._states.to_json()

    @property
    def is_level(self) -> bool:
        """Whether no change of any stream is left out."""
        return self._work is None and self._states.is_level

    @property
    def gaps(self) -> list[StreamId]:
        """Streams that stand still, because changes of theirs are missing."""
        return self._states.gaps

    def points(self) -> list[Lsn]:
        """From where on the log is needed for streams that load."""
        return self._states.points

    def keep(self, changes: ChangeRows, untold: Sequence[int] = ()) -> ChangeRows | None:
        """What the lane tells of changes that it follows; None: nothing."""
        return self._states.keep(changes, untold)

    def stop(self, untold: Mapping[StreamId, Sequence[int]], end: Lsn) -> bool:
        """What these transactions changed is missing; whether a stream stands still that did not before."""
        return self._states.stop(untold, end)

    def next_batch(self, end: Lsn, within_s: float = 0.0) -> Batch | None:
        """What is ready; None if nothing is. `end`: the lane's position, the end of whole transactions.

        After a batch that is not `is_last`, ask again and publish nothing else until there is one.
        """
        if self._work is None:
            return None
        self._states.lane = end
        self._within_s = within_s
        if self._begins_again:
            self._begins_again = False
            states = self._states
            self.begin(states.streams, states.to_json(), end, without_rows=states.without_rows)
            return None
        try:
            step = next(self._work)
        except StopIteration:
            self._work = None
            return None
        except (TableRewrittenError, SnapshotLostError) as error:
            _logger.info("a load goes on under another snapshot", reason=str(error))
            self._begins_again = True
            if not self._is_open:
                return None
            step = (), True  # a new slot may take long, and the target's commit must not wait for it
        if step is None:
            return None
        events, is_last = step
        self._is_open = not is_last
        return Batch(end, events, is_last, self.state if is_last else None)

    def close(self) -> None:
        """Readers are ended, and the snapshot is let go."""
        work, self._work = self._work, None
        if work is not None:
            work.close()  # type: ignore[attr-defined]  # a generator
        with contextlib.suppress(CaptureAwayError):
            self._snapshots.release()

    def _note(self, taken: Taken) -> None:
        """Now the states of streams that are new are known."""
        for stream in self._states.unknown:
            self._states.begin(stream, self._anew(stream, taken))

    def _anew(self, stream: StreamId, taken: Taken) -> LoadState:
        point, table = taken.snapshot.consistent_point, taken.tables[stream]
        return LoadState(
            point,
            name=f"{stream}@{point}",
            next=BEGINNING,
            method=self._settings.reading.method_for(table, self._settings.method),
            storage=table.schema.storage or str(table.oid),
            since=point,
        )

    # The steps of the work, in the order of the proof

    def _run(self, waiting: Future[Taken] | None) -> Iterator[_Step | None]:
        for stream in self._states.behind:
            yield from self._level(stream)
        if waiting is None:
            return
        while not waiting.done():
            yield None
        taken = waiting.result()
        self._note(taken)
        alone = [stream for stream, table in taken.tables.items() if self._snapshots.is_held_alone(table)]
        shared = {stream: table for stream, table in taken.tables.items() if stream not in alone}
        yield from self._written_down(self._states.new)
        for stream in shared:
            if stream not in self._states.new:
                yield from self._resume(stream, taken)
        going_on = {stream: table for stream, table in shared.items() if not self._states[stream].has_gap}
        if going_on:
            yield from self._read(Taken(taken.snapshot, going_on))
        for stream in alone:
            yield from self._read_alone(stream, taken)

    def _read_alone(self, stream: StreamId, taken: Taken) -> Iterator[_Step | None]:
        session = self._settings.reading.text_session()
        try:
            waiting = self._snapshots.hold(stream, taken, session)
            while not waiting.done():
                yield None
            held = waiting.result()
            if stream in self._states.new:
                self._states.begin(stream, self._anew(stream, held))
                if self._held is None:
                    yield (), True
                yield from self._written_down([stream])
            else:
                yield from self._resume(stream, held)
            if not self._states[stream].has_gap:
                yield from self._read(held, session)
        finally:
            session.close()

    def _written_down(self, streams: Collection[StreamId]) -> Iterator[_Step | None]:
        """Have the target hold the points of these streams."""
        held = self._held
        if held is None or not streams:
            return
        points = {str(stream): self._states[stream].point for stream in streams}

        def is_held() -> bool:
            loads = held()
            return all(
                name in loads and LoadState.from_json(loads[name]).point == at for name, at in points.items()
            )

        if not is_held():
            yield (), True
        while not is_held():
            yield None

    def _resume(self, stream: StreamId, taken: Taken) -> Iterator[_Step | None]:
        """Changes up to the new snapshot's point; then what is left of the rows, or all of them."""
        state, anew = self._states[stream], self._anew(stream, taken)
        has_key = bool(taken.tables[stream].schema.key)
        goes_on = has_key and (state.method, state.storage) == (anew.method, anew.storage)
        for step, lacks in self._changes(stream, anew.point):
            if lacks:
                goes_on = False
                self._states.cannot_go_on(stream)
            yield step
        if not goes_on and not self._states[stream].has_gap:
            self._states.begin(stream, anew)
            self.read_anew[stream] += 1
            _logger.info("a table is read anew", stream=str(stream))

    def _read(self, taken: Taken, alone: TextSession | None = None) -> Iterator[_Step | None]:
        """What is left of the tables, by several connections or by `alone`."""
        with self._settings.reading.session() as session:
            reads = [
                read
                for stream, table in taken.tables.items()
                for read in plan_reads(
                    session,
                    table,
                    self._selections[stream],
                    self._states[stream].next or BEGINNING,
                    self._settings,
                )
            ]
        readers = ChunkReaders(reads, taken.snapshot.name, self._settings, alone)
        try:
            for read in reads:
                is_last = False
                while not is_last:
                    while (part := readers.take(self._within_s)) is None:
                        yield None
                    is_last = part.is_last
                    yield self._told(part)
                if read.after is None:
                    if read is reads[-1]:
                        readers.close()
                        if alone is not None:
                            alone.close()
                        self._snapshots.release()
                    yield from self._level(read.stream)
        finally:
            readers.close()

    def _told(self, part: ChunkPart) -> _Step:
        stream = part.read.stream
        state = self._states[stream]
        events: list[Events] = []
        rows = 0
        if part.rows is not None:
            rows = part.rows.num_rows
            numbers = pa.array(np.arange(state.rows, state.rows + rows))
            at = part.rows.schema.get_field_index(log_columns.OP_INDEX)
            arrays = part.rows.columns
            arrays[at] = numbers
            numbered = pa.RecordBatch.from_arrays(arrays, schema=part.rows.schema)
            changes = ChangeRows(stream, part.read.leaf, part.read.part.id, numbered)
            events = [replace(each, chunk=state.name) for each in self._encode(changes)]
        if part.is_last:
            failpoints.reach("streams.load_chunk")
        self._states.rows_told(stream, rows)
        if part.is_last:
            self._states.chunk_told(stream, part.read.after)
        return events, part.is_last

    def _level(self, stream: StreamId) -> Iterator[_Step | None]:
        """Changes up to the lane's position, until it is one with that of the stream."""
        if self._follows(stream):
            yield (), True
        while self._states[stream].is_behind and not self._states[stream].has_gap:
            for step, _ in self._changes(stream, self._states.lane):
                yield step

    def _follows(self, stream: StreamId) -> bool:
        """Whether a stream whose rows are told has come to the lane; it follows with it then."""
        if not self._states.meet_lane(stream):
            return False
        failpoints.reach("streams.load_level")
        return True

    def _changes(self, stream: StreamId, to: Lsn) -> Iterator[tuple[_Step | None, bool]]:
        """The stream's changes up to `to`, and whether an update among them could leave a row half told."""
        state = self._states[stream]
        if state.point >= to:
            return
        reader = TailReader(self._capture, self._log_directory, {stream})
        parts = changes_again(
            reader,
            self._encode,
            state.point,
            to,
            by_pages=state.method == "ctid",
            undecided=self._undecided,
        )
        with contextlib.closing(parts):
            for again in parts:
                if again is None:
                    yield None, False
                    continue
                if again.untold is not None:
                    self._states.stop_behind(stream, again.untold)
                else:
                    self._states.changes_told(stream, again.point)
                    if again.point >= to:
                        self._follows(stream)
                yield (again.events, again.is_whole), again.lacks

"""Events of a change stream to rows of the change log: a `Decoder`.

A transaction is all events of one cluster time: of a transaction of several documents they all have that of
its commit. It is whole when an event of a later time has come, or a batch has said so (`stream`). Its number
`tx` is the time; a row's ordinal counts the events of its collection in it (correctness 52), which no filter
changes: collections are selected as a whole.

A collection that is dropped, or renamed away, is emptied: a truncate. One that takes a captured name by being
renamed brings documents that no event tells; what is written then is a truncate under its new number, by
which whoever follows knows to load it again.

With a position goes the token of the last event that the log has. A cluster that does not have that event is
not as the log says any more, however its times go on: one that was restored from a copy (`setup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import bson
import numpy as np

from penstock.capture.log_reading import ChangeSink, Decoded, Truncation
from penstock.capture.mongodb.collections import Collections
from penstock.capture.mongodb.rows import change_rows, documents_after
from penstock.capture.mongodb.stream import EventBatch, size_of
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.mongodb.events import Events, Operation
from penstock.text_kernels import Ints

_NOWHERE = Lsn(0)


class ChangeDecoder:
    """`last`: that of the last event which the log has. Tokens are of a stream of `database`, or of all."""

    def __init__(self, collections: Collections, database: str = "", last: Place | None = None) -> None:
        self._collections = collections
        self._database = database
        self._last = last
        self._open: int | None = None
        #: of each collection the time of its last event, and how many of its events had that
        self._counted: dict[StreamId, tuple[int, int]] = {}

    @property
    def open_tx(self) -> int | None:
        return self._open

    @property
    def spilled_bytes(self) -> int:
        return 0

    def parts(self, batch: EventBatch) -> Iterator[EventBatch]:
        last = len(batch.events) - 1
        for number, events in enumerate(batch.events):
            yield EventBatch((events,), batch.complete if number == last else _NOWHERE)
        if not batch.events and batch.complete:
            yield batch

    def decode(
        self,
        part: EventBatch,
        first: int,
        log_end: Lsn,
        must_end: Callable[[Lsn], bool],
        sink: ChangeSink,
    ) -> Decoded:
        if not part.events:
            return self._decode_token(part.complete, log_end)
        [events] = part.events
        times = events.times.astype(np.int64)
        last, whole = events.rows, int(part.complete) > int(times[-1])
        if not whole:
            boundary = max(first, int(np.searchsorted(times, times[-1])))
            ended = self._ended(times[first:boundary], int(times[-1]))
            if len(ended) and must_end(Lsn(int(ended[-1]) + 1)):
                last, whole = boundary, True
        written = times[first:last]
        left_open = None if whole else int(times[-1])
        ended = self._ended(written, left_open)
        self._open = left_open
        self._write(events, first, last, log_end, sink)
        if last > first:
            self._last = Place(bson.decode(events.token(last - 1))["_data"], server=self._database)
        position = Lsn(int(ended[-1]) + 1) if len(ended) else _NOWHERE
        if last == events.rows and left_open is None:
            position = max(position, part.complete)
        return Decoded(
            rest=last if last < events.rows else None,
            position=position,
            messages=int(np.count_nonzero(written >= log_end)),
            transactions=int(np.count_nonzero(ended >= log_end)),
            bytes=size_of(events.part(first, last)),
            place=self._last,
        )

    def add(self, streams: Sequence[StreamId]) -> None:
        self._collections.selection.add(streams)

    def close(self) -> None:
        self._collections.close()

    def _decode_token(self, complete: Lsn, log_end: Lsn) -> Decoded:
        if self._open is not None and int(complete) <= self._open:
            return Decoded(None, _NOWHERE, 0, 0, 0)
        ended = self._open is not None and self._open >= log_end
        self._open = None
        return Decoded(None, complete, 0, int(ended), 0, self._last)

    def _ended(self, times: Ints, still_open: int | None) -> Ints:
        """The times of transactions that are over, if these come and `still_open` is not."""
        known = times if self._open is None else np.concatenate([np.array([self._open], np.int64), times])
        found: Ints = np.unique(known)
        return found if still_open is None else found[found != still_open]

    def _write(self, events: Events, first: int, last: int, log_end: Lsn, sink: ChangeSink) -> None:
        begin = max(first, int(np.searchsorted(events.times, np.uint64(log_end))))
        operations = events.operations
        rare = np.flatnonzero(operations[begin:last] >= Operation.DROP) + begin
        for row in map(int, rare):
            self._write_changes(events, begin, row, sink)
            self._write_rare(events, row, sink)
            begin = row + 1
        self._write_changes(events, begin, last, sink)

    def _write_changes(self, events: Events, begin: int, end: int, sink: ChangeSink) -> None:
        if begin >= end:
            return
        operations = events.operations[begin:end]
        changes = np.flatnonzero((operations >= 0) & (operations < Operation.DROP)) + begin
        if not len(changes):
            return
        numbers, names = events.namespaces
        order = np.argsort(numbers[changes], kind="stable")
        changes = changes[order]
        of = numbers[changes]
        for chosen in np.split(changes, np.flatnonzero(np.diff(of)) + 1):
            stream = StreamId(*names[int(numbers[chosen[0]])])
            table = self._collections.table(stream)
            if table is None:
                continue
            ordinal = self._count(stream, events.times[chosen].astype(np.int64))
            changed = change_rows(events, chosen, ordinal, table.schema, sink.schema_of(table))
            if changed.has_unknown:
                wider = self._collections.grown(table, documents_after(events, chosen))
                if wider is not None:
                    table = wider
                    changed = change_rows(events, chosen, ordinal, table.schema, sink.schema_of(table))
            sink.write(table, changed.rows, changed.operations)

    def _write_rare(self, events: Events, row: int, sink: ChangeSink) -> None:
        operation = events.operations[row]
        if operation not in (Operation.DROP, Operation.RENAME):
            return
        numbers, names = events.namespaces
        self._empty(StreamId(*names[int(numbers[row])]), events, row, sink, is_new=False)
        if operation == Operation.RENAME:
            to = events.decoded(row)["to"]
            self._empty(StreamId(to["db"], to["coll"]), events, row, sink, is_new=True)

    def _empty(self, stream: StreamId, events: Events, row: int, sink: ChangeSink, *, is_new: bool) -> None:
        if is_new:
            self._collections.forget(stream)
        table = self._collections.table(stream)
        if table is None:
            return
        [ordinal] = self._count(stream, events.times[row : row + 1].astype(np.int64))
        time, number = int(events.times[row]), int(events.transactions[row])
        at = Truncation(time, 2 * int(ordinal), max(0, number), int(events.committed_us[row]))
        sink.truncate(table, at, whole=True)
        if not is_new:
            self._collections.forget(stream)

    def _count(self, stream: StreamId, times: Ints) -> Ints:
        """The ordinal of each event of a collection within its time; the times ascend."""
        before, counted = self._counted.get(stream, (-1, 0))
        begins = np.concatenate([[True], times[1:] != times[:-1]])
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(times)), 0))
        ordinal: Ints = np.arange(len(times)) - starts
        if times[0] == before:
            ordinal[times == before] += counted
        self._counted[stream] = int(times[-1]), int(ordinal[-1]) + 1
        return ordinal

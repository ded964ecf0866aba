"""A change stream as the loop reads it: a `LogStream` of events.

The driver waits for the server, so a thread of its own does; a pipe says that something has come. It waits as
long as `BYTES_MAX` is there that was not taken: memory is bounded, and the server waits with us.

What a batch says of completeness (correctness 55): everything below its `complete` has come as a whole.

| the batch's token is | then `complete` is |
|---|---|
| a high water mark of time t | t |
| of an event of time t | t: more of its transaction may follow |
| of an event of time t, in a batch without events, of a replica set | t + 1 |

The last holds because a server that has anything left of an entry of its oplog hands it out before it waits
for more. A router of several shards knows less: two shards may have events of the same time. There, the next
event or mark tells.

An empty batch after one with events is asked for without waiting, so that a transaction is whole when it has
come; after that one is asked for five times a second, whose token moves while nothing happens.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import bson

from penstock.capture.mongodb.selection import Selection
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.sources.mongodb.change_stream import ChangeBatch, Place
from penstock.sources.mongodb.events import Events

BYTES_MAX = 32 << 20
_IDLE_MS, _AT_ONCE_MS = 200, 1
_REPORT_EVERY_S = 10.0
_FILL_S = 0.002
_END_WITHIN_S = 1.0


class LogCursor(Protocol):
    """A change stream, or several that are read as one."""

    place: Place

    def read(self, wait_ms: int = ...) -> ChangeBatch: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in their order. Everything below `complete` has come with them, or before; 0: nothing new."""

    events: tuple[Events, ...]
    complete: Lsn

    @property
    def bytes(self) -> int:
        return sum(size_of(each) for each in self.events)


def size_of(events: Events) -> int:
    return int((events.documents.ends - events.documents.starts).sum())


def complete_below(batch: ChangeBatch, *, rests_between: bool) -> Lsn:
    """`rests_between`: a batch without events is only sent between two entries of the log."""
    if batch.place.token is None:
        return Lsn(0)
    token = ResumeToken(bson.decode(batch.place.token)["_data"])
    return token.position_behind if rests_between and not batch.rows else token.time


class MongoStream:
    """`open_stream` makes one that goes on behind a place, of what is selected; None: behind none yet."""

    report_every_s = _REPORT_EVERY_S

    def __init__(
        self,
        open_stream: Callable[[LogCursor | None], LogCursor],
        selection: Selection,
        *,
        sharded: bool,
        acknowledge: Callable[[Lsn], None],
        on_close: Callable[[], None],
    ) -> None:
        self._open_stream = open_stream
        self._selection = selection
        self._sharded = sharded
        self._acknowledge = acknowledge
        self._on_close = on_close
        self._room = threading.Condition()
        self._arrived: list[EventBatch] = []  # and not received
        self._received: list[EventBatch] = []
        self._arrived_bytes = self._received_bytes = 0
        self._complete = self._acknowledged = self._noted = Lsn(0)
        self._failure: BaseException | None = None
        self._closed = False
        version = selection.version
        self._stream = open_stream(None)
        selection.opened(version)
        self._version = version
        self._readable, self._told = os.pipe()
        os.set_blocking(self._readable, False)
        self._thread = threading.Thread(target=self._run, name="capture-mongodb", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        return self._received_bytes

    @property
    def is_full(self) -> bool:
        return self._received_bytes >= BYTES_MAX // 2

    def receive(self) -> int:
        if self._failure is not None:
            raise self._failure
        with self._room:
            arrived, self._arrived = self._arrived, []
            size, self._arrived_bytes = self._arrived_bytes, 0
            self._received += arrived
            self._received_bytes += size
            self._clear()
        return size

    def take(self) -> EventBatch:
        with self._room:
            taken, self._received, self._received_bytes = self._received, [], 0
            self._room.notify_all()
        complete = max((batch.complete for batch in taken), default=Lsn(0))
        return EventBatch(tuple(events for batch in taken for events in batch.events), complete)

    def wait(self, timeout_s: float, wake: int) -> None:
        select.select([self._readable, wake], [], [], timeout_s)

    def let_fill(self) -> None:
        select.select([self._readable], [], [], _FILL_S)

    def report(self, received: Lsn, acknowledged: Lsn, *, ask: bool = False) -> None:
        """The server says where it is without being asked, and keeps its log as long as it likes; what is
        acknowledged is noted there soon."""
        self._acknowledged = acknowledged

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._selection.close()
        with self._room:
            self._room.notify_all()
        self._thread.join(_END_WITHIN_S)
        self._on_close()  # a thread that waits for a server that is gone ends by that
        self._thread.join()
        os.close(self._readable)
        os.close(self._told)

    def _run(self) -> None:
        wait_ms = _AT_ONCE_MS
        try:
            while not self._closed:
                self._follow_selection()
                self._note()
                batch = self._stream.read(wait_ms)
                wait_ms = _AT_ONCE_MS if batch.rows else _IDLE_MS
                self._put(batch)
        except BaseException as error:  # whoever reads must hear of whatever ends this thread
            self._failure = error
        finally:
            self._stream.close()
            self._selection.close()
            self._tell()

    def _note(self) -> None:
        """One that fails is made up for by the next."""
        acknowledged = self._acknowledged
        if acknowledged > self._noted:
            with suppress(SourceError):
                self._acknowledge(acknowledged)
                self._noted = acknowledged

    def _follow_selection(self) -> None:
        version = self._selection.version
        if version != self._version:
            self._stream.close()
            self._stream = self._open_stream(self._stream)
            self._version = version
            self._selection.opened(version)

    def _put(self, batch: ChangeBatch) -> None:
        complete = complete_below(batch, rests_between=not self._sharded)
        if not batch.rows and complete <= self._complete:
            return
        self._complete = max(self._complete, complete)
        found = EventBatch(tuple(batch.parts), complete)
        with self._room:
            self._room.wait_for(
                lambda: self._closed or self._arrived_bytes + self._received_bytes < BYTES_MAX
            )
            if self._arrived and not found.events:  # however long nobody reads, tokens take no room
                self._arrived[-1] = EventBatch(self._arrived[-1].events, complete)
                return
            self._arrived.append(found)
            self._arrived_bytes += max(1, found.bytes)  # a token alone is news too
            if len(self._arrived) == 1:
                self._tell()

    def _tell(self) -> None:
        os.write(self._told, b"\0")

    def _clear(self) -> None:
        try:
            os.read(self._readable, 4096)
        except BlockingIOError:
            return

"""Change streams of single collections, read as one: for users who may follow those, and no whole database.

Promise: what is handed out has every event of all its streams once, in the order of cluster times, and says
of itself what has come as a whole, as a stream of the database would (`stream`).

    stream a ── events of 3 5 5 ──┐
                                  ├── 3 4 5 5, and everything below 5 has come
    stream b ── events of 4 9 ────┘      (9 waits: a may still bring an 8)

Of each stream it is known below which time everything of it has come. The least of these is the frontier F:
whatever comes later, from any of them, is of F or later. So all that is of F or earlier can be handed out,
sorted by time, and nothing that comes will have to stand before it; and a transaction over several
collections is whole where F is past it. Two collections' events of one time stand in any order: ordinals are
counted in each collection (correctness 52).

The stream that holds F back is the one that is read. All that it has brought was handed out by then, so of
each stream at most one reply of the server waits. Each goes on by tokens of its own, over lost connections
and elections, and where collections are added: what has come of the others and waits is taken over with
their tokens. F itself would not do for them: of a transaction at F a part may have been handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import bson
import numpy as np

from penstock.capture.mongodb.stream import complete_below
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.sources.mongodb.change_stream import ChangeBatch, ChangeStream, Place
from penstock.sources.mongodb.documents import Documents
from penstock.sources.mongodb.events import Events, read_events

#: Each may hold a reply of 16 MiB back, and adds a question to every round.
STREAMS_MAX = 32
_AT_ONCE_MS = 1
_NOWHERE = Lsn(0)


@dataclass
class _Followed:
    stream: ChangeStream
    complete: Lsn = _NOWHERE
    waiting: list[Events] = field(default_factory=list)

    def again(self, make: Callable[[Place], ChangeStream]) -> _Followed:
        """By another stream, behind the token of this one."""
        return _Followed(make(self.stream.place), self.complete, self.waiting)

    def read(self, wait_ms: int, *, rests_between: bool) -> bool:
        """Whether there were events."""
        batch = self.stream.read(wait_ms)
        self.waiting += batch.parts
        self.complete = max(self.complete, complete_below(batch, rests_between=rests_between))
        return batch.rows > 0

    def released(self, frontier: Lsn) -> list[Events]:
        """What is of that time or earlier; it does not wait any more."""
        found, later = [], []
        for events in self.waiting:
            rows = int(np.searchsorted(events.times, np.uint64(frontier), "right"))
            found += [events.part(0, rows)] if rows else []
            later += [events.part(rows, events.rows)] if rows < events.rows else []
        self.waiting = later
        return found


class MergedStreams:
    """As `ChangeStream`. `place` is that of the frontier.

    `making` has what makes the stream of each collection behind a place. Those that `before` had go on where
    they were there, others at the frontier that it came to; without it, all at `place`.
    """

    def __init__(
        self,
        making: Mapping[StreamId, Callable[[Place], ChangeStream]],
        place: Place,
        before: MergedStreams | None = None,
        *,
        rests_between: bool,
    ) -> None:
        assert 0 < len(making) <= STREAMS_MAX
        self.place: Place = place if before is None else before.place
        known: dict[StreamId, _Followed] = {} if before is None else before._by_collection
        self._by_collection: dict[StreamId, _Followed] = {
            stream: known[stream].again(make) if stream in known else _Followed(make(self.place))
            for stream, make in making.items()
        }
        self._followed = list(self._by_collection.values())
        self._rests_between = rests_between
        self._is_busy = True

    def open(self) -> None:
        for each in self._followed:
            each.stream.open()

    def read(self, wait_ms: int = 1_000) -> ChangeBatch:
        """Of the stream that holds the others back. While nothing happens a round of all takes `wait_ms`."""
        each_ms = _AT_ONCE_MS if self._is_busy else max(_AT_ONCE_MS, wait_ms // len(self._followed))
        last = min(self._followed, key=lambda each: each.complete)
        self._is_busy = last.read(each_ms, rests_between=self._rests_between)
        frontier = min(each.complete for each in self._followed)
        if not frontier:
            return ChangeBatch([], self.place)
        found = [part for each in self._followed for part in each.released(frontier)]
        self.place = Place(bson.encode({"_data": ResumeToken.before(frontier).data}))
        return ChangeBatch([in_order(found)] if found else [], self.place)

    def close(self) -> None:
        for each in self._followed:
            each.stream.close()


def in_order(parts: Sequence[Events]) -> Events:
    """Events of several replies as one batch, by their times; those of one reply stay in their order."""
    if len(parts) == 1:
        return parts[0]
    # Of a reply of 16 MiB only what is handed out, not what still waits.
    firsts = [int(part.documents.starts.min()) for part in parts]
    raws = [
        part.documents.raw[first : int(part.documents.ends.max())]
        for part, first in zip(parts, firsts, strict=True)
    ]
    begins = np.concatenate([[0], np.cumsum([len(raw) for raw in raws])])[:-1] - firsts
    shifted = [(part.documents, begin) for part, begin in zip(parts, begins, strict=True)]
    order = np.argsort(np.concatenate([part.times for part in parts]), kind="stable")
    starts = np.concatenate([documents.starts + begin for documents, begin in shifted])[order]
    ends = np.concatenate([documents.ends + begin for documents, begin in shifted])[order]
    raw = np.concatenate(raws)
    raw.flags.writeable = False  # compiled functions are specialised by this flag
    return read_events(Documents(raw, starts, ends), exact=parts[0].exact)

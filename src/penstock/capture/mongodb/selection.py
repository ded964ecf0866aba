"""Which collections' changes are wanted: asked by what reads the stream and by what decodes it.

The server leaves out the rest, so that only what is selected travels. Streams that are added take another
filter, and with it another cursor: `add` returns when that one is open, behind a place that was read before.
So of a position that is noted after it, all later changes of the added streams come.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence
from typing import Any

from bson.regex import Regex

from penstock.core.stream import StreamId
from penstock.sources.mongodb import control
from penstock.sources.mongodb.catalog import is_wanted

Filter = dict[str, Any]
#: How a pattern becomes one of the server's: a dot matches line ends too.
_ANY_CHARACTER = "s"


class Selection:
    """May be used from several threads. `version` grows with each addition."""

    def __init__(self, streams: Sequence[StreamId], full: Collection[StreamId] = ()) -> None:
        self._streams = tuple(dict.fromkeys(streams))
        self._full = frozenset(full)
        self._changed = threading.Condition()
        self._opened = -1  # the version that the server was last told; none yet
        self._over = False
        self.version = 0

    def __contains__(self, stream: StreamId) -> bool:
        return is_wanted(stream, "collection", self._streams)

    def add(self, streams: Sequence[StreamId], full: Collection[StreamId] = ()) -> None:
        """Returns when the server sends their changes too, if it sends any already."""
        with self._changed:
            added = tuple(dict.fromkeys([*self._streams, *streams])), self._full.union(full)
            if added != (self._streams, self._full):
                self._streams, self._full = added
                self.version += 1
            wanted = self.version
            self._changed.wait_for(lambda: self._opened < 0 or self._opened >= wanted or self._over)

    def opened(self, version: int) -> None:
        """The server sends what was selected in this version."""
        with self._changed:
            self._opened = version
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is read any more: nobody need wait."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def streams(self) -> tuple[StreamId, ...]:
        return self._streams

    @property
    def wants_old(self) -> bool:
        """Whether of some stream the document before a change is wanted."""
        return bool(self._full)

    @property
    def needs_images(self) -> bool:
        """Whether of every change the document after it is wanted as it was at that moment."""
        return bool(self._streams) and self._full.issuperset(self._streams)

    def pipeline(self) -> list[Filter]:
        """What has the server leave out all other collections' events."""
        own = {"ns": {"db": control.DATABASE, "coll": control.COLLECTION}}
        wanted: list[Filter] = [{"operationType": {"$in": ["invalidate", "dropDatabase"]}}]
        wanted += _named(self._streams, "ns")
        wanted += [{"operationType": "rename", **each} for each in _named(self._streams, "to")]
        return [{"$match": {"$and": [{"$nor": [own]}, {"$or": wanted}]}}]

    def pipeline_of(self, stream: StreamId) -> list[Filter]:
        """The same for a change stream of this collection alone.

        A rename is told by the streams of both its names. Where both are selected, that of the old one
        counts.
        """
        here = {"db": stream.namespace, "coll": stream.name}
        came_here = {"operationType": "rename", "to": here, "$nor": _named(self._streams, "ns")}
        return [{"$match": {"$or": [{"operationType": "invalidate"}, {"ns": here}, came_here]}}]


def _named(streams: Sequence[StreamId], field: str) -> list[Filter]:
    plain: dict[str, list[str]] = {}
    found: list[Filter] = []
    for stream in streams:
        if stream.is_pattern:
            found.append({f"{field}.db": _text(stream.namespace), f"{field}.coll": _text(stream.name)})
        else:
            plain.setdefault(stream.namespace, []).append(stream.name)
    return [*({f"{field}.db": db, f"{field}.coll": {"$in": names}} for db, names in plain.items()), *found]


def _text(pattern: str) -> Any:
    if "*" not in pattern:
        return pattern
    return Regex(f"^{'.*'.join(re.escape(part) for part in pattern.split('*'))}$", _ANY_CHARACTER)

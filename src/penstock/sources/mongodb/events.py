"""A batch of events of a change stream, as columns of what they say.

Values stay where they are in the server's reply; keys and documents are read from there (`documents`,
`fields`). The images of a row: `fullDocument` of an update is the document as it was looked up later, or, of
collections that keep them, the post-image; null if the document is gone by then, and a delete of it is about
to follow.

An event that does not fit a document of 16 MiB arrives in fragments, each with some of its fields.
`assemble` puts them together into the event they are; `split` finds them. It is the one place that makes a
copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import bson
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion

from penstock.core.errors import SourceError
from penstock.sources.mongodb import bson_kernels, change_kernels
from penstock.sources.mongodb import column_kernels as kernels
from penstock.sources.mongodb.documents import Documents, find_ids, json_values, malformed, parse
from penstock.sources.mongodb.names import Names
from penstock.text_kernels import Bytes, Indices, Ints

NAMESPACES_MAX = 100_000
#: Dates of any year, which Python's own have no room for.
_EXACT: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


class Operation(IntEnum):
    """What an event is. OTHER: of a kind that changes no document, such as the creation of an index."""

    OTHER = -1
    INSERT = 0
    UPDATE = 1
    REPLACE = 2
    DELETE = 3
    DROP = 4
    RENAME = 5
    DROP_DATABASE = 6
    INVALIDATE = 7


_OPERATIONS = Names(
    ["insert", "update", "replace", "delete", "drop", "rename", "dropDatabase", "invalidate"]
)  # by number
_FIELDS = (
    "_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey",
    "updateDescription", "fullDocumentBeforeChange", "txnNumber", "lsid", "to", "splitEvent",
)  # fmt: skip
_NAMES = Names(_FIELDS)
_NUMBER = {name: number for number, name in enumerate(_FIELDS)}
_DROPPED_OF_FRAGMENTS = {b"_id", b"splitEvent"}


@dataclass(frozen=True, slots=True)
class Images:
    """Documents of some events, and which events."""

    rows: Ints
    documents: Documents


@dataclass(frozen=True)
class Events:
    """Events in their order. A type (0: absent) and a position for each field of `_FIELDS` and event.

    `exact`: an update has the document as it was right after it, and not as it was found later.
    """

    documents: Documents
    kinds: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int32]
    exact: bool = False

    @property
    def rows(self) -> int:
        return self.documents.rows

    @cached_property
    def operations(self) -> Indices:
        """Numbers of `Operation`."""
        return change_kernels.read_operations(*self._field("operationType"), *_OPERATIONS.arrays)

    @cached_property
    def times(self) -> npt.NDArray[np.uint64]:
        """The cluster time of each, as 64 bits: that of its transaction, and of no other."""
        return change_kernels.read_times(*self._field("clusterTime"))

    @cached_property
    def transactions(self) -> Ints:
        """The number of each event's transaction in its session; -1: it is of none."""
        return change_kernels.read_longs(*self._field("txnNumber"))

    @cached_property
    def after(self) -> Images:
        return self._images("fullDocument")

    @cached_property
    def before(self) -> Images:
        """Of collections that keep pre-images, the document as it was."""
        return self._images("fullDocumentBeforeChange")

    @cached_property
    def committed_us(self) -> Ints:
        """When each was committed, in microseconds since 1970: by the server's clock, to the millisecond
        where it says so (from 6.0 on), else to the second of its cluster time."""
        _, kinds, positions = self._field("wallTime")
        seconds = (self.times >> np.uint64(32)).astype(np.int64)
        told = np.flatnonzero(kinds == bson_kernels.DATE)
        if not len(told):
            return seconds * 1_000_000
        places = positions[told].astype(np.int64)[:, np.newaxis] + np.arange(8)
        milliseconds = np.ascontiguousarray(self.documents.raw[places]).view("<i8").ravel()
        found = seconds * 1_000_000
        found[told] = milliseconds * 1000
        return found

    @cached_property
    def document_keys(self) -> Images:
        """Documents of `_id` and, of a sharded collection, the shard key."""
        return self._images("documentKey")

    @cached_property
    def keys(self) -> pa.Array:
        """The key of each event's document (`json_kernels`); null if it is about none."""
        found = self.document_keys
        texts = json_values(find_ids(found.documents), as_key=True)
        if len(found.rows) == self.rows:
            return texts
        places = np.full(self.rows, -1, np.int64)
        places[found.rows] = np.arange(len(found.rows))
        return texts.take(pa.array(places, mask=places < 0))

    @cached_property
    def namespaces(self) -> tuple[Indices, list[tuple[str, str]]]:
        """Each event's number in a list of (database, collection); -1: it has none."""
        found = self._images("ns")
        numbers = np.full(self.rows, -1, np.int32)
        documents = found.documents
        groups, firsts = change_kernels.group_documents(
            documents.raw, documents.starts, documents.ends, NAMESPACES_MAX
        )
        if len(found.rows) and not len(firsts):
            raise SourceError(
                f"A batch of the change stream has events of more than {NAMESPACES_MAX:,} collections.",
                remedy="Select fewer collections.",
            )
        numbers[found.rows] = groups
        decoded = [bson.decode(self._bytes(documents, int(first))) for first in firsts]
        return numbers, [(each["db"], each.get("coll", "")) for each in decoded]

    def token(self, row: int) -> bytes:
        """Where the stream stands after this event, as raw BSON."""
        return self._inner("_id", row)

    def decoded(self, row: int) -> dict[str, Any]:
        """All of one event: for the rare ones, of which there is no more to say in columns."""
        return bson.decode(self._bytes(self.documents, row), _EXACT)

    def fragment(self, row: int) -> tuple[int, int]:
        """Of an event that comes in fragments: which one this is, and how many there are."""
        told = bson.decode(self._inner("splitEvent", row))
        return told["fragment"], told["of"]

    def part(self, first: int, last: int) -> Events:
        documents = self.documents.part(first, last)
        return Events(documents, self.kinds[:, first:last], self.positions[:, first:last], self.exact)

    @property
    def fragments(self) -> Ints:
        """The rows that are fragments of an event."""
        return np.flatnonzero(self.kinds[_NUMBER["splitEvent"]] != 0)

    def _field(self, name: str) -> tuple[Bytes, Bytes, Indices]:
        number = _NUMBER[name]
        return self.documents.raw, self.kinds[number], self.positions[number]

    def _images(self, name: str) -> Images:
        rows, starts, ends = change_kernels.select_documents(*self._field(name))
        return Images(rows, Documents(self.documents.raw, starts, ends))

    def _inner(self, name: str, row: int) -> bytes:
        """A document inside an event."""
        start = int(self.positions[_NUMBER[name], row])
        raw = self.documents.raw
        return raw[start : start + int.from_bytes(raw[start : start + 4].tobytes(), "little")].tobytes()

    @staticmethod
    def _bytes(documents: Documents, row: int) -> bytes:
        return documents.raw[documents.starts[row] : documents.ends[row]].tobytes()


def read_events(documents: Documents, *, exact: bool = False) -> Events:
    kinds = np.empty((len(_FIELDS), documents.rows), np.uint8)
    positions = np.empty((len(_FIELDS), documents.rows), np.int32)
    row, why, _, _ = kernels.locate(
        documents.raw, documents.starts, documents.ends, 0, *_NAMES.arrays, True, kinds, positions
    )
    if why == kernels.BROKEN:
        raise malformed(row, bson_kernels.MALFORMED)
    return Events(documents, kinds, positions, exact)


@dataclass(slots=True)
class Fragments:
    """The fragments of an event that have come so far."""

    held: list[bytes]

    def join(self, events: Events) -> list[Events]:
        """Whole events, in their order; what is left waits for the next batch."""
        whole: list[Events] = []
        first = 0
        for row in events.fragments:
            if row > first:
                whole.append(events.part(first, int(row)))
            first = int(row) + 1
            number, of = events.fragment(int(row))
            if number != len(self.held) + 1:
                raise _torn()
            self.held.append(events._bytes(events.documents, int(row)))
            if number == of:
                whole.append(read_events(parse(assemble(self.held)), exact=events.exact))
                self.held = []
        if first < events.rows:
            if self.held:
                raise _torn()
            whole.append(events.part(first, events.rows) if first else events)
        return whole


def _torn() -> SourceError:
    return SourceError(
        "The fragments of a large event of the change stream did not come one after the other.",
        remedy="Start again: the stream is read from before this event.",
    )


def assemble(fragments: Sequence[bytes]) -> bytes:
    """The event that fragments are of: all their fields, with the last one's token."""
    parts = []
    for number, fragment in enumerate(fragments):
        for name, element in _elements(fragment):
            is_last_token = name == b"_id" and number == len(fragments) - 1
            if is_last_token or name not in _DROPPED_OF_FRAGMENTS:
                parts.append(element)
    inside = b"".join(parts)
    return (len(inside) + bson_kernels.SMALLEST).to_bytes(4, "little") + inside + b"\0"


def _elements(document: bytes) -> list[tuple[bytes, bytes]]:
    """Each field of a document: its name, and all its bytes."""
    buffer = np.frombuffer(document, np.uint8)
    address = int(buffer.ctypes.data)
    at, limit = 4, len(document) - 1
    found = []
    while at < limit:
        name_end = document.index(0, at + 1)
        end = bson_kernels.value_end(address, document[at], name_end + 1, limit)
        if end < 0:
            raise malformed(0, bson_kernels.MALFORMED)
        found.append((document[at + 1 : name_end], document[at:end]))
        at = end
    return found

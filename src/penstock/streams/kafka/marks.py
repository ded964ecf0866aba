"""What the positions topic says of a lane: who writes it, how far each bucket is, and topics' partitions.

A commit is made either by one producer alone (a *whole* one: always with one bucket) or, with more buckets,
by each with its own part. A mark is what such a transaction leaves behind, in it: the standing, and the
commit's number. A bucket is as far as the later of its own mark and the last whole one.

After a crash between the buckets' commits some are further than others. The lane goes on from the least of
them; a bucket that is *ahead* leaves out what it has. That is exact because a divided commit has nothing but
changes behind the position before it, which are told apart from others by `tx` alone: those with
least ≤ tx < ahead. Loaded rows and replayed dead letters only ever go in whole commits. Streams whose changes
were not followed then, because they loaded, are *apart*: of those a bucket that is ahead has nothing.

What a standing says of loads is not in its mark: there are as many as streams, and a record has a limit. Each
has a record of its own, written anew, in the same transaction, by the whole commit that changes it. Marks of
format 1 had all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.errors import DestinationError
from penstock.core.position import Lsn
from penstock.streams.publisher import Standing

FORMAT = 2
_FORMATS = (1, FORMAT)
TERM, WHOLE = b"term", b"whole"
_BUCKET, _PARTITIONS, _LOAD = b"bucket ", b"partitions ", b"load "
_NO_EPOCH = Lsn(0)


def bucket_key(bucket: int) -> bytes:
    return _BUCKET + str(bucket).encode()


def partitions_key(topic: str) -> bytes:
    return _PARTITIONS + topic.encode()


def load_key(stream: str) -> bytes:
    return _LOAD + stream.encode()


def load_record(load: Mapping[str, Any] | None) -> bytes:
    """None: the stream is not known any more."""
    return _to_bytes({"load": load})


def loading(loads: Mapping[str, Any]) -> frozenset[str]:
    """Streams whose changes are left out of what the lane follows."""
    return frozenset(stream for stream, load in loads.items() if "next" in load or load.get("behind"))


@dataclass(frozen=True, slots=True)
class Mark:
    """`ahead`, of a whole commit: buckets that have more than its standing says, not of streams `apart`."""

    commit: int
    standing: Standing
    ahead: Mapping[int, Lsn] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()

    def position(self, bucket: int) -> Lsn:
        return max(self.standing.position, self.ahead.get(bucket, Lsn(0)))

    def to_bytes(self) -> bytes:
        ahead = {str(bucket): str(position) for bucket, position in self.ahead.items()}
        standing = replace(self.standing, loads={}).to_json()
        del standing["loads"]
        fields = {"commit": self.commit, "standing": standing, "ahead": ahead}
        return _to_bytes(fields | {"apart": sorted(self.apart)})

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], loads: Mapping[str, Any]) -> Mark:
        """`loads` as their own records say."""
        ahead = {int(bucket): Lsn.parse(position) for bucket, position in fields["ahead"].items()}
        apart = frozenset(fields.get("apart", ()))
        standing = Standing.from_json({"loads": loads, **fields["standing"]})
        return cls(fields["commit"], standing, ahead, apart)


@dataclass(frozen=True, slots=True)
class Held:
    """Everything the topic says. `buckets` is None if no term has begun. `loads`: in records of their own."""

    epoch: Lsn = _NO_EPOCH
    system_id: str = ""
    buckets: int | None = None
    whole: Mark | None = None
    divided: Mapping[int, Mark] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, Any] = field(default_factory=dict)

    def commit_of(self, key: bytes) -> int:
        """The number of the last commit under that key."""
        marks = {bucket_key(bucket): mark for bucket, mark in self.divided.items()}
        mark = self.whole if key == WHOLE else marks.get(key)
        return mark.commit if mark is not None else 0

    @property
    def last_commit(self) -> int:
        marks = (self.whole, *self.divided.values())
        return max((mark.commit for mark in marks if mark is not None), default=0)

    def of_bucket(self, bucket: int) -> Mark | None:
        own = self.divided.get(bucket)
        if own is None or (self.whole is not None and self.whole.commit > own.commit):
            return self.whole
        return own

    def standing(self) -> Standing | None:
        """Of the bucket that is least far; one that is ahead may have passed events that are dead letters."""
        if self.whole is None:
            return None
        marks = [(bucket, mark) for bucket in range(self.buckets or 1) if (mark := self.of_bucket(bucket))]
        bucket, least = min(marks, key=lambda found: (found[1].position(found[0]), found[1].commit))
        newest = max((mark for _, mark in marks), key=lambda mark: mark.commit)
        return replace(least.standing, position=least.position(bucket), letters=newest.standing.letters)

    def ahead(self) -> dict[int, Lsn]:
        """Buckets that are further than the least, and how far."""
        least = self.standing()
        marks = {bucket: self.of_bucket(bucket) for bucket in range(self.buckets or 1)}
        return {
            bucket: mark.position(bucket)
            for bucket, mark in marks.items()
            if mark is not None and least is not None and mark.position(bucket) > least.position
        }

    def apart(self) -> frozenset[str]:
        """Streams of which the buckets that are ahead have nothing more than the others."""
        marks = [mark for bucket in self.ahead() if (mark := self.of_bucket(bucket)) is not None]
        return frozenset().union(*(mark.apart | loading(mark.standing.loads) for mark in marks))


def term_record(epoch: Lsn, system_id: str, buckets: int) -> bytes:
    """Epochs are positions of one server: those of another are no later and no earlier."""
    return _to_bytes({"epoch": str(epoch), "system_id": system_id, "buckets": buckets})


def partitions_record(count: int) -> bytes:
    return _to_bytes({"partitions": count})


def read_records(records: Iterable[tuple[bytes | None, bytes | None]]) -> Held:
    """Keys and values of the topic, from its beginning; of each key the last one holds."""
    last = {key: json.loads(value) for key, value in records if key is not None and value}
    if any(fields.get("format") not in _FORMATS for fields in last.values()):
        raise DestinationError(
            "The lane's positions topic was written by another version of Penstock.",
            remedy="Use that version, or begin anew under another `identity`.",
        )
    term, whole = last.get(TERM), last.get(WHOLE)
    told = {
        key.removeprefix(_LOAD).decode(): fields["load"]
        for key, fields in last.items()
        if key.startswith(_LOAD)
    }
    loads = {stream: load for stream, load in told.items() if load is not None}
    divided = {
        int(key.removeprefix(_BUCKET)): Mark.from_json(fields, loads)
        for key, fields in last.items()
        if key.startswith(_BUCKET)
    }
    return Held(
        epoch=Lsn.parse(term["epoch"]) if term else _NO_EPOCH,
        system_id=term.get("system_id", "") if term else "",
        buckets=term["buckets"] if term else None,
        whole=Mark.from_json(whole, loads) if whole else None,
        divided=divided,
        partitions={
            key.removeprefix(_PARTITIONS).decode(): fields["partitions"]
            for key, fields in last.items()
            if key.startswith(_PARTITIONS)
        },
        loads=loads,
    )


def _to_bytes(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()

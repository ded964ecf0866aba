"""What is in the stream behind a checkpoint: read back, so that nothing is sent twice.

Each shard is read from its bound to its end, parents before children; a shard that the checkpoint does not
know began after it and is read from its beginning. Records of others are passed over. A record of an earlier
term behind one of a later term came late: its leader was replaced, and its successor had read the tail before
it arrived. Whether that record was sent again by then nobody can know from the tail alone: it is counted.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.core.backoff import pause_s
from penstock.core.errors import TargetError
from penstock.core.position import Lsn
from penstock.streams.kinesis.aggregation import taken_apart
from penstock.streams.kinesis.bounds import BEGINNING, Bound, Bounds
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.found import Found
from penstock.streams.kinesis.records import Name, name_of
from penstock.streams.kinesis.shards import Shard, generations
from penstock.streams.publisher import StoppedError

_READERS = 8
TRIES = 10
#: Of one answer, which must come within the time that a request has: a tenth of what may be asked for.
_RECORDS_MAX = 1_000
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
#: Some services never say that a closed shard has ended; so many empty answers at its end are taken for it.
_EMPTY_ANSWERS = 3
_TRIED_AGAIN = frozenset(
    {"ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException"}
)


@dataclass(frozen=True, slots=True)
class ShardTail:
    """`late`: how many records came after one of a later term. `is_whole`: its bound was still there.

    `newest`: the sequence number of its last record, whoever wrote it; None if there is none.
    """

    shard: str
    late: int
    newest: int | None
    is_whole: bool = True


class Tail:
    """Of one stream, as one lane sees it."""

    def __init__(self, client: KinesisClient, stream: str, identity: str, stopped: threading.Event) -> None:
        self._client = client
        self._stream = stream
        self._identity = identity
        self._stopped = stopped

    def read(self, shards: Sequence[Shard], bounds: Bounds, found: Found | None) -> list[ShardTail]:
        """`found` gets the names of what is there. `TargetError`: not all of it could be read."""
        tails: list[ShardTail] = []
        with ThreadPoolExecutor(_READERS, "tail") as pool:
            for generation in generations(shards):
                tails += pool.map(
                    lambda shard: self._of(shard, bounds.get(shard.id, BEGINNING), found), generation
                )
        return tails

    def _of(self, shard: Shard, bound: Bound, found: Found | None) -> ShardTail:
        late = LateCount()
        newest: int | None = None
        try:
            iterator = self._iterator(shard, bound)
            is_whole = True
        except _BoundGoneError:
            iterator, is_whole = self._iterator(shard, BEGINNING), False
        for records in self._answers(shard, iterator):
            newest = int(records[-1]["SequenceNumber"])
            if found is not None:
                found.add(list(late.counted(self._names_in(records, shard))))
        return ShardTail(shard.id, late.count, newest, is_whole)

    def _names_in(self, records: Sequence[Any], shard: Shard) -> Iterator[Name]:
        for record in records:
            yield from _names_of(base64.b64decode(record["Data"]), shard, self._identity)

    def _answers(self, shard: Shard, iterator: str | None) -> Iterator[Sequence[Any]]:
        """The records of one answer after the other: a tail may be larger than what fits in memory."""
        empty, newest = 0, ""
        while iterator is not None:
            try:
                answer = self._ask("GetRecords", ShardIterator=iterator, Limit=_RECORDS_MAX)
            except _IteratorExpiredError:
                iterator = self._iterator(shard, Bound(int(newest)) if newest else BEGINNING)
                continue
            if answer["Records"]:
                yield answer["Records"]
                empty, newest = 0, answer["Records"][-1]["SequenceNumber"]
            elif answer.get("MillisBehindLatest", 0) == 0:
                empty += 1
                if not shard.is_closed or empty == _EMPTY_ANSWERS:
                    return
            iterator = answer.get("NextShardIterator")

    def _iterator(self, shard: Shard, bound: Bound) -> str:
        asked: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if bound.sequence is not None:
            asked = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": str(bound.sequence),
            }
        elif bound.moment is not None:
            asked = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": bound.moment}
        answer = self._ask("GetShardIterator", StreamName=self._stream, ShardId=shard.id, **asked)
        return str(answer["ShardIterator"])

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """Reading changes nothing, so it is tried again whatever went wrong."""
        try:
            return patiently(lambda: self._client.ask(operation, **arguments), self._stopped)
        except TargetError as error:
            code = error.__cause__.code if isinstance(error.__cause__, CallError) else ""
            if code == "ExpiredIteratorException":
                raise _IteratorExpiredError from error
            if code == "InvalidArgumentException":
                raise _BoundGoneError from error
            raise


class _BoundGoneError(Exception):
    """The sequence number is no place in the shard."""


class _IteratorExpiredError(Exception):
    """Iterators live for five minutes."""


def patiently(ask: Callable[[], Any], stopped: threading.Event, tries_max: int = TRIES) -> Any:
    """For what changes nothing: try again what may pass, then raise the `TargetError`."""
    tries = 0
    while True:
        try:
            return ask()
        except TargetError as error:
            cause = error.__cause__
            is_over = isinstance(cause, CallError) and not cause.is_lost and cause.code not in _TRIED_AGAIN
            tries += 1
            if is_over or tries >= tries_max:
                raise
            if stopped.wait(pause_s(tries, _PAUSE_S, _PAUSE_MAX_S)):
                raise StoppedError from error


def _names_of(data: bytes, shard: Shard, identity: str) -> Iterator[Name]:
    parts = taken_apart(data)
    for content in [data] if parts is None else _held(parts, shard):
        name = name_of(content, identity)
        if name is not None:
            yield name


def _held(parts: list[tuple[bytes, bytes]], shard: Shard) -> list[bytes]:
    """Those that readers do not pass over: whose keys belong to the shard."""

    def belongs(key: bytes) -> bool:
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        return shard.first <= int.from_bytes(digest) <= shard.last

    return [content for key, content in parts if belongs(key)]


class LateCount:
    """How many of a shard's records, in their order, came after one of a later term."""

    def __init__(self) -> None:
        self.count = 0
        self._newest = Lsn(0)

    def counted(self, names: Iterable[Name]) -> Iterator[Name]:
        """The same, as they are looked at."""
        for name in names:
            self.count += name.epoch < self._newest
            self._newest = max(self._newest, name.epoch)
            yield name

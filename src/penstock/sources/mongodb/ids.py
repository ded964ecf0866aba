"""Chunks of a collection by `_id`, whatever types its ids have, and reading one of them.

Promise: every document that is there from before the first chunk is read until after the last is in exactly
one chunk, however many types of `_id` there are, and whatever the collection's collation.

It holds because a chunk is a range of the `_id` index itself, `min` inclusive to `max` exclusive. `$gte` and
`$lt` compare within one type only: a range from a number to a string would be empty and what lies between be
lost. `min` and `max` are keys in the order of the index, over all types and by its collation. Neighbours
share a bound, byte for byte as the server told it, so there is neither a gap nor an overlap whichever bounds
are chosen; the first chunk has no lower bound and the last no upper one. A range without `max` ends before
MaxKey in an index and behind it in a clustered collection, so the last chunk leaves MaxKey out and asks for
it by itself. An `_id` never changes but to one that is equal to it, so no document moves from one chunk to
another.

Bounds need only ascend. The server sorts them, by the same order; MinKey and MaxKey are none, for the server
refuses a range that cannot hold anything. Few documents are cut exactly (`$bucketAuto`, a sort of all ids),
many by a random sample.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bson import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from penstock.sources.mongodb import bson_kernels
from penstock.sources.mongodb.documents import Documents
from penstock.sources.mongodb.replies import RawCursor, Source

ROWS_PER_CHUNK = 500_000
CHUNKS_MAX = 10_000
#: Up to so many documents all ids are sorted; above it, a sample is.
SORTED_MAX = 1_000_000
_SAMPLES_PER_CHUNK = 32
_COMMITTED = {"level": "majority"}
_NAMESPACE_NOT_FOUND = 26


@dataclass(frozen=True, slots=True)
class Chunk:
    """`lower` ≤ `_id` < `upper` in the index, each a BSON document `{_id: …}`; None: no bound."""

    lower: bytes | None = None
    upper: bytes | None = None


def cut(bounds: Sequence[bytes]) -> list[Chunk]:
    """Chunks between ascending bounds, which together are everything."""
    edges = [None, *bounds, None]
    return [Chunk(lower, upper) for lower, upper in pairwise(edges)]


def pick(sorted_ids: Sequence[bytes], chunks: int) -> list[bytes]:
    """At most `chunks - 1` bounds of about equal distance, out of ids that the server has sorted."""
    found = usable(sorted_ids)
    if chunks <= 1 or len(found) <= 1:
        return []
    places = {len(found) * number // chunks for number in range(1, chunks)}
    return [found[place] for place in sorted(places) if place > 0]


def usable(sorted_ids: Sequence[bytes]) -> list[bytes]:
    """Those that can be bounds, each once."""
    return [each for each in dict.fromkeys(sorted_ids) if not _is_extreme(each)]


def _is_extreme(bound: bytes) -> bool:
    return bound[4] in (bson_kernels.MIN_KEY, bson_kernels.MAX_KEY)


def find_bounds(database: Source, collection: str, chunks: int, count: int) -> list[bytes]:
    samples = chunks * _SAMPLES_PER_CHUNK
    if count > SORTED_MAX:
        try:
            sample: list[Mapping[str, Any]] = [{"$sample": {"size": samples}}, {"$project": {"_id": 1}}]
            return pick(read_ids(database, collection, [*sample, {"$sort": {"_id": 1}}]), chunks)
        except OperationFailure as error:
            if error.code == _NAMESPACE_NOT_FOUND:
                raise
            # The server may give up finding documents at random; sorting all ids always works.
    buckets = {"$bucketAuto": {"groupBy": "$_id", "buckets": chunks}}
    sort: list[Mapping[str, Any]] = [{"$project": {"_id": 1}}, buckets, {"$project": {"_id": "$_id.min"}}]
    return pick(read_ids(database, collection, sort), chunks)


def read_ids(
    database: Source,
    collection: str,
    pipeline: Sequence[Mapping[str, Any]],
    read_concern: Mapping[str, Any] = _COMMITTED,
) -> list[bytes]:
    """What a pipeline says of `_id` alone, as BSON."""
    command = {
        **{"aggregate": collection, "pipeline": list(pipeline), "cursor": {}},
        **{"allowDiskUse": True, "readConcern": dict(read_concern)},
    }
    found: list[bytes] = []
    with closing(RawCursor(database, command)) as cursor:
        for reply in cursor.replies():
            raw, starts, ends = reply.documents.raw, reply.documents.starts, reply.documents.ends
            found += [raw[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    return found


def find_commands(
    collection: str, chunk: Chunk, read_concern: Mapping[str, Any] = _COMMITTED, **options: Any
) -> list[dict[str, Any]]:
    """What reads a chunk; the last one takes two."""
    command: dict[str, Any] = {"find": collection, "readConcern": dict(read_concern), **options}
    if chunk == Chunk():
        return [command]
    command["hint"] = {"_id": 1}
    if chunk.lower is not None:
        command["min"] = RawBSONDocument(chunk.lower)
    if chunk.upper is not None:
        return [command | {"max": RawBSONDocument(chunk.upper)}]
    wanted = options.get("filter", {})
    extreme = {"find": collection, "readConcern": dict(read_concern), **options}
    return [
        command | {"filter": {"$and": [wanted, {"_id": {"$ne": MaxKey()}}]}},
        extreme | {"filter": {"$and": [wanted, {"_id": MaxKey()}]}},
    ]


def read_chunk(
    database: Source,
    collection: str,
    chunk: Chunk,
    read_concern: Mapping[str, Any] = _COMMITTED,
    **options: Any,
) -> Generator[Documents]:
    """The documents of a chunk, batch by batch; `options` are those of `find`, a filter or a projection."""
    for command in find_commands(collection, chunk, read_concern, **options):
        with closing(RawCursor(database, command)) as cursor:
            for reply in cursor.replies():
                if reply.documents.rows:
                    yield reply.documents

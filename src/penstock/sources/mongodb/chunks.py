"""Cutting a collection into chunks that are read side by side.

A chunk is a range of the `_id` index, whatever types the ids have; why none is lost or read twice is said in
`ids`. Here is where the bounds come from, in this order:

1. `splitVector`, which walks the index alone and asks for nothing to be sorted. Not every user may run it, a
   `mongos` has none, and of a collation it would tell sort keys and not ids.
2. A sort of all ids, or of a sample where there are many (`ids.find_bounds`).

Bounds travel as text: the BSON of `{_id: …}` in hex, so that they stay what the server said, byte for byte.
A time series has no such index, and a view none of its own: each is one chunk. So is an empty collection,
since documents may come later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from penstock.sources.chunk import PlannedChunk
from penstock.sources.mongodb.catalog import CollectionInfo, CollectionLeaf
from penstock.sources.mongodb.connection import query_errors
from penstock.sources.mongodb.ids import CHUNKS_MAX, ROWS_PER_CHUNK, Chunk, cut, find_bounds, read_ids, usable
from penstock.sources.mongodb.replies import RAW, Source

BYTES_PER_CHUNK_MAX = 256 * 2**20
_SPLIT_BYTES_MIN, _SPLIT_BYTES_MAX = 2**20, 2**30  # that `splitVector` takes
_LOCAL = {"level": "local"}


def plan_chunks(
    database: Source,
    table: CollectionInfo,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    bytes_per_chunk_max: int = BYTES_PER_CHUNK_MAX,
) -> list[PlannedChunk]:
    """`database` is the collection's."""
    if rows_per_chunk < 1 or bytes_per_chunk_max < 1:
        raise ValueError("a chunk holds at least one document")
    planned: list[PlannedChunk] = []
    for leaf in table.leaves:
        by_rows = math.ceil(leaf.estimated_rows / rows_per_chunk)
        by_bytes = math.ceil(leaf.bytes / bytes_per_chunk_max)
        count = max(1, min(max(by_rows, by_bytes), CHUNKS_MAX))
        chunks = cut(_bounds(database, leaf, count))
        rows = math.ceil(leaf.estimated_rows / len(chunks))
        planned += [
            PlannedChunk(str(leaf.stream), _text(chunk.lower), _text(chunk.upper), leaf.filenode, rows)
            for chunk in chunks
        ]
    return planned


def range_of(chunk: PlannedChunk) -> Chunk:
    return Chunk(*(None if bound is None else bytes.fromhex(bound) for bound in (chunk.min, chunk.max)))


def bounds_after(database: Source, collection: str, bounds: Sequence[str], low: str) -> list[str]:
    """Those of the bounds that are greater than `low`, in the order of the index, by the server itself."""
    listed = [RawBSONDocument(bytes.fromhex(bound)) for bound in bounds]
    given = {"bound": {"$literal": listed}, "low": {"$literal": RawBSONDocument(bytes.fromhex(low))}}
    pipeline: list[dict[str, Any]] = [
        {"$collStats": {}},  # one document, of which nothing is used: any server has it
        {"$limit": 1},
        {"$project": given},
        {"$unwind": "$bound"},
        {"$match": {"$expr": {"$gt": ["$bound._id", "$low._id"]}}},
        {"$replaceRoot": {"newRoot": "$bound"}},
        {"$sort": {"_id": 1}},
    ]
    with query_errors("planning a load", stream=f"{database.name}.{collection}"):
        return [each.hex() for each in read_ids(database, collection, pipeline, _LOCAL)]


def _bounds(database: Source, leaf: CollectionLeaf, count: int) -> list[bytes]:
    if count <= 1 or leaf.kind not in ("collection", "capped collection"):
        return []
    with query_errors("planning a load", stream=str(leaf.stream)):
        split = None if leaf.collated else _split_vector(database, leaf, count)
        if split is not None:
            return split
        return find_bounds(database, leaf.stream.name, count, leaf.estimated_rows)


def _split_vector(database: Source, leaf: CollectionLeaf, count: int) -> list[bytes] | None:
    """None: the server does not do it, or not for us."""
    size = 2 * leaf.bytes // count  # it splits at half of what it is told
    if not _SPLIT_BYTES_MIN <= size <= _SPLIT_BYTES_MAX:
        return None
    command = {"splitVector": str(leaf.stream), "keyPattern": {"_id": 1}, "maxChunkSizeBytes": size}
    try:
        answer = database.command(command, codec_options=RAW)
    except OperationFailure:
        return None
    found = usable([bytes(each.raw) for each in answer["splitKeys"]])
    # It goes by bytes: where documents differ so much that it is far from what was asked, ids are sorted.
    return found if count // 4 <= len(found) + 1 <= 4 * count else None


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else bound.hex()

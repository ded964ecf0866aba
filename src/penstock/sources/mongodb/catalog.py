"""What there is at the source: databases, collections, their kinds, sizes and fields.

A collection declares no fields, so `discover` looks at a random sample, bounded in documents and in bytes. A
sample may miss fields and kinds of values; where columns are made from it, `_rest` has what it missed
(`types`). It costs one question per database, and two per collection of which fields are asked for.

| kind | key | changes |
|---|---|---|
| collection, clustered collection | `_id` | change stream |
| capped collection | `_id` | change stream; what it drops for being full is told by none |
| time series | none: its `_id` may repeat | none |
| view | none | none |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from penstock.core.errors import TooManyFieldsError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.mongodb import control
from penstock.sources.mongodb.connection import Client, query_errors
from penstock.sources.mongodb.fields import Column, Fields, with_room
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.replies import RawCursor, Source
from penstock.sources.mongodb.types import ID, Layout, document_columns, field_columns
from penstock.sources.tables import SourceLeaf, SourceTable

CollectionKind = Literal["collection", "capped collection", "time series", "view"]

SAMPLED_MAX = 1_000
SAMPLED_BYTES_MAX = 16 * 1024 * 1024
_SAMPLE_BATCH = 100
_SYSTEM_DATABASES = frozenset({"admin", "config", "local"})
_SYSTEM_PREFIXES = ("system.", "enxcol_.")  # the latter belong to encrypted collections
_BUCKETS = "system.buckets."  # and the name of the time series whose measurements it holds
_COMMITTED = {"level": "majority"}
_OWN = StreamId(control.DATABASE, control.COLLECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionLeaf(SourceLeaf):
    """`columns` are those of the whole table: what `_rest` has depends on all of them."""

    kind: CollectionKind
    collated: bool
    columns: tuple[SourceColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionInfo(SourceTable):
    kind: CollectionKind
    leaves: tuple[CollectionLeaf, ...]
    images: bool  # `changeStreamPreAndPostImages` is on
    collated: bool  # its strings, those of ids too, are ordered by a collation of its own
    encrypted: bool
    fields: tuple[Column, ...]  # that were seen in a sample, or later; empty: there was no sample

    def read_as(self, schema: TableSchema) -> Self:
        """What `_rest` has depends on the columns of the whole table, so it is read by those of then."""
        there = {column.name for column in (*schema.columns, *schema.hidden)}
        leaves = tuple(
            replace(
                leaf,
                columns=tuple(each for each in leaf.columns if not each.moved_from or each.name in there),
            )
            for leaf in self.leaves
        )
        return replace(self, schema=schema, leaves=leaves)

    @property
    def can_be_captured(self) -> bool:
        """Whether there is a change stream of it."""
        return self.kind in ("collection", "capped collection")


def discover(
    client: Client,
    patterns: Sequence[StreamId] | None = None,
    *,
    database: str = "",
    layout: Layout = "document",
    with_fields: bool = False,
    remembered: RememberedFields | None = None,
) -> list[CollectionInfo]:
    """Collections that match a pattern (`None`: all), ordered by name.

    `database`: only of this one; empty: of all that the user may see. A wildcard matches no views; those of
    the system are never found. `with_fields`: sample fields in the layout `document` too. `remembered`: where
    fields were seen before, those are the fields.
    """
    sampling = _Sampling(layout, with_fields, remembered)
    found = []
    for name in _databases(client, patterns, database):
        with query_errors(f"listing the collections of {name}"):
            listing = client[name].list_collections(filter=_named(name, patterns))
            listed = {str(each["name"]): each for each in listing}
        for collection, each in sorted(listed.items()):
            stream = StreamId(name, collection)
            if is_wanted(stream, each["type"], patterns):
                number = _number([each, listed.get(f"{_BUCKETS}{collection}", {})])
                found.append(_describe(client[name], stream, each, number, sampling))
    return found


def collection_number(database: Source, collection: str) -> int:
    """What tells this collection from a later one of the same name; 0: there is none, or it is a view."""
    names = [collection, f"{_BUCKETS}{collection}"]
    return _number(list(database.list_collections(filter={"name": {"$in": names}})))


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Of which collections fields are looked at, and whether that was done before."""

    layout: Layout
    with_fields: bool
    remembered: RememberedFields | None

    def fields(
        self, database: Source, stream: StreamId, kind: CollectionKind, number: int
    ) -> tuple[Column, ...]:
        if self.layout == "fields" and self.remembered is not None:
            key = str(number or stream)  # a view has no number, and is what its name says
            return self.remembered.of(key, lambda: with_room(_sample(database, stream, kind)))
        if self.layout == "fields":
            return with_room(_sample(database, stream, kind))
        return _sample(database, stream, kind) if self.with_fields else ()


def _databases(client: Client, patterns: Sequence[StreamId] | None, database: str) -> list[str]:
    if patterns is not None and not patterns:
        return []
    if database:
        return [database]
    if patterns is not None and not any("*" in pattern.namespace for pattern in patterns):
        return sorted({pattern.namespace for pattern in patterns})
    with query_errors("listing the databases"):
        names = client.list_database_names()
    return sorted(set(names) - _SYSTEM_DATABASES)


def _named(database: str, patterns: Sequence[StreamId] | None) -> dict[str, Any] | None:
    """What has the server list only those that are asked for by name; None: all.

    A database may have many thousands, and capture asks for one that has no fields with each batch of it.
    """
    if patterns is None:
        return None
    asked = [each for each in patterns if each.namespace == database or "*" in each.namespace]
    if any(each.is_pattern for each in asked):
        return None
    names = [each.name for each in asked]
    return {"name": {"$in": [*names, *(f"{_BUCKETS}{name}" for name in names)]}}


def is_wanted(stream: StreamId, kind: str, patterns: Sequence[StreamId] | None) -> bool:
    """Whether something of this name and kind is meant; neither the system's collections nor our own are."""
    if stream.name.startswith(_SYSTEM_PREFIXES) or stream == _OWN:
        return False
    if patterns is None:
        return True
    if kind == "view":
        return stream in patterns
    return any(pattern.matches(stream) for pattern in patterns)


def _describe(
    database: Source,
    stream: StreamId,
    listed: Mapping[str, Any],
    number: int,
    sampling: _Sampling,
) -> CollectionInfo:
    options = listed.get("options", {})
    kind = _kind(listed)
    count, size = (0, 0) if kind == "view" else measure(database, stream)
    fields = sampling.fields(database, stream, kind, number)
    columns = field_columns(fields) if sampling.layout == "fields" else document_columns()
    key = (ID,) if kind in ("collection", "capped collection") else ()
    collated = "collation" in options
    leaf = CollectionLeaf(
        stream=stream,
        oid=number,
        filenode=number,
        bytes=size,
        estimated_rows=count,
        kind=kind,
        collated=collated,
        columns=columns,
    )
    return CollectionInfo(
        stream=stream,
        oid=number,
        kind=kind,
        schema=TableSchema(stream, columns, key, relation_oid=number),
        leaves=(leaf,),
        primary_key=key,
        images=bool(options.get("changeStreamPreAndPostImages", {}).get("enabled")),
        collated=collated,
        encrypted="encryptedFields" in options,
        fields=fields,
    )


def _kind(listed: Mapping[str, Any]) -> CollectionKind:
    if listed["type"] == "view":
        return "view"
    if listed["type"] == "timeseries":
        return "time series"
    return "capped collection" if listed.get("options", {}).get("capped") else "collection"


def _number(listed: Sequence[Mapping[str, Any]]) -> int:
    """Out of its UUID, which is random: as many bits as a number of 64 has, without the sign.

    A time series has none itself; the collection of its buckets does.
    """
    for each in listed:
        uuid = each.get("info", {}).get("uuid")
        if uuid is not None:
            return int.from_bytes(bytes(getattr(uuid, "bytes", uuid))[:8], "big") >> 1
    return 0


def measure(database: Source, stream: StreamId) -> tuple[int, int]:
    """About how many documents, and their bytes; of a sharded collection over all shards.

    The number is that of the collection's statistics, which can be off after a crash; nothing rests on it.
    """
    with query_errors("measuring the collection", stream=str(stream)):
        stages: list[dict[str, Any]] = [{"$collStats": {"storageStats": {}}}]
        shards = list(database[stream.name].aggregate(stages))
    stats = [shard["storageStats"] for shard in shards]
    counts = [each.get("count", 0) or each.get("timeseries", {}).get("bucketCount", 0) for each in stats]
    return sum(map(int, counts)), sum(int(each.get("size", 0)) for each in stats)


def _sample(database: Source, stream: StreamId, kind: CollectionKind) -> tuple[Column, ...]:
    """A collection whose names of fields carry data has more of them than columns: the rest is in `_rest`."""
    known = Fields()
    with query_errors("sampling the collection", stream=str(stream)), suppress(TooManyFieldsError):
        for documents in _sampled(database, stream.name, kind):
            known.see(documents)
    return tuple(known.columns())


def _sampled(database: Source, collection: str, kind: CollectionKind) -> Iterator[Any]:
    """Of a view the first documents: a random choice would compute all of it."""
    choice = {"$limit": SAMPLED_MAX} if kind == "view" else {"$sample": {"size": SAMPLED_MAX}}
    command = {
        **{"aggregate": collection, "pipeline": [choice], "cursor": {"batchSize": _SAMPLE_BATCH}},
        **{"allowDiskUse": True, "readConcern": _COMMITTED},
    }
    size = 0
    with closing(RawCursor(database, command, batch_rows=_SAMPLE_BATCH)) as cursor:
        for reply in cursor.replies():
            if reply.documents.rows:
                yield reply.documents
            size += len(reply.documents.raw)
            if size > SAMPLED_BYTES_MAX:
                return

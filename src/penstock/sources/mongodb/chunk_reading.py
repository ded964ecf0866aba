"""One chunk of a collection, read wherever its description is taken to.

Promise: the blocks hold every document of the chunk, each once. Under a snapshot (a cluster time) they are
exactly those of that time, in all chunks of it and on all shards; the server keeps such a state for some
minutes, and a read that takes longer ends with `SnapshotLostError`. Without one, each document is as it was
at some time between the beginning and the end of the read, as a majority has it, and one that is inserted or
deleted meanwhile may be in it or not: whoever reads so replaces what changed in between by the change stream
(correctness 54).

It holds because a chunk is a range of the index (`ids`), and because the collection's own number is compared
after the read: one that was dropped and made anew has other documents under the same name.

A filter is judged here, by the same code and on the same text as for changes of the log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from bson import Timestamp

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.chunk import Block, PlannedChunk, TableRewrittenError
from penstock.sources.mongodb.catalog import collection_number
from penstock.sources.mongodb.chunks import range_of
from penstock.sources.mongodb.connection import Client, connect, query_errors
from penstock.sources.mongodb.cursor_windows import parse_condition
from penstock.sources.mongodb.documents import Documents
from penstock.sources.mongodb.ids import read_chunk
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.rows import RowReader, Rows
from penstock.sources.mongodb.types import Whole, content_of
from penstock.values.parse import Flags


def snapshot_text(cluster_time: int) -> str:
    """A cluster time of 64 bits, as the name of the snapshot of that time."""
    return f"{cluster_time >> 32}:{cluster_time & 0xFFFFFFFF}"


def read_concern(snapshot: str) -> dict[str, Any]:
    """`snapshot` empty: what a majority has."""
    if not snapshot:
        return {"level": "majority"}
    seconds, _, ordinal = snapshot.partition(":")
    return {"level": "snapshot", "atClusterTime": Timestamp(int(seconds), int(ordinal))}


@dataclass(frozen=True, slots=True, repr=False)
class MongoChunk:
    url: str  # holds the password, so it is never printed
    application_name: str
    snapshot: str  # empty: none
    chunk: PlannedChunk
    columns: tuple[SourceColumn, ...]  # of the whole table: `_rest` is what none of them has
    condition: str = ""  # a filter of the server's own (`cursor_windows`); empty: every document of the chunk

    def __repr__(self) -> str:
        return repr(self.chunk)

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        wanted = (*schema.columns, *schema.hidden)
        errors = query_errors("reading a chunk of the collection", stream=str(schema.stream))
        with errors, connect(self.url, application_name=self.application_name) as client:
            for rows in self.rows(client, wanted):
                kept = kept_rows(rows, wanted, where, outside)
                yield _block(rows, schema, kept, as_text=as_text)

    def rows(
        self, client: Client, wanted: Sequence[SourceColumn], *, batch_bytes: int | None = None
    ) -> Generator[Rows]:
        """All documents of the chunk, of which these columns may be asked for. Raises what the driver does.

        `batch_bytes`: how much to hand out at a time; a single document may be more.
        """
        leaf = StreamId.parse(self.chunk.leaf)
        database: Source = client[leaf.namespace]
        reader = RowReader(self._read_columns(wanted))
        options = {"comment": self.application_name, **_projection(reader.columns)}
        if self.condition:
            options["filter"] = parse_condition(self.condition)
        read = read_chunk(database, leaf.name, range_of(self.chunk), read_concern(self.snapshot), **options)
        with closing(read) as batches:
            for documents in batches:
                for part in _parts(documents, batch_bytes):
                    yield from reader.read(part)
        if collection_number(database, leaf.name) != self.chunk.filenode:
            raise TableRewrittenError(str(leaf))

    def _read_columns(self, wanted: Sequence[SourceColumn]) -> tuple[SourceColumn, ...]:
        """Those that are held or filtered by; with `_rest`, all of the table."""
        read = {column.name: column for column in wanted}
        if any(content_of(column) is Whole.REST for column in wanted):
            read = {column.name: column for column in self.columns} | read
        return tuple(read.values())


def _parts(documents: Documents, bytes_max: int | None) -> Iterator[Documents]:
    if bytes_max is None:
        yield documents
        return
    first = 0
    while first < documents.rows:
        end = int(documents.starts[first]) + bytes_max
        last = max(first + 1, int(np.searchsorted(documents.ends, end, side="right")))
        yield documents.part(first, last)
        first = last


def _projection(columns: Sequence[SourceColumn]) -> Mapping[str, Any]:
    """Have the server send no more than is held, where that can be said.

    A name with a dot would mean a field inside of another, one with a dollar sign something else.
    """
    contents = {content_of(column) for column in columns}
    names = [column.name for column in columns]
    if contents & {Whole.DOCUMENT, Whole.REST} or any("." in name or "$" in name for name in names):
        return {}
    return {"projection": {"_id": 0} | dict.fromkeys(names, 1)}


def kept_rows(
    rows: Rows, columns: Sequence[SourceColumn], where: Condition | None, outside: Condition | None = None
) -> pa.Array | None:
    """A mask of the rows that are wanted; None: all."""
    kept: Flags | None = None
    for condition, wanted in ((where, True), (outside, False)):
        if condition is None:
            continue
        texts = {column.name: rows.text(column) for column in columns if column.name in condition.columns}
        answer = condition.evaluate(texts, rows.count).fill_null(False).to_numpy(zero_copy_only=False)
        mask: Flags = answer if wanted else ~answer
        kept = mask if kept is None else kept & mask
    return None if kept is None or kept.all() else pa.array(kept)


def _block(rows: Rows, schema: TableSchema, kept: pa.Array | None, *, as_text: bool) -> Block:
    arrays: list[pa.Array] = []
    bad: dict[str, Flags] = {}
    for column in schema.columns:
        found = rows.values(column)
        arrays.append(filtered(found.values, kept))
        if found.bad is not None:
            marked: Flags = filtered(found.bad, kept).to_numpy(zero_copy_only=False)
            if np.any(marked):
                bad[column.name] = marked

    def printed() -> pa.RecordBatch:
        texts = [filtered(rows.text(column), kept) for column in schema.columns]
        return pa.RecordBatch.from_arrays(texts, list(schema.names))

    count = rows.count if kept is None else int(kept.true_count)
    return Block(count, arrays, bad or None, printed if as_text else None)


def filtered(array: pa.Array, kept: pa.Array | None) -> pa.Array:
    return array if kept is None else array.filter(kept)

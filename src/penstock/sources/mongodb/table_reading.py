"""Reading whole collections: planning, chunks for tasks, and how far they are.

A snapshot is a cluster time: every reading that is given it shows that time, on any connection, for as long
as the server keeps its states (five minutes, unless it is set up to keep more). No session holds it. When it
is gone the reading ends with `SnapshotLostError`, and goes on under a later one. Capped collections, views
and time series have no such states: they are read as they are, each chunk at a time of its own.

Nothing at a MongoDB keeps others from dropping a collection: that one was dropped or made anew is told by
its number (`chunk_reading`).

Live figures come from the server, which counts the documents of each open cursor and shows a user their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pymongo.read_concern import ReadConcern

from penstock.core.cursor import Cursors
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.base import RunningRead
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.mongodb import cursor_windows
from penstock.sources.mongodb.catalog import CollectionInfo, CollectionLeaf, discover, measure
from penstock.sources.mongodb.chunk_reading import MongoChunk, filtered, kept_rows, read_concern
from penstock.sources.mongodb.chunks import BYTES_PER_CHUNK_MAX, bounds_after, plan_chunks
from penstock.sources.mongodb.connection import Client, connect, query_errors
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.types import Layout
from penstock.sources.tables import SourceLeaf, SourceTable

_LOADING = "penstock load"
_MONGOS = "isdbgrid"
_WITH_STATES = "collection"  # the kind that the server shows as of a time
_READER = "cursor.originatingCommand.comment"  # a cursor that waits for us has no name of its connection


@dataclass(frozen=True, slots=True, repr=False)
class MongoReading:
    url: str
    database: str = ""
    layout: Layout = "document"
    remembered: RememberedFields | None = None

    def shows_one_moment(self, table: SourceTable) -> bool:
        return table.kind == _WITH_STATES

    @property
    def knows_bytes(self) -> bool:
        return False

    @property
    def finds_place(self) -> bool:
        return False

    def tables(self, streams: Sequence[StreamId]) -> Sequence[CollectionInfo]:
        with connect(self.url) as client:
            return discover(
                client, streams, database=self.database, layout=self.layout, remembered=self.remembered
            )

    @contextmanager
    def session(self, snapshot: str | None = None) -> Iterator[MongoSession]:
        with connect(self.url, application_name="penstock plan") as client:
            yield MongoSession(client, snapshot or "")

    def held(self, table: SourceTable, readers: int) -> NoReturn:
        raise AssertionError("a snapshot has a name, and can be read under by all")

    def text_session(self) -> MongoTextSession:
        return MongoTextSession(self.url, connect(self.url, application_name=_LOADING))

    def chunk(
        self,
        chunk: PlannedChunk,
        leaf: SourceLeaf,
        method: ChunkMethod,
        snapshot: str,
        *,
        reader: str,
        condition: str = "",
    ) -> MongoChunk:
        assert isinstance(leaf, CollectionLeaf)
        return MongoChunk(self.url, reader, _shown(leaf, snapshot), chunk, leaf.columns, condition)

    def within(self, noted: Noted) -> str:
        return cursor_windows.condition_text(cursor_windows.within_any(noted))

    def method_for(self, table: SourceTable, wanted: ChunkMethod) -> ChunkMethod:
        """Ranges of `_id`; what has no index of them is one chunk, in the order in which it lies."""
        return "key" if table.schema.key else "ctid"

    def bound_text(self, bound: str) -> None:
        """An id is of any type."""

    @contextmanager
    def watching(self) -> Iterator[Callable[[], Sequence[RunningRead]]]:
        with connect(self.url, application_name="penstock progress") as client:
            yield _Watch(client).running


def _shown(leaf: CollectionLeaf, snapshot: str) -> str:
    """A snapshot, where there are some; all else is read as it is."""
    return snapshot if leaf.kind == _WITH_STATES else ""


class MongoSession:
    def __init__(self, client: Client, snapshot: str) -> None:
        self._client = client
        self._concern = read_concern(snapshot)

    def plan_chunks(
        self,
        table: SourceTable,
        method: ChunkMethod,
        *,
        rows_per_chunk: int,
        bytes_per_chunk_max: int | None = None,
    ) -> list[PlannedChunk]:
        """Bounds need only ascend: they are looked for in the collection as it is now."""
        assert isinstance(table, CollectionInfo)
        return plan_chunks(
            self._client[table.stream.namespace],
            table,
            rows_per_chunk=rows_per_chunk,
            bytes_per_chunk_max=bytes_per_chunk_max or BYTES_PER_CHUNK_MAX,
        )

    def bounds_after(
        self, table: SourceTable, method: ChunkMethod, bounds: Sequence[str], low: str
    ) -> list[str]:
        return bounds_after(self._client[table.stream.namespace], table.stream.name, bounds, low)

    def note(self, table: SourceTable, cursors: Sequence[Cursor], start: Cursors) -> Noted:
        database = self._client[table.stream.namespace]
        return cursor_windows.note(database, table, cursors, start, self._concern)

    def cut(self, leaf: SourceLeaf, window: Window, rows_max: int) -> list[CursorChunk]:
        assert isinstance(leaf, CollectionLeaf)
        database = self._client[leaf.stream.namespace]
        return cursor_windows.cut(database, leaf, window, rows_max, self._concern)


class MongoTextSession:
    def __init__(self, url: str, client: Client) -> None:
        self._url = url
        self._client = client

    def columns(
        self,
        chunk: PlannedChunk,
        table: SourceTable,
        columns: Sequence[SourceColumn],
        method: ChunkMethod,
        where: Condition | None,
        snapshot: str,
        *,
        block_bytes: int,
    ) -> Iterator[tuple[int, list[pa.Array]]]:
        leaf = next(leaf for leaf in table.leaves if str(leaf.stream) == chunk.leaf)
        assert isinstance(leaf, CollectionLeaf)
        read = MongoChunk(self._url, _LOADING, _shown(leaf, snapshot), chunk, leaf.columns)
        names = {column.name for column in columns}
        judged = [
            each
            for each in leaf.columns
            if where is not None and each.name in where.columns and each.name not in names
        ]
        wanted = (*columns, *judged)
        with query_errors("reading a chunk of the collection", stream=str(table.stream)):
            for rows in read.rows(self._client, wanted, batch_bytes=block_bytes):
                kept = kept_rows(rows, wanted, where)
                count = rows.count if kept is None else int(kept.true_count)
                yield count, [filtered(rows.text(column), kept) for column in columns]

    def hold(self, table: SourceTable) -> None:
        """A snapshot has a name, and can be read under by all."""

    def cancel(self) -> None:
        """What it reads ends at its next batch."""
        self._client.close()

    def close(self) -> None:
        self._client.close()


class _Watch:
    """Counts of the open cursors of loads. A cursor tells no bytes: those are of average documents."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admin = client.get_database("admin", read_concern=ReadConcern("local"))
        # Of a cluster's router, its own cursors: they are those that were opened by us.
        here = {"localOps": True} if client.admin.command("hello").get("msg") == _MONGOS else {}
        self._pipeline: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": False, "idleCursors": True, **here}},
            {"$match": {_READER: {"$regex": f"^{_LOADING} "}}},
            {"$project": {"ns": 1, "cursor.cursorId": 1, "cursor.nDocsReturned": 1, _READER: 1}},
        ]
        self._bytes_each: dict[str, float] = {}

    def running(self) -> Sequence[RunningRead]:
        found = []
        for operation in self._admin.aggregate(self._pipeline):
            cursor = operation["cursor"]
            rows = int(cursor.get("nDocsReturned", 0))
            size = int(rows * self._average(operation["ns"]))
            reader = cursor["originatingCommand"]["comment"]
            found.append(RunningRead(reader, str(cursor["cursorId"]), rows, size))
        return found

    def _average(self, namespace: str) -> float:
        if namespace not in self._bytes_each:
            stream = StreamId.parse(namespace)
            count, size = measure(self._client[stream.namespace], stream)
            self._bytes_each[namespace] = size / count if count else 0.0
        return self._bytes_each[namespace]

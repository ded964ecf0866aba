"""A change stream of a database, the whole cluster or a collection, batch by batch, with its own resuming.

Promise: batches hold every event behind the place it was opened at, each once and in order, over lost
connections and elections. It holds because the place only moves with a batch that is handed out: to the
token that the server sent with the batch, or to that of the last event, whichever it has. When the cursor is
lost it is opened again behind that place. An event of which only some fragments have come does not move it.

An empty batch is an answer too. Its token moves on while nothing happens to what is selected, so that the
place never falls out of the oplog; and nothing of an earlier transaction can follow it: the server waits for
new entries of the oplog only when it has handed out all events of those before. What comes with the opening
of a cursor is no answer if it is empty: the server need not have looked.

A place that the oplog no longer has is a `PositionGoneError`: nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConnectionFailure, CursorNotFound, OperationFailure, PyMongoError

from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.sources.mongodb.connection import Client
from penstock.sources.mongodb.events import Events, Fragments, read_events
from penstock.sources.mongodb.replies import RawCursor, Reply, Source
from penstock.sources.mongodb.rights import Scope

REOPENED_MAX = 5
_RESUMABLE = "ResumableChangeStreamError"
_GONE = {
    286: "The oplog no longer reaches back to where reading must go on.",
    280: "The place to go on from is not in this server's oplog.",
    260: "The place to go on from is not one that this server knows.",
    50811: "The place to go on from is not one that this server knows.",
    136: "The oplog was overwritten faster than it was read.",
    47: "The server does not have a document as it was after a change, which is asked for.",
}
_TOO_LARGE = {10334, 17280}
#: The server looks up the document after an update, and tells what was set besides: of one that sets more
#: than half of what an event may have, both together are too large for it. Nobody reads the latter.
_LEFT_OUT = {"$project": {"updateDescription": 0}}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream goes on: behind a token, that of an `invalidate` too; else at a time; else now."""

    token: bytes | None = None
    at: int | None = None

    def options(self) -> dict[str, Any]:
        if self.token is not None:
            return {
                "startAfter": RawBSONDocument(self.token)
            }  # `resumeAfter` refuses that of an `invalidate`
        if self.at is not None:
            return {"startAtOperationTime": Timestamp(self.at >> 32, self.at & 0xFFFFFFFF)}
        return {}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream brings. `images`: `updateLookup`, `whenAvailable`, `required`; `before`: the latter."""

    images: str = "updateLookup"
    before: str | None = None
    whole_cluster: bool = False
    collection: str | None = None  # only where rights do not reach further
    pipeline: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    split_large: bool = False  # from 6.0.9 and 7.0 on
    batch_rows: int | None = None

    def command(self, place: Place) -> dict[str, Any]:
        stream: dict[str, Any] = {"fullDocument": self.images, **place.options()}
        if self.before is not None:
            stream["fullDocumentBeforeChange"] = self.before
        if self.whole_cluster:
            stream["allChangesForCluster"] = True
        pipeline = [{"$changeStream": stream}, *self.pipeline, _LEFT_OUT]
        if self.split_large:
            pipeline.append({"$changeStreamSplitLargeEvent": {}})
        cursor = {"batchSize": self.batch_rows} if self.batch_rows else {}
        return {
            **{"aggregate": self.collection or 1, "pipeline": pipeline, "cursor": cursor},
            "readConcern": {"level": "majority"},
        }


def stream_of(client: Client, scope: Scope, options: StreamOptions, place: Place) -> ChangeStream:
    """Not opened yet."""
    whole, collection = not scope.database, scope.collection or None
    options = replace(options, whole_cluster=whole, collection=collection)
    return ChangeStream(client[scope.database or "admin"], options, place)


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Events, in one or several parts, and the place behind them."""

    parts: list[Events]
    place: Place

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class ChangeStream:
    """Of `database`; with `whole_cluster` that is `admin`. Close it when done."""

    def __init__(self, database: Source, options: StreamOptions, place: Place = Place()) -> None:  # noqa: B008
        self.place = place
        self._database = database
        self._options = options
        self._fragments = Fragments([])
        self._cursor: RawCursor | None = None
        self._opened: Reply | None = None
        self._is_opening = False  # whether the last reply came with the opening of its cursor

    def open(self) -> None:
        """Have the server begin, so that a stream from now on begins now."""
        self._opened = self._next_reply(1)

    def read(self, wait_ms: int = 1_000) -> ChangeBatch:
        """The next batch; an empty one after `wait_ms` without an event, and never in the midst of one or
        from the opening, since an empty batch is taken for a rest between two entries of the log."""
        reply, self._opened = self._opened, None
        batch = self._take(reply or self._next_reply(wait_ms))
        while not batch.parts and (self._fragments.held or (self._is_opening and self._cursor is not None)):
            batch = self._take(self._next_reply(wait_ms))
        return batch

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _take(self, reply: Reply) -> ChangeBatch:
        events = read_events(reply.documents, exact=self._options.images == "required")
        parts = self._fragments.join(events) if events.rows else []
        self.place = self._place_behind(parts, reply)
        if not reply.cursor_id:
            self.close()
        return ChangeBatch(parts, self.place)

    def _place_behind(self, parts: list[Events], reply: Reply) -> Place:
        if reply.token is not None and not self._fragments.held:
            return Place(reply.token)
        return Place(parts[-1].token(parts[-1].rows - 1)) if parts else self.place

    def _next_reply(self, wait_ms: int) -> Reply:
        """From the open cursor, or from one that is opened behind the place."""
        for attempt in range(REOPENED_MAX + 1):
            try:
                if self._cursor is not None:
                    self._is_opening = False
                    return self._cursor.next(max(wait_ms, 1))
                self._fragments.held = []
                self._is_opening = True
                command, rows = self._options.command(self.place), self._options.batch_rows
                self._cursor = RawCursor(self._database, command, batch_rows=rows)
                return self._cursor.reply
            except PyMongoError as error:
                if self._cursor is not None:
                    self._cursor.abandon()
                    self._cursor = None
                if attempt == REOPENED_MAX or not is_resumable(error):
                    raise told(error) from error
        raise AssertionError


def time_of(token: bytes) -> Lsn:
    return ResumeToken(bson.decode(token)["_data"]).time


def is_resumable(error: PyMongoError) -> bool:
    """Whether the stream goes on behind its place on another connection or with another primary."""
    return isinstance(error, ConnectionFailure | CursorNotFound) or error.has_error_label(_RESUMABLE)


def told(error: PyMongoError) -> SourceError:
    """The driver's error in our words; it quotes nothing of it."""
    code = error.code if isinstance(error, OperationFailure) else None
    if code in _GONE:
        return PositionGoneError(
            _GONE[code],
            remedy="Load the collections again (`penstock resync`), and let the oplog keep more hours.",
        )
    if code in _TOO_LARGE:
        return SourceError(
            "An event of the change stream is larger than 16 MiB.",
            remedy="Servers from 6.0.9 on can split it; with an older one, do without pre-images.",
        )
    return SourceError(
        f"The change stream cannot be read ({type(error).__name__}{f', code {code}' if code else ''}).",
        remedy="See that the server is a replica set and the user may run `changeStream` there.",
    )

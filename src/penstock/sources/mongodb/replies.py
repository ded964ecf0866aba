"""A cursor of the server, read reply by reply as raw bytes.

The driver sends the commands and checks the replies; what is in a batch is never decoded by it. Its own raw
cursors tell nothing about where a batch lies in a change stream, so the commands are our own: whatever opens
the cursor, then `getMore`. Commands go to the primary, so all of a cursor's reach the server that holds it.
A reply has at most 16 MiB of documents and one more document, and there is one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import bson
import numpy as np
from bson import Int64
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import PyMongoError

from penstock.sources.mongodb import bson_kernels, column_kernels
from penstock.sources.mongodb.documents import Documents, malformed
from penstock.text_kernels import Bytes

Source = Database[dict[str, Any]]
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_CURSOR, _ID, _NAMESPACE, _FIRST, _NEXT, _TOKEN = (
    np.frombuffer(name, np.uint8)
    for name in (b"cursor", b"id", b"ns", b"firstBatch", b"nextBatch", b"postBatchResumeToken")
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One batch. `token` is where a change stream stands after it, as raw BSON."""

    documents: Documents
    cursor_id: int
    collection: str
    token: bytes | None


def parse_reply(raw: bytes) -> Reply:
    buffer = np.frombuffer(raw, np.uint8)
    cursor = _inner(buffer, 0, len(buffer), _CURSOR)
    assert cursor is not None, "a reply of a cursor has one"
    at, end = cursor
    batch = _inner(buffer, at, end, _NEXT) or _inner(buffer, at, end, _FIRST)
    assert batch is not None
    starts, ends = bson_kernels.find_in_array(buffer, *batch)
    if len(starts) != len(ends):
        raise malformed(len(ends), bson_kernels.MALFORMED)
    token = _inner(buffer, at, end, _TOKEN)
    head = bson.decode(_without_batch(raw, (at, end), batch))
    return Reply(
        Documents(buffer, starts, ends),
        head["id"],
        head["ns"].partition(".")[2],
        raw[token[0] : token[1]] if token else None,
    )


def _without_batch(raw: bytes, cursor: tuple[int, int], batch: tuple[int, int]) -> bytes:
    """The cursor's description with an empty batch, small enough for the driver to decode."""
    parts = raw[cursor[0] + 4 : batch[0]] + bson.encode({}) + raw[batch[1] : cursor[1]]
    return (len(parts) + 4).to_bytes(4, "little") + parts


def _inner(buffer: Bytes, at: int, end: int, name: Bytes) -> tuple[int, int] | None:
    """Where the document or array of this name is in the document from `at` to `end`."""
    kinds, positions, row = column_kernels.find_field(
        buffer, np.array([at], np.int64), np.array([end], np.int64), name
    )
    if row >= 0:
        raise malformed(0, bson_kernels.MALFORMED)
    if kinds[0] not in (bson_kernels.DOCUMENT, bson_kernels.ARRAY):
        return None
    start = int(positions[0])
    return start, start + int.from_bytes(buffer[start : start + 4].tobytes(), "little")


class RawCursor:
    """What `command` opens, reply by reply. Raises what the driver does. Close it when done."""

    def __init__(
        self, database: Source, command: Mapping[str, Any], *, batch_rows: int | None = None
    ) -> None:
        self._database = database
        self._batch = {"batchSize": batch_rows} if batch_rows else {}
        # Only so that the server knows whose cursor it is; what was read before does not matter.
        self._session: ClientSession = database.client.start_session(causal_consistency=False)
        try:
            self.reply = self._run(command)
        except BaseException:
            self._session.end_session()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the server has more, or may have in the future."""
        return self.reply.cursor_id != 0

    def next(self, wait_ms: int | None = None) -> Reply:
        """The next batch; of a change stream perhaps an empty one, after `wait_ms` without an event."""
        command: dict[str, Any] = {
            "getMore": Int64(self.reply.cursor_id),
            "collection": self.reply.collection,
        }
        command |= self._batch
        if wait_ms is not None:
            command["maxTimeMS"] = wait_ms
        self.reply = self._run(command)
        return self.reply

    def replies(self) -> Iterator[Reply]:
        yield self.reply
        while self.is_open:
            yield self.next()

    def abandon(self) -> None:
        """Close it where the server cannot be told: it would be waited for."""
        self._session.end_session()

    def close(self) -> None:
        if self.is_open:
            kill = {"killCursors": self.reply.collection, "cursors": [Int64(self.reply.cursor_id)]}
            with suppress(PyMongoError):  # it ends by itself, ten minutes later
                self._database.command(kill, session=self._session)
        self._session.end_session()

    def _run(self, command: Mapping[str, Any]) -> Reply:
        answer = self._database.command(dict(command), codec_options=RAW, session=self._session)
        return parse_reply(bytes(answer.raw))

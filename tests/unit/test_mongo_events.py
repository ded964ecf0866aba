"""Events of change streams that the test server is too old to send, and what a plan of chunks is made of."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, patch

import bson
import pytest
from bson import Int64, MaxKey, MinKey, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.sources.mongodb.change_stream import ChangeStream, StreamOptions
from penstock.sources.mongodb.documents import json_texts, parse
from penstock.sources.mongodb.events import Events, Fragments, Operation, read_events
from penstock.sources.mongodb.ids import cut, pick
from penstock.sources.mongodb.replies import Reply, parse_reply
from tests.bson_documents import documents

pytestmark = pytest.mark.unit


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {"_id": {"_data": f"{number:04}"}, "operationType": "update", **fields}


def fragments(number: int, document: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """An event as a server from 6.0.9 on splits it: each fragment has a token, and some of the fields."""
    return [
        {
            **event(number, clusterTime=Timestamp(7, number), ns={"db": "d", "coll": "c"}),
            **{"documentKey": {"_id": number}, "splitEvent": {"fragment": 1, "of": 3}},
        },
        {"_id": {"_data": f"{number}-2"}, "splitEvent": {"fragment": 2, "of": 3}, "fullDocument": document},
        {
            **{"_id": {"_data": f"{number}-3"}, "splitEvent": {"fragment": 3, "of": 3}},
            "fullDocumentBeforeChange": before,
        },
    ]


def events_of(*raw: dict[str, Any]) -> Events:
    return read_events(parse(b"".join(bson.encode(each) for each in raw)))


@given(st.integers(0, 5), st.integers(0, 3), documents)
def test_a_split_event_is_put_together_wherever_batches_are_cut(
    cut_at: int, before: int, document: dict[str, Any]
) -> None:
    whole = [event(number, documentKey={"_id": number}) for number in range(before)]
    sent = [*whole, *fragments(8, document, {"old": 1}), event(9, documentKey={"_id": 9})]
    waiting = Fragments([])
    parts: list[Events] = []
    for batch in (sent[:cut_at], sent[cut_at:]):
        if batch:
            parts += waiting.join(events_of(*batch))
    assert waiting.held == []
    keys = [key for part in parts for key in part.keys.to_pylist()]
    assert keys == [*(str(number) for number in range(before)), "8", "9"]
    [joined] = [part for part in parts if part.keys.to_pylist() == ["8"] and len(part.before.rows)]
    assert joined.operations.tolist() == [Operation.UPDATE]
    assert joined.times.tolist() == [7 << 32 | 8]
    assert json_texts(joined.after.documents) == json_texts(parse(bson.encode(document)))
    assert bson.decode(joined.token(0)) == {"_data": "8-3"}


def test_a_stream_does_not_rest_in_the_midst_of_an_event() -> None:
    """An empty batch says that all of a transaction has come, and its last event may be in fragments."""
    first, second, third = fragments(8, {"n": 1}, {"old": 1})
    replies = iter([reply_with(event(7)), reply_with(first), reply_with(second), reply_with(third)])
    stream = ChangeStream(MagicMock(), StreamOptions(split_large=True))
    with patch.object(stream, "_next_reply", lambda _: next(replies)):
        assert stream.read().parts[0].keys.to_pylist() == [None]
        [joined] = stream.read().parts
        assert bson.decode(joined.token(0)) == {"_data": "8-3"}
        assert next(replies, None) is None


def test_nothing_that_came_with_the_opening_is_no_rest() -> None:
    """The server need not have looked, so the rest of a transaction may follow."""
    opened = MagicMock(reply=reply_with())
    opened.next.return_value = reply_with(event(7))
    stream = ChangeStream(MagicMock(), StreamOptions())
    with patch("penstock.sources.mongodb.change_stream.RawCursor", return_value=opened):
        assert stream.read().rows == 1
        opened.next.return_value = reply_with()
        assert stream.read().rows == 0, "but what the server waited for in vain is one"


def reply_with(*sent: dict[str, Any]) -> Reply:
    token = sent[-1]["_id"] if sent else {"_data": "7"}
    cursor = {"nextBatch": [*sent], "postBatchResumeToken": token, "id": Int64(5), "ns": "d.c"}
    return parse_reply(bson.encode({"cursor": cursor, "ok": 1.0}))


def test_fragments_that_are_torn_apart_are_an_error() -> None:
    first, second, third = fragments(1, {}, {})
    for sent in ([first, third], [second], [first, event(2)]):
        with pytest.raises(SourceError, match="fragments"):
            Fragments([]).join(events_of(*sent))


def test_operations_of_other_kinds_and_events_without_a_key_are_told() -> None:
    told = events_of(
        {"_id": {}, "operationType": "createIndexes", "ns": {"db": "d", "coll": "c"}},
        {"_id": {}, "operationType": "dropDatabase", "ns": {"db": "d"}, "unknown": [1]},
        {"_id": {}, "operationType": "update", "documentKey": {"shard": 1, "_id": 2}, "fullDocument": None},
        {"_id": {}, "operationType": "insert", "txnNumber": Int64(4), "documentKey": {"_id": 3}},
        {"_id": {}, "operationType": "invalidate"},
    )
    assert told.operations.tolist() == [-1, 6, 1, 0, 7]
    assert told.keys.to_pylist() == [None, None, "2", "3", None]
    assert told.transactions.tolist() == [-1, -1, -1, 4, -1]
    assert told.namespaces[0].tolist() == [0, 1, -1, -1, -1]
    assert told.namespaces[1] == [("d", "c"), ("d", "")]
    assert len(told.after.rows) == 0


@given(st.lists(documents, max_size=4))
def test_a_reply_is_taken_apart(batch: list[dict[str, Any]]) -> None:
    cursor = {"nextBatch": batch, "postBatchResumeToken": {"_data": "00"}, "id": Int64(5), "ns": "d.c.x"}
    reply = parse_reply(bson.encode({"cursor": cursor, "ok": 1.0}))
    assert (reply.cursor_id, reply.collection) == (5, "c.x")
    assert reply.token == bson.encode({"_data": "00"})
    raw = reply.documents
    found = [raw.raw[start:end].tobytes() for start, end in zip(raw.starts, raw.ends, strict=True)]
    assert found == [bson.encode(each) for each in batch]


@given(st.integers(0, 60), st.integers(1, 70))
def test_bounds_ascend_and_are_neither_extreme(count: int, chunks: int) -> None:
    ids = [bson.encode({"_id": each}) for each in [MinKey(), *range(count), MaxKey()]]
    bounds = pick([each for each in ids for _ in range(2)], chunks)  # a sample may have one twice
    assert [ids.index(bound) for bound in bounds] == sorted({ids.index(bound) for bound in bounds})
    assert not {ids[0], ids[-1]} & set(bounds)
    assert len(bounds) <= chunks - 1
    made = cut(bounds)
    assert [each.lower for each in made] == [None, *bounds]
    assert [each.upper for each in made] == [*bounds, None]

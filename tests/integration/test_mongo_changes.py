"""Change streams of a real replica set as raw batches: what happened, in order, each once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import bson
import pytest
from bson import Timestamp

from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.resume_token import ResumeToken
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions
from penstock.sources.mongodb.documents import json_texts
from penstock.sources.mongodb.events import Operation
from penstock.sources.mongodb.replies import Source
from tests.conftest import wait_until
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongo: MongoServer) -> Iterator[Source]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield mongo.client[name]
    mongo.client.drop_database(name)


Told = tuple[Operation, str, str | None, str | None]


def collect(stream: ChangeStream, count: int) -> list[Told]:
    """The next events: operation, collection, key and document."""
    found: list[Told] = []

    def is_there() -> bool:
        for part in stream.read(wait_ms=100).parts:
            numbers, namespaces = part.namespaces
            after: list[str | None] = [None] * part.rows
            images = part.after
            for row, text in zip(images.rows, json_texts(images.documents).to_pylist(), strict=True):
                after[row] = text
            for row, key in enumerate(part.keys.to_pylist()):
                where = namespaces[numbers[row]][1] if numbers[row] >= 0 else ""
                found.append((Operation(part.operations[row]), where, key, after[row]))
        return len(found) >= count

    wait_until(is_there, f"{count} events")
    return found


def opened(database: Source, place: Place | None = None, **options: Any) -> ChangeStream:
    stream = ChangeStream(database, StreamOptions(**options), place or Place())
    stream.open()
    return stream


def time_of(token: bytes) -> int:
    """All events below it have come when a batch has this token."""
    return ResumeToken(bson.decode(token)["_data"]).time


def test_changes_of_documents_come_in_order_with_key_and_document(database: Source) -> None:
    with closing(opened(database)) as stream:
        database["a"].insert_one({"_id": 1, "v": 1})
        database["b"].insert_one({"_id": "x"})
        database["a"].update_one({"_id": 1}, {"$set": {"v": 2}})
        database["a"].replace_one({"_id": 1}, {"_id": 1.0, "w": 1})  # the same `_id` to MongoDB
        database["a"].delete_one({"_id": 1})
        found = collect(stream, 5)
    assert [(*each[:3], each[3] is not None) for each in found] == [
        (Operation.INSERT, "a", "1", True),
        (Operation.INSERT, "b", '"x"', True),
        (Operation.UPDATE, "a", "1", False),  # looked up when it was gone
        (Operation.REPLACE, "a", "1", True),
        (Operation.DELETE, "a", "1", False),
    ]
    assert found[0][3] == '{"_id":{"$numberInt":"1"},"v":{"$numberInt":"1"}}'


def test_images_are_those_of_the_moment_where_the_collection_keeps_them(database: Source) -> None:
    database.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
    with closing(opened(database, images="whenAvailable", before="whenAvailable")) as stream:
        database["a"].insert_one({"_id": 1, "v": 1})
        database["a"].update_one({"_id": 1}, {"$set": {"v": 2}})
        database["a"].delete_one({"_id": 1})
        after, before = [], []

        def are_there() -> bool:
            for part in stream.read(wait_ms=100).parts:
                after.extend(json_texts(part.after.documents).to_pylist())
                before.extend(json_texts(part.before.documents).to_pylist())
            return len(before) == 2

        wait_until(are_there, "two images of what was before")
    images = [f'{{"_id":{{"$numberInt":"1"}},"v":{{"$numberInt":"{value}"}}}}' for value in (1, 2)]
    assert (after, before) == (images, images)


def test_events_of_a_transaction_share_a_time_that_the_next_token_is_past(
    database: Source, mongo: MongoServer
) -> None:
    for name in ("a", "b"):
        database.create_collection(name)
    with closing(opened(database)) as stream, mongo.client.start_session() as session:
        with session.start_transaction():
            for number in range(3):
                database["a"].insert_one({"_id": number}, session=session)
                database["b"].insert_one({"_id": number}, session=session)
        database["a"].insert_one({"_id": 9})
        times: list[int] = []
        transactions: list[int] = []

        def is_past() -> bool:
            batch = stream.read(wait_ms=100)
            for part in batch.parts:
                times.extend(part.times.tolist())
                transactions.extend(part.transactions.tolist())
            assert batch.place.token is not None
            past = time_of(batch.place.token)
            return len(times) == 7 and past >= times[-1] and not batch.rows

        wait_until(is_past, "the transaction to be past")
    assert len(set(times[:6])) == 1
    assert times[6] > times[0]
    assert set(transactions[:6]) != {-1}
    assert len(set(transactions[:6])) == 1
    assert transactions[6] == -1


def test_it_goes_on_after_a_crash_of_the_server_and_from_every_place(
    database: Source, mongo: MongoServer
) -> None:
    places = []
    with closing(opened(database, batch_rows=2)) as stream:
        places.append(stream.place)
        for number in range(10):
            database["a"].insert_one({"_id": number})
        first = collect(stream, 4)
        places.append(stream.place)
        mongo.restart()
        database["a"].insert_one({"_id": "after"})
        rest = collect(stream, 11 - len(first))
    keys = [each[2] for each in first + rest]
    assert keys == [*(str(number) for number in range(10)), '"after"']
    with closing(opened(database, places[1])) as again:
        assert [each[2] for each in collect(again, 11 - len(first))] == keys[len(first) :]


def test_drop_and_rename_are_told_and_an_invalidated_stream_goes_on(database: Source) -> None:
    database["a"].insert_one({"_id": 1})
    with closing(opened(database, collection="a")) as stream:
        database["a"].drop()
        found = [each[0] for each in collect(stream, 2)]
        assert found == [Operation.DROP, Operation.INVALIDATE]
        database["a"].insert_one({"_id": 2})
        assert collect(stream, 1)[0][:3] == (Operation.INSERT, "a", "2")
    with closing(opened(database)) as stream:
        database["a"].rename("b")
        database["b"].drop()
        found = [each[0] for each in collect(stream, 2)]
        assert found == [Operation.RENAME, Operation.DROP]
        database.client.drop_database(database.name)
        found = [each[0] for each in collect(stream, 2)]
        assert found == [Operation.DROP_DATABASE, Operation.INVALIDATE]


def test_a_cluster_stream_brings_all_databases_and_a_filter_selects(database: Source) -> None:
    only = ({"$match": {"ns.db": database.name, "ns.coll": "a"}},)
    admin = database.client["admin"]
    with closing(opened(admin, whole_cluster=True, pipeline=only)) as stream:
        database["b"].insert_one({"_id": 1})
        database["a"].insert_one({"_id": 2})
        assert collect(stream, 1)[0][:3] == (Operation.INSERT, "a", "2")


def test_a_place_moves_on_while_nothing_selected_happens(database: Source) -> None:
    with closing(opened(database, pipeline=({"$match": {"ns.coll": "none"}},))) as stream:
        stream.read(wait_ms=1)
        assert stream.place.token is not None
        written = database.command({"insert": "a", "documents": [{"_id": 1}]})["operationTime"]

        def moves() -> bool:
            assert stream.read(wait_ms=50).rows == 0
            assert stream.place.token is not None
            return time_of(stream.place.token) >= int(written.time << 32 | written.inc)

        wait_until(moves, "the token to move")


def test_a_place_that_the_oplog_lost_is_an_error_and_skips_nothing(database: Source) -> None:
    with closing(opened(database)) as stream:
        database["a"].insert_one({"_id": 1})
        [part] = stream.read().parts or stream.read().parts
    data = bson.decode(part.token(0))["_data"]
    seconds = int(data[2:10], 16) - 1
    elsewhere = bson.encode({"_data": f"{data[:2]}{seconds:08X}{data[10:]}"})  # of an event that never was
    stream = ChangeStream(database, StreamOptions(), Place(elsewhere))
    with closing(stream), pytest.raises(PositionGoneError, match="resync"):
        collect(stream, 1)
    unknown = Place(token=b"\x16\0\0\0\x02_data\0\x06\0\0\0hello\0\0")
    stream = ChangeStream(database, StreamOptions(), unknown)
    with closing(stream), pytest.raises(SourceError):
        stream.open()


def test_a_stream_begins_at_a_time(database: Source) -> None:
    reply = database.command({"insert": "a", "documents": [{"_id": 1}]})
    time: Timestamp = reply["operationTime"]
    database["a"].insert_one({"_id": 2})
    with closing(ChangeStream(database, StreamOptions(), Place(at=time.time << 32 | time.inc))) as stream:
        assert [each[2] for each in collect(stream, 2)] == ["1", "2"]

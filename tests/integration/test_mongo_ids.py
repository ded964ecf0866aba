"""Chunks of real collections: with ids of every type, each document is in one chunk, and only there."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId
from bson.decimal128 import Decimal128
from pymongo.errors import DuplicateKeyError

from penstock.sources.mongodb import ids
from penstock.sources.mongodb.documents import Documents, json_texts, key_texts
from penstock.sources.mongodb.fields import Fields
from penstock.sources.mongodb.ids import Chunk, cut, find_bounds, pick, read_chunk
from penstock.sources.mongodb.replies import Source
from tests.bson_documents import EVERY_ID
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongo: MongoServer) -> Iterator[Source]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield mongo.client[name]
    mongo.client.drop_database(name)


def raw_ids(database: Source, collection: str) -> list[bytes]:
    return ids.read_ids(database, collection, [{"$project": {"_id": 1}}, {"$sort": {"_id": 1}}])


def read(database: Source, collection: str, chunks: list[Chunk]) -> list[str]:
    return [
        key
        for chunk in chunks
        for documents in read_chunk(database, collection, chunk, batchSize=3)
        for key in key_texts(documents).to_pylist()
    ]


def planned(database: Source, collection: str, rows_per_chunk: int) -> list[Chunk]:
    count = database[collection].count_documents({})
    return cut(find_bounds(database, collection, math.ceil(count / rows_per_chunk), count))


def create(database: Source, how: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "collated": {"collation": {"locale": "en", "strength": 3, "caseFirst": "upper"}},
        "clustered": {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
    }
    database.create_collection("all", **options[how])
    database["all"].insert_many([{"_id": each, "v": 1} for each in EVERY_ID])


@pytest.mark.parametrize("how", ["plain", "collated", "clustered"])
def test_each_document_is_in_one_chunk_wherever_the_bounds_are(database: Source, how: str) -> None:
    create(database, how)
    sorted_ids = raw_ids(database, "all")
    assert len(sorted_ids) == len(EVERY_ID)
    expected = read(database, "all", [Chunk()])
    assert len(set(expected)) == len(EVERY_ID)
    for count in (2, 5, len(sorted_ids) + 9):
        chunks = cut(pick(sorted_ids, count))
        assert len(chunks) == min(count, len(sorted_ids) - 2)  # without MinKey and MaxKey
        found = read(database, "all", chunks)
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("sorted_max", [1_000_000, 0])
def test_a_plan_cuts_about_even_chunks_of_mixed_ids(
    database: Source, monkeypatch: pytest.MonkeyPatch, sorted_max: int
) -> None:
    monkeypatch.setattr(ids, "SORTED_MAX", sorted_max)  # 0: a sample, as of large collections
    create(database, "plain")
    more = [kind(number) for number in range(1000) for kind in (int, str, _object_id, _document)]
    database["all"].insert_many([{"_id": each} for each in more if each != 0])
    chunks = planned(database, "all", 200)
    assert len(chunks) > 10
    sizes = [len(read(database, "all", [chunk])) for chunk in chunks]
    assert sum(sizes) == len(EVERY_ID) + len(more) - 1
    assert max(sizes) < 1_000


def _object_id(number: int) -> ObjectId:
    return ObjectId(f"{number:024x}".replace("000000", "0000ab", 1))


def _document(number: int) -> dict[str, Any]:
    return {"number": float(number)}


def test_keys_are_equal_exactly_where_the_server_holds_ids_for_equal(database: Source) -> None:
    numbers = [
        0.1, Decimal128("0.1"), Decimal128("0.1000000000000000055511151231257827"), 2.0**-30,
        Decimal128("9.31322574615478515625E-10"), 1, 1.0, Decimal128("1.00"), Int64(2**53 + 1), float(2**53),
        1e22, Decimal128("1E+22"), 1e23, Decimal128("1E+23"), math.nan, Decimal128("NaN"), -0.0, 0,
        {"a": 1}, {"a": 1.0}, {"a": "1"}, math.inf, Decimal128("Infinity"), 2.0**200,
    ]  # fmt: skip
    held: dict[str, Any] = {}
    for number in numbers:
        [key] = key_texts(Documents(*_whole(bson.encode({"_id": number})))).to_pylist()
        try:
            database["ids"].insert_one({"_id": number})
        except DuplicateKeyError:
            assert key in held
        else:
            assert held.setdefault(key, number) is number


def _whole(raw: bytes) -> tuple[Any, Any, Any]:
    import numpy as np

    return np.frombuffer(raw, np.uint8), np.array([0], np.int64), np.array([len(raw)], np.int64)


def test_documents_of_many_batches_become_columns(database: Source) -> None:
    rows = [{"_id": number, "text": "x" * (number % 50), "even": number % 2 == 0} for number in range(5_000)]
    database["rows"].insert_many(rows)
    known = Fields()
    found = []
    for chunk in planned(database, "rows", 2_000):
        for documents in read_chunk(database, "rows", chunk):
            assert documents.rows == len(json_texts(documents))
            found += [row for batch in known.read(documents) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: int(row["_id"])) == rows


def test_the_largest_document_comes_through(database: Source) -> None:
    text = "x" * (16 * 1024 * 1024 - 40)
    database["large"].insert_one({"_id": 1, "s": text})
    [documents] = list(read_chunk(database, "large", Chunk()))
    assert json_texts(documents).to_pylist() == [f'{{"_id":{{"$numberInt":"1"}},"s":"{text}"}}']


def test_a_time_series_is_read_as_one_chunk(database: Source) -> None:
    database.create_collection("series", timeseries={"timeField": "t"})
    database["series"].insert_many([{"t": datetime(2020, 1, day, tzinfo=UTC), "v": day} for day in (1, 2, 3)])
    [documents] = list(read_chunk(database, "series", Chunk()))
    assert documents.rows == 3


def test_an_abandoned_chunk_leaves_no_cursor(database: Source, mongo: MongoServer) -> None:
    database["rows"].insert_many([{"_id": number} for number in range(100)])
    reading = read_chunk(database, "rows", Chunk(), batchSize=2)
    next(reading)
    before = _open_cursors(mongo)
    reading.close()
    assert _open_cursors(mongo) == before - 1


def _open_cursors(mongo: MongoServer) -> int:
    status = mongo.client.admin.command("serverStatus")
    return int(status["metrics"]["cursor"]["open"]["total"])

"""Collections of a real server: what is discovered, and that chunks hold what change streams tell."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from bson import Int64, ObjectId
from bson.decimal128 import Decimal128

from penstock.core.errors import ConfigError, SnapshotLostError, SourceError
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.chunk import PlannedChunk, TableRewrittenError
from penstock.sources.mongodb import catalog, chunks
from penstock.sources.mongodb.catalog import CollectionInfo, discover
from penstock.sources.mongodb.change_stream import ChangeStream, StreamOptions
from penstock.sources.mongodb.chunk_reading import MongoChunk, snapshot_text
from penstock.sources.mongodb.chunks import bounds_after, plan_chunks, range_of
from penstock.sources.mongodb.connection import connect, safe_url
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import Layout
from tests.bson_documents import EVERY_ID
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongo: MongoServer) -> Iterator[Source]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield mongo.client[name]
    mongo.client.drop_database(name)


def found(database: Source, name: str, layout: Layout = "document") -> CollectionInfo:
    [table] = discover(database.client, [StreamId(database.name, name)], layout=layout)
    return table


def reading(mongo: MongoServer, table: CollectionInfo, chunk: PlannedChunk, snapshot: str = "") -> MongoChunk:
    """As a task gets it: out of a pickle."""
    made = MongoChunk(mongo.url, "penstock test", snapshot, chunk, table.leaves[0].columns)
    copy: MongoChunk = pickle.loads(pickle.dumps(made))
    return copy


def load(
    mongo: MongoServer,
    table: CollectionInfo,
    planned: list[PlannedChunk],
    schema: TableSchema | None = None,
    snapshot: str = "",
    **options: Any,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    schema = schema or table.schema
    for chunk in planned:
        for block in reading(mongo, table, chunk, snapshot).blocks(schema, **options):
            assert block.bad is None
            batch = pa.RecordBatch.from_arrays(block.values, list(schema.names))
            assert batch.num_rows == block.rows
            rows += batch.to_pylist()
    return rows


def test_collections_of_every_kind_are_told_apart(database: Source) -> None:
    database["plain"].insert_many([{"_id": number, "a": "x" * 100} for number in range(50)])
    database.create_collection("capped", capped=True, size=10_000)
    database.create_collection("series", timeseries={"timeField": "t"})
    database["series"].insert_one({"t": datetime(2020, 1, 1, tzinfo=UTC), "v": 1})
    database.create_collection("view", viewOn="plain")
    database.create_collection("collated", collation={"locale": "en"})
    database.create_collection("with.dots", changeStreamPreAndPostImages={"enabled": True})
    tables = {table.stream.name: table for table in discover(database.client, database=database.name)}
    assert {name: table.kind for name, table in tables.items()} == {
        "capped": "capped collection", "collated": "collection", "plain": "collection",
        "series": "time series", "view": "view", "with.dots": "collection",
    }  # fmt: skip
    assert [name for name, table in tables.items() if not table.can_be_captured] == ["series", "view"]
    assert [name for name, table in tables.items() if table.images] == ["with.dots"]
    assert [name for name, table in tables.items() if table.collated] == ["collated"]
    assert tables["plain"].estimated_rows == 50
    assert tables["plain"].bytes > 5_000
    assert tables["plain"].schema.key == ("_id",)
    assert tables["series"].schema.key == tables["view"].schema.key == ()
    assert len({table.oid for table in tables.values()}) == len(tables)
    matched = discover(database.client, [StreamId(database.name, "*")])
    assert [table.stream.name for table in matched] == [name for name in tables if name != "view"]
    assert found(database, "view").kind == "view"
    assert discover(database.client, [StreamId(database.name, "nothing")]) == []


def test_sampled_fields_have_the_types_that_hold_their_values(
    database: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    database["rows"].insert_many(
        [
            {
                "_id": ObjectId(), "i": number, "l": Int64(number), "mixed": number if number % 2 else "x",
                "d": number / 2, "n": Decimal128(f"{number}.25"), "at": datetime(2020, 1, 1, tzinfo=UTC),
                "inner": {"a": 1}, "list": [1], "null": None, "u": uuid.uuid4().bytes, "b": True,
            }
            for number in range(40)
        ]
    )  # fmt: skip
    table = found(database, "rows", "fields")
    assert {column.name: column.type_text for column in table.schema.columns} == {
        "_id": "objectId", "i": "long", "l": "long", "mixed": "json", "d": "double", "n": "decimal(38,2)",
        "at": "date", "inner": "json", "list": "json", "null": "json", "u": "binData", "b": "bool",
        "_rest": "rest",
    }  # fmt: skip
    assert found(database, "rows").fields == ()
    [seen] = discover(database.client, [table.stream], with_fields=True)
    assert {field.name: str(field.form) for field in seen.fields}["i"] == "int32"
    monkeypatch.setattr(catalog, "SAMPLED_BYTES_MAX", 0)
    monkeypatch.setattr(catalog, "_SAMPLE_BATCH", 1)
    [bounded] = discover(database.client, [table.stream], with_fields=True)
    assert {field.name: str(field.form) for field in bounded.fields}["n"] == "decimal"
    assert bounded.schema.names == ("_id", "document")


@pytest.mark.parametrize("layout", ["document", "fields"])
@pytest.mark.parametrize("by", ["splitVector", "sort", "collation", "clustered"])
def test_chunks_of_ids_of_every_type_lose_and_double_nothing(
    mongo: MongoServer, database: Source, monkeypatch: pytest.MonkeyPatch, by: str, layout: Layout
) -> None:
    options: dict[str, dict[str, Any]] = {
        "collation": {"collation": {"locale": "en", "caseFirst": "upper"}},
        "clustered": {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
    }
    database.create_collection("all", **options.get(by, {}))
    more = [kind(number) for number in range(1, 300) for kind in (int, str, _object_id)]
    database["all"].insert_many([{"_id": each, "v": "x" * 6_000} for each in [*EVERY_ID, *more]])
    table = found(database, "all", layout)
    if by == "splitVector":
        assert len(chunks._split_vector(database, table.leaves[0], 10) or []) > 4
    if by == "sort":
        monkeypatch.setattr(chunks, "_split_vector", lambda *_: None)
    planned = plan_chunks(database, table, rows_per_chunk=100)
    assert len(planned) > 4
    rows = load(mongo, table, planned)
    keys = [row["_id"] for row in rows]
    assert len(keys) == len(set(keys)) == table.estimated_rows
    whole = replace(planned[0], max=None)
    assert sorted(keys) == sorted(row["_id"] for row in load(mongo, table, [whole]))
    inner = [chunk.min for chunk in planned if chunk.min]
    assert bounds_after(database, "all", list(reversed(inner)), inner[1]) == inner[2:]


def _object_id(number: int) -> ObjectId:
    return ObjectId(f"{number:024x}")


def test_chunks_are_cut_by_bytes_too(database: Source) -> None:
    database["large"].insert_many([{"_id": number, "t": "x" * 10_000} for number in range(40)])
    table = found(database, "large")
    assert len(plan_chunks(database, table)) == 1
    assert len(plan_chunks(database, table, bytes_per_chunk_max=100_000)) >= 3


@pytest.mark.parametrize("layout", ["document", "fields"])
def test_loading_and_the_change_stream_give_the_same_rows(
    mongo: MongoServer, database: Source, layout: Layout
) -> None:
    documents = [
        {"_id": number, "v": value, "s": "é", "n": Decimal128("1.50"), "at": datetime(1900, 1, 1, tzinfo=UTC)}
        for number, value in enumerate([*EVERY_ID, [1, {"a": None}], Int64(5), 2.0, "text"])
    ]
    database["rows"].insert_many(documents[5:7])
    table = found(database, "rows", layout)  # later documents bring what it has not seen
    database["rows"].delete_many({})
    stream = ChangeStream(database, StreamOptions())
    stream.open()
    database["rows"].insert_many(documents)
    database["rows"].update_one({"_id": 7}, {"$set": {"new": 1}})
    reader = RowReader(table.schema.columns)
    told: dict[Any, dict[str, Any]] = {}
    events = 0
    while events < len(documents) + 1:
        batch = stream.read()
        events += batch.rows
        for part in batch.parts:
            for rows in reader.read(part.after.documents):
                values = [rows.values(column).values for column in table.schema.columns]
                made = pa.RecordBatch.from_arrays(values, list(table.schema.names))
                told |= {row["_id"]: row for row in made.to_pylist()}
    stream.close()
    loaded = load(mongo, table, plan_chunks(database, table))
    assert {repr(row["_id"]): repr(row) for row in loaded} == {repr(key): repr(told[key]) for key in told}
    assert len(loaded) == len(documents)


def test_under_a_snapshot_all_chunks_are_of_one_time(mongo: MongoServer, database: Source) -> None:
    database["rows"].insert_many([{"_id": number, "v": 1} for number in range(100)])
    time = database.client.admin.command("ping")["operationTime"]
    table = found(database, "rows", "fields")
    planned = plan_chunks(database, table, rows_per_chunk=30)
    database["rows"].update_many({}, {"$set": {"v": 2}})
    database["rows"].delete_many({"_id": {"$lt": 50}})
    at = snapshot_text(time.time << 32 | time.inc)
    assert [row["v"] for row in load(mongo, table, planned, snapshot=at)] == [1] * 100
    assert [row["v"] for row in load(mongo, table, planned)] == [2] * 50
    with pytest.raises(SnapshotLostError):
        load(mongo, table, planned, snapshot=snapshot_text(1 << 32 | 1))


def test_a_selection_reads_what_it_holds_and_filters_as_the_log_is_filtered(
    mongo: MongoServer, database: Source
) -> None:
    database["rows"].insert_many(
        [{"_id": number, "v": number, "s": f"s{number}", "b": number > 5} for number in range(10)]
    )
    table = found(database, "rows", "fields")
    database["rows"].insert_many([{"_id": 10, "v": "odd", "new": 1}, {"_id": 11, "v": 11, "b": True}])
    planned = plan_chunks(database, table)
    where = Condition.compile("v >= 4 AND b", table.schema.columns)
    outside = Condition.compile("v = 7", table.schema.columns)
    held = {column.name: column for column in table.schema.columns}
    schema = replace(table.schema, columns=(held["_id"], held["s"]), hidden=(held["v"], held["b"]))
    rows = load(mongo, table, planned, schema, where=where, outside=outside)
    assert [(row["_id"], row["s"]) for row in rows] == [(6, "s6"), (8, "s8"), (9, "s9"), (11, None)]
    assert set(rows[0]) == {"_id", "s"}
    schema = replace(table.schema, columns=(held["_id"], held["_rest"]))
    rest = {row["_id"]: row["_rest"] for row in load(mongo, table, planned, schema)}
    assert rest.pop(10) == '{"v":"odd","new":{"$numberInt":"1"}}'
    assert set(rest.values()) == {None}


def test_an_id_that_its_column_has_no_place_for_is_told_as_it_is(
    mongo: MongoServer, database: Source
) -> None:
    database["rows"].insert_one({"_id": "a"})
    table = found(database, "rows", "fields")
    database["rows"].insert_one({"_id": 5})
    [chunk] = plan_chunks(database, table)
    [block] = reading(mongo, table, chunk).blocks(table.schema, as_text=True)
    assert block.bad is not None
    assert block.printed is not None
    assert {name: list(mask) for name, mask in block.bad.items()} == {"_id": [False, True]}
    assert block.printed().column("_id").to_pylist() == ["a", "5"]


def test_views_and_time_series_are_one_chunk(mongo: MongoServer, database: Source) -> None:
    database["rows"].insert_many([{"_id": number, "v": number} for number in range(20)])
    database.create_collection("view", viewOn="rows", pipeline=[{"$match": {"v": {"$lt": 5}}}])
    database.create_collection("series", timeseries={"timeField": "t"})
    database["series"].insert_many([{"t": datetime(2020, 1, day, tzinfo=UTC)} for day in (1, 2, 3)])
    for name, rows in (("view", 5), ("series", 3)):
        table = found(database, name)
        planned = plan_chunks(database, table, rows_per_chunk=1)
        assert len(planned) == 1
        assert len(load(mongo, table, planned)) == rows


def test_a_collection_that_was_made_anew_is_not_read_as_the_old_one(
    mongo: MongoServer, database: Source
) -> None:
    database["rows"].insert_one({"_id": 1})
    table = found(database, "rows")
    planned = plan_chunks(database, table)
    database["rows"].drop()
    database["rows"].insert_one({"_id": 2})
    with pytest.raises(TableRewrittenError):
        load(mongo, table, planned)
    assert range_of(planned[0]).lower is None


def test_connection_errors_say_what_to_do_and_never_the_password(mongo: MongoServer) -> None:
    quick = "&serverSelectionTimeoutMS=300"
    with pytest.raises(SourceError, match="cannot be reached") as refused:
        connect(f"mongodb://user:hunter2@127.0.0.1:1/?replicaSet=rs0{quick}")
    with pytest.raises(SourceError, match="replica set") as other:
        connect(mongo.url.replace("rs0", "another") + quick)
    with pytest.raises(SourceError, match=r"TLS|reached") as tls:
        connect(f"{mongo.url}&tls=true{quick}")
    with pytest.raises(SourceError, match="wrong") as login:
        connect(mongo.url.replace("//", "//user:hunter2@") + quick)
    with pytest.raises(ConfigError) as no_url:
        connect("mongodb://user:hunter2@@host/")
    for error in (refused, other, tls, login, no_url):
        assert error.value.remedy
        assert "hunter2" not in str(error.value)
    assert safe_url("mongodb+srv://u:p%40ss@a.b/shop?tls=true") == "mongodb+srv://u:***@a.b/shop"
    assert "hunter2" not in repr(
        MongoChunk("mongodb://u:hunter2@h/", "", "", PlannedChunk("a.b", None, None, 0, 0), ())
    )

"""A MongoDB behind the interface of all sources: what is there, what check says, and tables as a whole."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Int64, ObjectId
from bson.decimal128 import Decimal128
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from penstock.core.cursor import Cursors
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.sources.base import LogHold, TableEnd, TableReading
from penstock.sources.base import Source as AnySource
from penstock.sources.chunk import ChunkMethod
from penstock.sources.cursor import CursorChoice
from penstock.sources.finding import StreamNeed
from penstock.sources.mongodb.catalog import CollectionInfo
from penstock.sources.mongodb.connection import connect
from penstock.sources.mongodb.control import COLLECTION, DATABASE, Control
from penstock.sources.mongodb.fields import Column, Form
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.source import MongoSource
from tests.bson_documents import EVERY_ID
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration
KEY: ChunkMethod = "key"


@pytest.fixture
def database(mongo: MongoServer) -> Iterator[Source]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield mongo.client[name]
    mongo.client.drop_database(name)


@pytest.fixture
def source(mongo: MongoServer, database: Source) -> MongoSource:
    return MongoSource(mongo.url, database.name, database.name)


def in_fields(source: MongoSource, directory: Path) -> MongoSource:
    return replace(source, layout="fields", remembered=RememberedFields(directory / "collections.json"))


def only(source: MongoSource, name: str) -> CollectionInfo:
    [table] = source.tables([StreamId(source.database, name)])
    return table


def loaded(reading: TableReading, table: CollectionInfo, rows_per_chunk: int, **given: Any) -> list[Any]:
    """The texts of all rows, each chunk as a task gets it: out of a pickle."""
    with reading.session() as session:
        planned = session.plan_chunks(table, KEY, rows_per_chunk=rows_per_chunk)
    found: list[Any] = []
    for chunk in planned:
        described = reading.chunk(chunk, table.leaves[0], KEY, "", reader="penstock load test", **given)
        for block in pickle.loads(pickle.dumps(described)).blocks(table.schema, as_text=True):
            assert block.printed is not None
            found += block.printed().to_pylist()
    return found


def test_a_table_that_an_earlier_version_made_with_32_bits_keeps_them(
    source: MongoSource, database: Source, tmp_path: Path
) -> None:
    """Its column would have to be loaded anew; what outgrows it is in `_rest`, as before."""
    database["rows"].insert_one({"_id": "a", "n": 2**40})
    fields = (Column("_id", Form.STRING), Column("n", Form.INT32))
    RememberedFields(tmp_path / "collections.json").of(str(only(source, "rows").oid), lambda: fields)
    table = only(in_fields(source, tmp_path), "rows")
    assert {column.name: column.type_text for column in table.schema.columns} == {
        "_id": "string", "n": "int", "_rest": "rest",
    }  # fmt: skip


def test_the_catalog_has_what_is_asked_for_or_all_where_a_name_is_wrong(
    source: MongoSource, database: Source
) -> None:
    database["orders"].insert_one({"_id": 1})
    database["customers"].insert_one({"_id": 1})
    database.create_collection("view", viewOn="orders")
    of: AnySource = source
    name = database.name
    catalog = of.catalog([StreamId(name, "orders")])
    assert [table.stream.name for table in catalog.tables] == ["orders"]
    assert of.is_captured(catalog.tables[0])
    [fine] = catalog.check([StreamNeed(StreamId(name, "orders"))])
    assert (fine.level, fine.name) == ("ok", "table")
    wrong = of.catalog([StreamId(name, "order")])
    assert [table.stream.name for table in wrong.tables] == ["customers", "orders", "view"]
    [missing] = wrong.check([StreamNeed(StreamId(name, "order"))])
    assert missing.level == "error"
    assert not of.is_captured(only(source, "view"))
    findings = of.check([StreamNeed(StreamId(name, "*"))])
    assert {finding.name: finding.level for finding in findings if finding.stream is None} == {
        "connection": "ok", "server version": "ok", "control": "ok", "replica set": "ok",
        "feature compatibility version": "ok", "oplog": "ok",
    }  # fmt: skip


def test_a_cluster_is_known_again_and_a_pipeline_is_there_until_it_is_dropped(
    mongo: MongoServer, source: MongoSource
) -> None:
    first = source.identity()
    mongo.client[source.database]["rows"].insert_one({"_id": 1})
    again = replace(source, database="").identity()
    assert (again.system_id, again.timeline, again.version) == (first.system_id, 1, first.version)
    assert again.position > first.position
    assert source.hold() is None
    with connect(mongo.url) as client:
        control = Control(client)
        before = control.mark(source.name)
        assert source.hold() is None
        for position in (before, Lsn(before + 1), before):
            control.hold(source.name, position)
        assert control.mark(source.name) > before > again.position
        assert control.select(source.name, [StreamId("a", "b")]) == (StreamId("a", "b"),)
        assert control.select(source.name, [StreamId("a", "b"), StreamId("a", "c")]) == (StreamId("a", "c"),)
    assert source.hold() == LogHold(source.name, Lsn(before + 1), None)
    assert source.teardown() == [f"{source.name} in {DATABASE}.{COLLECTION}"]
    assert source.hold() is None
    assert not source.drop_hold()
    assert all(
        table.stream != StreamId(DATABASE, COLLECTION) for table in replace(source, database="").tables()
    )


def test_a_position_that_the_oplog_has_is_kept_and_one_before_it_is_gone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with MongoServer(tmp_path_factory.mktemp("dropped")) as server:
        rows = server.client["shop"]["rows"]
        rows.insert_one({"_id": 1})
        source = MongoSource(server.url, "shop", "shop")
        before = source.identity().position
        assert source.check_kept(before) is None
        assert source.check_kept(Lsn(1 << 32 | 1)) is None  # a young oplog has everything there ever was
        for number in range(2, 10):
            rows.insert_one({"_id": number})
        now = source.identity().position
        rows.insert_one({"_id": 10})
        server.drop_oplog_before(now)
        table = only(source, "rows")
        for of in (source, replace(source, database="")):
            assert of.check_kept(now) is None
            gone = of.check_kept(before)
            assert gone is not None
            assert gone.exit_code == PositionGoneError.exit_code
        ends = [TableEnd(table, each, Place(ResumeToken.before(each).data)) for each in (now, before)]
        assert source.positions_behind(ends[:1]) == [now]
        with pytest.raises(PositionGoneError) as gone_there:
            source.positions_behind(ends)
        assert gone_there.value.stream == "shop.rows"
        later = Lsn(now + (1000 << 32))
        with pytest.raises(AnotherSourceError, match="has not come to"):
            source.positions_behind([TableEnd(table, later, Place(ResumeToken.before(later).data))])
        server.client["shop"].create_collection("view", viewOn="rows")
        with pytest.raises(SourceError, match="no change stream"):
            source.positions_behind([replace(ends[0], table=only(source, "view"))])


def test_all_chunks_are_the_collection_as_the_driver_reads_it(source: MongoSource, database: Source) -> None:
    more = [ObjectId(f"{number:024x}") for number in range(1, 301)]
    database["all"].insert_many(
        [
            {"_id": each, "n": number, "v": [None, {"a": "é" * 100}]}
            for number, each in enumerate([*EVERY_ID, *more])
        ]
    )
    table = only(source, "all")
    rows = loaded(source.reading(), table, 50)
    assert len({row["_id"] for row in rows}) == len(rows) == len(EVERY_ID) + len(more)
    read = sorted(canonical(loads(row["document"])) for row in rows)
    assert read == sorted(canonical(each) for each in database["all"].find())
    with source.reading().session() as session:
        planned = session.plan_chunks(table, KEY, rows_per_chunk=50)
        bounds = [chunk.min for chunk in planned if chunk.min is not None]
        assert len(bounds) > 3
        assert session.bounds_after(table, KEY, bounds[::-1], bounds[0]) == bounds[1:]


def canonical(document: Any) -> str:
    """The driver's own text of a document, in which nothing of it is lost."""
    return dumps(document, json_options=CANONICAL_JSON_OPTIONS)


def test_a_text_session_reads_the_same_in_blocks_and_filters(
    source: MongoSource, database: Source, tmp_path: Path
) -> None:
    database["rows"].insert_many([{"_id": number, "v": number, "s": "x" * 1000} for number in range(100)])
    of = in_fields(source, tmp_path)
    table, reading = only(of, "rows"), of.reading()
    expected = [(row["_id"], row["s"]) for row in loaded(reading, table, 1000) if int(row["v"]) >= 40]
    [chunk] = _planned(reading, table)
    where = Condition.compile("v >= 40", table.schema.columns)
    columns = [table.schema.column("_id"), table.schema.column("s")]
    session = reading.text_session()
    blocks = list(session.columns(chunk, table, columns, KEY, where, "", block_bytes=10_000))
    assert [
        row for _, (ids, texts) in blocks for row in zip(ids.to_pylist(), texts.to_pylist(), strict=True)
    ] == expected
    assert sum(rows for rows, _ in blocks) == 60
    assert len(blocks) > 5
    session.cancel()
    with pytest.raises(SourceError):
        next(session.columns(chunk, table, columns, KEY, None, "", block_bytes=10_000))
    session.close()


def _planned(reading: TableReading, table: CollectionInfo) -> Sequence[Any]:
    with reading.session() as session:
        return session.plan_chunks(table, reading.method_for(table, "ctid"), rows_per_chunk=1_000_000)


def test_what_is_being_read_is_counted_by_the_server(source: MongoSource, database: Source) -> None:
    database["rows"].insert_many([{"_id": number, "s": "x" * 1000} for number in range(500)])
    table, reading = only(source, "rows"), source.reading()
    [chunk] = _planned(reading, table)
    blocks = reading.chunk(chunk, table.leaves[0], KEY, "", reader="penstock load abc").blocks(table.schema)
    with reading.watching() as running:
        first = next(blocks)
        [read] = running()
        assert (read.reader, read.rows) == ("penstock load abc", first.rows)
        assert read.bytes > first.rows * 1000
        assert sum(block.rows for block in blocks) == 500 - first.rows
        assert running() == []


def test_columns_of_fields_stay_those_that_were_seen_first(
    source: MongoSource, database: Source, tmp_path: Path
) -> None:
    of = in_fields(source, tmp_path)
    database["rows"].insert_one({"_id": 1, "a": 1})
    before = only(of, "rows").schema
    database["rows"].insert_one({"_id": 2, "a": "text", "b": 1})
    assert only(of, "rows").schema == only(in_fields(source, tmp_path), "rows").schema == before
    assert [row["_rest"] for row in loaded(of.reading(), only(of, "rows"), 100)] == [
        None, '{"a":"text","b":{"$numberInt":"1"}}',
    ]  # fmt: skip
    database["rows"].drop()
    database["rows"].insert_one({"_id": 2, "b": 1})
    assert only(of, "rows").schema.names == ("_id", "b", "_rest")


def test_a_collection_is_read_on_by_a_field_and_by_another_where_that_has_no_value(
    source: MongoSource, database: Source, tmp_path: Path
) -> None:
    of = in_fields(source, tmp_path)
    at = datetime(2020, 1, 1, tzinfo=UTC)
    database["rows"].insert_many(
        [
            *({"_id": number, "v": number // 10, "at": at} for number in range(50)),
            {"_id": "none", "at": at},
            {"_id": "null", "v": None, "at": at},
        ]
    )
    table, reading = only(of, "rows"), of.reading()
    cursors = CursorChoice(("v", "at")).cursors(table.schema)
    noted = _note(reading, table, cursors, {})
    assert noted.advanced == {"v": 4, "at": "2020-01-01T00:00:00Z"}
    assert len(loaded(reading, table, 20, condition=reading.within(noted))) == 52

    database["rows"].insert_many(
        [
            {"_id": "long", "v": Int64(2**40)},
            {"_id": "array", "v": [2**40]},  # to a cursor, as good as null
            {"_id": "double", "v": 99.5, "at": datetime(2021, 1, 1, tzinfo=UTC)},
            {"_id": "decimal", "v": Decimal128("Infinity"), "at": at},
        ]
    )
    round_two = _note(reading, table, cursors, noted.advanced)
    assert round_two.advanced == {"v": 2**40, "at": "2021-01-01T00:00:00Z"}
    chunks = []
    with reading.session() as session:
        for window in round_two.windows:
            chunks.append(session.cut(table.leaves[0], window, 7))
    assert [len(each) > 1 for each in chunks] == [True, False]
    whole = replace(_planned(reading, table)[0], min=None, max=None)
    ids: list[str] = []
    for chunk in (*chunks[0], *chunks[1]):
        described = reading.chunk(
            whole, table.leaves[0], "ctid", "", reader="penstock load", condition=chunk.condition
        )
        [rows] = [block.rows for block in described.blocks(table.schema)] or [0]
        assert rows <= 2 * 7
        ids += [text for block in described.blocks(table.schema, as_text=True) for text in _ids(block)]
    others = ['"long"', '"none"', '"null"', '"double"', '"decimal"']
    assert sorted(ids) == sorted([*map(str, range(50)), *others])


def _ids(block: Any) -> list[str]:
    return list(block.printed().column("_id").to_pylist())


def _note(reading: TableReading, table: CollectionInfo, cursors: Any, start: Cursors) -> Any:
    with reading.session() as session:
        return session.note(table, cursors, start)

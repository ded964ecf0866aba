"""Changes of a real MongoDB in a change log: with a load before them, they are the collection."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.decimal128 import Decimal128

from penstock import durable
from penstock.capture.client import CaptureProcess
from penstock.capture.mongodb.lock import LeaseLock
from penstock.capture.mongodb.monitor import OplogMonitor
from penstock.capture.mongodb.source import MongoCapture
from penstock.capture.server import CaptureServer
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.log.columns import stored_name
from penstock.log.manifest import manifest_path, newest_manifest
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter
from penstock.sources.base import LogHold
from penstock.sources.chunk import PlannedChunk
from penstock.sources.mongodb.catalog import CollectionInfo
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions
from penstock.sources.mongodb.connection import connect
from penstock.sources.mongodb.control import Control, document_id
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.source import MongoSource
from penstock.sources.mongodb.types import Layout
from tests.bson_documents import EVERY_ID
from tests.conftest import wait_until
from tests.mongo_log import WITHIN_S, Reader, applied, changes, present, started
from tests.mongo_server import MongoServer

pytestmark = pytest.mark.integration
HUGE = 16 * 2**20 - 64 * 2**10


@pytest.fixture
def database(mongo: MongoServer) -> Iterator[Source]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield mongo.client[name]
    mongo.client.drop_database(name)


@pytest.fixture
def spec(mongo: MongoServer, database: Source, tmp_path: Path) -> CaptureSpec:
    return CaptureSpec(
        source=MongoSpec(mongo.url, database.name, database.name),
        log_directory=tmp_path / "log",
        checkpoint_path=tmp_path / "checkpoint.json",
        streams=(StreamId(database.name, "orders"), StreamId(database.name, "items")),
        lanes={"lake": None},
        lanes_path=tmp_path / "lanes.json",
    )


def test_changes_are_the_collections_over_restarts_transactions_and_the_largest_document(
    mongo: MongoServer, database: Source, spec: CaptureSpec
) -> None:
    orders, items = database["orders"], database["items"]
    orders.create_index("v")  # and with it the collection
    with started(spec) as capture:
        orders.insert_many([{"_id": number, "v": number} for number in range(100)])
        items.insert_one({"_id": "huge", "text": "x" * HUGE})
        orders.update_many({"_id": {"$lt": 10}}, {"$inc": {"v": 1000}})
        database["others"].insert_one({"_id": 1})
        first = capture.to_now()
        assert capture.to_now() > first  # although nothing has happened
        orders.delete_one({"_id": 50})  # received perhaps, and not sealed
    with mongo.client.start_session() as session, session.start_transaction():
        orders.insert_many([{"_id": f"t{number}", "v": "é" * 500} for number in range(3000)], session=session)
        items.update_one({"_id": "huge"}, {"$set": {"text": "small"}}, session=session)
        orders.delete_many({"_id": {"$gte": 90}}, session=session)
    orders.update_one({"_id": 1}, {"$set": {"gone": True}})
    orders.delete_one({"_id": 1})
    with started(replace(spec, step_bytes_max=1)) as capture:
        capture.to_now()
        orders.replace_one({"_id": 2}, {"_id": 2, "w": None})
        capture.to_now()
    for name in ("orders", "items"):
        assert sorted(applied(changes(spec, name)).values()) == present(database, name)
    at_once = [row for row in changes(spec, "orders") if row["_xid"] and str(row["__id"]).startswith('"t')]
    assert len({row["_tx"] for row in at_once}) == 1
    assert len(at_once) == 3000
    assert ChangeLog(spec.log_directory).files(StreamId(database.name, "others"), first, first).files == ()


def test_an_update_that_sets_more_than_half_of_what_an_event_may_have_is_read(
    database: Source, spec: CaptureSpec
) -> None:
    orders = database["orders"]
    orders.insert_one({"_id": 1})
    with started(spec) as capture:
        capture.to_now()
        orders.update_one({"_id": 1}, {"$set": {"blob": "x" * 9_000_000}})
    with started(spec) as capture:  # it may be the first that a stream finds, too
        capture.to_now()
        orders.update_one({"_id": 1}, {"$set": {"blob": "y" * 9_000_000}})
        capture.to_now()
    assert [row["_op"] for row in changes(spec, "orders")] == ["u", "u"]
    assert sorted(applied(changes(spec, "orders")).values()) == present(database, "orders")


def captured_meanwhile(spec: CaptureSpec, database: Source, ids: range) -> None:
    with CaptureProcess(spec) as capture:
        capture.start()
        database["orders"].insert_many([{"_id": number} for number in ids])
        database["orders"].delete_one({"_id": 3})
        capture.read_to(capture.note_target())
        capture.wait_reached(WITHIN_S)


@pytest.mark.parametrize(
    "failpoint",
    [
        "log.file_write",
        "log.manifest_written",
        pytest.param("capture.slot_created", marks=pytest.mark.slow),
        pytest.param("log.files_written", marks=pytest.mark.slow),
    ],
)
def test_a_capture_that_was_killed_goes_on_without_a_gap_or_a_double(
    database: Source, spec: CaptureSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    report = tmp_path / "report"
    monkeypatch.setenv("PENSTOCK_FAILPOINT", f"{failpoint}=kill")
    monkeypatch.setenv("PENSTOCK_FAILPOINT_REPORT", str(report))
    with pytest.raises(SourceError, match="signal 9"):
        captured_meanwhile(spec, database, range(10))
    assert failpoint in report.read_text()
    monkeypatch.delenv("PENSTOCK_FAILPOINT")
    captured_meanwhile(spec, database, range(10, 20))
    told = applied(changes(spec, "orders"))
    assert sorted(told.values()) == present(database, "orders")
    assert len(changes(spec, "orders")) == (10 if failpoint == "capture.slot_created" else 21)


def test_a_load_under_a_snapshot_and_what_comes_after_are_the_collection(
    database: Source, spec: CaptureSpec
) -> None:
    orders = database["orders"]
    orders.insert_many([{"_id": number, "v": 0} for number in range(500)])
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            orders.update_many({"_id": {"$mod": [7, number % 7]}}, {"$inc": {"v": 1}})
            orders.replace_one({"_id": 500 + number % 50}, {"v": number}, upsert=True)
            orders.delete_one({"_id": 500 + (number + 25) % 50})

    writer = threading.Thread(target=write)
    with started(spec) as capture:
        writer.start()
        capture.to_now()
        snapshot = capture.server.snapshots.take("lake")
        source = MongoSource(connect_url(spec), database.name, database.name)
        [table] = source.tables([StreamId(database.name, "orders")])
        reading = source.reading()
        held: dict[str, str] = {}
        with reading.session(snapshot.name) as session:
            planned = session.plan_chunks(table, "key", rows_per_chunk=100)
        for chunk in planned:
            described = reading.chunk(chunk, table.leaves[0], "key", snapshot.name, reader="penstock load")
            for block in described.blocks(table.schema, as_text=True):
                assert block.printed is not None
                held |= {row["_id"]: row["document"] for row in block.printed().to_pylist()}
        over.set()
        writer.join()
        capture.to_now()
    later = changes(spec, "orders", snapshot.consistent_point)
    assert later
    assert len(planned) > 2
    assert sorted(applied(later, held).values()) == present(database, "orders")


def connect_url(spec: CaptureSpec) -> str:
    assert isinstance(spec.source, MongoSpec)
    return spec.source.url


def test_a_stream_that_is_added_while_it_reads_is_in_the_log_from_then_on(
    database: Source, spec: CaptureSpec
) -> None:
    orders, items = StreamId(database.name, "orders"), StreamId(database.name, "items")
    serving = replace(spec, service=ServiceSpec("grpc+unix:///nowhere"), streams=(), seal_every_s=0.05)
    server = CaptureServer(serving, lambda _: None)
    try:
        assert server.lead(threading.Event(), lambda: None)
        assert server.join("lake", [orders], ()).slot_created
        reader = Reader(server, [])
        database["items"].insert_one({"_id": 1})
        database["orders"].insert_one({"_id": 1})
        reader.to_now()
        joined = server.join("kafka", [items], ())
        assert not joined.slot_created
        assert joined.published == (items,)
        database["items"].insert_one({"_id": 2})
        database["orders"].insert_one({"_id": 2})
        reader.to_now()
    finally:
        server.stop()
    assert [row["__id"] for row in changes(spec, "orders")] == ["1", "2"]
    assert [row["__id"] for row in changes(spec, "items")] == ["2"]


def test_collections_that_are_dropped_renamed_or_gone_with_their_database(
    database: Source, spec: CaptureSpec
) -> None:
    with started(spec) as capture:
        database["orders"].insert_one({"_id": 1})
        database["orders"].drop()
        database["orders"].insert_one({"_id": 2})
        database["items"].insert_one({"_id": 3})
        capture.to_now()
        database["orders"].drop()
        database["items"].rename("orders")
        database["orders"].insert_one({"_id": 4})
        capture.to_now()
        database.client.drop_database(database.name)
        database["items"].insert_one({"_id": 5})
        capture.to_now()
    assert [row["_op"] for row in changes(spec, "orders")] == ["i", "t", "i", "t", "t", "i", "t"]
    assert [row["_op"] for row in changes(spec, "items")] == ["i", "t", "i"]
    assert applied(changes(spec, "orders")) == {}
    assert sorted(applied(changes(spec, "items")).values()) == present(database, "items")


def test_what_the_oplog_dropped_is_gone_and_no_step_is_written(
    tmp_path_factory: pytest.TempPathFactory, spec: CaptureSpec
) -> None:
    with MongoServer(tmp_path_factory.mktemp("dropped")) as server:
        own = replace(spec, source=MongoSpec(server.url, "shop"), streams=(StreamId("shop", "orders"),))
        orders = server.client["shop"]["orders"]
        with started(own) as capture:
            orders.insert_one({"_id": 1})
            end = capture.to_now()
        orders.insert_one({"_id": 2})
        orders.insert_one({"_id": 3})
        later = MongoSource(server.url, "shop").identity().position
        orders.insert_one({"_id": 4})
        server.drop_oplog_before(later)
        with pytest.raises(PositionGoneError, match="oplog"), started(own):
            pass
        assert ChangeLog(own.log_directory).end() == end
        assert isinstance(own.source, MongoSpec)
        forgetting = MongoCapture(own.source, own)
        forgetting.forget_lost()
        forgetting.close()
        with started(replace(own, log_directory=own.log_directory.with_name("anew"))) as capture:
            assert capture.to_now() > later


@pytest.mark.parametrize(
    "writes_on", [pytest.param(True, id="writes"), pytest.param(False, marks=pytest.mark.slow, id="silence")]
)
def test_a_cluster_that_was_restored_from_a_copy_is_not_read_on(
    tmp_path_factory: pytest.TempPathFactory, spec: CaptureSpec, writes_on: bool
) -> None:
    with MongoServer(tmp_path_factory.mktemp("restored")) as server:
        own = replace(spec, source=MongoSpec(server.url, "p", "shop"), streams=(StreamId("shop", "orders"),))
        orders = server.client["shop"]["orders"]
        with started(own) as capture:
            orders.insert_one({"_id": 1})
            capture.to_now()
        with (
            server.restored_after(),
            started(own) as capture,
        ):  # the copy has all that the log has: it goes on
            orders.insert_many([{"_id": 2}, {"_id": 3}])
            orders.delete_one({"_id": 1})
            end = capture.to_now()
        if writes_on:
            orders.insert_one({"_id": 4})
        for _ in range(2):  # however often
            with pytest.raises(AnotherSourceError, match="put back"), started(own):
                pass
        assert ChangeLog(own.log_directory).end() == end
        newest = newest_manifest(own.log_directory)
        assert newest is not None
        old = {name: value for name, value in newest.to_json().items() if name != "place"}
        path = manifest_path(own.log_directory, newest.seq)
        path.write_bytes(durable.to_json_bytes(old))  # as an earlier version wrote it
        with started(own) as capture:
            assert capture.to_now() > end


def test_a_server_without_a_set_can_be_loaded_and_not_followed(
    tmp_path_factory: pytest.TempPathFactory, spec: CaptureSpec
) -> None:
    with MongoServer(tmp_path_factory.mktemp("alone"), replicated=False) as alone:
        alone.client["shop"]["orders"].insert_many([{"_id": number} for number in range(10)])
        source = MongoSource(alone.url, "shop", "shop")
        assert source.identity().position > 0
        own = replace(spec, source=MongoSpec(alone.url, "shop", "shop"))
        server = CaptureServer(own, lambda _: None)
        try:
            snapshot = server.snapshots.take_plain("lake")
            assert snapshot.name == ""
            with pytest.raises(SourceError, match="not of a replica set"):
                server.carry_out("start", {})
        finally:
            server.stop()
        [table] = source.tables()
        [chunk] = plan(source, table)
        described = source.reading().chunk(
            chunk, table.leaves[0], "key", snapshot.name, reader="penstock load"
        )
        assert sum(block.rows for block in described.blocks(table.schema)) == 10


def test_another_cluster_and_a_pipeline_that_was_torn_down_are_told(
    mongo: MongoServer, database: Source, spec: CaptureSpec
) -> None:
    with started(spec) as capture:
        end = capture.to_now()
    source = MongoSource(mongo.url, database.name, database.name)
    assert source.teardown()
    with pytest.raises(PositionGoneError, match="does not know the pipeline"), started(spec):
        pass
    with connect(mongo.url) as client:
        Control(client).hold(database.name, end)
    with started(spec) as capture:
        now = capture.to_now()
        assert now > end
        assert capture.server.acknowledge("lake", now) == now
        wait_until(lambda: source.hold() == LogHold(database.name, now, None), "it to be noted")
    elsewhere = replace(spec, log_directory=spec.log_directory.with_name("other"))
    writer = LogWriter(elsewhere.log_directory, system_id="other", timeline=1, epoch=Lsn(1), end=end)
    writer.seal(Lsn(end + 1))
    with pytest.raises(AnotherSourceError), started(elsewhere):
        pass


def test_a_lease_is_held_by_one_and_ends_when_it_is_not_renewed(mongo: MongoServer, database: Source) -> None:
    first, second = (LeaseLock(mongo.url, database.name, 60.0) for _ in range(2))
    try:
        assert first.take()
        assert not second.take()
        assert "held by process" in second.busy().message
        assert first.is_held()
        assert not second.is_held()
        with connect(mongo.url) as client:  # as if it had been silent for so long
            [leased] = Control(client).documents.find({"_id": document_id(database.name)})
            ended = {"$set": {"until": leased["until"] - timedelta(seconds=61)}}
            Control(client).documents.update_one({"_id": leased["_id"]}, ended)
        assert second.take(), "the first one's lease has ended"
        assert not first.is_held()
        assert second.is_held()
        second.release()
        third = LeaseLock(mongo.url, database.name, 30.0)
        assert third.take()
        third.release()
    finally:
        first.release()
        with connect(mongo.url) as client:
            Control(client).drop(database.name)


@pytest.mark.parametrize(("layout", "new_fields"), [("document", 0), ("fields", 0), ("fields", 100)])
def test_rows_of_changes_have_the_text_that_a_load_has(
    database: Source, spec: CaptureSpec, tmp_path: Path, layout: Layout, new_fields: int
) -> None:
    """Also in columns of fields that came when the collection was known already (`new_fields`)."""
    orders = database["orders"]
    orders.insert_one({"_id": ObjectId(), "n": 1, "at": datetime(2020, 1, 1, tzinfo=UTC)})
    orders.insert_one({"_id": "another kind of id"})
    fields = tmp_path / "fields.json"
    assert isinstance(spec.source, MongoSpec)
    own = replace(
        spec,
        source=replace(spec.source, layout=layout, fields_path=str(fields), new_fields=new_fields),
    )
    source = MongoSource(connect_url(spec), database.name, database.name, layout, RememberedFields(fields))
    if new_fields:
        source.tables([StreamId(database.name, "orders")])  # what there is now is remembered
    with started(own) as capture:
        snapshot = capture.server.snapshots.take("lake")
        orders.insert_many([{"_id": value, "n": value, "new": [value]} for value in EVERY_ID[:20]])
        orders.update_many({}, {"$set": {"more": Decimal128("1.10")}})
        capture.to_now()
    [table] = source.tables([StreamId(database.name, "orders")])
    if new_fields:
        assert table.schema.names == ("_id", "n", "at", "_rest", "new", "more")
    [chunk] = plan(source, table)
    described = source.reading().chunk(chunk, table.leaves[0], "key", "", reader="penstock load")
    loaded: dict[str, Any] = {}
    for block in described.blocks(table.schema, as_text=True):
        assert block.printed is not None
        loaded |= {row["_id"]: row for row in block.printed().to_pylist()}
    told = {row["__id"]: row for row in changes(spec, "orders", snapshot.consistent_point)}
    names = {name: stored_name(name) for name in table.schema.names}
    assert {key: {name: row[stored] for name, stored in names.items()} for key, row in told.items()} == loaded


def plan(source: MongoSource, table: CollectionInfo) -> list[PlannedChunk]:
    with source.reading().session() as session:
        return session.plan_chunks(table, "key", rows_per_chunk=10_000)


def test_a_token_made_of_a_position_is_one_to_the_server(database: Source, spec: CaptureSpec) -> None:
    """So that a state file can have one for every position that the log ends at."""
    with started(spec) as capture:
        database["orders"].insert_one({"_id": 1})
        end = capture.to_now()
    database["orders"].insert_many([{"_id": 2}, {"_id": 3}])
    made = bson.encode({"_data": ResumeToken.before(end).data})
    with closing(ChangeStream(database, StreamOptions(), Place(made))) as stream:
        keys: list[str] = []

        def has_come() -> bool:
            keys.extend(key for part in stream.read(50).parts for key in part.keys.to_pylist())
            return len(keys) >= 2

        wait_until(has_come, "the events behind it")
        assert keys == ["2", "3"]

        def is_mark() -> bool:
            stream.read(50)
            assert stream.place.token is not None
            token = ResumeToken(bson.decode(stream.place.token)["_data"])
            return token.kind == "mark" and token == ResumeToken.before(token.time)

        with connect(connect_url(spec)) as client:
            Control(client).mark(database.name)
        wait_until(is_mark, "a mark of the server's own, which is written as ours is")


def test_epochs_rise_and_the_monitor_sees_the_oplog(mongo: MongoServer, spec: CaptureSpec) -> None:
    assert isinstance(spec.source, MongoSpec)
    source = MongoCapture(spec.source, spec)
    epochs = [source.new_epoch() for _ in range(3)]
    assert epochs == sorted(set(epochs))
    monitor = OplogMonitor(mongo.url, lambda _: None)
    monitor.start()
    try:
        wait_until(lambda: monitor.log_end is not None, "the monitor to look")
        assert "oplog" in monitor.status()
        [(_, _, lag_s), (_, _, healthy)] = monitor.samples(source.position_now())
        [(_, _, long), (_, _, gone)] = monitor.samples(Lsn(1))
        assert (lag_s, healthy, gone) == (0.0, 1.0, 0.0)
        assert long > 10**9, "of one that is at the beginning of time"
    finally:
        monitor.stop()
        source.close()

"""A user who may follow single collections only: each has a change stream, and the log is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pymongo.database import Database
from pymongo.errors import PyMongoError

from penstock.capture.server import CaptureServer
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.core.errors import AnotherSourceError, SourceError
from penstock.core.stream import StreamId
from penstock.sources.mongodb.source import MongoSource
from tests.conftest import wait_until
from tests.mongo_log import Reader, applied, changes, present, started
from tests.mongo_server import MongoServer
from tests.mongo_shop import Shop, assert_same, pipeline

pytestmark = pytest.mark.integration

NAMES = ("orders", "items")
ORDERS, ITEMS = (StreamId("shop", name) for name in NAMES)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    with MongoServer(tmp_path_factory.mktemp("secured"), secured=True) as running:
        followed = [
            {"resource": {"db": "shop", "collection": name}, "actions": ["find", "changeStream"]}
            for name in NAMES
        ]
        listed = {"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections", "collStats"]}
        admin = running.client.admin
        admin.command("createRole", "some", privileges=[listed, *followed], roles=[])
        own = {"role": "readWrite", "db": "penstock"}
        admin.command("createUser", "some", pwd="some", roles=["some", own])
        yield running


@pytest.fixture
def shop(secured: MongoServer) -> Iterator[Shop]:
    found: Database[dict[str, object]] = secured.client["shop"]
    for name in (*NAMES, "others"):
        found.create_collection(name)
    yield found
    secured.client.drop_database("shop")


@pytest.fixture
def spec(secured: MongoServer, shop: Shop, tmp_path: Path) -> CaptureSpec:
    return CaptureSpec(
        source=MongoSpec(secured.url_of("some", "some"), tmp_path.name, "shop"),
        log_directory=tmp_path / "log",
        checkpoint_path=tmp_path / "checkpoint.json",
        streams=(ORDERS, ITEMS),
        lanes={"lake": None},
        lanes_path=tmp_path / "lanes.json",
    )


def write(secured: MongoServer, shop: Shop, first: int) -> None:
    """Both collections by turns, in transactions and without."""
    for number in range(first, first + 40):
        shop["orders"].insert_one({"_id": number, "v": number})
        shop["items"].insert_one({"_id": number, "of": number})
        shop["others"].insert_one({"_id": number})
        with secured.client.start_session() as session, session.start_transaction():
            shop["items"].update_one({"_id": number}, {"$inc": {"of": 1}}, session=session)
            shop["orders"].insert_many([{"_id": f"{number}.{n}"} for n in range(3)], session=session)
            shop["items"].insert_one({"_id": f"{number}", "in": "both"}, session=session)
    shop["orders"].delete_many({"_id": {"$in": [first + 1, f"{first}.1"]}})


def wait_for_times(secured: MongoServer) -> None:
    """A server that knows users signs its times, and tells none before it has found the keys."""

    def tells_times() -> bool:
        with suppress(PyMongoError):
            return "operationTime" in secured.client.admin.command("hello")
        return False

    wait_until(tells_times, "the server to tell cluster times")


def assert_log_is_the_collections(spec: CaptureSpec, shop: Shop) -> None:
    for name in NAMES:
        assert sorted(applied(changes(spec, name)).values()) == present(shop, name)


def test_the_log_of_a_stream_for_each_collection_is_that_of_one_for_all(
    secured: MongoServer, shop: Shop, spec: CaptureSpec, tmp_path: Path
) -> None:
    """Row by row, over restarts: the same transactions, ordinals and values."""
    assert isinstance(spec.source, MongoSpec)
    whole = replace(
        spec,
        source=MongoSpec(secured.url, f"{tmp_path.name}_whole", "shop"),
        log_directory=tmp_path / "whole",
        checkpoint_path=tmp_path / "whole.json",
        lanes_path=tmp_path / "whole-lanes.json",
    )
    with started(spec) as capture, started(whole) as other:
        write(secured, shop, 0)
        capture.to_now()
        other.to_now()
        write(secured, shop, 100)  # received perhaps, and not sealed
    write(secured, shop, 200)
    with started(replace(spec, step_bytes_max=1)) as capture, started(whole) as other:
        write(secured, shop, 300)
        capture.to_now()
        other.to_now()
    assert_log_is_the_collections(spec, shop)
    for name in NAMES:
        found, expected = changes(spec, name), changes(whole, name)
        assert [row for row in found if row["_op"] != "u"] == [row for row in expected if row["_op"] != "u"]
        places = [(row["_tx"], row["_op_index"], row["_op"], row["__id"]) for row in found]
        assert places == [(row["_tx"], row["_op_index"], row["_op"], row["__id"]) for row in expected]
    both = {row["_tx"] for row in changes(spec, "items") if row["_xid"]}
    assert len(both) == 160
    assert both <= {row["_tx"] for row in changes(spec, "orders")}


def test_tables_are_loaded_and_followed_with_rights_on_their_collections_alone(
    secured: MongoServer, shop: Shop, tmp_path: Path
) -> None:
    source = {"type": "mongodb", "url": secured.url_of("some", "some"), "name": tmp_path.name}
    synced = pipeline(
        secured,
        shop,
        tmp_path / "pipeline",
        streams=["shop.orders", "shop.items"],
        source={**source, "database": "shop"},
    )
    write(secured, shop, 0)
    synced.sync()
    assert_same(synced, shop, *NAMES)
    write(secured, shop, 100)
    synced.sync()
    assert_same(synced, shop, *NAMES)
    synced.drop()


def test_collections_that_are_dropped_and_renamed_go_on_in_their_streams(
    shop: Shop, spec: CaptureSpec
) -> None:
    with started(spec) as capture:
        shop["orders"].insert_one({"_id": 1})
        shop["orders"].drop()
        shop["orders"].insert_one({"_id": 2})
        shop["items"].insert_one({"_id": 3})
        capture.to_now()
        shop["orders"].drop()
        shop["items"].rename("orders")  # both are followed, and it is told once
        shop["orders"].insert_one({"_id": 4})
        capture.to_now()
        shop["others"].insert_one({"_id": 9})
        shop["others"].rename("items")  # it comes from where nobody follows
        shop["items"].insert_one({"_id": 5})
        capture.to_now()
    assert [row["_op"] for row in changes(spec, "orders")] == ["i", "t", "i", "t", "t", "i"]
    assert [row["_op"] for row in changes(spec, "items")] == ["i", "t", "t", "i"]


def test_a_collection_that_is_added_gets_a_stream_and_nothing_of_the_others_is_lost(
    shop: Shop, spec: CaptureSpec
) -> None:
    serving = replace(spec, service=ServiceSpec("grpc+unix:///nowhere"), streams=(), seal_every_s=0.05)
    server = CaptureServer(serving, lambda _: None)
    ended, numbers = threading.Event(), list[int]()

    def insert() -> None:
        while not ended.is_set():
            shop["orders"].insert_one({"_id": len(numbers)})
            numbers.append(len(numbers))

    writer = threading.Thread(target=insert)
    try:
        assert server.lead(threading.Event(), lambda: None)
        server.join("lake", [ORDERS], ())
        reader = Reader(server, [])
        writer.start()
        reader.to_now()
        assert server.join("kafka", [ITEMS], ()).published == (ITEMS,)
        shop["items"].insert_one({"_id": "added"})
        count = len(numbers)
        wait_until(lambda: len(numbers) > count, "orders to go on")
        ended.set()
        writer.join()
        reader.to_now()
    finally:
        ended.set()
        server.stop()
    assert [row["__id"] for row in changes(spec, "orders")] == [str(number) for number in numbers]
    assert [row["__id"] for row in changes(spec, "items")] == ['"added"']


def test_a_server_that_was_killed_loses_and_doubles_nothing(
    secured: MongoServer, shop: Shop, spec: CaptureSpec
) -> None:
    """Each stream goes on by the token of its own."""
    with started(spec) as capture:
        write(secured, shop, 0)
        secured.restart()
        write(secured, shop, 100)
        capture.to_now()
    assert_log_is_the_collections(spec, shop)
    for name in NAMES:
        inserted = [row["__id"] for row in changes(spec, name) if row["_op"] == "i"]
        assert len(inserted) == len(set(inserted))


def test_a_pattern_and_a_collection_that_may_not_be_followed_are_errors(
    shop: Shop, spec: CaptureSpec
) -> None:
    for name, message in (("*", "that are named can be followed one by one"), ("others", "code 13")):
        with started(replace(spec, streams=(StreamId("shop", name),))) as capture:
            assert capture.server.reading is not None
            with pytest.raises(SourceError, match=message):
                capture.server.reading.log.stream()


def test_what_the_server_has_is_asked_of_collections_that_may_be_followed(
    secured: MongoServer, shop: Shop, spec: CaptureSpec
) -> None:
    assert isinstance(spec.source, MongoSpec)
    source = MongoSource(spec.source.url, spec.source.name, "shop")
    with started(spec) as capture:
        shop["items"].insert_one({"_id": 1})
        position = capture.to_now()
    assert source.check_kept(position) is None
    with secured.restored_after():
        wait_for_times(secured)
        with started(spec) as capture:
            shop["orders"].insert_one({"_id": "lost"})
            capture.to_now()
    wait_for_times(secured)
    with pytest.raises(AnotherSourceError, match="does not have the last change"), started(spec):
        pass


def test_a_right_that_was_taken_away_is_told_of_and_is_no_cluster_that_was_put_back(
    secured: MongoServer, shop: Shop, spec: CaptureSpec
) -> None:
    """The last change of the log is of a collection that nobody can be asked about any more."""
    assert isinstance(spec.source, MongoSpec)
    admin = secured.client.admin
    admin.command(
        "createUser", "limited", pwd="limited", roles=["some", {"role": "readWrite", "db": "penstock"}]
    )
    limited = replace(spec, source=replace(spec.source, url=secured.url_of("limited", "limited")))
    with started(limited) as capture:
        shop["items"].insert_one({"_id": 1})
        shop["orders"].insert_one({"_id": 2})
        capture.to_now()
    items = {"resource": {"db": "shop", "collection": "items"}, "actions": ["find", "changeStream"]}
    admin.command("createRole", "less", privileges=[items], roles=[])
    admin.command("revokeRolesFromUser", "limited", roles=["some"])
    admin.command("grantRolesToUser", "limited", roles=["less"])
    for streams in ((ORDERS, ITEMS), (ITEMS,)):
        with pytest.raises(SourceError) as error, started(replace(limited, streams=streams)):
            pass
        assert "limited@admin may not follow shop.orders any more (changeStream)" in error.value.message
        assert 'db.grantRolesToUser("limited"' in error.value.remedy
    admin.command("grantRolesToUser", "limited", roles=["some"])
    with started(limited) as capture:
        shop["orders"].insert_one({"_id": 3})
        capture.to_now()
    assert [row["__id"] for row in changes(limited, "orders")] == ["2", "3"]

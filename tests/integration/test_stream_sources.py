"""Stream lanes of MySQL, MariaDB and MongoDB: the same promises as of Postgres (`test_streams_lane`).

Capture is a process of its own; the lane runs in a thread, or as a process where it is killed.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.sources.mongodb.warming import warm_up as warm_up_mongodb
from penstock.sources.mysql.binlog.warming import warm_up as warm_up_mysql
from tests.conftest import WAIT_S, wait_until
from tests.kafka_server import KafkaServer
from tests.mongo_server import MongoServer
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.stream_lane import LaneProcess, position_of, standing_of
from tests.stream_orders import MongoOrders, MysqlOrders, Orders, OrdersLane

pytestmark = pytest.mark.integration

SOURCES = ("mysql", "mariadb", "mongodb")
#: What rests on parts that all sources share is shown of one by `make test`, and of all by `make slow`.
MOSTLY_MYSQL = ["mysql", *(pytest.param(name, marks=pytest.mark.slow) for name in SOURCES[1:])]
WITHOUT_MARIADB = ["mysql", "mongodb", pytest.param("mariadb", marks=pytest.mark.slow)]
ALL_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in SOURCES]
ROWS: dict[int, str | None] = dict.fromkeys(range(50), "placed")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, MysqlServer]]:
    """By name, each started when it is first asked for."""
    started: dict[str, MysqlServer] = {}

    class Started(dict[str, MysqlServer]):
        def __missing__(self, name: str) -> MysqlServer:
            kind = MYSQL if name == "mysql" else MARIADB
            started[name] = self[name] = MysqlServer(tmp_path_factory.mktemp(name), kind).__enter__()
            return started[name]

    yield Started()
    for server in started.values():
        server.kill()


@pytest.fixture
def orders(request: pytest.FixtureRequest, servers: dict[str, MysqlServer]) -> Orders:
    if request.param == "mongodb":
        warm_up_mongodb()
        server: MongoServer = request.getfixturevalue("mongo")
        made: Orders = MongoOrders(server)
    else:
        warm_up_mysql()
        made = MysqlOrders(servers[request.param])
    made.write(ROWS)
    return made


@pytest.fixture
def shop(orders: Orders, tmp_path: Path) -> Iterator[OrdersLane]:
    made = OrdersLane(tmp_path, orders)
    with made.captured():
        yield made


@pytest.mark.parametrize("orders", WITHOUT_MARIADB, indirect=True)
def test_rows_go_first_and_then_every_kind_of_change(shop: OrdersLane) -> None:
    orders = shop.orders
    with shop.lane() as lane:
        loaded = shop.wait_for(50)
        assert shop.ops == "r" * 50
        assert {event["key"][0]: event["value"]["after"]["status"] for event in loaded} == ROWS
        orders.write(inserts={51: "placed"})
        orders.write(updates={51: "sent"})
        orders.write(inserts={52: None, 53: "x"}, updates={52: "sent"}, deletes=[53])
        orders.write(deletes=[51])
        orders.empty()
        orders.write(inserts={1: "again"})
        found = shop.wait_for(59)
        assert shop.ops[50:] == "cuccuddtc"
        together = found[52:56]
        assert len({event["value"]["source"]["tx"] for event in together}) == 1, "a transaction is one"
        assert len({event["offset"] for event in found[50:]}) == 9
        assert found[57]["key"] is None
        assert [event["value"]["source"]["snapshot"] for event in (found[0], found[50])] == [True, False]
        shop.wait_until_level()
    assert lane.state[0] != "reconnecting"
    assert "" in {reason for state, reason in lane.states if state == "running"}


@pytest.mark.parametrize("orders", MOSTLY_MYSQL, indirect=True)
def test_a_paused_rewound_and_resynced_lane_loses_nothing(shop: OrdersLane) -> None:
    orders = shop.orders
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.book.write(shop.book.read().pause("a consumer is moved"))
        wait_until(lambda: "a consumer is moved" in lane.state[1], "the lane to stand still", WAIT_S)
        orders.write(inserts={60: "placed"})
        assert shop.capture is not None
        shop.capture.join(orders.table)
        shop.capture.read_now()
        assert shop.ops == "r" * 50
        shop.book.write(shop.book.read().resume())
        shop.wait_for(51)
        before = position_of(shop.out)
        orders.write(inserts={61: "placed"}, updates={61: "sent"})
        first = shop.wait_for(53)[51:]
        shop.book.write(shop.book.read().rewind(before))
        again = shop.wait_for(55)[53:]
        assert [event["offset"] for event in again] == [event["offset"] for event in first]
        shop.book.write(shop.book.read().load_anew((orders.table,)))
        shop.wait_for(55 + 52)
        orders.write(deletes=[61])
        shop.wait_for(55 + 53)
        assert shop.ops[55:] == "r" * 52 + "d"


@pytest.mark.parametrize("orders", ALL_SLOW, indirect=True)
def test_a_lane_that_is_killed_anywhere_goes_on_without_loss_or_doubles(
    shop: OrdersLane, tmp_path: Path
) -> None:
    names = (
        "streams.load_begun",
        "streams.load_chunk",
        "streams.load_level",
        "streams.opened",
        "streams.begun",
        "streams.handed_over",
        "streams.file_written",
        "streams.file_committed",
    )
    orders = shop.orders
    for number, name in enumerate(names):
        report = tmp_path / f"report{number}"
        nth = "@2" if name.startswith("streams.file") else ""
        rule = f"{name}=kill{nth}"
        with shop.process(PENSTOCK_FAILPOINT=rule, PENSTOCK_FAILPOINT_REPORT=str(report)) as lane:
            first = 1000 * (number + 1)
            orders.write(inserts={first + each: "placed" for each in range(20)})
            orders.write(updates={first + each: "sent" for each in range(10)}, deletes=[number])
            orders.write(deletes=[first + 3])
            statuses = itertools.count()

            def written_on(
                lane: LaneProcess = lane, first: int = first, statuses: Iterator[int] = statuses
            ) -> bool:
                """So that it comes by there as often as it must."""
                orders.write(updates={first: f"sent {next(statuses)}"})
                return lane.process.poll() is not None

            wait_until(written_on, f"{name} to strike", WAIT_S)
        assert report.exists(), lane.said
        assert report.read_text().startswith(name), "the kill struck where it was to"
    with shop.process() as lane:
        shop.wait_until_level(resumed=True)
        assert lane.stop() == 0


@pytest.mark.parametrize("orders", ALL_SLOW, indirect=True)
def test_rows_are_loaded_beside_writers_and_each_change_follows_once(orders: Orders, tmp_path: Path) -> None:
    """Strictly: what is loaded and what follows must fit together for every single row."""
    orders.write(dict.fromkeys(range(1000, 4000), "placed"))
    shop = OrdersLane(tmp_path, orders)
    ended = threading.Event()
    written: list[int] = []

    def write() -> None:
        number = 10_000
        while not ended.wait(0.002):
            number += 1
            known = 1000 + number % 3000
            orders.write(
                inserts={number: "placed"},
                updates={known: f"sent {number}"},
                deletes=[number - 40, known + 7],
            )
            orders.write(inserts={known + 7: "again"} if known + 7 < 4000 else {})
            written.append(number)

    # A row that was deleted is there again before anybody else writes it: there is one writer.
    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_until(lambda: len(written) > 20, "the writer to work", WAIT_S)
        with shop.captured(), shop.lane():
            wait_until(lambda: "c" in shop.ops, "the lane to follow", WAIT_S)
            at = len(written) + 50
            wait_until(lambda: len(written) > at, "the writer to go on", WAIT_S)
            ended.set()
            thread.join()
            shop.wait_until_level()
            assert shop.ops.count("r") >= 3000
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("orders", ALL_SLOW[:2], indirect=True)
def test_a_table_is_altered_in_the_midst_of_its_load_which_goes_on(orders: Orders, tmp_path: Path) -> None:
    assert isinstance(orders, MysqlOrders)
    orders.write(dict.fromkeys(range(1000, 4000), "placed"))
    shop = OrdersLane(tmp_path, orders, load={"rows_per_chunk": 100, "rows_per_second": 500})
    with shop.captured(), shop.lane():
        wait_until(lambda: shop.ops.count("r") >= 100, "the load to be under way", WAIT_S)
        orders.execute(
            "SET SESSION lock_wait_timeout = 30", f"ALTER TABLE {orders.table} MODIFY status VARCHAR(80)"
        )
        assert shop.ops.count("r") < 3000, "nobody waited for the load"
        orders.write(updates={1000: "changed " * 8, 3999: "changed " * 8})
        shop.wait_until_level(resumed=True)


@pytest.mark.parametrize("orders", ALL_SLOW, indirect=True)
def test_a_new_leader_goes_on_where_the_target_is_and_the_old_one_writes_nothing(shop: OrdersLane) -> None:
    with shop.process() as first:
        shop.wait_for(50)
        epoch = standing_of(shop.out)["epoch"]
        assert shop.capture is not None
        shop.capture.process.kill()
        shop.orders.write(inserts={60: "placed"})
        with shop.captured(), shop.process():
            shop.orders.write(inserts={61: "placed"})
            shop.wait_until_level()
            assert standing_of(shop.out)["epoch"] != epoch
            assert first.process.poll() is None
            assert first.state in ("waiting", "reconnecting")


@pytest.mark.slow
@pytest.mark.parametrize("orders", SOURCES, indirect=True)
def test_kafka_has_every_change_once_with_its_key_headers_and_tombstone(
    orders: Orders, kafka: KafkaServer, tmp_path: Path
) -> None:
    section = {"bootstrap": kafka.bootstrap, "partitions": 3, "prefix": orders.table.partition(".")[0]}
    shop = OrdersLane(tmp_path, orders, "kafka", section)
    topic = f"{section['prefix']}.{orders.table}"

    def told() -> list[tuple[str, Any, str]]:
        records: list[Any] = kafka.read(topic) if topic in kafka.topics() else []
        return [
            (
                record.headers["penstock.op"].decode(),
                json.loads(record.key),
                record.headers["penstock.offset"].decode(),
            )
            for record in records
        ]

    with shop.captured(), shop.lane():
        wait_until(lambda: len(told()) == 50, "the rows to be there", WAIT_S)
        orders.write(inserts={60: "placed"}, updates={60: "sent"})
        orders.write(deletes=[60])
        wait_until(lambda: len(told()) >= 54, "the changes to be there", WAIT_S)
        of_key = [(op, offset) for op, key, offset in told() if key == [60]]
        assert [op for op, _ in of_key] == ["c", "u", "d", "n"], "a delete is followed by a tombstone"
        assert of_key[2][1] == of_key[3][1], "which has the name of its delete"
        assert len({offset for _, offset in of_key}) == 3
        values = [record.value for record in kafka.read(topic) if record.key == b"[60]"]
        assert values[3] is None


@pytest.mark.slow
@pytest.mark.parametrize("orders", SOURCES, indirect=True)
def test_debezium_events_are_those_of_the_sources_connector_and_masks_hide_values(
    orders: Orders, tmp_path: Path
) -> None:
    masks = {f"{orders.table}.status": "redact"}
    if orders.key == "_id":
        masks[f"{orders.table}._rest"] = "null"
    shop = OrdersLane(tmp_path, orders, section={"format": "debezium", "mask": masks})
    with shop.captured(), shop.lane():
        wait_until(lambda: len(shop.events()) == 50, "the rows", WAIT_S)
        orders.write(inserts={60: "secret"})
        orders.write(deletes=[60])
        wait_until(lambda: len(shop.events()) == 52, "the changes", WAIT_S)
        loaded, created, deleted = (shop.events()[at] for at in (0, 50, 51))
    assert created["key"] == {orders.key: 60}
    assert created["value"]["after"][orders.key] == 60
    assert created["value"]["after"]["status"] == "***"
    assert "secret" not in shop.out.read_text()
    assert (loaded["value"]["op"], loaded["value"]["source"]["snapshot"]) == ("r", "true")
    assert deleted["value"]["before"][orders.key] == 60
    source = created["value"]["source"]
    assert source["connector"] == ("mongodb" if orders.key == "_id" else "mysql")
    assert source["db"] == orders.table.partition(".")[0]
    assert source["collection" if orders.key == "_id" else "table"] == "orders"


@pytest.mark.slow
def test_a_document_is_one_column_of_json_in_the_layout_that_says_so(
    mongo: MongoServer, tmp_path: Path
) -> None:
    warm_up_mongodb()
    orders = MongoOrders(mongo, "document")
    orders.collection.insert_one({"_id": 1, "status": "placed", "items": [{"n": 1.5}, None]})
    shop = OrdersLane(tmp_path, orders)
    with shop.captured(), shop.lane():
        [loaded] = shop.wait_for(1)
        orders.collection.update_one({"_id": 1}, {"$set": {"items": []}})
        updated = shop.wait_for(2)[1]
    documents = [
        json_util.loads(json.dumps(each["value"]["after"]["document"])) for each in (loaded, updated)
    ]
    assert documents[0] == {"_id": 1, "status": "placed", "items": [{"n": 1.5}, None]}
    assert documents[1] == {"_id": 1, "status": "placed", "items": []}
    assert updated["key"] == loaded["key"]


@pytest.mark.slow
@pytest.mark.parametrize("orders", ["mongodb"], indirect=True)
def test_a_mask_is_refused_while_what_it_hides_could_be_in_the_rest(orders: Orders, tmp_path: Path) -> None:
    shop = OrdersLane(tmp_path, orders, section={"mask": {f"{orders.table}.status": "null"}})
    with shop.captured():
        lane = shop.lane()
        with pytest.raises(ConfigError, match="_rest"), lane:
            wait_until(lambda: lane.error is not None, "the lane to end", WAIT_S)


@pytest.mark.parametrize("orders", ["mysql"], indirect=True)
def test_messages_that_only_postgres_has_are_refused_by_name(orders: Orders, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pg_logical_emit_message"):
        OrdersLane(tmp_path, orders, section={"messages": {"prefixes": ["shop*"]}})
    assert Config.load(OrdersLane(tmp_path, orders).path).lanes.streams.keys() == {"file"}

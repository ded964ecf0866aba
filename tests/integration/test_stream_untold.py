"""Changes that MySQL logged in a way that does not tell rows: a stream lane cannot load a table again by
itself, so its stream stands still, visibly, until somebody decides, and the others flow on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import metrics
from penstock.sources.mysql.binlog.warming import warm_up
from tests.conftest import WAIT_S, wait_until
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.stream_lane import LaneThread, events_of, standing_of
from tests.stream_orders import MysqlOrders, OrdersLane

pytestmark = pytest.mark.integration


@pytest.fixture(
    scope="module", params=[MYSQL, pytest.param(MARIADB, marks=pytest.mark.slow)], ids=lambda kind: kind.name
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        yield started


@pytest.fixture
def orders(server: MysqlServer) -> MysqlOrders:
    made = MysqlOrders(server)
    made.write({1: "placed", 2: "placed"})
    made.execute(f"CREATE TABLE {made.database}.items (id BIGINT PRIMARY KEY)")
    return made


def _by_statement(server: MysqlServer, *statements: str) -> None:
    """In one transaction, of which the log has the statements."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in ("SET SESSION binlog_format = STATEMENT", "BEGIN", *statements, "COMMIT"):
            cursor.execute(statement)


def _shop(directory: Path, orders: MysqlOrders, snapshot: str) -> OrdersLane:
    streams = [orders.table, f"{orders.database}.items"]
    return OrdersLane(directory, orders, section={"snapshot": snapshot}, streams=streams)


def _wait_until_standing_still(lane: LaneThread, stream: str) -> None:
    def stands() -> bool:
        assert lane.error is None
        return lane.state[0] == "running" and f"{stream} stands still" in lane.state[1]

    wait_until(stands, "the lane to say that a stream stands still", WAIT_S)
    assert f"penstock resync --lane file {stream} --yes" in lane.state[1]
    assert (metrics.STREAM_LANE_GAPS.name, {"lane": "file"}, 1.0) in lane.measures.samples()


def _wait_for_items(shop: OrdersLane, count: int) -> None:
    def told() -> int:
        return sum(event["route"].endswith(".items") for event in events_of(shop.out))

    wait_until(lambda: told() >= count, f"{count} items", WAIT_S)
    assert told() == count


@pytest.mark.parametrize("snapshot", ["initial", pytest.param("never", marks=pytest.mark.slow)])
def test_a_stream_whose_rows_are_not_told_stands_still_until_somebody_decides(
    server: MysqlServer, orders: MysqlOrders, tmp_path: Path, snapshot: str
) -> None:
    shop = _shop(tmp_path, orders, snapshot)
    loaded = 2 if snapshot == "initial" else 0
    with shop.captured():
        with shop.lane() as lane:
            wait_until(lambda: shop.out.exists() and lane.state[0] == "running", "the lane to run", WAIT_S)
            shop.wait_for(loaded)
            orders.write(inserts={3: "placed"})
            _by_statement(server, f"UPDATE {orders.table} SET status = 'sent' WHERE id <= 2")
            orders.write(inserts={4: "placed"})
            orders.execute(f"INSERT INTO {orders.database}.items VALUES (1)")
            _wait_for_items(shop, 1)
            _wait_until_standing_still(lane, orders.table)
        shop.wait_for(loaded + 1)
        assert standing_of(shop.out)["loads"][orders.table]["gap"] is True
        with shop.lane() as lane:
            _wait_until_standing_still(lane, orders.table)
            orders.execute(f"INSERT INTO {orders.database}.items VALUES (2)")
            _wait_for_items(shop, 2)
            shop.wait_for(loaded + 1)
            shop.book.write(shop.book.read().load_anew((orders.table,)))
            if snapshot == "initial":
                shop.wait_for(loaded + 1 + 4)
                shop.wait_until_level(resumed=True)
            else:
                shop.wait_for(2)
                assert [event["key"] for event in shop.events()] == [[3], [4]]
            wait_until(lambda: lane.state == ("running", ""), "the stream to flow again", WAIT_S)
            orders.write(inserts={5: "placed"})
            wait_until(lambda: shop.events()[-1]["key"] == [5], "what comes then", WAIT_S)


def test_a_stream_whose_filter_cannot_be_asked_of_an_update_stands_still_until_somebody_decides(
    server: MysqlServer, orders: MysqlOrders, tmp_path: Path
) -> None:
    orders.execute(f"ALTER TABLE {orders.table} ADD COLUMN note INT NOT NULL DEFAULT 0")
    streams = [{"table": orders.table, "where": "status = 'placed'"}, f"{orders.database}.items"]
    shop = OrdersLane(tmp_path, orders, section={"snapshot": "initial"}, streams=streams)

    def insert(order: int) -> None:
        orders.execute(f"INSERT INTO {orders.table} VALUES ({order}, 'placed', 0)")

    with shop.captured():
        with shop.lane() as lane:
            shop.wait_for(2)
            insert(3)
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_row_image = MINIMAL")
                cursor.execute(f"UPDATE {orders.table} SET note = 1 WHERE id <= 2")
                connection.commit()
            insert(4)
            orders.execute(f"INSERT INTO {orders.database}.items VALUES (1)")
            _wait_for_items(shop, 1)
            _wait_until_standing_still(lane, orders.table)
        shop.wait_for(3)
        assert shop.ops == "rrc"
        with shop.lane() as lane:
            _wait_until_standing_still(lane, orders.table)
            shop.book.write(shop.book.read().load_anew((orders.table,)))
            shop.wait_for(3 + 4)
            wait_until(lambda: lane.state == ("running", ""), "the stream to flow again", WAIT_S)
            insert(5)
            wait_until(lambda: shop.events()[-1]["key"] == [5], "what comes then", WAIT_S)
        notes = {event["value"]["after"]["id"]: event["value"]["after"]["note"] for event in shop.events()}
        assert notes == {1: 1, 2: 1, 3: 0, 4: 0, 5: 0}


def test_rows_that_change_by_a_statement_while_they_are_loaded_have_the_stream_stand_still(
    server: MysqlServer, orders: MysqlOrders, tmp_path: Path
) -> None:
    shop = _shop(tmp_path, orders, "initial")
    gate, report = tmp_path / "gate", tmp_path / "report"
    failpoint = {
        "PENSTOCK_FAILPOINT": "streams.load_chunk=pause@2",  # items come first
        "PENSTOCK_FAILPOINT_GATE": str(gate),
        "PENSTOCK_FAILPOINT_REPORT": str(report),
    }

    def stands() -> bool:
        return bool(standing_of(shop.out)["loads"].get(orders.table, {}).get("gap"))

    with shop.captured(), shop.process(**failpoint):
        wait_until(report.exists, "the rows to be read", WAIT_S)
        orders.write(inserts={3: "placed"})
        _by_statement(server, f"UPDATE {orders.table} SET status = 'sent' WHERE id <= 2")
        orders.write(inserts={4: "placed"})
        gate.touch()
        wait_until(stands, "the stream to stand still", WAIT_S)
        orders.execute(f"INSERT INTO {orders.database}.items VALUES (1)")
        _wait_for_items(shop, 1)
        shop.wait_for(3)
        assert shop.ops == "rrc", "what was before it is told, and nothing from there on"


@pytest.mark.parametrize("how", ["DROP PARTITION low", "TRUNCATE PARTITION low"])
def test_a_stream_whose_rows_go_with_their_partition_stands_still(
    orders: MysqlOrders, tmp_path: Path, how: str
) -> None:
    orders.execute(
        f"ALTER TABLE {orders.table} PARTITION BY RANGE (id) "
        "(PARTITION low VALUES LESS THAN (2), PARTITION high VALUES LESS THAN MAXVALUE)"
    )
    shop = _shop(tmp_path, orders, "initial")
    with shop.captured(), shop.lane() as lane:
        shop.wait_for(2)
        orders.write(inserts={3: "placed"})
        orders.execute(f"ALTER TABLE {orders.table} {how}")
        orders.write(inserts={4: "placed"})
        orders.execute(f"INSERT INTO {orders.database}.items VALUES (1)")
        _wait_for_items(shop, 1)
        _wait_until_standing_still(lane, orders.table)
        shop.wait_for(3)
        assert shop.ops == "rrc"


def test_columns_that_a_statement_altered_are_told_before_the_first_row_that_has_them(
    orders: MysqlOrders, tmp_path: Path
) -> None:
    section = {"snapshot": "initial", "schema_changes": "columns"}
    shop = OrdersLane(tmp_path, orders, section=section)
    with shop.captured(), shop.lane():
        shop.wait_for(2)
        orders.execute(
            f"ALTER TABLE {orders.table} RENAME COLUMN status TO state, "
            "ADD COLUMN size INT NOT NULL DEFAULT 5",
            f"INSERT INTO {orders.table} VALUES (3, 'placed', 6)",
        )
        shop.wait_for(3)
    events = [
        event for event in events_of(shop.out) if event["route"] in ("columns", shop.events()[-1]["route"])
    ]
    last_row, told = events[-1], events[-2]
    assert last_row["value"]["after"] == {"id": 3, "state": "placed", "size": 6}
    assert told["value"]["stream"] == orders.table
    assert [column["name"] for column in told["value"]["columns"]] == ["id", "state", "size"]
    assert told["value"]["key"] == ["id"]

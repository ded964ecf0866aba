"""A stream lane on a real Postgres: every change once and in order, whatever happens to the lane.

The target is a file (`penstock.streams.file`), so that the lane is under test and not a broker. Capture is a
process of its own; the lane runs in a thread, or as a process where it is killed.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import metrics
from penstock.config import Config
from penstock.core.errors import ConfigError, PositionGoneError, StateError, TargetError
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog
from penstock.streams import trouble
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.file import FileTarget
from penstock.streams.orders import ORDERS_FILE, OrderBook, lane_directory
from penstock.streams.publisher import Standing, Term
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer
from tests.kafka_shop import KafkaShop
from tests.stream_lane import (
    LaneThread,
    events_of,
    pipeline_file,
    position_of,
    standing_of,
    stream_capture,
)
from tests.stream_shop import SHOP, Shop, opened

WITHOUT_KEY = """
CREATE TABLE visits (id bigint);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO visits SELECT generate_series(1, 50);
"""


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    with opened(database, tmp_path) as made:
        yield made


def test_rows_go_first_and_then_every_kind_of_change(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        assert shop.ops() == "r" * 50
        shop.execute("INSERT INTO orders VALUES (51, 'placed', 'x')")
        shop.execute("UPDATE orders SET status = 'sent' WHERE id = 51")
        shop.execute("UPDATE orders SET id = 52 WHERE id = 51")
        shop.execute("DELETE FROM orders WHERE id = 52")
        shop.execute("TRUNCATE orders")
        shop.execute("INSERT INTO orders VALUES (1, 'again', NULL)")
        shop.wait_for(57)
        assert shop.ops()[50:] == "cudcdtc"
        moved = shop.events()[52:54]
        assert [event["key"] for event in moved] == [[51], [52]], "a key change is a delete and a create"
        assert moved[0]["offset"].split("_")[0] == moved[1]["offset"].split("_")[0]
        assert shop.events()[55]["key"] is None
        shop.wait_until_level()
        wait_until(
            lambda: any(
                name == metrics.STREAM_LANE_FRESHNESS_SECONDS.name for name, _, _ in lane.measures.samples()
            ),
            "the lane to say how fresh its target is",
        )
    assert lane.state[0] != "reconnecting"


def test_large_values_partitions_and_new_columns_come_whole(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text, note text);"
        "CREATE TABLE visits (id bigint, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
        "CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');"
        "INSERT INTO visits VALUES (1, '2024-01-05'), (2, '2024-02-05');"
    )
    shop = Shop(tmp_path, database)
    with shop.captured(), shop.lane():
        shop.wait_for(2, "public.visits")
        shop.execute("INSERT INTO visits VALUES (3, '2024-02-07')")
        shop.execute("UPDATE visits SET day = '2024-02-08' WHERE id = 1")
        events = shop.wait_for(5, "public.visits")
        assert [event["value"]["op"] for event in events] == list("rrcdc"), "rows of all leaves are its rows"
        shop.execute(
            "INSERT INTO orders SELECT 1, 'placed', string_agg(md5(i::text), '') "
            "FROM generate_series(1, 1000) AS i"
        )
        shop.execute("UPDATE orders SET status = 'sent'")
        shop.execute("ALTER TABLE orders ADD COLUMN weight numeric DEFAULT 1.5")
        shop.execute("UPDATE orders SET status = 'lost'")
        inserted, updated, evolved = (event["value"] for event in shop.wait_for(3))
        assert len(inserted["after"]["note"]) == 32_000
        assert "note" not in updated["after"]
        assert updated["unchanged"] == ["note"]
        assert evolved["after"]["weight"] == "1.5"


def test_a_transaction_larger_than_any_batch_is_there_whole_or_not_at_all(shop: Shop) -> None:
    with shop.lane() as lane:
        lane.wait_until_running()
        shop.wait_for(50)
        shop.execute(
            "INSERT INTO orders SELECT i, 'placed', repeat('x', 500) FROM generate_series(1001, 41000) AS i"
        )
        counts = set()

        def all_there() -> bool:
            counts.add(len(shop.events()))
            return max(counts) >= 40_050

        wait_until(all_there, "the transaction to be there", WAIT_S)
        assert counts <= {50, 40_050}
        shop.require_once()


def test_a_lane_that_is_killed_anywhere_goes_on_without_loss_or_doubles(shop: Shop, tmp_path: Path) -> None:
    names = (
        "streams.opened",
        "streams.begun",
        "streams.handed_over",
        "streams.file_written",
        "streams.file_committed",
    )
    for number, name in enumerate(names):
        report = tmp_path / f"report{number}"
        nth = "@2" if name.startswith("streams.file") else ""
        with shop.process(
            PENSTOCK_FAILPOINT=f"{name}=kill{nth}", PENSTOCK_FAILPOINT_REPORT=str(report)
        ) as lane:
            first = 1000 * (number + 1)
            shop.execute(f"INSERT INTO orders SELECT {first} + i FROM generate_series(1, 20) AS i")
            shop.execute(f"UPDATE orders SET status = 'sent' WHERE id < {first} + 10")
            shop.execute(f"DELETE FROM orders WHERE id = {first} + 3")
            lane.process.wait(WAIT_S)
        assert report.exists(), lane.said
        assert report.read_text().startswith(name), "the kill struck where it was to"
    with shop.process() as lane:
        shop.wait_until_level(resumed=True)
        assert lane.stop() == 0


def test_a_table_without_a_key_that_is_read_anew_is_counted(database: Database, tmp_path: Path) -> None:
    with opened(database, tmp_path, WITHOUT_KEY) as shop:
        with shop.process(PENSTOCK_FAILPOINT="streams.load_chunk=kill") as process:
            assert process.process.wait(WAIT_S) == -signal.SIGKILL
        with shop.lane() as lane:
            lane.wait_until_running()
            shop.execute("INSERT INTO visits VALUES (2)")
            wait_until(lambda: shop.ops("public.visits").endswith("c"), "the change", WAIT_S)
            labels = {"lane": "file", "stream": "public.visits"}
            assert (metrics.STREAM_LANE_READ_ANEW.name, labels, 1.0) in lane.measures.samples()


def test_a_new_leader_goes_on_where_the_target_is_and_the_old_one_writes_nothing(
    shop: Shop, tmp_path: Path
) -> None:
    with shop.process() as first:
        shop.wait_for(50)
        epoch = standing_of(shop.out)["epoch"]
        assert shop.capture is not None
        shop.capture.process.kill()
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        with shop.captured(), shop.process():
            shop.execute("INSERT INTO orders VALUES (61, 'placed', NULL)")
            shop.wait_until_level()
            assert Lsn.parse(standing_of(shop.out)["epoch"]) > Lsn.parse(epoch)
            assert first.process.poll() is None
            assert first.state in ("waiting", "reconnecting")


def test_a_paused_lane_stands_still_and_loses_nothing(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.orders.write(shop.orders.read().pause("a consumer is moved"))
        wait_until(lambda: "a consumer is moved" in lane.state[1], "the lane to stand still", WAIT_S)
        assert (metrics.STREAM_LANE_PAUSED.name, {"lane": "file"}, 1.0) in lane.measures.samples()
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        assert shop.capture is not None
        shop.capture.read_now()
        assert shop.ops() == "r" * 50
        shop.orders.write(shop.orders.read().resume())
        shop.wait_until_level()


def test_what_the_target_does_not_take_is_said_and_the_lane_hears_orders_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on by itself when the target takes it."""
    commit, is_away = FileTarget.commit, [False]

    def commit_or_not(target: FileTarget, standing: Standing) -> None:
        if is_away[0]:
            raise TargetError("The target is not there today.")
        commit(target, standing)

    monkeypatch.setattr(FileTarget, "commit", commit_or_not)
    monkeypatch.setattr(trouble, "TOLD_AFTER_S", 0.0)
    with shop.lane() as lane:
        shop.wait_for(50)
        is_away[0] = True
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        wait_until(lambda: "(The target is not there today.)" in lane.state[1], "why it stands still", WAIT_S)
        assert lane.state[0] == "running"
        shop.orders.change(lambda orders: orders.pause("it is mended"))
        wait_until(lambda: "it is mended" in lane.state[1], "the lane to stand still", WAIT_S)
        shop.orders.change(lambda orders: orders.resume())
        wait_until(lambda: "(The target is not there today.)" in lane.state[1], "why it stands still", WAIT_S)
        assert shop.ops() == "r" * 50
        is_away[0] = False
        wait_until(lambda: lane.state == ("running", ""), "the lane to say that it goes on", WAIT_S)
        shop.wait_until_level()
    is_away[0] = True
    shop.orders.change(lambda orders: orders.rewind(position_of(shop.out)))  # which the target writes down
    with shop.lane() as lane:
        wait_until(lambda: "not there today" in lane.state[1], "why it does not begin", WAIT_S)
        assert lane.state[0] == "starting"
        is_away[0] = False
        wait_until(lambda: lane.state == ("running", ""), "the lane to begin", WAIT_S)


def test_a_paused_lane_says_so_while_its_target_cannot_be_opened(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tried, is_away = FileTarget.open, [0], [True]

    def open_or_not(target: FileTarget, term: Term) -> Standing | None:
        tried[0] += 1
        if is_away[0]:
            raise TargetError("The target is not there today.", remedy="Wait for it.")
        return opened(target, term)

    monkeypatch.setattr(FileTarget, "open", open_or_not)
    with shop.lane() as lane:
        wait_until(lambda: lane.state[0] == "reconnecting", "the lane to try without end", WAIT_S)
        shop.orders.change(lambda orders: orders.pause("it is mended"))
        wait_until(lambda: "it is mended" in lane.state[1], "the lane to stand still", WAIT_S)
        said = len(lane.states)
        wait_until(lambda: tried[0] >= 4, "the target to be tried further", WAIT_S)
        reasons = [reason for state, reason in lane.states[said:] if state != "waiting"]
        assert all("(it is mended); The target is not there today." in reason for reason in reasons)
        assert (metrics.STREAM_LANE_PAUSED.name, {"lane": "file"}, 1.0) in lane.measures.samples()
        is_away[0] = False
        wait_until(lambda: lane.state[1].endswith("(it is mended)"), "the trouble to be over", WAIT_S)
        assert lane.state[0] == "running"
        shop.orders.change(lambda orders: orders.resume())
        shop.wait_for(50)
        assert (metrics.STREAM_LANE_PAUSED.name, {"lane": "file"}, 0.0) in lane.measures.samples()


def test_a_rewound_lane_sends_the_same_again_by_the_same_offsets(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_for(51)
        before = position_of(shop.out)
        shop.execute("INSERT INTO orders VALUES (61, 'placed', NULL)")
        shop.execute("UPDATE orders SET status = 'sent' WHERE id = 61")
        first = shop.wait_for(53)[51:]
        shop.orders.write(shop.orders.read().rewind(before))
        again = shop.wait_for(55)[53:]
        assert [event["offset"] for event in again] == [event["offset"] for event in first]
        shop.orders.write(shop.orders.read().rewind(Lsn(1)))
        wait_until(lambda: bool(lane.notes), "the lane to say that it cannot", WAIT_S)
        wait_until(lambda: not shop.orders.read().is_open, "the order to be done with", WAIT_S)
        assert len(shop.events()) == 55


def test_a_rewind_that_cannot_be_done_is_no_order_to_do_without_dead_letters_that_are_elsewhere(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, shop.lane() as lane:
        patched.setattr(DeadLetters, "mark", "of another file")
        shop.wait_for(50)
        shop.execute("INSERT INTO orders VALUES (51, 'placed', NULL)")
        shop.wait_for(51)
        log = ChangeLog(shop.config.state / "log")
        wait_until(lambda: log.start() is not None, "the log to begin", WAIT_S)
        lane.wait_until_running()
    held = position_of(shop.out)
    for to in (Lsn(held + 0x1000), Lsn(1)):
        shop.orders.change(lambda orders, to=to: orders.rewind(to))  # type: ignore[misc]
        with pytest.raises(StateError, match="another state directory"), shop.lane() as lane:
            wait_until(lambda lane=lane: lane.error is not None, "the lane to end", WAIT_S)  # type: ignore[misc]
    assert len(shop.events()) == 51
    shop.orders.change(lambda orders: orders.rewind(held))
    with shop.lane() as lane:
        lane.wait_until_running()
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_until_level()


def test_a_rewind_is_carried_out_once_though_another_order_comes_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        before = position_of(shop.out)
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_for(51)

        def pause_once(name: str) -> None:
            if name == "streams.ordered" and not shop.orders.read().is_paused:
                shop.orders.change(lambda orders: orders.pause("meanwhile"))

        monkeypatch.setattr("penstock.streams.term.failpoints.reach", pause_once)
        shop.orders.change(lambda orders: orders.rewind(before))
        wait_until(lambda: "meanwhile" in lane.state[1], "the lane to hear of the other order", WAIT_S)
        monkeypatch.undo()
        shop.orders.change(lambda orders: orders.resume())
        shop.execute("INSERT INTO orders VALUES (61, 'placed', NULL)")
        wait_until(lambda: shop.events()[-1]["key"] == [61], "what came last", WAIT_S)
        assert [event["key"] for event in shop.events()[50:]] == [[60], [60], [61]]


@pytest.mark.slow
def test_a_rewind_that_the_target_knows_of_is_not_carried_out_again(shop: Shop, tmp_path: Path) -> None:
    """Neither after a kill before it is struck out, nor when a backup of the orders still has it."""
    with shop.lane():
        shop.wait_for(50)
        before = position_of(shop.out)
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_for(51)
    shop.orders.change(lambda orders: orders.rewind(before))
    report = tmp_path / "report"
    with shop.process(
        PENSTOCK_FAILPOINT="streams.ordered=kill", PENSTOCK_FAILPOINT_REPORT=str(report)
    ) as lane:
        lane.process.wait(WAIT_S)
    assert report.exists(), lane.said
    file = lane_directory(shop.config.state, "file") / ORDERS_FILE
    open_order = file.read_bytes()
    for number in (61, 62):
        file.write_bytes(open_order)
        assert shop.orders.read().is_open
        with shop.lane():
            wait_until(lambda: not shop.orders.read().is_open, "the order to be struck out", WAIT_S)
            shop.execute(f"INSERT INTO orders VALUES ({number}, 'placed', NULL)")
            wait_until(lambda: shop.events()[-1]["key"] == [number], "what came last", WAIT_S)  # noqa: B023
    assert [event["key"] for event in shop.events()[50:]] == [[60], [60], [61], [62]]


def test_a_resync_loads_a_stream_anew_and_then_follows(shop: Shop) -> None:
    shop.execute("CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers VALUES (1)")
    with shop.lane():
        shop.wait_for(50)
        shop.wait_for(1, "public.customers")
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_for(51)
        shop.orders.write(shop.orders.read().load_anew(("public.orders",)))
        shop.wait_for(51 + 51)
        shop.execute("INSERT INTO orders VALUES (61, 'placed', NULL)")
        shop.wait_for(51 + 52)
        assert shop.ops()[51:] == "r" * 51 + "c"
        assert shop.ops("public.customers") == "r"
        shop.require_once()  # another load, by another name


def test_a_lane_whose_changes_are_gone_says_what_to_do_and_a_resync_mends_it(shop: Shop) -> None:
    with shop.lane():
        shop.wait_for(50)
    lines = shop.out.read_text().splitlines()
    last = json.loads(lines[-1])
    last["commit"]["system_id"] = "7000000000000000000"
    shop.out.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    broken = shop.lane()
    with pytest.raises(PositionGoneError, match="another server") as caught, broken:
        wait_until(lambda: broken.error is not None, "the lane to end", WAIT_S)
    assert "penstock resync --lane file --yes" in caught.value.remedy
    shop.orders.write(shop.orders.read().load_anew(()))
    with shop.lane():
        shop.wait_for(100)
        shop.execute("DELETE FROM orders WHERE id = 1")
        shop.wait_for(101)


def test_new_streams_are_loaded_and_only_wanted_ones_are_sent(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP + "CREATE TABLE secrets (id bigint PRIMARY KEY); INSERT INTO secrets VALUES (1)")
    shop = Shop(tmp_path, database, streams=["public.orders", "public.late*"])
    with shop.captured():
        with shop.lane():
            shop.wait_for(50)
        database.execute("CREATE TABLE late (id bigint PRIMARY KEY); INSERT INTO late VALUES (7)")
        with shop.lane():
            shop.wait_for(1, "public.late")
            shop.execute("INSERT INTO late VALUES (8)")
            shop.execute("INSERT INTO secrets VALUES (2)")
            shop.execute("INSERT INTO orders VALUES (60)")
            shop.wait_for(51)
            assert shop.ops("public.late") == "rc"
            assert shop.ops("public.secrets") == ""


def test_what_is_told_beside_changes_is_told_by_choice(database: Database, tmp_path: Path) -> None:
    database.execute(
        SHOP + "CREATE TABLE outbox (id bigint PRIMARY KEY, kind text, payload text);"
        "INSERT INTO outbox VALUES (1, 'old', 'before the lane')"
    )
    shop = Shop(
        tmp_path,
        database,
        snapshot="never",
        transactions="boundaries",
        schema_changes="columns",
        messages={"prefixes": ["shop*"], "topic": "messages"},
        outbox=[{"table": "public.outbox", "topic": "events.{kind}", "payload": "payload"}],
        mask={"public.orders.note": "redact"},
    )
    with shop.captured(), shop.lane() as lane:
        lane.wait_until_running()
        with database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO orders VALUES (60, 'placed', 'private')")
            connection.execute("INSERT INTO outbox VALUES (2, 'sale', 'sold')")
            connection.execute("SELECT pg_logical_emit_message(true, 'shop.note', 'hello')")
            connection.execute("SELECT pg_logical_emit_message(true, 'other', 'not for us')")
            connection.commit()

        def routes() -> dict[str, list[dict[str, Any]]]:
            found: dict[str, list[dict[str, Any]]] = {}
            for event in events_of(shop.out):
                found.setdefault(event["route"], []).append(event)
            return found

        wait_until(lambda: "boundaries" in routes(), "the transaction's end to be told", WAIT_S)
        found = routes()
        assert [event["value"] for event in found["events.sale"]] == ["sold"]
        assert [event["value"]["message"]["prefix"] for event in found["messages"]] == ["shop.note"]
        [end] = found["boundaries"]
        assert {each["data_collection"] for each in end["value"]["data_collections"]} >= {
            "public.orders",
            "public.outbox",
        }
        told = {event["value"]["stream"]: event["value"]["columns"] for event in found["columns"]}
        assert [column["name"] for column in told["public.orders"]] == ["id", "status", "note"]
        [order] = shop.events()
        assert order["value"]["after"]["note"] == "***"


def test_a_mask_that_names_no_column_stops_the_lane_before_anything_is_sent(
    database: Database, tmp_path: Path
) -> None:
    database.execute(SHOP)
    shop = Shop(tmp_path, database, mask={"public.orders.nte": "redact"})
    with shop.captured():
        lane = shop.lane()
        with pytest.raises(ConfigError, match=r"public\.orders\.nte"), lane:
            wait_until(lambda: lane.error is not None, "the lane to end", WAIT_S)
    assert not shop.out.exists()


def test_capture_is_told_what_the_target_holds_and_no_more(shop: Shop) -> None:
    assert shop.capture is not None
    capture = shop.capture
    with shop.lane():
        shop.wait_for(50)
        shop.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
        shop.wait_for(51)
        end = capture.read_now()

        def position() -> Lsn | None:
            return {each.lane: each.position for each in capture.capture.lanes()}["file"]

        wait_until(lambda: (position() or Lsn(0)) >= end, "capture to be told", WAIT_S)
        assert (position() or Lsn(0)) <= position_of(shop.out)


def test_the_lane_to_kafka_sends_rows_changes_and_tombstones_in_order(
    database: Database, tmp_path: Path, kafka: KafkaServer
) -> None:
    database.execute(SHOP)
    prefix = f"lane_{database.name}"
    section = {"bootstrap": kafka.bootstrap, "prefix": prefix, "identity": prefix, "partitions": 3}
    path = pipeline_file(tmp_path, database, "kafka", section)
    topic = f"{prefix}.public.orders"

    def read() -> list[Any]:
        return kafka.read(topic) if topic in kafka.topics() else []

    with stream_capture(Config.load(path), database) as capture:
        wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
        with LaneThread(path, capture.capture.address):
            wait_until(lambda: len(read()) == 50, "the rows to be there", WAIT_S)
        with LaneThread(path, capture.capture.address):
            database.execute("UPDATE orders SET status = 'sent' WHERE id = 7")
            database.execute("DELETE FROM orders WHERE id = 7")
            wait_until(lambda: len(read()) >= 53, "the changes to be there", WAIT_S)
    records = read()
    assert len(records) == 53
    of_seven = [record for record in records if record.key == b"[7]"]
    assert len({record.partition for record in of_seven}) == 1
    ops = [None if record.value is None else json.loads(record.value)["op"] for record in of_seven]
    assert ops == ["r", "u", "d", None]


@pytest.mark.slow
def test_brokers_that_do_not_answer_are_told_of_in_seconds_and_the_lane_hears_orders_meanwhile(
    database: Database, tmp_path: Path, kafka: KafkaServer
) -> None:
    """Long before anything fails: a commit waits for its answer for minutes."""
    database.execute(SHOP)
    shop = KafkaShop(tmp_path, database, kafka)
    orders = OrderBook(lane_directory(shop.config.state, "kafka"))
    soon_s = 30.0  # half of what the first record has before it fails
    with shop.captured(), shop.lane() as lane:
        wait_until(lambda: shop.topic() in kafka.topics(), "the topic to be there", WAIT_S)
        wait_until(lambda: len(kafka.read(shop.topic())) == 50, "the rows to be there", WAIT_S)
        kafka.pause()
        try:
            database.execute("INSERT INTO orders VALUES (60, 'placed', NULL)")
            wait_until(lambda: "has no answer yet" in lane.state[1], "why it stands still", soon_s)
            assert lane.state[0] == "running"
            orders.change(lambda given: given.pause("brokers are moved"))
            wait_until(lambda: "brokers are moved" in lane.state[1], "the order to be heard", soon_s)
        finally:
            kafka.resume()
        orders.change(lambda given: given.resume())
        lane.wait_until_running()
        shop.level()
        kafka.pause()
        try:
            database.execute("INSERT INTO orders VALUES (61, 'placed', NULL)")
            wait_until(lambda: "has no answer yet" in lane.state[1], "why it stands still", soon_s)
        finally:
            kafka.resume()
        lane.wait_until_running()
        shop.level()
    keys = [record.key for record in kafka.read(shop.topic())]
    assert len(keys) == len(set(keys)) == 52


def test_a_masked_column_that_is_renamed_is_never_shown_by_either_name(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE customers (id bigint PRIMARY KEY, email text, name text)")
    shop = Shop(tmp_path, database, mask={"public.customers.email": "redact"})
    with shop.captured():
        lane = shop.lane()
        with contextlib.suppress(ConfigError), lane:
            lane.wait_until_running()
            database.execute("INSERT INTO customers VALUES (1, 'private', 'Ada')")
            shop.wait_for(1, "public.customers")
            shop.orders.write(shop.orders.read().pause(""))
            wait_until(lambda: "paused" in lane.state[1], "the lane to stand still", WAIT_S)
            database.execute("INSERT INTO customers VALUES (2, 'private', 'Bo')")
            database.execute("ALTER TABLE customers RENAME email TO mail")
            database.execute("INSERT INTO customers VALUES (3, 'private', 'Cy')")
            shop.orders.write(shop.orders.read().resume())
            wait_until(lambda: lane.error is not None, "the lane to end", WAIT_S)
        assert isinstance(lane.error, ConfigError)
        again = Shop(tmp_path, database, mask={"public.customers.mail": "redact"})
        again.capture = shop.capture
        with again.lane():
            again.wait_for(3, "public.customers")
    told = [event["value"]["after"] for event in shop.events("public.customers")]
    assert told == [
        {"id": 1, "email": "***", "name": "Ada"},
        {"id": 2, "email": "***", "name": "Bo"},
        {"id": 3, "mail": "***", "name": "Cy"},
    ]


def test_a_renamed_key_column_is_the_key_of_older_changes_too(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.orders.write(shop.orders.read().pause(""))
        wait_until(lambda: "paused" in lane.state[1], "the lane to stand still", WAIT_S)
        shop.execute("INSERT INTO orders VALUES (60)")
        assert shop.capture is not None
        shop.capture.read_now()
        shop.execute("ALTER TABLE orders RENAME id TO number")
        shop.execute("DELETE FROM orders WHERE number = 60")
        shop.orders.write(shop.orders.read().resume())
        assert [event["key"] for event in shop.wait_for(52)[50:]] == [[60], [60]]

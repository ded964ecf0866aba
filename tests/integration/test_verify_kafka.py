"""`penstock verify --lane kafka` on a real broker: what was sent is what the log says, or it is named."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.verify import exit_code
from penstock.core.errors import ConfigError
from penstock.core.verify_report import VerifiedStream
from penstock.operations import lanes
from penstock.streams.kafka.topic_reading import Extent, Records, TopicReader
from penstock.verify import reports
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer, Record
from tests.kafka_shop import KafkaShop

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text, note text);
CREATE TABLE visits (day date, what text);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO orders SELECT i, 'placed', NULL FROM generate_series(1, 50) AS i;
"""


@pytest.fixture
def shop(database: Database, kafka: KafkaServer, tmp_path: Path) -> Iterator[KafkaShop]:
    database.execute(TABLES)
    made = KafkaShop(tmp_path, database, kafka)
    with made.captured():
        yield made


def work(shop: KafkaShop) -> None:
    """Every kind of change."""
    shop.database.execute(
        "INSERT INTO orders SELECT i, 'new', md5(i::text) FROM generate_series(51, 150) AS i"
    )
    shop.database.execute("UPDATE orders SET status = 'sent' WHERE id % 3 = 0")
    shop.database.execute("UPDATE orders SET status = 'paid' WHERE id = 7")
    shop.database.execute("UPDATE orders SET status = 'lost' WHERE id = 7")
    shop.database.execute("UPDATE orders SET id = id + 1000 WHERE id IN (11, 12)")
    shop.database.execute("DELETE FROM orders WHERE id % 10 = 5")
    shop.database.execute("INSERT INTO visits SELECT '2026-01-01', 'x' FROM generate_series(1, 5)")
    shop.database.execute("TRUNCATE visits")


def numbers(told: VerifiedStream) -> dict[str, int]:
    names = ("missing", "doubled", "out_of_order", "different", "extra")
    return {name: getattr(told, name) for name in names if getattr(told, name)}


def changes_of(records: list[Record], key: str) -> list[int]:
    """Places of the records of a key that are changes."""
    return [
        place
        for place, each in enumerate(records)
        if each.key is not None
        and json.loads(each.key) == json.loads(key)
        and each.headers["penstock.op"] != b"r"
    ]


def test_what_was_sent_is_equal_and_every_planted_difference_is_found_and_named(shop: KafkaShop) -> None:
    with shop.lane() as lane:
        lane.wait_until_running()
        wait_until(lambda: shop.position() > 0, "the lane to begin", WAIT_S)
        work(shop)
        end = shop.level()
    report = shop.verify()
    assert exit_code(report) == 0, json.dumps(report.to_json())
    assert report.of == "kafka"
    told = {each.stream: each for each in report.streams}
    orders = told["public.orders"]
    assert (orders.verdict, orders.loaded, orders.lane) == ("equal", 50, "kafka")
    assert orders.source_rows == orders.table_rows == 100 + 50 + 2 + 6 + 30, "with tombstones"
    assert told["public.visits"].table_rows == 6, "rows without keys, and a truncate"
    assert orders.position is not None
    assert orders.position == str(end) or shop.position() > end
    assert reports.last_began_s(shop.config.state) is None, "tables were not compared"
    [(name, kept)] = reports.kept(shop.config.state)
    assert name.endswith("-kafka")
    assert kept["equal"]

    records = shop.kafka.read(shop.topic())
    key = next(
        each.key for each in records if each.headers["penstock.op"] == b"u" and b"7" in (each.key or b"")
    )
    assert key is not None
    places = changes_of(records, '{"id": 7}' if b"{" in key else "[7]")
    assert len(places) >= 2, [each.key for each in records[:3]]
    first, second = places[:2]
    change = records[second].headers["penstock.offset"]
    assert change is not None

    def planted(plant: Callable[[list[Record]], Any]) -> VerifiedStream:
        copied = list(records)
        plant(copied)
        return shop.verify_copy(copied)

    assert numbers(planted(lambda copied: None)) == {}, "a copy is equal"
    cases: list[tuple[str, Callable[[list[Record]], Any]]] = [
        ("missing", lambda copied: copied.pop(second)),
        ("doubled", lambda copied: copied.insert(second + 1, copied[second])),
        ("out of order", lambda copied: copied.__setitem__(slice(None), _swapped(copied, first, second))),
        ("different", lambda copied: copied.__setitem__(second, _altered(copied[second]))),
        ("extra", lambda copied: copied.append(_invented(copied[second]))),
    ]
    for kind, plant in cases:
        found = planted(plant)
        assert numbers(found) == {kind.replace(" ", "_"): 1}, kind
        assert found.verdict == "different"
        [difference] = found.differences
        assert difference.kind == kind
        assert "7" in "".join(map(str, difference.key.values()))
        named = difference.key["change"]
        assert named is not None
        assert named == change.decode() or kind == "extra"


def _swapped(records: list[Record], first: int, second: int) -> list[Record]:
    copied = list(records)
    copied[first], copied[second] = copied[second], copied[first]
    return copied


def _altered(record: Record) -> Record:
    assert record.value is not None
    return replace(record, value=record.value.replace(b"lost", b"last").replace(b"paid", b"laid"))


def _invented(record: Record) -> Record:
    offset = record.headers["penstock.offset"]
    assert offset is not None
    tx, _, op = offset.partition(b"_")
    return replace(record, headers={**record.headers, "penstock.offset": b"%s_%d" % (tx, int(op) + 2)})


@pytest.mark.slow
def test_writers_and_a_lane_at_work_cause_no_false_alarm(shop: KafkaShop) -> None:
    stop = threading.Event()

    def write() -> None:
        draw = random.Random(7)
        while not stop.is_set():
            low = draw.randrange(1, 2000)
            shop.database.execute(
                f"INSERT INTO orders SELECT i, 'new' FROM generate_series({low}, {low + 20}) AS i "
                "ON CONFLICT (id) DO UPDATE SET status = orders.status || 'x';"
                f"DELETE FROM orders WHERE id = {low + 5};"
                f"INSERT INTO visits VALUES (now(), 'x')"
            )

    writer = threading.Thread(target=write)
    with shop.lane() as lane:
        lane.wait_until_running()
        wait_until(lambda: shop.position() > 0, "the lane to begin", WAIT_S)
        writer.start()
        try:
            shop.level()
            compared = 0
            for _ in range(12):
                report = shop.verify()
                assert [each.verdict for each in report.streams] == ["equal"] * 2, report
                assert [numbers(each) for each in report.streams] == [{}, {}]
                compared = max(compared, report.streams[0].source_rows)
            assert compared > 1000
        finally:
            stop.set()
            writer.join()


@pytest.mark.slow
def test_dead_letters_rewinds_and_deleted_records_are_no_differences(
    shop: KafkaShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.lane() as lane:
        lane.wait_until_running()
        wait_until(lambda: shop.position() > 0, "the lane to begin", WAIT_S)
        shop.database.execute("INSERT INTO orders VALUES (900, 'large', repeat('x', 2000000))")
        shop.database.execute("UPDATE orders SET status = 'behind' WHERE id = 900")
        work(shop)
        shop.level()
        orders = shop.verify_orders()
        assert (orders.verdict, orders.dead_letters) == ("equal", 3), "one is too large, two are behind it"
        assert orders.compared_from is not None
        lanes.rewind(shop.config, "kafka", orders.compared_from)
        wait_until(
            lambda: shop.verify_orders().table_rows > orders.table_rows, "changes to be sent again", WAIT_S
        )
        shop.level()
        again = shop.verify_orders()
        assert (again.verdict, again.table_rows) == ("equal", 2 * orders.table_rows)
        assert any("sent again" in note for note in again.notes)
        for number in range(5):
            low = 10_000 * (number + 1)
            shop.database.execute(
                f"INSERT INTO orders SELECT i, 'more' FROM generate_series({low}, {low + 199}) AS i"
            )
        shop.level()
    behind = shop.verify_orders(start=again.position)
    assert (behind.verdict, behind.source_rows, behind.table_rows) == ("equal", 1000, 1000)
    shop.delete_records(150)
    left = shop.verify_orders()
    assert left.verdict == "equal", left
    assert left.gone > 0
    assert any("deleted" in note for note in left.notes)
    read = TopicReader.read

    def overtaken(
        reader: TopicReader, topic: str, extents: dict[int, Extent], **how: bool
    ) -> Iterator[list[Records]]:
        shop.delete_records(250)
        return read(reader, topic, extents, **how)

    with monkeypatch.context() as patch:
        patch.setattr(TopicReader, "read", overtaken)
        meanwhile = shop.verify_orders()
    assert meanwhile.verdict == "equal", meanwhile
    assert meanwhile.gone > left.gone


@pytest.mark.slow
def test_streams_that_cannot_be_compared_say_why(shop: KafkaShop) -> None:
    untouched = shop.verify_orders()
    assert untouched.verdict == "not compared"
    assert "sent nothing" in untouched.reason
    with shop.lane() as lane:
        lane.wait_until_running()
        wait_until(lambda: shop.position() > 0, "the lane to begin", WAIT_S)
        work(shop)
        shop.level()
    shop.kafka.configure_topic(shop.topic(), {"cleanup.policy": "compact"})
    report = shop.verify()
    told = {each.stream: each for each in report.streams}
    assert told["public.orders"].verdict == "not compared"
    assert "compacted" in told["public.orders"].reason
    assert told["public.visits"].verdict == "equal"
    assert exit_code(report) == 0, "it will never be comparable, which is no reason to wake anybody"
    with pytest.raises(ConfigError, match="does not send"):
        shop.verify("public.other")
    with pytest.raises(ConfigError, match="no position"):
        shop.verify(start="yesterday")


@pytest.mark.slow
@pytest.mark.parametrize("section", [{"format": "debezium"}, {"buckets": 3}, {"snapshot": "never"}])
def test_formats_buckets_and_masks_are_compared_as_they_are_sent(
    database: Database, kafka: KafkaServer, tmp_path: Path, section: dict[str, Any]
) -> None:
    database.execute(TABLES)
    shop = KafkaShop(tmp_path, database, kafka, mask={"public.orders.note": "sha256"}, **section)
    with shop.captured(), shop.lane() as lane:
        lane.wait_until_running()
        wait_until(lambda: shop.position() > 0, "the lane to begin", WAIT_S)
        work(shop)
        shop.level()
        report = shop.verify()
    assert [each.verdict for each in report.streams] == ["equal"] * 2, report
    assert all(each.source_rows == each.table_rows > 0 for each in report.streams)

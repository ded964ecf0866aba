"""Backlogs that others encode: the same events in the same order as the lane makes itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.bulk import BulkEncoder, LogRangeToEncode, encode_range, read_range
from penstock.streams.events import Batch
from penstock.streams.followed import FollowedStream
from penstock.streams.orders import OrderBook, lane_directory
from penstock.streams.settings import StreamSettings
from penstock.streams_process import STAGING, SparkEncoder
from tests.conftest import WAIT_S, Database, wait_until
from tests.stream_lane import LaneThread, events_of, pipeline_file, position_of, stream_capture


class Counted:
    """Counts the ranges that another one encodes."""

    def __init__(self, inner: BulkEncoder) -> None:
        self._inner = inner
        self.ranges = 0

    def encoded(
        self,
        settings: StreamSettings,
        streams: Mapping[StreamId, FollowedStream],
        after: Lsn,
        ends: Sequence[Lsn],
    ) -> Generator[Batch]:
        self.ranges += len(ends)
        yield from self._inner.encoded(settings, streams, after, ends)


class OneByOne:
    """As Spark does it, in the lane's own thread."""

    def encoded(
        self,
        settings: StreamSettings,
        streams: Mapping[StreamId, FollowedStream],
        after: Lsn,
        ends: Sequence[Lsn],
    ) -> Generator[Batch]:
        for end in ends:
            path = settings.directory / STAGING / str(int(end))
            yield from read_range(encode_range(LogRangeToEncode(settings, streams, after, end, path)))
            after = end


def write(database: Database, first: int, seal: Callable[[], Lsn]) -> Lsn:
    """Several MiB that no compression makes small, in several transactions and steps; their end."""
    for start in range(first, first + 10_000, 2_000):
        database.execute(
            "INSERT INTO orders SELECT i, md5(i::text), string_agg(md5((i * j)::text), '') "
            f"FROM generate_series({start}, {start + 1_999}) AS i, generate_series(1, 8) AS j GROUP BY i"
        )
        seal()
    database.execute(f"UPDATE orders SET status = 'sent' WHERE id BETWEEN {first} AND {first + 999}")
    database.execute(f"DELETE FROM orders WHERE id BETWEEN {first + 10} AND {first + 19}")
    database.execute("ALTER TABLE orders ADD COLUMN IF NOT EXISTS late int DEFAULT 5")
    database.execute(f"UPDATE orders SET id = -id WHERE id BETWEEN {first + 20} AND {first + 29}")
    return seal()


def told(path: Path) -> list[tuple[str, str, str, str]]:
    return [
        (event["offset"], event["kind"], json.dumps(event["key"]), json.dumps(_without_time(event["value"])))
        for event in events_of(path)
        if event["kind"] != "r"
    ]


def _without_time(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name != "ts_ms"}


def same_in_bulk(database: Database, directory: Path, bulk: BulkEncoder, **more: Any) -> None:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text, note text)")
    out = directory / "out.ndjson"
    section = {"path": str(out), "spark_bytes_min": "1MiB"}
    path = pipeline_file(directory, database, "file", section, **more)
    with stream_capture(Config.load(path), database) as capture:
        wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
        address = capture.capture.address
        with LaneThread(path, address) as lane:
            lane.wait_until_running()
            database.execute("INSERT INTO orders VALUES (0, 'first', '')")
            wait_until(lambda: len(told(out)) == 1, "the lane to follow", WAIT_S)
        before = position_of(out)
        capture.join("public.orders")
        end = write(database, 1_000, capture.read_now)
        counted = Counted(bulk)
        with LaneThread(path, address, counted):
            wait_until(lambda: position_of(out) >= end, "the backlog to be sent", WAIT_S)
        assert counted.ranges > 1
        in_bulk = told(out)[1:]
        assert len(in_bulk) == 10_000 + 1_000 + 10 + 2 * 10
        orders = OrderBook(lane_directory(Config.load(path).state, "file"))
        orders.write(orders.read().rewind(before))
        with LaneThread(path, address):
            wait_until(lambda: not orders.read().is_open, "the lane to go back", WAIT_S)
            wait_until(lambda: position_of(out) >= end, "the same to be sent again", WAIT_S)
        assert told(out)[1 + len(in_bulk) :] == in_bulk
        assert not list((Config.load(path).state / "streams" / "file").glob(f"{STAGING}/*"))


def test_a_backlog_that_is_encoded_in_ranges_gives_the_same_events_in_the_same_order(
    database: Database, tmp_path: Path
) -> None:
    same_in_bulk(database, tmp_path, OneByOne())


@pytest.mark.slow
def test_spark_tasks_encode_a_backlog_as_the_lane_would(database: Database, tmp_path: Path) -> None:
    same_in_bulk(database, tmp_path, SparkEncoder(), spark={"master": "local[2]"})

"""Elections among three members while changes are captured: what the set told last is what the log has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.json_util import loads
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.stream import StreamId
from tests.conftest import wait_until
from tests.mongo_log import applied, changes, present, started
from tests.mongo_set import MongoSet

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("orders", "items")
_LETTERS = {"insert": "i", "update": "u", "replace": "u", "delete": "d"}


@contextmanager
def writing(members: MongoSet) -> Iterator[list[int]]:
    """Until the block ends, whatever the set is at: what fails is left, and may have been done or not.

    `items` are written without waiting for a majority: a primary that is killed takes some with it.
    """
    ended, numbers = threading.Event(), list[int]()

    def write() -> None:
        with members.connect() as client:
            orders = client["shop"]["orders"]
            items = client["shop"].get_collection("items", write_concern=WriteConcern(w=1))
            number = 0
            while not ended.is_set():
                number += 1
                try:
                    items.insert_one({"_id": number, "text": "x" * (number % 50)})
                    orders.insert_one({"_id": number, "v": number})
                    with client.start_session() as session, session.start_transaction():
                        orders.replace_one({"_id": number}, {"w": [number]}, session=session)
                        items.delete_one({"_id": number - 7}, session=session)
                        orders.insert_one({"_id": f"{number}", "both": True}, session=session)
                    numbers.append(number)
                except PyMongoError:
                    continue

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield numbers
    finally:
        ended.set()
        thread.join()


def told_by_the_set(members: MongoSet, begin: Any, name: str) -> list[tuple[str, int, Any, bytes | None]]:
    """By the driver's own change stream, of the set as it is now."""
    shop = members.client["shop"]
    last = shop["last"].insert_one({}).inserted_id
    found: list[tuple[str, int, Any, bytes | None]] = []
    with shop.watch(start_at_operation_time=begin) as events:
        for event in events:
            if event["documentKey"]["_id"] == last:
                return found
            if event["ns"]["coll"] == name:
                time = event["clusterTime"].time << 32 | event["clusterTime"].inc
                document = event.get("fullDocument")
                found.append(
                    (
                        _LETTERS[event["operationType"]],
                        time,
                        event["documentKey"]["_id"],
                        None if document is None else bson.encode(document),
                    )
                )
    raise AssertionError


def logged(spec: CaptureSpec, name: str) -> list[tuple[str, int, Any, bytes | None]]:
    return [
        (
            row["_op"],
            row["_tx"],
            loads(row["_old"]["__id"] if row["_op"] == "d" else row["__id"]),
            None if row["_op"] == "d" else bson.encode(loads(row["document"])),
        )
        for row in changes(spec, name)
    ]


def test_elections_and_a_killed_primary_lose_and_double_no_change(tmp_path: Path) -> None:
    with MongoSet(tmp_path / "set") as members:
        shop = members.client["shop"]
        for name in NAMES:
            shop.create_collection(name)
        spec = CaptureSpec(
            source=MongoSpec(members.url, "election", "shop"),
            log_directory=tmp_path / "log",
            checkpoint_path=tmp_path / "checkpoint.json",
            streams=tuple(StreamId("shop", name) for name in NAMES),
            lanes={"lake": None},
            lanes_path=tmp_path / "lanes.json",
        )
        begin = members.client.admin.command("hello")["operationTime"]
        with started(spec) as capture, writing(members) as numbers:

            def written(more: int = 20) -> None:
                enough = len(numbers) + more
                wait_until(lambda: len(numbers) >= enough, "the writer to go on", 120)

            written()
            members.step_down()
            written()
            capture.to_now()
            killed = members.kill_primary()
            written()
            capture.to_now()
            killed.launch()
            written()
            members.step_down()
            written()
            capture.to_now()
        with started(spec) as capture:
            capture.to_now()
        for name in NAMES:
            assert logged(spec, name) == told_by_the_set(members, begin, name)
            assert sorted(applied(changes(spec, name)).values()) == present(shop, name)
        assert len(logged(spec, "orders")) >= 300

"""A MongoDB database that tests sync from, the changes made in it, and the oracle of its collections.

The oracle asks the server by its driver and reads the files by PyArrow, and makes documents of their text by
the driver's own reader of Extended JSON; none of it is Penstock's.
"""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pyarrow.parquet as pq
from bson import Decimal128, ObjectId
from bson.json_util import loads
from pymongo.client_session import ClientSession
from pymongo.database import Database

from tests.bson_documents import EVERY_ID
from tests.conftest import wait_until
from tests.mongo_server import MongoServer
from tests.pipelines import PipelineUnderTest

ROWS = 600
FOLLOWED = ("orders", "words", "ring")
Shop = Database[dict[str, Any]]


def order(number: int) -> dict[str, Any]:
    mixed: Any = [number, f"{number}", {"n": number}, None, [1, number], Decimal128(f"{number}.50")]
    return {
        "_id": ObjectId(f"{number:024x}"),
        "number": number,
        "name": f"näme {number}",
        "paid": Decimal128(f"{number}.37"),
        "at": datetime(2026, 1, 1, 0, 0, number % 60, 123_000, tzinfo=UTC),
        "raw": bytes([number % 256]),
        "rate": number / 7,
        "mixed": mixed[number % len(mixed)],
    }


@contextmanager
def new_shop(mongo: MongoServer) -> Iterator[Shop]:
    """`orders` with fields of all kinds, `words` with ids of all kinds, `ring`, which is capped, `notes`."""
    found = mongo.client[f"shop_{uuid.uuid4().hex[:8]}"]
    found["orders"].insert_many([order(number) for number in range(ROWS)])
    found["words"].insert_many(
        [{"_id": each, "n": 0} for each in EVERY_ID]
        + [{"_id": {"word": f"wörd {n // 3}", "part": n % 3}, "n": n} for n in range(ROWS)]
    )
    found["notes"].insert_many([{"body": "a"}, {"body": "a"}, {"body": None}])
    found.create_collection("ring", capped=True, size=16 * 2**20)
    found["ring"].insert_many([{"_id": number, "n": 0} for number in range(ROWS)])
    yield found
    mongo.client.drop_database(found.name)


def pipeline(
    mongo: MongoServer,
    shop: Shop,
    directory: Path,
    layout: str = "document",
    streams: list[Any] | None = None,
    **settings: Any,
) -> PipelineUnderTest:
    source = {
        "type": "mongodb",
        "url": mongo.url,
        "name": f"{shop.name}_{directory.name}",
        "database": shop.name,
        "layout": layout,
    }
    followed = [f"{shop.name}.{name}" for name in FOLLOWED]
    return PipelineUnderTest(
        directory,
        "",
        streams or [*followed, {"table": f"{shop.name}.notes", "mode": "full_refresh"}],
        {
            **{"source": source, "destination": {"type": "parquet", "path": "./lake"}},
            **{"load": {"rows_per_chunk": 200}, **settings},
        },
    )


def rows_of(synced: PipelineUnderTest, shop: Shop, name: str) -> list[dict[str, Any]]:
    files = sorted(synced.path(f"{shop.name}.{name}").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def assert_same(synced: PipelineUnderTest, shop: Shop, *names: str) -> None:
    """Of the layout `document`: text of equal documents is read to equal BSON, field by field in order."""
    for name in names or (*FOLLOWED, "notes"):
        rows = rows_of(synced, shop, name)
        found = sorted(bson.encode(loads(row["document"])) for row in rows)
        expected = sorted(bson.encode(each) for each in shop[name].find())
        assert found == expected, name
        assert len({row["_id"] for row in rows}) == len(rows)


_LETTERS = {"insert": "i", "update": "u", "replace": "u", "delete": "d"}


class Watched:
    """What the server tells of a database from now on, by the driver's own change stream."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._from = shop.client.admin.command("hello")["operationTime"]

    def changes(self, name: str) -> list[dict[str, Any]]:
        """The collection's until now, in order."""
        last = self._shop["watched"].insert_one({}).inserted_id
        found: list[dict[str, Any]] = []
        with self._shop.watch(start_at_operation_time=self._from) as events:
            for event in events:
                if event["documentKey"]["_id"] == last:
                    return found
                if event["ns"]["coll"] == name:
                    found.append(event)
        raise AssertionError


def assert_history(
    synced: PipelineUnderTest, shop: Shop, name: str, watched: Watched, *, exact: bool = False
) -> None:
    """An append table has the loaded documents, then each change behind them once: exactly those that the
    server tells, and applied in order they end in what the collection is."""
    rows = sorted(rows_of(synced, shop, name), key=lambda row: (row["_tx"], row["_op_index"]))
    changes = [row for row in rows if row["_op"] != "r"]
    expected = watched.changes(name)[-len(changes) :]
    told = [
        (_LETTERS[each["operationType"]], each["clusterTime"].time << 32 | each["clusterTime"].inc)
        for each in expected
    ]
    assert [(row["_op"], row["_tx"]) for row in changes] == told
    held: dict[str, bytes] = {}
    for row in rows[: len(rows) - len(changes)]:
        assert row["_id"] not in held
        held[row["_id"]] = _encoded(row)
    for row, event in zip(changes, expected, strict=True):
        key, is_update = row["_id"], event["operationType"] == "update"
        assert (key in held) == (row["_op"] != "i"), (row, event)
        if row["_op"] == "d":
            del held[key]
            continue
        is_exact = exact or not is_update
        assert (row["_unchanged"] is None) == is_exact, row
        if not row["_unchanged"]:
            held[key] = _encoded(row)
        if not is_update:
            assert held[key] == bson.encode(event["fullDocument"])
        elif exact:
            changed = loads(row["document"])
            assert all(changed[field] == value for field, value in _set_by(event).items()), (row, event)
    assert sorted(held.values()) == sorted(bson.encode(each) for each in shop[name].find())


def _set_by(event: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in event["updateDescription"]["updatedFields"].items() if "." not in name
    }


def _encoded(row: dict[str, Any]) -> bytes:
    return bson.encode(loads(row["document"]))


@contextmanager
def writing(
    mongo: MongoServer,
    shop: Shop,
    *,
    pause_s: float = 0.0,
    also: Callable[[Shop, ClientSession, int], None] | None = None,
) -> Iterator[Callable[[int], None]]:
    """Changes of all kinds, in transactions over several collections, until the block ends.

    `also` makes more in each transaction, which has a number: the greater, the later. What is yielded waits
    for so many more of them.
    """
    ended, failures, numbers = threading.Event(), list[BaseException](), list[int]()

    def write() -> None:
        chance = random.Random()
        try:
            with mongo.connect() as client, client.start_session() as session:
                database = client[shop.name]
                newest = database["ring"].find_one(sort=[("_id", -1)])
                number = max(10 * ROWS, 0 if newest is None else newest["_id"] + 10)
                while not ended.wait(pause_s):
                    number += 1
                    some = chance.randrange(ROWS)
                    session.start_transaction()
                    orders, words = database["orders"], database["words"]
                    orders.insert_one(order(number), session=session)
                    orders.update_one(
                        {"_id": ObjectId(f"{some:024x}")}, {"$inc": {"number": 1}}, session=session
                    )
                    orders.replace_one({"number": number - 5}, {"replaced": number}, session=session)
                    orders.delete_one({"_id": ObjectId(f"{number - 9:024x}")}, session=session)
                    words.update_many({"_id.word": f"wörd {some // 3}"}, {"$inc": {"n": 1}}, session=session)
                    words.delete_one({"_id": {"word": f"wörd {some // 5}", "part": 1}}, session=session)
                    if also is not None:
                        also(database, session, number)
                    if number % 5:
                        session.commit_transaction()
                    else:
                        session.abort_transaction()
                    database["ring"].insert_one({"_id": number, "n": 1})
                    database["ring"].update_one({"_id": some}, {"$inc": {"n": 1}})
                    numbers.append(number)
        except BaseException as error:
            failures.append(error)

    def written(more: int) -> None:
        enough = len(numbers) + more
        wait_until(lambda: bool(failures) or len(numbers) >= enough, "the writer to go on")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        ended.set()
        thread.join()
    assert failures == []


def states(synced: PipelineUnderTest) -> dict[str, dict[str, Any]]:
    document = json.loads((synced.state / "state.json").read_text())
    assert (document["type"], "global" in document) == ("STREAM", False)
    return {entry["stream"]: entry["state"] for entry in document["streams"]}

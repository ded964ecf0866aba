"""A table of orders in MySQL, MariaDB or MongoDB, written to the same way, and a stream lane of it.

What a test changes and compares is the same for all of them: orders with an id and a status. The sources are
asked by their own drivers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from penstock.capture.from_config import spec_of
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.config import Config
from penstock.streams.orders import OrderBook, lane_directory
from tests.always import HEARTBEAT_S, AlwaysOn
from tests.conftest import WAIT_S, wait_until
from tests.mongo_server import MongoServer
from tests.mysql_server import MysqlServer
from tests.stream_lane import CapturedLane, events_of

Rows = dict[int, str | None]


class Orders(Protocol):
    """`table`: its stream; `key`: the column that has the id."""

    table: str
    key: str

    @property
    def source(self) -> Mapping[str, Any]:
        """In the pipeline file."""

    def write(
        self,
        inserts: Mapping[int, str | None] | None = None,
        updates: Mapping[int, str | None] | None = None,
        deletes: Sequence[int] = (),
    ) -> None:
        """In one transaction, in this order."""

    def empty(self) -> None: ...

    def rows(self) -> Rows: ...


class MysqlOrders:
    key = "id"

    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        self.database = f"shop_{uuid.uuid4().hex[:8]}"
        self.table = f"{self.database}.orders"
        self.execute(
            f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4",
            f"CREATE TABLE {self.table} (id BIGINT PRIMARY KEY, status VARCHAR(40))",
        )

    @property
    def source(self) -> Mapping[str, Any]:
        url = f"mysql://root@127.0.0.1:{self._server.port}/{self.database}"
        return {"type": "mysql", "url": url, "name": self.database}

    def execute(self, *statements: str) -> None:
        self._server.execute(*statements)

    def write(
        self,
        inserts: Mapping[int, str | None] | None = None,
        updates: Mapping[int, str | None] | None = None,
        deletes: Sequence[int] = (),
    ) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            if inserts:
                cursor.executemany(f"INSERT INTO {self.table} VALUES (%s, %s)", list(inserts.items()))
            for number, status in (updates or {}).items():
                cursor.execute(f"UPDATE {self.table} SET status = %s WHERE id = %s", (status, number))
            for number in deletes:
                cursor.execute(f"DELETE FROM {self.table} WHERE id = %s", (number,))
            cursor.execute("COMMIT")

    def empty(self) -> None:
        self.execute(f"TRUNCATE TABLE {self.table}")

    def rows(self) -> Rows:
        return dict(self._server.rows(f"SELECT id, status FROM {self.table}"))


class MongoOrders:
    """Of the layout `fields`, unless it is told another."""

    key = "_id"

    def __init__(self, server: MongoServer, layout: str = "fields") -> None:
        self._server = server
        self._layout = layout
        self.database = f"shop_{uuid.uuid4().hex[:8]}"
        self.table = f"{self.database}.orders"
        self.collection = server.client[self.database]["orders"]
        self.collection.database.create_collection("orders")

    @property
    def source(self) -> Mapping[str, Any]:
        return {
            "type": "mongodb",
            "url": self._server.url,
            "name": self.database,
            "database": self.database,
            "layout": self._layout,
        }

    def write(
        self,
        inserts: Mapping[int, str | None] | None = None,
        updates: Mapping[int, str | None] | None = None,
        deletes: Sequence[int] = (),
    ) -> None:
        documents = [{"_id": number, "status": status} for number, status in (inserts or {}).items()]
        with self._server.client.start_session() as session, session.start_transaction():
            if documents:
                self.collection.insert_many(documents, session=session)
            for number, status in (updates or {}).items():
                self.collection.update_one({"_id": number}, {"$set": {"status": status}}, session=session)
            for number in deletes:
                self.collection.delete_one({"_id": number}, session=session)

    def empty(self) -> None:
        self.collection.drop()

    def rows(self) -> Rows:
        return {each["_id"]: each["status"] for each in self.collection.find()}


def stream_spec(config: Config) -> CaptureSpec:
    """Capture with the pipeline's stream lane as its only one."""
    [lane] = config.lanes.streams
    return replace(
        spec_of(config, service=ServiceSpec("grpc+unix:///unused")),
        lanes={lane: None},
        heartbeat_s=HEARTBEAT_S,
        seal_every_s=0.2,
        checkpoint_interval_s=0.2,
    )


class OrdersLane(CapturedLane):
    """A pipeline with one stream lane of the orders, and its capture."""

    def __init__(
        self,
        directory: Path,
        orders: Orders,
        lane: str = "file",
        section: Mapping[str, Any] | None = None,
        streams: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        self.orders = orders
        self.out = directory / "out.ndjson"
        path = directory / "penstock.yaml"
        target = {"path": str(self.out)} if lane == "file" else {}
        document = {
            "source": dict(orders.source),
            "destination": {"type": "parquet", "path": "./lake"},
            "state": "./state",
            "streams": list(streams or [orders.table]),
            "lanes": {lane: {**target, **(section or {})}},
            **settings,
        }
        path.write_text(yaml.safe_dump(document))
        super().__init__(path)
        self.book = OrderBook(lane_directory(self.config.state, lane))
        self._lane = lane

    def captured(self) -> AbstractContextManager[AlwaysOn]:
        return self.captured_by(AlwaysOn(stream_spec(self.config), self._lane))

    def events(self) -> list[dict[str, Any]]:
        """What the file has of the orders, in order."""
        return [event for event in events_of(self.out) if event["route"].endswith(f".{self.orders.table}")]

    @property
    def ops(self) -> str:
        return "".join(event["value"]["op"] for event in self.events())

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events()) >= count, f"{count} events of the orders", WAIT_S)
        found = self.events()
        assert len(found) == count, self.ops
        return found

    def held(self, *, resumed: bool = False) -> Rows:
        """What somebody has who applies the events in order, and refuses what cannot be."""
        rows: Rows = {}
        for event in self.events():
            value = event["value"]
            if value["op"] == "t":
                rows.clear()
                continue
            [number] = event["key"]
            assert resumed or (number in rows) == (value["op"] in "ud"), f"{value['op']} of {number}"
            if value["op"] == "d":
                rows.pop(number, None)
            else:
                # Of a document that was gone when it was looked up, nothing but its id is told.
                rows[number] = value["after"].get("status", rows.get(number))
        return rows

    def wait_until_level(self, *, resumed: bool = False) -> None:
        """Until they are the rows of the source; and each event is there once."""
        wait_until(lambda: self.held(resumed=resumed) == self.orders.rows(), "the lane to be level", WAIT_S)
        names = [
            (event.get("chunk"), event["offset"], event["kind"], json.dumps(event["key"]))
            for event in self.events()
        ]
        assert len(names) == len(set(names)), "an event is there twice"

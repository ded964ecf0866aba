"""A pipeline with a lane into a file, and its capture: what tests of stream lanes write to and read from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from penstock.streams.orders import OrderBook, lane_directory
from tests.always import AlwaysOn
from tests.conftest import WAIT_S, Database, wait_until
from tests.stream_lane import (
    CapturedLane,
    events_of,
    pipeline_file,
    rows_of,
    stream_capture,
)

SHOP = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text, note text);
INSERT INTO orders SELECT i, 'placed', NULL FROM generate_series(1, 50) AS i;
"""


class Shop(CapturedLane):
    """A pipeline with a file lane, and its capture."""

    def __init__(self, directory: Path, database: Database, **section: Any) -> None:
        self.database = database
        self.out = directory / "out.ndjson"
        super().__init__(pipeline_file(directory, database, "file", {"path": str(self.out), **section}))
        self.orders = OrderBook(lane_directory(self.config.state, "file"))

    def captured(self, **changed: Any) -> AbstractContextManager[AlwaysOn]:
        return self.captured_by(stream_capture(self.config, self.database, **changed))

    def execute(self, statement: str) -> None:
        self.database.execute(statement)

    def events(self, table: str = "public.orders") -> list[dict[str, Any]]:
        """Of one table, in order."""
        return [event for event in events_of(self.out) if event["route"].endswith(f".{table}")]

    def ops(self, table: str = "public.orders") -> str:
        return "".join(event["value"]["op"] for event in self.events(table))

    def wait_for(self, count: int, table: str = "public.orders") -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events(table)) >= count, f"{count} events of {table}", WAIT_S)
        found = self.events(table)
        assert len(found) == count
        return found

    def wait_until_level(self, *, resumed: bool = False) -> None:
        """Until what somebody has who applies the events is what the source has; each event is there once."""
        wait_until(lambda: self.held(resumed=resumed) == self.source(), "the lane to be level", WAIT_S)
        self.require_once()

    def held(self, *, resumed: bool, since: int = 0) -> dict[str, tuple[str | None, ...]]:
        """What somebody has who applies the events, or those behind so many."""
        rows = rows_of(events_of(self.out)[since:], "public.orders", resumed=resumed)
        return {
            key: tuple(None if value is None else str(value) for value in row.values())
            for key, row in rows.items()
        }

    def source(self) -> dict[str, tuple[str | None, ...]]:
        rows = self.database.query("SELECT * FROM orders")
        texts = [tuple(None if value is None else str(value) for value in row) for row in rows]
        return {json.dumps([int(str(row[0]))]): row for row in texts}

    def require_once(self) -> None:
        names = [
            (event["route"], event.get("chunk"), event["offset"], event["kind"], json.dumps(event["key"]))
            for event in events_of(self.out)
        ]
        assert len(names) == len(set(names)), "an event is there twice"


@contextmanager
def opened(database: Database, directory: Path, tables: str = SHOP, **section: Any) -> Iterator[Shop]:
    """A shop with these tables, captured."""
    database.execute(tables)
    shop = Shop(directory, database, **section)
    with shop.captured():
        yield shop

"""The live lane in the test's own process, without HTTP, on an always-on capture."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.capture.remote import RemoteCapture
from penstock.core.offset import LogOffset
from penstock.shapes.definition import DefinitionRequest, define
from penstock.shapes.engine.lane import ShapeLane
from penstock.shapes.settings import SHAPES_LANE, ShapeSettings
from penstock.shapes.shape import Shape
from tests.always import AlwaysOn, always_spec
from tests.conftest import WAIT_S, Database, wait_until


def shapes_capture(database: Database, state: Path, address: str | None = None) -> AlwaysOn:
    """Capture with the live lane as its only one; at the address of one that has ended, if it is given."""
    return AlwaysOn(always_spec(database, state, lanes={SHAPES_LANE: None}), SHAPES_LANE, address)


class LiveLane:
    """One life of the lane; the next one with the same directory goes on with its shapes."""

    def __init__(self, database: Database, state: Path, address: str, **given: Any) -> None:
        settings = ShapeSettings.model_validate(
            {
                "url": database.url,
                "directory": state / "shapes",
                "slot": f"slot_{database.name}",
                "publication": "penstock",
                "insecure": True,
                "snapshot_lock_timeout": "60s",
                "snapshot_queue_timeout": "60s",
                **given,
            }
        )
        self.database = database
        self._capture = RemoteCapture(address, SHAPES_LANE)
        self.follows = False
        self.failures: list[BaseException] = []
        self.lane = ShapeLane(
            settings, self._capture, state / "log", self._wake, self._state, self.failures.append
        )

    def __enter__(self) -> Self:
        self.lane.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lane.close()
        self._capture.close()
        self._raise_failures()

    def _raise_failures(self) -> None:
        if self.failures:
            raise self.failures[0]

    def _wake(self, shapes: list[Shape]) -> None:
        for shape in shapes:
            shape.wake()

    def _state(self, follows: bool, _reason: str) -> None:
        self.follows = follows

    def wait_until_following(self) -> None:
        wait_until(lambda: self.follows or bool(self.failures), "the lane to follow changes", WAIT_S)
        self._raise_failures()

    def create(self, table: str, **given: Any) -> Shape:
        definition = define(DefinitionRequest(table, **given), self.lane.catalog.card)
        return self.lane.engine.create(definition).result(WAIT_S)

    def ready(self, table: str, **given: Any) -> Shape:
        """A shape whose snapshot is complete, durably."""
        shape = self.create(table, **given)
        wait_until(lambda: is_complete(shape), "the snapshot to be complete", WAIT_S)
        assert shape.state == "ready", shape.error
        return shape


def is_complete(shape: Shape) -> bool:
    return shape.state == "gone" or (shape.snapshot_started and shape.storage.snapshot_state == "complete")


def items_of(shape: Shape, after: LogOffset = LogOffset.BEFORE_ALL) -> list[dict[str, Any]]:
    """All that a client has read of a shape by now, in order; after an offset of the log, only of that."""
    found: list[dict[str, Any]] = []
    number = 0
    while after == LogOffset.BEFORE_ALL and (chunk := shape.storage.snapshot_chunk(number)) is not None:
        found += json.loads(b"[" + b"".join(chunk.blocks()) + b"]")
        number += 1
    start = max(after, LogOffset.LAST_BEFORE_REAL)
    found += json.loads(b"[" + b"".join(shape.storage.get_log_stream(start, shape.last_offset)) + b"]")
    return found


def rows_of(shape: Shape) -> dict[str, dict[str, Any]]:
    """What a strict client makes of it: it takes nothing twice, and misses nothing that it is told of."""
    rows: dict[str, dict[str, Any]] = {}
    for item in items_of(shape):
        operation = item["headers"].get("operation")
        if operation is None:
            continue
        key = item["key"]
        assert (key in rows) == (operation != "insert"), f"{operation} of {key}"
        if operation == "delete":
            del rows[key]
        else:
            rows[key] = {**rows.get(key, {}), **item["value"]}
    return rows

"""What shapes read at the source, without an engine: pools, definitions, snapshots into real storage."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.stream import StreamId
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, SnapshotPoint, SnapshotProblem
from penstock.shapes.source.catalog import read_cards
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.pool import Pools
from penstock.shapes.source.snapshot import InitialSnapshots
from penstock.shapes.storage import ShapeStore
from penstock.sources.postgres.connection import connect
from tests.conftest import WAIT_S


def definition_of(url: str, table: str, **request: Any) -> ShapeDefinition:
    """A shape of a table as it is now."""
    with connect(url) as connection:

        def card_of(stream: StreamId) -> Any:
            return next(iter(read_cards(connection, streams=[stream])), None)

        return define(DefinitionRequest(table, **request), card_of)


def settings_for(url: str, directory: Path, **changed: Any) -> ShapeSettings:
    """Patient ones: the machine may be busy."""
    patience = {"snapshot_lock_timeout": "60s", "snapshot_queue_timeout": "60s"}
    given = {"url": url, "directory": directory, "insecure": True, **patience, **changed}
    return ShapeSettings.model_validate(given)


class Outcome:
    """Listens to one snapshot."""

    def __init__(self) -> None:
        self.point: SnapshotPoint | None = None
        self.problem: SnapshotProblem | None = None
        self.told: list[str] = []
        self.shows_enough: Callable[[SnapshotPoint], bool] = lambda _point: True
        self._ended = threading.Event()

    def snapshot_shows_enough(self, shape: Shape, point: SnapshotPoint) -> bool:
        return self.shows_enough(point)

    def snapshot_known(self, shape: Shape, point: SnapshotPoint) -> None:
        self.told.append("known")
        self.point = point

    def snapshot_started(self, shape: Shape) -> None:
        self.told.append("started")

    def snapshot_grown(self, shape: Shape) -> None:
        self.told.append("grown")

    def snapshot_completed(self, shape: Shape) -> None:
        self.told.append("completed")
        self._ended.set()

    def snapshot_failed(self, shape: Shape, problem: SnapshotProblem) -> None:
        self.told.append("failed")
        self.problem = problem
        self._ended.set()

    def wait(self) -> None:
        assert self._ended.wait(WAIT_S), f"a snapshot that ends, after {self.told}"


class Published:
    """Every table is published already."""

    def ensure(self, table: StreamId, oid: int = 0) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None: ...


class Snapshots:
    """Takes snapshots of shapes that nobody else knows."""

    def __init__(self, pools: Pools, store: ShapeStore, settings: ShapeSettings) -> None:
        self.pools = pools
        self.settings = settings
        self._store = store
        self.changed: list[StreamId] = []  # tables that were not as their definitions say
        self.earlier = EarlierWriters()
        self._source = InitialSnapshots(
            pools,
            Published(),  # type: ignore[arg-type]
            settings,
            self.earlier,
            self.changed.append,
        )
        self._shapes = 0

    def shape(self, definition: ShapeDefinition) -> Shape:
        self._shapes += 1
        handle = f"{self._shapes}-1"
        return Shape(handle, definition, self._shapes, self._store.open(handle, self._shapes))

    def start(self, shape: Shape, outcome: Outcome | None = None) -> Outcome:
        outcome = outcome or Outcome()
        self._source.start(shape, outcome)
        return outcome

    def take(self, definition: ShapeDefinition) -> tuple[Shape, Outcome]:
        shape = self.shape(definition)
        outcome = self.start(shape)
        outcome.wait()
        return shape, outcome

    def items(self, definition: ShapeDefinition) -> list[dict[str, Any]]:
        """The rows, without the message at the end."""
        shape, outcome = self.take(definition)
        assert outcome.problem is None, outcome.problem
        return items_of(shape)[:-1]

    def problem(self, definition: ShapeDefinition) -> SnapshotProblem:
        _, outcome = self.take(definition)
        assert outcome.problem is not None
        return outcome.problem


def items_of(shape: Shape) -> list[dict[str, Any]]:
    """All that is written, chunk after chunk."""
    found: list[dict[str, Any]] = []
    number = 0
    while (chunk := shape.storage.snapshot_chunk(number)) is not None:
        found += json.loads(b"[" + b"".join(chunk.blocks()) + b"]")
        number += 1
    return found


@contextmanager
def snapshots(url: str, directory: Path, **changed: Any) -> Iterator[Snapshots]:
    settings = settings_for(url, directory, **changed)
    directory.mkdir(parents=True, exist_ok=True)
    store = ShapeStore(directory, chunk_bytes=int(settings.chunk_bytes_threshold))
    store.recover()
    store.start()
    pools = Pools.open(settings)
    try:
        yield Snapshots(pools, store, settings)
    finally:
        pools.close()
        store.close()

"""The wire without an engine: a `Door`, an `App` behind it and their server, over shapes in real storage,
which a test changes itself.

with Wire(tmp_path) as wire:
    wire.add_table(card("items"))
    answer = wire.get(table="items", offset="-1")
    wire.append(shape, tx=100, items=[...])
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import uvloop

from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.http.app import App, create_app
from penstock.shapes.http.connection import Connection
from penstock.shapes.http.door import Door
from penstock.shapes.http.server import Served, serve
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import ApiStatus, Shape, SnapshotPoint, SnapshotProblem
from penstock.shapes.source.catalog import CardColumn, Catalog, TableCard
from penstock.shapes.storage import LogItems, ShapeStore
from penstock.shapes.subquery.watch import Cut, NoCut
from tests.conftest import wait_until
from tests.serving import Answer, Endpoint

T = TypeVar("T")
END = {"headers": {"control": "snapshot-end", "xmin": "1", "xmax": "2", "xip_list": []}}


def column(name: str, type_name: str = "text", **fields: Any) -> CardColumn:
    """A column of a plain type."""
    source = {"nullable": fields.pop("nullable", True), "type_text": type_name, "type_oid": 25}
    modifier = fields.pop("modifier", -1)
    return CardColumn(
        SourceColumn(name, type_modifier=modifier, type_name=type_name, **source),
        type_name=type_name,
        dimensions=fields.pop("dimensions", 0),
        modifier=modifier,
        **fields,
    )


def card(name: str = "items", columns: Sequence[CardColumn] = (), **fields: Any) -> TableCard:
    """A table with the key `id`, and `value`, unless other columns are given."""
    usual = (column("id", "int4", nullable=False), column("value"))
    stream = fields.pop("stream", StreamId("public", name))
    key = fields.pop("key", ("id",))
    return TableCard(stream, fields.pop("oid", 20_000), "r", tuple(columns) or usual, key, **fields)


def item(number: int, operation: str = "insert", **headers: Any) -> dict[str, Any]:
    return {
        "key": f'"public"."items"/"{number}"',
        "value": {"id": str(number), "value": f"value {number}"},
        "headers": {"operation": operation, "relation": ["public", "items"], **headers},
    }


def up_to_date(lsn: int) -> dict[str, Any]:
    return {"headers": {"control": "up-to-date", "global_last_seen_lsn": str(lsn)}}


def live(wire: Wire, shape: Shape, offset: str, **parameters: str) -> Answer:
    return wire.get(table="items", offset=offset, handle=shape.handle, live="true", **parameters)


def acquaint(wire: Wire, shape: Shape) -> None:
    """Have the server know the definition, by a live request whose client leaves."""
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        path = f"/v1/shape?table=items&offset=0_inf&handle={shape.handle}&live=true"
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        waits(wire)
    waits(wire, 0)
    wait_until(lambda: wire.app.admission.present["existing"] == 0, "it counts no more")


def waits(wire: Wire, count: int = 1) -> None:
    """Wait until so many live requests wait for news."""
    wait_until(lambda: wire.app.waiting == count, f"{count} requests wait")


@dataclass
class Snapshot:
    """What new shapes are made of. With a `gate` a snapshot is begun, and completed when it is opened."""

    rows: Sequence[dict[str, Any]] = ()
    gate: threading.Event | None = None
    problem: SnapshotProblem | None = None
    never_starts: bool = False


class KeptShapes:
    """A `ShapeApi` whose shapes a test changes."""

    def __init__(self, directory: Path, chunk_bytes: int) -> None:
        self.store = ShapeStore(directory, chunk_bytes=chunk_bytes)
        self.store.recover()
        self.store.start()
        self.status: ApiStatus = "active"
        self.replayed = True
        self.global_last_seen_lsn = 0
        self.snapshot = Snapshot()
        self.resolved = 0
        self.by_handle: dict[str, Shape] = {}
        self.watches: list[str | None] = []
        self.watching = True
        self.cuts: list[Cut | NoCut] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self._slots = itertools.count()
        self._threads: list[threading.Thread] = []

    def existing(self, definition: ShapeDefinition) -> Shape | None:
        found = (
            shape for shape in self.by_handle.values() if shape.definition.identity == definition.identity
        )
        return next(found, None)

    async def resolve(self, definition: ShapeDefinition) -> Shape:
        self.resolved += 1
        if self.snapshot.problem is not None and not self.snapshot.never_starts:
            raise self.snapshot.problem
        slot = next(self._slots)
        handle = f"{int(definition.identity[:7], 16)}-{1_700_000_000_000_000 + slot}"
        shape = Shape(handle, definition, slot, self.store.open(handle, slot))
        self.by_handle[handle] = shape
        thread = threading.Thread(target=self._take_snapshot, args=(shape, self.snapshot))
        self._threads.append(thread)
        thread.start()
        return shape

    def _take_snapshot(self, shape: Shape, snapshot: Snapshot) -> None:
        if snapshot.never_starts:
            if snapshot.problem is not None:
                shape.error = snapshot.problem
                self.wake(shape)
            return
        writer = shape.storage.make_new_snapshot()
        rows = snapshot.rows
        half = len(rows) // 2 if snapshot.gate is not None else 0
        for number, part in enumerate((rows[:half], rows[half:])):
            if number == 1 and snapshot.gate is not None:
                shape.snapshot_started = True
                self.wake(shape)
                snapshot.gate.wait()
            lines = [json.dumps(row).encode() + b"\n" for row in part]
            if lines:
                writer.write(b"".join(lines), np.cumsum([len(line) for line in lines]).astype(np.int64))
        writer.close(json.dumps(END).encode())
        shape.snapshot_started = True
        shape.state = "ready"
        self.wake(shape)

    def find(self, handle: str) -> Shape | None:
        return self.by_handle.get(handle)

    def touch(self, shape: Shape) -> None:
        pass

    async def drop(self, shape: Shape, reason: str) -> None:
        self.forget(shape)

    def all(self) -> list[Shape]:
        return list(self.by_handle.values())

    async def watch(self, shape: Shape, after: str | None) -> str | None:
        self.watches.append(after)
        return f"watch {len(self.watches)}" if self.watching else None

    async def cut(self, watch: str, point: SnapshotPoint) -> Cut | NoCut:
        return self.cuts.pop(0)

    # What a test does.

    def wake(self, shape: Shape) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(shape.wake)

    def append(self, shape: Shape, tx: int, items: Sequence[dict[str, Any]], *, waits: bool = False) -> None:
        """A transaction's items, for readers at once; or for none, since they are not durable."""
        texts = [json.dumps(each).encode() for each in items]
        count = len(texts)
        shape.storage.append_to_log(
            LogItems(
                tx=np.full(count, tx, np.int64),
                op=np.arange(count, dtype=np.int64) * 2,
                kind=np.full(count, ord("i"), np.uint8),
                key_ends=np.zeros(count, np.int64),
                keys=b"",
                json_ends=np.cumsum([len(text) for text in texts]).astype(np.int64),
                json=b"".join(texts),
                boundary=LogOffset(tx, 2 * (count - 1)),
                durable_first=waits,
            )
        )
        if not waits:
            self.store.commit(Lsn(tx + 1))
        shape.last_offset = shape.storage.readable_offset
        self.global_last_seen_lsn = max(self.global_last_seen_lsn, tx)
        self.wake(shape)

    def forget(self, shape: Shape, replacement: str | None = None) -> None:
        del self.by_handle[shape.handle]
        shape.replacement = replacement
        shape.state = "gone"
        self.wake(shape)

    def finish_snapshots(self) -> None:
        if self.snapshot.gate is not None:
            self.snapshot.gate.set()
        for thread in self._threads:
            thread.join()


class NoSubsets:
    """In place of `SubsetReader`: what was asked for, and a fixed answer."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def read(self, definition: ShapeDefinition, subset: Any, shape: Shape) -> Future[Any]:
        self.asked.append(subset)
        done: Future[Any] = Future()
        done.set_result(self)
        return done

    def pieces(self) -> Iterator[bytes]:
        yield b'{"metadata":{},'
        yield b'"data":[]}'

    def close(self) -> None:
        pass


class Wire(Endpoint):
    """A server in a thread of its own."""

    def __init__(self, directory: Path, secret: str | None = None, **settings: Any) -> None:
        self.secret = secret
        guard = {"insecure": True} if secret is None else {"secret": secret}
        given = {"long_poll_timeout": "60s", **guard, **settings}
        place = {"url": "postgresql://nobody@localhost/none", "directory": directory}
        self.settings = ShapeSettings.model_validate({**place, **given})
        self.shapes = KeptShapes(directory, int(self.settings.chunk_bytes_threshold))
        self.subsets = NoSubsets()
        self.catalog = Catalog(_no_connection)
        self.door = Door(self.settings)
        self.app: App
        self._served: Served
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self.shapes.loop = self._loop
        self._thread.start()
        self.add_table(card())
        self.run(self._start())
        return self

    async def _start(self) -> None:
        await self._open()
        self._served = await serve(self.door, "127.0.0.1", 0)
        self.port = self._served.port

    async def _open(self) -> None:
        self.app = create_app(self.shapes, self.catalog, self.subsets, self.settings)  # type: ignore[arg-type]
        self.door.open(self.app)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_serving()
        self.shapes.finish_snapshots()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.shapes.store.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop_serving(self) -> None:
        self.run(self._served.close(0.2))

    def shut_door(self) -> None:
        """The shapes are another instance's."""
        self.door.status = "waiting"
        self.run(self._served.shut_door(0.2))

    def open_door(self) -> None:
        self.run(self._open())

    def unsent_bytes(self) -> list[int]:
        """What the server holds for each connection beyond its socket."""
        return self._of_connections(lambda each: each.unsent_bytes)

    def received_bytes(self) -> list[int]:
        """What has come of a body on each connection."""
        return self._of_connections(lambda each: each.received_bytes)

    def held_back(self) -> int:
        """Connections of which nothing more is read."""
        return sum(self._of_connections(lambda each: each.is_held_back))

    def _of_connections(self, look: Callable[[Connection], int]) -> list[int]:
        async def looked() -> list[int]:
            return [look(each) for each in self._served.connections]

        return self.run(looked())

    def add_table(self, table: TableCard) -> None:
        self.catalog.put(table)

    def shape(self, handle: str) -> Shape:
        return self.shapes.by_handle[handle]

    def append(self, shape: Shape, tx: int, items: Sequence[dict[str, Any]]) -> None:
        self.shapes.append(shape, tx, items)

    def synced(self, **parameters: str) -> Shape:
        """A shape whose snapshot clients have."""
        answer = self.get(**{"table": "items", "offset": "-1", **parameters})
        assert answer.status == 200, answer.body
        return self.shape(answer.handle)


def _no_connection() -> AbstractContextManager[Any]:
    raise AssertionError("no table but those of the test is there")

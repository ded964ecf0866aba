"""The router alone: changes in columns, as the lane has them, against shapes in memory; no server.

Indexed: 10,000 shapes `tenant = <their own>`, each change for one of them. Unindexed: 1,000 shapes with a
condition that no index can help (`amount > …`; `title ILIKE '%…%'`), every shape asked about every change.
Half of the changes are updates, so both images of them are asked. Batches of 1, 100 and 1,000 changes: the
median over at least 30 batches that differ, after a warm-up. Adding and removing is timed for 10,000 shapes
one after the other, compiled conditions given; memory is what Python and numpy hold for them, by tracemalloc,
without the conditions, which the shapes' definitions hold anyway.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from statistics import median

import pyarrow as pa
from rich.console import Console

from bench.comparison import Figure
from penstock.capture.transactions import ChangeRows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.log import columns as log_columns
from penstock.shapes.routing.router import EventRouter

INDEXED_SHAPES, SCANNED_SHAPES = 10_000, 1_000
BATCHES = (1, 100, 1000)
_STREAM = StreamId("public", "todos")
_TYPES = {"id": "int8", "tenant": "int8", "amount": "numeric", "priority": "int4", "title": "text"}
_COLUMNS = [SourceColumn(name, 20, -1, kind, kind) for name, kind in _TYPES.items()]
_SCHEMA = TableSchema(_STREAM, tuple(_COLUMNS), ("id",))
_WORDS = ("pump", "valve", "turbine", "Penstock", "gate", "spillway", "reservoir", "Head", "flow", "shaft")
_BATCHES_MIN = 30


def measure(console: Console) -> list[Figure]:
    """The bars stand for batches of 1,000 changes, and for what one change takes."""
    return [
        *_indexed(console),
        *_scanned(console, "priority > n", lambda number: f"priority > {number % 100}"),
        *_scanned(console, "title ILIKE", lambda number: f"title ILIKE '%{_WORDS[number % 10]} {number}%'"),
        *_administration(console),
    ]


def _indexed(console: Console) -> list[Figure]:
    router = _router([_condition(f"tenant = {number}") for number in range(INDEXED_SHAPES)])
    rates = {}
    for size in BATCHES:
        seconds, found = _seconds_per_batch(router, size)
        assert found >= size, "every change is of a tenant that has a shape"
        rates[size] = size / seconds
        console.log(
            f"router: {INDEXED_SHAPES:,} indexed shapes, batches of {size:,}: {rates[size]:,.0f} changes/s"
        )
    title = f"router, {INDEXED_SHAPES:,} indexed shapes, batches of 1,000"
    return [Figure(title, rates[1000], 50_000, "changes/s", at_least=True)]


def _scanned(console: Console, name: str, text: Callable[[int], str]) -> list[Figure]:
    router = _router([_condition(text(number)) for number in range(SCANNED_SHAPES)])
    figures = []
    for size in BATCHES:
        took, _ = _seconds_per_batch(router, size)
        title, rate = f"router, {SCANNED_SHAPES:,} shapes {name}", size * SCANNED_SHAPES / took / 1e6
        limit = 2 if size == max(BATCHES) else None
        figures.append(Figure(f"{title}, batches of {size:,}", rate, limit, "M/s", at_least=True))
        if size == 1:
            figures.append(Figure(f"{title}, one change", took * 1e3, 5, "ms"))
        console.log(
            f"router: {SCANNED_SHAPES:,} shapes {name}, batches of {size:,}: "
            f"{rate:,.1f} M (shape × change)/s, {took * 1e3:,.2f} ms per batch"
        )
    return figures


def _administration(console: Console) -> list[Figure]:
    conditions = [
        _condition(f"tenant = {number} AND priority > {number % 1000}") for number in range(INDEXED_SHAPES)
    ]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    router = _router(conditions)
    held = (tracemalloc.get_traced_memory()[0] - before) / len(conditions)
    tracemalloc.stop()
    started = time.perf_counter()
    router = _router(conditions)
    added = time.perf_counter()
    for slot in range(len(conditions)):
        router.remove(slot)
    removed = time.perf_counter()
    console.log(
        f"router: {len(conditions):,} shapes added in {added - started:.2f} s, "
        f"removed in {removed - added:.2f} s, {held:,.0f} bytes each"
    )
    return [
        Figure(f"router, adding {len(conditions):,} shapes", added - started, 2, "s"),
        Figure("router, memory of a shape", held, 2048, "bytes"),
    ]


def _router(conditions: Sequence[Condition]) -> EventRouter:
    router = EventRouter()
    for slot, condition in enumerate(conditions):
        router.add(slot, _STREAM, condition)
    return router


def _condition(text: str) -> Condition:
    return Condition.compile(text, _COLUMNS)


def _seconds_per_batch(router: EventRouter, size: int) -> tuple[float, int]:
    """The median, and how many pairs of shape and change the last batch gave."""
    times, found = [], 0
    for number in range(_BATCHES_MIN + 3):
        changes = _changes(size, number)
        started = time.perf_counter()
        found = len(router.route(changes))
        times.append(time.perf_counter() - started)
    return median(times[3:]), found


def _changes(count: int, seed: int) -> ChangeRows:
    """The second half are updates that change the title."""
    chance = random.Random(seed)
    schema = log_columns.log_schema(_SCHEMA, str(_STREAM))

    def rows() -> dict[str, list[str]]:
        return {
            "id": [str(number) for number in range(count)],
            "tenant": [str(chance.randrange(INDEXED_SHAPES)) for _ in range(count)],
            "amount": [f"{chance.randrange(10_000)}.{chance.randrange(100):02}" for _ in range(count)],
            "priority": [str(chance.randrange(100)) for _ in range(count)],
            "title": [" ".join(chance.choices(_WORDS, k=6)) + f" {number}" for number in range(count)],
        }

    new = rows()
    old = new | {"title": rows()["title"]}
    is_update = [number * 2 >= count for number in range(count)]
    columns = {name: pa.array(values) for name, values in new.items()}
    columns |= {
        log_columns.TX: pa.array([1] * count, pa.int64()),
        log_columns.OP_INDEX: pa.array(range(0, 2 * count, 2), pa.int64()),
        log_columns.OP: pa.array(["u" if each else "i" for each in is_update]),
        log_columns.XID: pa.array([1] * count, pa.uint64()),
        log_columns.COMMIT_TS: pa.array([0] * count, pa.timestamp("us", "UTC")),
        log_columns.OLD: pa.StructArray.from_arrays(
            [pa.array(old[name]) for name in _TYPES],
            list(_TYPES),
            mask=pa.array([not each for each in is_update]),
        ),
        log_columns.OLD_KIND: pa.array(["f" if each else "n" for each in is_update]),
        log_columns.UNCHANGED: pa.nulls(count, pa.list_(pa.string())),
    }
    return ChangeRows(
        _STREAM,
        _STREAM,
        _SCHEMA.id,
        pa.RecordBatch.from_arrays([columns[f.name] for f in schema], schema=schema),
    )

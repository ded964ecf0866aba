"""A process that is killed, wherever it is: what it reported durable is there, whole transactions only, and a
successor that is given everything again has nothing twice. A shape that was dropped is not there at a later
position.

The process is a fork of this one, which spares it the start; it is killed by the kernel like any other.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.position import Lsn
from penstock.failpoints import FAILPOINTS
from penstock.shapes.storage import ShapeStorage, ShapeStore
from tests.shape_log import START, Item, apply, read, ready_shape, shape_items

OPTIONS: dict[str, Any] = {"chunk_bytes": 2_000, "segment_bytes_max": 20_000}
SHAPES = 12
TRANSACTIONS = 400
_fork = multiprocessing.get_context("fork")

#: which time of each failpoint is struck: late enough that there is something to lose
NTH = {
    "shapes.snapshot_write": SHAPES + 2,
    "shapes.commit_write": 40,
    "shapes.commit_written": 40,
    "shapes.committed": 40,
    "shapes.file_write": 30,
    "shapes.file_written": 30,
    "shapes.boundary_moved": 30,
    "shapes.segment_removed": 2,
    "shapes.compacted": 3,
    "shapes.compaction_switched": 3,
    "shapes.cleanup_renamed": 2,
}


def transactions(seed: int) -> Iterator[tuple[int, dict[int, list[Item]]]]:
    """What the source sends, always the same: the end of each transaction, and its items by shape."""
    chance, rows = random.Random(seed), [set[str]() for _ in range(SHAPES)]
    for number in range(1, TRANSACTIONS + 1):
        parts: dict[int, list[Item]] = {}
        for shape in sorted(chance.sample(range(SHAPES), chance.randint(1, 4))):
            count = chance.randint(1, 5)
            for op in range(0, 2 * count, 2):
                key = f"k{chance.randrange(6)}"
                kind = chance.choice("uuuud") if key in rows[shape] else "i"
                rows[shape] = rows[shape] - {key} if kind == "d" else rows[shape] | {key}
                value = {"id": key, f"c{op}": str(number), "text": "x" * chance.randrange(60)}
                parts.setdefault(shape, []).append(
                    Item(10 * number, op, kind, key, value, op == 2 * count - 2)
                )
        yield 10 * number + 5, parts


def _live(directory: Path, seed: int, reports: Connection, environment: dict[str, str]) -> None:
    """What the process does until it is killed."""
    os.environ.update(environment)
    store = ShapeStore(directory, on_flushed=lambda end, _: reports.send(int(end)), **OPTIONS)
    found = store.recover()
    names = [f"shape-{number}" for number in range(SHAPES)]
    storages = [
        store.open(name, slot) if name in found else ready_shape(store, name, slot)
        for slot, name in enumerate(names)
    ]
    store.start()
    for number, (end, parts) in enumerate(transactions(seed)):
        store.append(shape_items(parts.items()))
        store.commit(Lsn(max(end, store.position or 0)))
        if number % 5 == 0:
            store.wait_flushed(Lsn(end), 60)
        if number % 40 == 39:
            for storage in storages:
                storage.compact()
            _come_and_go(store, number, end)
    store.wait_flushed(Lsn(end), 60)
    os._exit(0)


def _come_and_go(store: ShapeStore, number: int, end: int) -> None:
    """One whose snapshot is all that there ever is, one that is kept until the next transaction ends it."""
    storage = store.open(f"passing-{number}", 1000 + number)
    writer = storage.make_new_snapshot()
    for row in range(20):
        line = json.dumps({"row": row}).encode() + b"\n"
        writer.write(line, np.array([len(line)]))
    writer.close(b"{}")
    storage.cleanup()
    kept = ready_shape(store, f"kept-{number}", 1000 + number)
    store.commit(Lsn(max(end, store.position or 0)))
    store.loop.run_now(lambda: None)
    kept.cleanup()


def _require_none_past_its_end(found: Iterable[str], position: int) -> None:
    for handle in found:
        if handle.startswith("kept-"):
            number = int(handle.removeprefix("kept-"))
            assert position <= 10 * (number + 1) + 5, "the next transaction is without it"


def _killed(directory: Path, seed: int, environment: dict[str, str], reports_max: int | None = None) -> int:
    """Let the process live until it is killed, at the latest after so many reports; the last reported end."""
    receiving, sending = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_live, args=(directory, seed, sending, environment))
    process.start()
    sending.close()
    reported, reports = 0, 0
    try:
        while True:
            reported = receiving.recv()
            reports += 1
            if reports == reports_max:
                process.kill()
    except EOFError:
        process.join(60)
    assert process.exitcode == -signal.SIGKILL
    return reported


def _check(store: ShapeStore, storages: list[ShapeStorage], seed: int, position: int) -> None:
    """Each shape has the transactions up to the position, and nothing else."""
    expected: list[list[Item]] = [[] for _ in storages]
    for end, parts in transactions(seed):
        for shape, items in parts.items() if end <= position else ():
            expected[shape] += items
    for storage, items in zip(storages, expected, strict=True):
        assert storage.readable_offset == (items[-1].offset if items else START)
        found = read(storage)
        assert apply({}, found) == apply({}, (item.json() for item in items))
        if not storage.files.compacted:
            assert found == [item.json() for item in items]
    assert len(list((store.files / "shapes").iterdir())) == SHAPES


def _recovered(directory: Path, seed: int, reported: int) -> None:
    store = ShapeStore(directory, **OPTIONS)
    found = store.recover()
    assert len([handle for handle in found if handle.startswith("shape-")]) == SHAPES or not reported
    position = store.position or Lsn(0)
    _require_none_past_its_end(found, position)
    assert position >= reported
    storages = [store.open(f"shape-{number}", number) for number in range(SHAPES)]
    store.discard_unopened()
    if found:
        _check(store, storages, seed, position)
        store.start()
        for end, parts in transactions(seed):
            store.append(shape_items(parts.items()))
            store.commit(Lsn(max(end, position)))
        assert store.wait_flushed(Lsn(end), 60)
        _check(store, storages, seed, end)
    store.close()


@pytest.mark.parametrize(
    "name", [name for name in FAILPOINTS if name.startswith("shapes.") and name != "shapes.rendering"]
)
def test_a_kill_at_every_failpoint_loses_nothing_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    report = tmp_path / "struck"
    rule = f"{name}=kill@{NTH[name]}"
    environment = {"PENSTOCK_FAILPOINT": rule, "PENSTOCK_FAILPOINT_REPORT": str(report)}
    reported = _killed(tmp_path / "store", 7, environment)
    assert report.read_text() == f"{name}=kill\n"
    _recovered(tmp_path / "store", 7, reported)


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_loses_nothing_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    reports = random.Random(seed).randint(1, 100)
    reported = _killed(tmp_path / "store", seed, {}, reports)
    _recovered(tmp_path / "store", seed, reported)


@pytest.mark.parametrize("name", ["shapes.commit_written", "shapes.file_written", "shapes.compacted"])
def test_a_process_killed_twice_recovers_all_the_same(name: str, tmp_path: Path) -> None:
    """The second one is given everything again, and has come further when it is killed."""
    first = _killed(tmp_path / "store", 3, {"PENSTOCK_FAILPOINT": "shapes.committed=kill@30"})
    second = _killed(tmp_path / "store", 3, {"PENSTOCK_FAILPOINT": f"{name}=kill@{NTH[name]}"})
    _recovered(tmp_path / "store", 3, max(first, second))

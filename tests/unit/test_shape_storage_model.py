"""Whatever is appended, committed, written, compacted and lost in crashes, in whatever order: every read
gives what a plain list of items gives."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.position import Lsn
from penstock.shapes.storage import ShapeStorage, ShapeStore, place
from tests.shape_log import (
    START,
    Item,
    apply,
    log_items,
    read,
    read_in_chunks,
    ready_shape,
    reopened,
    shape_items,
)

CHUNK_BYTES = 450  # four items
SEGMENT_BYTES = 3000
OPTIONS: dict[str, Any] = {"chunk_bytes": CHUNK_BYTES, "segment_bytes_max": SEGMENT_BYTES}


@dataclass
class Model:
    """One shape: all items of whole transactions, and which of them must outlive a crash."""

    storage: ShapeStorage
    slot: int
    first_tx: int
    items: list[Item] = field(default_factory=list)
    open: list[Item] = field(default_factory=list)  # of a transaction that has not ended
    committed: int | None = None  # None: it is not ready
    durable: int | None = None
    is_compacted: bool = False


class Storage(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = Path(tempfile.mkdtemp(prefix="shapes-"))
        self.store = ShapeStore(self.directory, **OPTIONS)
        assert self.store.recover() == {}
        self.shapes: dict[str, Model] = {}
        self.made = 0
        self.tx = 100
        self.op = 0
        self.end = self.durable_end = 0
        self.in_transaction = False
        self.add_shape()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    @rule()
    def add_shape(self) -> None:
        if len(self.shapes) < 5 and not self.in_transaction:
            self.made += 1
            handle = f"shape-{self.made}"
            self.shapes[handle] = Model(ready_shape(self.store, handle, self.made), self.made, self.tx)

    @rule(count=st.integers(1, 12), single=st.booleans())
    @precondition(lambda self: not self.in_transaction)
    def append_transaction(self, count: int, single: bool) -> None:
        self._next_transaction()
        chosen = self._chosen()
        parts = [(model.slot, self._changes(model, count, whole=True)) for model in chosen]
        for model, (_, items) in zip(chosen, parts, strict=True):
            model.items += items
        if single:
            for model, (_, items) in zip(chosen, parts, strict=True):
                model.storage.append_to_log(log_items(items))
        else:
            self.store.append(shape_items(parts))

    @rule(count=st.integers(1, 8))
    def append_fragment(self, count: int) -> None:
        if not self.in_transaction:
            self._next_transaction()
            self.in_transaction = True
        for model in self._chosen():
            items = self._changes(model, count, whole=False)
            model.open += items
            model.storage.append_to_log(log_items(items, whole=False))

    @rule(empty=st.booleans())
    @precondition(lambda self: self.in_transaction)
    def end_transaction(self, empty: bool) -> None:
        """The last piece may hold nothing for a shape: then its boundary comes alone."""
        for model in self.shapes.values():
            if not model.open:
                continue
            items = [] if empty else self._changes(model, 1, whole=True)
            model.items += model.open + items
            model.open = []
            ended = log_items(items or model.items[-1:])
            model.storage.append_to_log(ended)
        self.in_transaction = False

    @rule()
    def commit(self) -> None:
        """In the middle of a transaction too: what has ended counts, the rest does not."""
        if not self.in_transaction:
            self.end = self.tx + 1
        for model in self.shapes.values():
            model.committed = len(model.items)
        self.store.commit(Lsn(max(self.end, 1)))

    @rule(idle=st.booleans())
    def turn(self, idle: bool) -> None:
        self.store.loop.turn(idle=idle)
        self.durable_end = self.end
        for model in self.shapes.values():
            model.durable = model.committed

    @rule()
    def compact(self) -> None:
        model = self.random.choice(list(self.shapes.values()))
        model.is_compacted |= model.storage.compact()

    @rule()
    def drop_shape(self) -> None:
        if len(self.shapes) > 1 and not self.in_transaction:
            handle = self.random.choice(list(self.shapes))
            self.shapes.pop(handle).storage.cleanup()

    @rule(garbage=st.booleans())
    def crash(self, garbage: bool) -> None:
        """What was durable is there again, and nothing else; then everything is given once more."""
        kept = {handle: model for handle, model in self.shapes.items() if model.durable is not None}
        if garbage:
            self._leave_garbage(kept)
        self.store = reopened(self.store, self.directory, **OPTIONS)
        found = self.store.recover()
        assert set(found) == set(kept)
        assert (self.store.position or 0) >= self.durable_end
        for handle, model in kept.items():
            assert model.durable is not None
            model.storage = self.store.open(handle, model.slot)
            lost, model.items, model.open = model.items, model.items[: model.durable], []
            assert found[handle].last_offset == model.storage.readable_offset
            self._check(model)
            model.items = lost
            if lost and self.random.random() < 0.7:
                again = lost[self.random.randrange(len(lost)) :]
                again = lost if again[0].offset > model.storage.last_seen_offset else again
                model.storage.append_to_log(log_items(again))
            else:
                model.items = model.items[: model.durable]
            model.committed = model.durable
        self.shapes, self.end = kept, self.durable_end
        self.in_transaction = False
        if not kept:
            self.add_shape()

    @invariant()
    def every_read_is_right(self) -> None:
        for model in getattr(self, "shapes", {}).values():
            self._check(model)

    def _check(self, model: Model) -> None:
        storage, items = model.storage, model.items
        assert storage.readable_offset == (items[-1].offset if items else START)
        rows = apply({}, (item.json() for item in items))
        after = self.random.choice([START, *[item.offset for item in items]])
        before = [item for item in items if item.offset <= after]
        texts = read(storage, after)
        answers = read_in_chunks(storage, after)
        assert [text for answer in answers for text in answer] == texts
        assert apply(apply({}, (item.json() for item in before)), texts) == rows
        if not model.is_compacted:
            assert texts == [item.json() for item in items[len(before) :]]
            assert [len(answer) for answer in read_in_chunks(storage)] == _chunk_lengths(items)
        else:
            assert apply({}, read(storage)) == rows

    def _leave_garbage(self, kept: dict[str, Model]) -> None:
        """What a write that was cut short leaves: never in the middle, always behind."""
        files = place.files_of(self.directory)
        assert files is not None
        segments = sorted((files / "commits").iterdir())
        paths = segments[-1:]
        for handle in kept:
            log = files / "shapes" / handle / "log"
            paths += [path for path in log.glob("log.latest.*") if path.exists()]
            if log.exists():
                (log / "log.compacted.77.jsonfile.bin").write_bytes(b"half")
        for path in paths:
            with open(path, "ab") as file:
                file.write(self.random.randbytes(self.random.randrange(1, 100)))

    def _next_transaction(self) -> None:
        self.tx += self.random.randrange(1, 5)
        self.op = 0

    def _chosen(self) -> list[Model]:
        models = list(self.shapes.values())
        return sorted(self.random.sample(models, self.random.randint(1, len(models))), key=lambda m: m.slot)

    def _changes(self, model: Model, count: int, *, whole: bool) -> list[Item]:
        rows = set(apply({}, (item.json() for item in [*model.items, *model.open])))
        changes = []
        for number in range(count):
            key = f"k{self.random.randrange(5)}"
            kind = self.random.choice("uuud") if key in rows else "i"
            rows = rows - {key} if kind == "d" else rows | {key}
            value = {f"c{self.random.randrange(3)}": str(self.random.randrange(1000))}
            last = whole and number == count - 1
            changes.append(Item(self.tx, self.op, kind, key, {"id": key, **value}, last))
            self.op += 2
        return changes


def _chunk_lengths(items: list[Item]) -> list[int]:
    """How many items each answer has: cut by the item that brings it to the threshold, unless that is in the
    newest transaction's middle, where there is no cut yet."""
    lengths, count, size = [], 0, 0
    for item in items:
        count, size = count + 1, size + len(item.json())
        if size >= CHUNK_BYTES:
            lengths.append(count)
            count = size = 0
    return [*lengths, count] if count else lengths


TestStorage = Storage.TestCase
TestStorage.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(12))
def test_long_lives_of_shapes(seed: int) -> None:
    """The same steps, chosen so that logs grow, are written, compacted, and lose their process in between."""
    walk, storage = random.Random(seed), Storage()
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: storage.append_transaction(walk.randint(1, 6), walk.random() < 0.5)),
        (2, lambda: storage.append_fragment(walk.randint(1, 6))),
        (2, lambda: storage.end_transaction(walk.random() < 0.5)),
        (4, storage.commit),
        (4, lambda: storage.turn(walk.random() < 0.3)),
        (2, storage.compact),
        (1, lambda: storage.crash(walk.random() < 0.5)),
        (1, storage.add_shape),
        (1, storage.drop_shape),
    ]
    weights, choices = zip(*steps, strict=True)
    compacted = 0
    try:
        storage.begin(seed)
        for step in walk.choices(choices, weights, k=150):
            is_open = storage.in_transaction
            if is_open and step is choices[0]:
                storage.end_transaction(walk.random() < 0.5)
            elif is_open or step is not choices[2]:
                step()
            storage._check(walk.choice(list(storage.shapes.values())))
            compacted += any(model.is_compacted for model in storage.shapes.values())
        storage.every_read_is_right()
    finally:
        storage.teardown()
    assert compacted

"""`NestedMaking`: shapes with subqueries are made after the shapes inside them, whose values they need.

What is promised: when an outer shape is begun, every inner one is there and what it selects is known, or the
client is told to come again. An inner shape may be another client's, found by its definition, and may go
while it is waited for: then it is made anew, a few times.

Waiting takes as long as inner snapshots take, so it happens in threads of its own, a bounded number of them.
The engine's thread is only asked: whatever changes a shape happens there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

from penstock.shapes.definition import ShapeDefinition, SubqueryAtom
from penstock.shapes.engine.registry import ShapeRegistry
from penstock.shapes.engine.subqueries import Subqueries
from penstock.shapes.shape import Shape
from penstock.shapes.source.problems import not_made

_MAKERS = 8
_INNER_TRIES = 3
_VALUES_WITHIN_S = 60.0
_LOOK_EVERY_S = 1.0
_Result = TypeVar("_Result")


class MakingEngine(Protocol):
    """What is asked of the engine, from any thread."""

    registry: ShapeRegistry
    subqueries: Subqueries

    @property
    def is_closed(self) -> bool: ...

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]: ...

    def begin(self, definition: ShapeDefinition, *, hidden: bool) -> Shape:
        """In the engine's thread: the shape there is, or a new one."""


class NestedMaking:
    def __init__(self, engine: MakingEngine) -> None:
        self._engine = engine
        self._makers = ThreadPoolExecutor(_MAKERS, "shapes-nested-maker")

    def close(self) -> None:
        self._makers.shutdown(cancel_futures=True)

    def create(self, definition: ShapeDefinition, *, hidden: bool) -> Future[Shape]:
        return self._makers.submit(self._create, definition, hidden)

    def _create(self, definition: ShapeDefinition, hidden: bool) -> Shape:
        for atom in definition.where.subqueries if definition.where is not None else ():
            self._await_inner(atom)
        return self._engine.submit(lambda: self._engine.begin(definition, hidden=hidden)).result()

    def _await_inner(self, atom: SubqueryAtom) -> None:
        """Have an inner shape, and know what it selects; one that is there may be about to go."""
        for _ in range(_INNER_TRIES):
            inner = self._engine.registry.existing(atom.definition) or self._create(atom.definition, True)
            if self._await_values(inner, atom.columns):
                return
            if inner.error is not None:
                raise inner.error
        raise not_made()

    def _await_values(self, inner: Shape, columns: tuple[str, ...]) -> bool:
        """Until what an inner shape selects is known; False if it goes."""
        inner.last_read = time.time()
        known = self._engine.submit(lambda: self._engine.subqueries.require(inner, columns)).result()
        deadline = time.monotonic() + _VALUES_WITHIN_S
        while not known.done():
            if self._engine.is_closed or time.monotonic() > deadline:
                raise not_made()
            wait([known], _LOOK_EVERY_S)
        return not known.cancelled()

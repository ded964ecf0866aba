"""Which shapes a change concerns, and what it is for each: moved in, changed, moved out.

A shape wants a row if its condition is true for it. Both images of a change are asked, the row as it was and
as it is: out of the shape before and in it now is an insert, the other way round a delete, in it both times
an update. Where a condition cannot be evaluated the shape is said to have failed; it is never passed over.

A shape is in one of four places, by its condition:

    none                              every change of the table
    has equalities (`router_index`)   looked up; the rest is evaluated for the rows found
    has a program (`program`)         compiled code, each shape for each row
    other                             Arrow, a shape at a time over the whole batch

Cost on one core: 0.1 ms for a batch; a look-up per row and set of indexed columns, about 0.1 µs, whatever the
number of shapes; 5 to 100 ns for a program and a row; 0.1 ms and more for each condition by Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import ChangeRows
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.shapes.routing.clauses import Clauses
from penstock.shapes.routing.images import Images
from penstock.shapes.routing.index import EqualityIndex, Keys, plan
from penstock.shapes.routing.program_kernels import DELETED, INSERTED, UPDATED
from penstock.shapes.routing.routed import NOTHING, Routed, Routing

__all__ = ["DELETED", "INSERTED", "UPDATED", "EventRouter", "Routed"]

_Slots = npt.NDArray[np.int32]


@dataclass(slots=True)
class _Table:
    """`unconditional` and `scanned` (with their clauses) are made into arrays when they are needed."""

    unconditional: set[int] = field(default_factory=set)
    scanned: dict[int, int] = field(default_factory=dict)
    indexes: dict[Keys, EqualityIndex] = field(default_factory=dict)
    arrays: tuple[_Slots, _Slots, _Slots] | None = None

    def in_order(self) -> tuple[_Slots, _Slots, _Slots]:
        """Slots without a condition; slots that are scanned; their clauses."""
        if self.arrays is None:
            scanned = np.array(sorted(self.scanned.items()), np.int32).reshape(-1, 2)
            slots, clauses = np.ascontiguousarray(scanned[:, 0]), np.ascontiguousarray(scanned[:, 1])
            self.arrays = np.array(sorted(self.unconditional), np.int32), slots, clauses
        return self.arrays

    def is_empty(self) -> bool:
        return not (self.unconditional or self.scanned or self.indexes)


@dataclass(frozen=True, slots=True)
class _Place:
    stream: StreamId
    clause: int | None
    keys: Keys | None


class EventRouter:
    """For one thread. A slot is a small number that stands for a shape; the caller gives them out."""

    def __init__(self, *, indexed: bool = True) -> None:
        self._indexed = indexed
        self._tables: dict[StreamId, _Table] = {}
        self._places: dict[int, _Place] = {}
        self._clauses = Clauses()
        self._clause_of = np.empty(0, np.int32)

    def add(self, slot: int, stream: StreamId, where: Condition | None) -> None:
        assert slot not in self._places, "a slot is one shape's at a time"
        table = self._tables.setdefault(stream, _Table())
        if where is None:
            table.unconditional.add(slot)
            table.arrays = None
            self._places[slot] = _Place(stream, None, None)
            return
        planned = plan(where.expression) if self._indexed else None
        rest = where.expression if planned is None else planned.rest
        clause = None if rest is None else self._clauses.take(rest)
        if planned is not None:
            index = table.indexes.setdefault(planned.keys, EqualityIndex(planned.keys))
            index.add(slot, planned.wanted)
        elif clause is not None:
            table.scanned[slot] = clause
            table.arrays = None
        self._note_clause(slot, clause)
        self._places[slot] = _Place(stream, clause, None if planned is None else planned.keys)

    def remove(self, slot: int) -> None:
        place = self._places.pop(slot)
        table = self._tables[place.stream]
        if place.keys is not None:
            index = table.indexes[place.keys]
            index.remove(slot)
            if not len(index):
                del table.indexes[place.keys]
        else:
            table.unconditional.discard(slot)
            table.scanned.pop(slot, None)
            table.arrays = None
        if place.clause is not None:
            self._clauses.give_back(place.clause)
        if table.is_empty():
            del self._tables[place.stream]

    def route(self, changes: ChangeRows) -> Routed:
        table = self._tables.get(changes.stream)
        if table is None or not len(changes):
            return NOTHING
        routing = Routing(Images(changes), self._clauses)
        unconditional, slots, clauses = table.in_order()
        if len(unconditional):
            routing.give_all(unconditional)
        if len(slots):
            routing.scan(slots, clauses)
        if table.indexes:
            routing.look_up(table.indexes.values(), self._clause_of)
        return routing.routed()

    def _note_clause(self, slot: int, clause: int | None) -> None:
        if slot >= len(self._clause_of):
            grown = np.full(max(slot + 1, 2 * len(self._clause_of), 64), -1, np.int32)
            grown[: len(self._clause_of)] = self._clause_of
            self._clause_of = grown
        self._clause_of[slot] = -1 if clause is None else clause

"""The routing of one batch: asks every kind of condition, and puts the answers in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import DELETE, INSERT, UPDATE
from penstock.shapes.routing import index_kernels as router_kernels
from penstock.shapes.routing import program_kernels
from penstock.shapes.routing.clauses import Clauses
from penstock.shapes.routing.images import Frame, Images, Texts, frame
from penstock.shapes.routing.index import EqualityIndex
from penstock.shapes.routing.program_kernels import DELETED, INSERTED, UPDATED

_Ints = npt.NDArray[np.int32]
_Truths = npt.NDArray[np.bool_]
_MATRIX_BYTES_MAX = 8 * 1024 * 1024
_ACTION_OF_OP = np.zeros(256, np.uint8)
_ACTION_OF_OP[[INSERT, UPDATE, DELETE]] = INSERTED, UPDATED, DELETED
#: By whether the new image is wanted (1) and the old one (2).
_ACTION_OF_IMAGES = np.array([0, INSERTED, DELETED, UPDATED], np.uint8)


@dataclass(frozen=True, slots=True)
class Routed:
    """By slot, then by row. `failed`: shapes whose condition has no answer for some row; they get no rows."""

    slot: _Ints
    row: _Ints
    action: npt.NDArray[np.uint8]
    failed: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.slot)


NOTHING = Routed(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint8))


class Routing:
    def __init__(self, images: Images, clauses: Clauses) -> None:
        self._images = images
        self._clauses = clauses
        self._operands: dict[int, Texts | None] = {}  # None: it cannot be read
        self._found: list[tuple[_Ints, _Ints, npt.NDArray[np.uint8]]] = []
        self._failed: set[int] = set()

    def give_all(self, slots: _Ints) -> None:
        actions = _ACTION_OF_OP[self._images.op]
        rows = np.flatnonzero(actions).astype(np.int32)
        repeated = np.repeat(slots, len(rows))
        self._found.append((repeated, np.tile(rows, len(slots)), np.tile(actions[rows], len(slots))))

    def scan(self, slots: _Ints, clauses: _Ints) -> None:
        """Each slot's clause for each row; the slots are in order."""
        has_program = self._clauses.has_program(clauses)
        others = np.flatnonzero(~has_program)
        if len(others):
            for slot, clause in zip(slots[others].tolist(), clauses[others].tolist(), strict=True):
                self._scan_by_arrow(slot, clause)
            slots, clauses = slots[has_program], clauses[has_program]
        if len(slots):
            self._scan_by_programs(slots, clauses)

    def look_up(self, indexes: Iterable[EqualityIndex], clause_of: _Ints) -> None:
        """`clause_of` each slot: what else has to be true, or -1."""
        pairs = list(self._look_ups(indexes))
        if not pairs:
            return
        slots, images = (np.concatenate(column) for column in zip(*pairs, strict=True))
        clauses = clause_of[slots]
        wanted = clauses < 0
        asked = np.flatnonzero(~wanted)
        if len(asked):
            wanted[asked] = self._ask(slots[asked], clauses[asked], images[asked])
            slots, images = slots[wanted], images[wanted]
        self._found.append(router_kernels.merge_images(slots, images, self._images.rows))

    def routed(self) -> Routed:
        if not self._found:
            slot, row, action = NOTHING.slot, NOTHING.row, NOTHING.action
        elif len(self._found) == 1:
            slot, row, action = self._found[0]
        else:
            slot, row, action = (np.concatenate(column) for column in zip(*self._found, strict=True))
            order = np.argsort(slot, kind="stable")
            slot, row, action = slot[order], row[order], action[order]
        if self._failed:
            has_answer = ~np.isin(slot, list(self._failed))
            slot, row, action = slot[has_answer], row[has_answer], action[has_answer]
        return Routed(slot, row, action, tuple(sorted(self._failed)))

    def _look_ups(self, indexes: Iterable[EqualityIndex]) -> Iterator[tuple[_Ints, _Ints]]:
        for index in indexes:
            try:
                slots, images = index.look_up(self._images)
            except Exception:
                self._failed.update(index.slots.tolist())
                continue
            if len(slots):
                yield slots, images

    def _ask(self, slots: _Ints, clauses: _Ints, images: _Ints) -> _Truths:
        """Which of the pairs of clause and image are true."""
        wanted = np.zeros(len(clauses), np.bool_)
        has_program = self._clauses.has_program(clauses)
        for clause in np.unique(clauses[~has_program]).tolist():
            at = np.flatnonzero(clauses == clause)
            chosen, position = np.unique(images[at], return_inverse=True)
            try:
                wanted[at] = self._images.evaluate(self._clauses.expression(clause), chosen)[position]
            except Exception:
                self._failed.update(slots[at].tolist())
        at = np.flatnonzero(has_program)
        if len(at):
            at = at[self._readable(slots[at], clauses[at])]
            read = self._frame(clauses[at])
            wanted[at] = program_kernels.run_over_pairs(
                clauses[at], images[at], *self._clauses.programs(), *read
            )
        return wanted

    def _scan_by_programs(self, slots: _Ints, clauses: _Ints) -> None:
        readable = self._readable(slots, clauses)
        slots, clauses = slots[readable], clauses[readable]
        read, programs = self._frame(clauses), self._clauses.programs()
        images = self._images
        step = max(1, _MATRIX_BYTES_MAX // images.rows)
        for first in range(0, len(slots), step):
            part = slice(first, first + step)
            actions = program_kernels.run_over_rows(
                clauses[part], images.existing, images.rows, *programs, *read
            )
            shape, row = np.nonzero(actions)
            if len(row):
                self._found.append((slots[part][shape], row.astype(np.int32), actions[shape, row]))

    def _scan_by_arrow(self, slot: int, clause: int) -> None:
        images, rows = self._images, self._images.rows
        try:
            wanted = images.evaluate(self._clauses.expression(clause))
        except Exception:
            self._failed.add(slot)
            return
        both = (wanted[:rows] & images.is_new).astype(np.uint8)
        if images.has_old:
            both += 2 * (wanted[rows:] & images.is_old).astype(np.uint8)
        row = np.flatnonzero(both).astype(np.int32)
        self._found.append((np.full(len(row), slot, np.int32), row, _ACTION_OF_IMAGES[both[row]]))

    def _readable(self, slots: _Ints, clauses: _Ints) -> _Truths:
        """Reads what the clauses look at; says whose clauses look at nothing that cannot be read."""
        for number in np.flatnonzero(self._clauses.operands_of(clauses)).tolist():
            if number not in self._operands:
                self._operands[number] = self._read(number)
        unreadable = [number for number, texts in self._operands.items() if texts is None]
        if not unreadable:
            return np.ones(len(clauses), np.bool_)
        readable = np.array(
            [
                not self._clauses.operands_of(clauses[at : at + 1])[unreadable].any()
                for at in range(len(clauses))
            ],
            np.bool_,
        )
        self._failed.update(slots[~readable].tolist())
        return readable

    def _read(self, number: int) -> Texts | None:
        try:
            return self._images.operand(self._clauses.operands[number])
        except Exception:
            return None

    def _frame(self, clauses: _Ints) -> Frame:
        numbers = np.flatnonzero(self._clauses.operands_of(clauses)).tolist()
        loaded = [(number, texts) for number in numbers if (texts := self._operands[number]) is not None]
        return frame(len(self._clauses.operands), loaded, self._images.count)

"""A condition in disjunctive normal form, each atom a position.

An atom is a subquery, or a largest part of the condition without one: such a part is evaluated whole, as the
source does. NOT is moved to the atoms. That keeps three-valued logic: a conjunction is true if all its parts
are, a disjunction if one is, and NOT of either is the other of the negated parts. Which of "false" and
"unknown" an atom is does not matter from then on: a position is active if its atom is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.core.where import tree

DISJUNCTS_MAX = 128
POSITIONS_MAX = 256
_TOO_MANY = "the condition has too many combinations of subqueries"
_Disjuncts = list[frozenset[int]]


class TooManyDisjunctsError(ValueError):
    """The condition says too much at once."""


@dataclass(frozen=True, slots=True)
class NormalForm:
    """`positions` are atoms; a disjunct is the positions that must all be active, in ascending order."""

    positions: tuple[tree.Expression, ...]
    disjuncts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, expression: tree.Expression) -> NormalForm:
        building = _Building()
        disjuncts = building.disjuncts(expression, negate=False)
        needed = sorted(frozenset().union(*disjuncts))  # `a OR a AND b` says nothing of b
        number = {position: place for place, position in enumerate(needed)}
        return cls(
            tuple(building.positions[position] for position in needed),
            tuple(tuple(sorted(number[position] for position in each)) for each in disjuncts),
        )

    @property
    def without_subqueries(self) -> tree.Expression | None:
        """What every row meets that can be in it, whatever subqueries select; None: any row can be."""
        parts = []
        for disjunct in self.disjuncts:
            atoms = [self.positions[position] for position in disjunct]
            plain = tuple(atom for atom in atoms if not isinstance(atom, tree.InSubquery))
            if not plain:
                return None
            parts.append(plain[0] if len(plain) == 1 else tree.AllOf(plain))
        return parts[0] if len(parts) == 1 else tree.AnyOf(tuple(parts))

    @property
    def subqueries(self) -> dict[int, list[int]]:
        """By subquery, the positions that ask about it; not those that no disjunct needs."""
        found: dict[int, list[int]] = {}
        for position, atom in enumerate(self.positions):
            if isinstance(atom, tree.InSubquery):
                found.setdefault(atom.subquery, []).append(position)
        return found

    def holds(self, active: Sequence[bool]) -> bool:
        return any(all(active[position] for position in disjunct) for disjunct in self.disjuncts)

    def holds_for(self, active: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """`active`: a line for each position, a column for each row."""
        found = np.zeros(active.shape[1], np.bool_)
        for disjunct in self.disjuncts:
            found |= active[list(disjunct)].all(axis=0)
        return found


class _Building:
    def __init__(self) -> None:
        self.positions: list[tree.Expression] = []

    def disjuncts(self, node: tree.Expression, *, negate: bool) -> _Disjuncts:
        match node:
            case tree.InSubquery():
                return self._atom(replace(node, negated=not node.negated) if negate else node)
            case tree.Not() if _has_subquery(node):
                return self.disjuncts(node.operand, negate=not negate)
            case tree.AllOf() | tree.AnyOf() if _has_subquery(node):
                parts = [self.disjuncts(part, negate=negate) for part in _grouped(node)]
                return _all(parts) if isinstance(node, tree.AllOf) != negate else _any(parts)
            case _:
                return self._atom(tree.Not(node) if negate else node)

    def _atom(self, atom: tree.Expression) -> _Disjuncts:
        if atom not in self.positions:
            if len(self.positions) == POSITIONS_MAX:
                raise TooManyDisjunctsError(_TOO_MANY)
            self.positions.append(atom)
        return [frozenset((self.positions.index(atom),))]


def _has_subquery(node: tree.Expression) -> bool:
    return any(isinstance(each, tree.InSubquery) for each in tree.every_node(node))


def _grouped(node: tree.AllOf | tree.AnyOf) -> list[tree.Expression]:
    """Its operands, those without a subquery as one."""
    plain = tuple(each for each in node.operands if not _has_subquery(each))
    rest = [each for each in node.operands if _has_subquery(each)]
    if not plain:
        return rest
    return [plain[0] if len(plain) == 1 else replace(node, operands=plain), *rest]


def _any(parts: Iterable[_Disjuncts]) -> _Disjuncts:
    return _smallest(each for part in parts for each in part)


def _all(parts: Iterable[_Disjuncts]) -> _Disjuncts:
    found: _Disjuncts = [frozenset()]
    for part in parts:
        found = _smallest(one | other for one in found for other in part)
    return found


def _smallest(disjuncts: Iterable[frozenset[int]]) -> _Disjuncts:
    """Without those that another one is a part of."""
    found: _Disjuncts = []
    for each in disjuncts:
        if not any(other <= each for other in found):
            found = [other for other in found if not each <= other]
            found.append(each)
        if len(found) > DISJUNCTS_MAX:
            raise TooManyDisjunctsError(_TOO_MANY)
    return found

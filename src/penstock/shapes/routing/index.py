"""Which shapes want a value: an index over the part of their conditions that asks for equality.

Of a condition `a = 1 AND b IN (2, 3) AND c LIKE 'x%'` the index takes the equalities, as two keys (1, 2) and
(1, 3) over the columns (a, b), and leaves the rest to be evaluated for those rows alone that have one of the
keys. That is exact: a conjunction is true if and only if each of its parts is, and an equality is true if and
only if neither side is null and both are the same value. Whether values are the same is told by their text,
for kinds whose text is canonical; a float's is not (0 and -0), an interval's is not (1 day, 24:00:00).

`1 = ANY(column)` and `column @> '{1}'` ask for an element: the keys of a row are then the elements it has.

Conditions over the same columns share an index; a batch costs one look-up per row (or element) and index,
whatever the number of shapes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.where import tree
from penstock.core.where.access import Contains, Equality, equalities
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind
from penstock.shapes.routing import index_kernels as kernels
from penstock.shapes.routing.arena import Arena, ranges
from penstock.shapes.routing.images import Images, frame, read_texts

_CANONICAL = frozenset(
    {
        Kind.BOOLEAN, Kind.INTEGER, Kind.NUMERIC, Kind.TEXT, Kind.NAME, Kind.UUID, Kind.BYTEA,
        Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.PRINTED,
    }
)  # fmt: skip
_HOLES_MIN = 1024
_SEED = secrets.randbits(63)


class Part(NamedTuple):
    """A column of a key."""

    column: str
    is_numeric: bool


class Keys(NamedTuple):
    """The columns of an index. `of_elements`: the only one is an array, and its elements are the keys."""

    parts: tuple[Part, ...]
    of_elements: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A condition is true if a row has one of the `wanted` keys, and `rest` is true."""

    keys: Keys
    wanted: tuple[tuple[bytes, ...], ...]
    rest: tree.Expression | None


def plan(expression: tree.Expression) -> Plan | None:
    """None if no part of the condition can be looked up."""
    access = equalities(expression)
    taken = _taken_equalities(access.terms)
    if taken:
        wanted = _combinations(taken)
        keys = Keys(tuple(_part(term.column.name, term.column.kind) for term in taken), False)
        rest = [term.expression for term in access.terms if term not in taken]
        return Plan(keys, wanted, _all_of([*rest, *access.rest]))
    for term in access.terms:
        if isinstance(term, Contains) and (part := _element_part(term)) is not None:
            others = [each.expression for each in access.terms if each is not term or len(term.literals) > 1]
            first = (_canonical(term.literals[0].text or "", part.is_numeric),)
            return Plan(Keys((part,), True), (first,), _all_of([*others, *access.rest]))
    return None


def _element_part(term: Contains) -> Part | None:
    """None if the elements' text does not tell whether they equal the literals."""
    element = term.column.kind.element if isinstance(term.column.kind, ArrayOf) else None
    is_same_kind = all(literal.kind == element for literal in term.literals)
    return _part(term.column.name, element) if is_same_kind and element in _CANONICAL else None


def _taken_equalities(terms: Sequence[Equality | Contains]) -> list[Equality]:
    """By column: all that ask for one value, and the shortest of the lists, so that keys do not multiply."""
    taken: dict[str, Equality] = {}
    lists = []
    for term in terms:
        if not isinstance(term, Equality) or not _is_canonical(term.column.kind):
            continue
        if len(term.literals) == 1:
            taken.setdefault(term.column.name, term)
        else:
            lists.append(term)
    for term in sorted(lists, key=lambda each: len(each.literals)):
        if term.column.name not in taken:
            taken[term.column.name] = term
            break
    return [taken[name] for name in sorted(taken)]


def _is_canonical(kind: object) -> bool:
    return kind in _CANONICAL or isinstance(kind, EnumOf)


def _part(column: str, kind: object) -> Part:
    return Part(column, kind is Kind.NUMERIC)


def _combinations(terms: Sequence[Equality]) -> tuple[tuple[bytes, ...], ...]:
    wanted: list[tuple[bytes, ...]] = [()]
    for term in terms:
        texts = {literal.text for literal in term.literals} - {None}
        is_numeric = term.column.kind is Kind.NUMERIC
        values = {_canonical(text, is_numeric) for text in texts if text is not None}
        wanted = [(*key, value) for key in wanted for value in sorted(values)]
    return tuple(wanted)


def _canonical(text: str, is_numeric: bool) -> bytes:
    if is_numeric and "." in text:
        text = text.rstrip("0").rstrip(".")
    return b"0" if is_numeric and text == "-0" else text.encode()


def _all_of(operands: Sequence[tree.Expression]) -> tree.Expression | None:
    if len(operands) < 2:
        return operands[0] if operands else None
    return tree.AllOf(tuple(operands))


class EqualityIndex:
    """The keys that slots want, over the same columns."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._is_numeric = np.array([part.is_numeric for part in keys.parts])
        self._slots = Arena(np.int32)
        self._key_at = Arena(np.int64)
        self._key_lengths = Arena(np.int32, len(keys.parts))
        self._key_data = Arena(np.uint8)
        self._hashes = Arena(np.int64)
        self._following = Arena(np.int32)
        self._heads = np.full(64, -1, np.int32)
        self._holes = 0
        self._members = 0

    def __len__(self) -> int:
        """How many slots there are, also those that want a key that no row can have."""
        return self._members

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        slots = self._slots.view
        return np.unique(slots[slots >= 0])

    def add(self, slot: int, wanted: Sequence[tuple[bytes, ...]]) -> None:
        self._members += 1
        lengths = np.array([[len(part) for part in key] for key in wanted], np.int32)
        sizes = lengths.sum(axis=1) if len(wanted) else np.empty(0, np.int64)
        at = self._key_data.append(np.frombuffer(b"".join(map(b"".join, wanted)), np.uint8))
        first = self._slots.append(np.full(len(wanted), slot))
        self._key_at.append(at + np.cumsum(sizes) - sizes)
        self._key_lengths.append(lengths.reshape(len(wanted), len(self._keys.parts)))
        self._hashes.append(np.zeros(len(wanted)))
        self._following.append(np.zeros(len(wanted)))
        self._chain(first)

    def remove(self, slot: int) -> None:
        self._members -= 1
        of_slot = self._slots.view == slot
        self._slots.view[of_slot] = -1
        self._holes += int(of_slot.sum())
        if self._holes > _HOLES_MIN and self._holes * 2 > len(self._slots):
            self._pack()

    def look_up(self, images: Images) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Slots and the images that have one of their keys; an image may be there twice."""
        texts = [read_texts(images.text(part.column)) for part in self._keys.parts]
        _, values, lengths, data = frame(len(texts), list(enumerate(texts)), images.count)
        chosen, owner = images.existing, None
        if self._keys.of_elements:
            owner, starts, sizes, data = kernels.elements(chosen, values[0], lengths[0], data)
            values, lengths = starts.reshape(1, -1), sizes.reshape(1, -1)
            chosen = np.arange(len(owner), dtype=np.int32)
        room = max(len(chosen), 64)
        while True:
            slot, item = np.empty(room, np.int32), np.empty(room, np.int32)
            found = kernels.look_up(
                chosen, values, lengths, data, self._is_numeric, _SEED,
                self._key_at.view, self._key_lengths.view, self._key_data.view,
                self._hashes.view, self._following.view, self._heads, self._slots.view, slot, item,
            )  # fmt: skip
            if found <= room:
                image = item[:found] if owner is None else owner[item[:found]]
                return slot[:found], image
            room = found

    def _chain(self, first: int) -> None:
        if len(self._slots) > len(self._heads):
            self._heads = np.full(1 << (2 * len(self._slots) - 1).bit_length(), -1, np.int32)
            first = 0
        kernels.chain(
            first, len(self._slots), _SEED, self._key_at.view, self._key_lengths.view, self._key_data.view,
            self._hashes.view, self._following.view, self._heads,
        )  # fmt: skip

    def _pack(self) -> None:
        kept = np.flatnonzero(self._slots.view >= 0)
        sizes = self._key_lengths.view[kept].sum(axis=1)
        bytes_kept, key_at = ranges(self._key_at.view[kept], sizes)
        self._key_data.keep(bytes_kept)
        for arena in (self._slots, self._key_at, self._key_lengths, self._hashes, self._following):
            arena.keep(kept)
        self._key_at.view[:] = key_at
        self._heads[:] = -1
        self._holes = 0
        self._chain(0)

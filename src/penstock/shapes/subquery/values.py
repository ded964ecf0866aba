"""`ValueSet`: the values that a subquery selects, and what `IN` and `NOT IN` say of any value.

Values are tuples of texts as the source prints them; null is None. A set counts how many rows select a value.

`x IN set` is true if x has no null and is in it. `x NOT IN set` is true if x differs from every value of the
set in some column where neither has a null. So besides x itself, what is in the set that agrees with x where
x has no null matters to it: its *masks*, x with some columns left out. They are counted once NOT IN asks.

A value with a null that comes into the set, or goes, concerns any number of other values: `nulls` has such,
and who asks for NOT IN says which of them count for it by now.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

Value = tuple[str | None, ...]
Counts = dict[Value, int]

_VALUE_BYTES = 200  # of a value in the dictionary, beside its texts


class ValueSet:
    def __init__(self) -> None:
        self.counts: Counts = {}
        self.bytes = 0  # about
        self.nulls: dict[Value, None] = {}  # the values that have one
        self._masks: Counts | None = None

    def __contains__(self, value: Value) -> bool:
        return value in self.counts

    def flips(self, changes: Mapping[Value, int]) -> list[Value]:
        """The values that would come or go."""
        return [
            value
            for value, change in changes.items()
            if (self.counts.get(value, 0) > 0) != (self.counts.get(value, 0) + change > 0)
        ]

    def apply(self, changes: Mapping[Value, int]) -> None:
        for value, change in changes.items():
            before = self.counts.get(value, 0)
            after = before + change
            if after:
                self.counts[value] = after
            else:
                self.counts.pop(value, None)
            if (before > 0) != (after > 0):
                self._note(value, 1 if after > 0 else -1)

    def _note(self, value: Value, sign: int) -> None:
        self.bytes += sign * bytes_of(value)
        if None in value:
            if sign > 0:
                self.nulls[value] = None
            else:
                self.nulls.pop(value, None)
        elif self._masks is not None:
            for mask in masks(value):
                self._masks[mask] = self._masks.get(mask, 0) + sign
                if not self._masks[mask]:
                    del self._masks[mask]

    def is_active(self, value: Value, *, negated: bool, nulls: Collection[Value] = ()) -> bool:
        """Whether `value IN set`, or NOT IN, is true; `nulls`: those of the values with a null that count."""
        if not negated:
            return None not in value and self.counts.get(value, 0) > 0
        if None in value:
            masked = self._counted_masks().get(value, 0)
            return masked <= 0 and not any(may_equal(value, other) for other in nulls)
        if self.counts.get(value, 0) > 0:
            return False
        return not nulls or not any(mask in nulls for mask in masks(value))

    def _counted_masks(self) -> Counts:
        if self._masks is None:
            self._masks = {}
            for value, count in self.counts.items():
                if count > 0 and None not in value:
                    for mask in masks(value):
                        self._masks[mask] = self._masks.get(mask, 0) + 1
        return self._masks


def bytes_of(value: Value) -> int:
    """About what it takes in a dictionary."""
    return _VALUE_BYTES + sum(len(text) for text in value if text is not None)


def masks(value: Value) -> Iterator[Value]:
    """The value with some of its columns left out, in every way."""
    for kept in itertools.product((True, False), repeat=len(value)):
        if not all(kept):
            yield tuple(text if keep else None for text, keep in zip(value, kept, strict=True))


def affected(flips: Iterable[Value], *, negated: bool) -> set[Value]:
    """The values whose activity may differ when those come or go; not by reason of a null."""
    without = [value for value in flips if None not in value]
    if not negated:
        return set(without)
    return {each for value in without for each in (value, *masks(value))}


def may_equal(one: Value, other: Value) -> bool:
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def added(changes: Counts, value: Value, count: int) -> None:
    total = changes.get(value, 0) + count
    if total:
        changes[value] = total
    else:
        changes.pop(value, None)

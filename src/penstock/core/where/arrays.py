"""Arrays as values: read from Postgres' text, printed as literals, and what operators make of them.

Elements lie flat, row by row; `lengths` and `lowers` have an entry per dimension, none for the empty array.
Two elements that are NULL count as the same in an array, and so does NaN: elements are compared by identity
first, so a NaN has to be the one object of its kind (`single.py`).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.core.where.errors import EvaluationError

_BOUNDS = re.compile(r"\s*((?:\[\s*[+-]?\d{1,10}\s*(?::\s*[+-]?\d{1,10}\s*)?\])+)\s*=", re.ASCII)
_BOUND = re.compile(r"\[\s*([+-]?\d+)\s*(?::\s*([+-]?\d+)\s*)?\]", re.ASCII)
_TOKEN = re.compile(r'\s*([{},]|"(?:[^"\\]|\\.)*"|(?:[^{},"\\]|\\.)+)', re.DOTALL)
_QUOTED = re.compile(r'[\s"\\{},]')
_DIMENSIONS_MAX = 6
_SIMPLE = re.compile(r'\{[^"\\{}\s]+\}')


class Array(NamedTuple):
    lengths: tuple[int, ...]
    lowers: tuple[int, ...]
    items: tuple[Any, ...]

    @property
    def dimensions(self) -> int:
        return len(self.lengths)


EMPTY = Array((), (), ())


def flat(items: Sequence[Any]) -> Array:
    return Array((len(items),), (1,), tuple(items)) if items else EMPTY


def read_array(text: str, read: Callable[[str], Any]) -> Array:
    """A `ValueError` if `text` is not an array."""
    if _SIMPLE.fullmatch(text):
        return flat([_element(word, read) for word in text[1:-1].split(",")])
    bounds = _BOUNDS.match(text)
    tokens = deque(_tokens(text[bounds.end() :] if bounds else text))
    items: list[Any] = []
    lengths = _read_level(tokens, items, read, _DIMENSIONS_MAX)
    if tokens:
        raise ValueError("malformed array")
    if not items:
        return EMPTY
    return Array(lengths, _lowers(bounds[1], lengths) if bounds else (1,) * len(lengths), tuple(items))


def _tokens(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("malformed array")
        yield token[1]
        position = token.end()


def _read_level(
    tokens: deque[str], items: list[Any], read: Callable[[str], Any], depth: int
) -> tuple[int, ...]:
    """One pair of braces, with fewer than `depth` further inside: its elements are added to `items`."""
    if not tokens or tokens.popleft() != "{" or depth == 0:
        raise ValueError("malformed array")
    if tokens and tokens[0] == "}":
        tokens.popleft()
        return (0,)
    inner: set[tuple[int, ...]] = set()
    count = 0
    while True:
        if not tokens:
            raise ValueError("malformed array")
        if tokens[0] == "{":
            inner.add(_read_level(tokens, items, read, depth - 1))
        elif tokens[0] in ("}", ","):
            raise ValueError("malformed array")
        else:
            items.append(_element(tokens.popleft(), read))
            inner.add(())
        count += 1
        match tokens.popleft() if tokens else "":
            case "}":
                break
            case ",":
                continue
            case _:
                raise ValueError("malformed array")
    if len(inner) != 1:
        raise ValueError("malformed array")
    return (count, *inner.pop())


def _element(word: str, read: Callable[[str], Any]) -> Any:
    if word.startswith('"'):
        return read(re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL))
    if not word:
        raise ValueError("malformed array")
    if word.upper() == "NULL":
        return None
    bare = word.rstrip()
    return None if bare.upper() == "NULL" else read(re.sub(r"\\(.)", r"\1", bare, flags=re.DOTALL))


def _lowers(bounds: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    found = [(1, int(low)) if not high else (int(low), int(high)) for low, high in _BOUND.findall(bounds)]
    if tuple(high - low + 1 for low, high in found) != lengths:
        raise ValueError("malformed array")
    return tuple(low for low, _ in found)


def print_array(array: Array, text: Callable[[Any], str]) -> str:
    if not array.items:
        return "{}"
    words = iter("NULL" if item is None else _quoted(text(item)) for item in array.items)
    bounds = "".join(
        f"[{low}:{low + length - 1}]" for low, length in zip(array.lowers, array.lengths, strict=True)
    )
    printed = _print_level(words, array.lengths)
    return printed if set(array.lowers) == {1} else f"{bounds}={printed}"


def _print_level(words: Iterator[str], lengths: tuple[int, ...]) -> str:
    if not lengths:
        return next(words)
    return "{" + ",".join(_print_level(words, lengths[1:]) for _ in range(lengths[0])) + "}"


def _quoted(text: str) -> str:
    if text and text.upper() != "NULL" and not _QUOTED.search(text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def contains(left: Array, right: Array) -> bool:
    """A NULL is in no array."""
    held = set(left.items)
    return all(item is not None and item in held for item in right.items)


def overlaps(left: Array, right: Array) -> bool:
    return not {item for item in left.items if item is not None}.isdisjoint(right.items)


def join(left: Array | None, right: Array | None) -> Array | None:
    """`||` and array_cat: a NULL array is left out."""
    if left is None or right is None:
        return right if left is None else left
    if not left.items or not right.items:
        return left if left.items else right
    items = left.items + right.items
    left_bounds, right_bounds = _bounds(left), _bounds(right)
    if left.dimensions == right.dimensions and left_bounds[1:] == right_bounds[1:]:
        return Array((left.lengths[0] + right.lengths[0], *left.lengths[1:]), left.lowers, items)
    if left_bounds == right_bounds[1:]:
        return Array((right.lengths[0] + 1, *right.lengths[1:]), right.lowers, items)
    if left_bounds[1:] == right_bounds:
        return Array((left.lengths[0] + 1, *left.lengths[1:]), left.lowers, items)
    raise EvaluationError("cannot concatenate incompatible arrays")


def _bounds(array: Array) -> list[tuple[int, int]]:
    return list(zip(array.lowers, array.lengths, strict=True))


def append(array: Array | None, item: Any) -> Array:
    array = array or EMPTY
    if array.dimensions > 1:
        raise EvaluationError("argument must be empty or one-dimensional array")
    return Array((len(array.items) + 1,), array.lowers or (1,), (*array.items, item))


def prepend(item: Any, array: Array | None) -> Array:
    array = array or EMPTY
    if array.dimensions > 1:
        raise EvaluationError("argument must be empty or one-dimensional array")
    return Array((len(array.items) + 1,), array.lowers or (1,), (item, *array.items))


def subscript(array: Array, *indexes: int) -> Any:
    """NULL outside of the array, and with too few or too many indexes."""
    if len(indexes) != array.dimensions:
        return None
    place = 0
    for index, low, length in zip(indexes, array.lowers, array.lengths, strict=True):
        if not low <= index < low + length:
            return None
        place = place * length + index - low
    return array.items[place]


def slice_of(array: Array, *bounds: int) -> Array:
    """`bounds`: lower and upper for each dimension in turn."""
    if not array.items or len(bounds) // 2 > array.dimensions:
        return EMPTY
    ranges = []
    for place, (low, length) in enumerate(zip(array.lowers, array.lengths, strict=True)):
        first, last = bounds[2 * place : 2 * place + 2] or (low, low + length - 1)
        first, last = max(low, first), min(low + length - 1, last)
        if first > last:
            return EMPTY
        ranges.append(range(first - low, last - low + 1))
    lengths = tuple(map(len, ranges))
    return Array(lengths, (1,) * len(lengths), tuple(array.items[place] for place in _places(array, ranges)))


def _places(array: Array, ranges: Sequence[range]) -> Iterator[int]:
    sizes = [math.prod(array.lengths[place + 1 :]) for place in range(array.dimensions)]

    def inner(dimension: int, base: int) -> Iterator[int]:
        if dimension == len(ranges):
            yield base
            return
        for index in ranges[dimension]:
            yield from inner(dimension + 1, base + index * sizes[dimension])

    return inner(0, 0)


def quantified(
    compare: Callable[[Any, Any], bool], every: bool, operand: Any, array: Array | None
) -> bool | None:
    """Whether `compare` holds for an element, or for `every` one."""
    if array is None or (array.items and operand is None):
        return None
    unknown = False
    for item in array.items:
        if item is None:
            unknown = True
        elif compare(operand, item) is not every:
            return not every
    return None if unknown else every

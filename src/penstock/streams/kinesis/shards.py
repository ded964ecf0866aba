"""The shards of a stream: which one takes a key, and in which order they are read.

A shard that is split or merged is closed, and its children take its keys. Both are listed until all records
of the parent are older than the stream keeps. Parents are read to their end before their children, so that
each key's records come in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]  # two words a row, the higher one first


@dataclass(frozen=True, slots=True)
class Shard:
    """Takes keys with a hash from `first` to `last`, unless it is closed."""

    id: str
    first: int
    last: int
    parents: tuple[str, ...] = ()
    is_closed: bool = False

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Shard:
        parents = (told.get("ParentShardId"), told.get("AdjacentParentShardId"))
        return cls(
            told["ShardId"],
            int(told["HashKeyRange"]["StartingHashKey"]),
            int(told["HashKeyRange"]["EndingHashKey"]),
            tuple(parent for parent in parents if parent),
            "EndingSequenceNumber" in told["SequenceNumberRange"],
        )

    def holds(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which of the hashes are in its range."""
        return ~_less(hashes, self.first) & ~(_less(_one(self.last), hashes))


class ShardMap:
    """What is known of a stream's shards at some moment."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self.shards = {shard.id: shard for shard in shards}
        self.open = sorted(
            (shard for shard in self.shards.values() if not shard.is_closed), key=lambda shard: shard.first
        )
        self._numbers = np.array([hash(shard.id) for shard in self.open] or [0], np.int64)
        self._firsts = _sortable(np.concatenate([_one(shard.first) for shard in self.open] or [_one(0)]))

    def places(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        """For each hash, the number of its shard in `open`."""
        return np.searchsorted(self._firsts, _sortable(hashes), side="right") - 1

    def numbers(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """For each hash, a number that its shard has in every map; two may share one, hardly ever."""
        return self._numbers[self.places(hashes)]

    def touched(self, hashes: Hashes) -> list[Shard]:
        """Whoever takes or took any of the hashes, and what it came from."""
        return [shard for shard in self.shards.values() if bool(shard.holds(hashes).any())]


def generations(shards: Sequence[Shard]) -> list[list[Shard]]:
    """In the order in which they are read: nobody before its parents, those of one list at the same time."""
    by_id = {shard.id: shard for shard in shards}
    ages: dict[str, int] = {}

    def age(shard: Shard) -> int:
        if shard.id not in ages:
            known = [age(by_id[parent]) for parent in shard.parents if parent in by_id]
            ages[shard.id] = 1 + max(known, default=-1)
        return ages[shard.id]

    lists: list[list[Shard]] = []
    for shard in sorted(shards, key=age):
        if ages[shard.id] == len(lists):
            lists.append([])
        lists[-1].append(shard)
    return lists


def _one(number: int) -> Hashes:
    return np.array([[number >> 64, number & (2**64 - 1)]], np.uint64)


def _less(hashes: Hashes, other: int | Hashes) -> npt.NDArray[np.bool_]:
    least = _one(other) if isinstance(other, int) else other
    is_less: npt.NDArray[np.bool_] = (hashes[:, 0] < least[:, 0]) | (
        (hashes[:, 0] == least[:, 0]) & (hashes[:, 1] < least[:, 1])
    )
    return is_less


def _sortable(hashes: Hashes) -> npt.NDArray[np.bytes_]:
    """As sixteen bytes, which sort as the numbers do."""
    texts: npt.NDArray[np.bytes_] = np.ascontiguousarray(hashes, ">u8").view("S16").ravel()
    return texts

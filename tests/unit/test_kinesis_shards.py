"""Shards: which takes a key, which are read before which."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.streams.kinesis.shards import Shard, ShardMap, generations

_HASHES = 2**128


def even_shards(count: int) -> list[Shard]:
    step = _HASHES // count
    return [
        Shard(f"shard-{n}", n * step, _HASHES - 1 if n == count - 1 else (n + 1) * step - 1)
        for n in range(count)
    ]


def _words(hashes: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array([[number >> 64, number & (2**64 - 1)] for number in hashes], np.uint64).reshape(-1, 2)


@given(
    st.sets(st.integers(1, _HASHES - 1), max_size=8),
    st.lists(st.integers(0, _HASHES - 1), min_size=1, max_size=20),
)
def test_each_hash_has_the_open_shard_whose_range_it_is_in(bounds: set[int], hashes: list[int]) -> None:
    firsts = [0, *sorted(bounds)]
    ends = [*(first - 1 for first in firsts[1:]), _HASHES - 1]
    parent = Shard("parent", 0, _HASHES - 1, is_closed=True)
    shards = [Shard(str(n), first, last) for n, (first, last) in enumerate(zip(firsts, ends, strict=True))]
    shard_map = ShardMap([parent, *reversed(shards)])
    hashes = [*hashes, *firsts, *ends]
    for place, number in zip(shard_map.places(_words(hashes)), hashes, strict=True):
        assert shard_map.open[place].first <= number <= shard_map.open[place].last
    for number in hashes:
        touched = {shard.id for shard in shard_map.touched(_words([number]))}
        holding = {shard.id for shard in shards if shard.first <= number <= shard.last}
        assert touched == {"parent", *holding}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12), st.randoms())
def test_nobody_is_read_before_its_parents(parents: list[tuple[int, int]], chance: st.DrawFn) -> None:
    shards = [
        Shard(str(n), 0, 1, tuple({str(parent) for parent in of if parent < n}))
        for n, of in enumerate(parents)
    ]
    chance.shuffle(shards)  # type: ignore[attr-defined]
    read: set[str] = set()
    listed = {shard.id for shard in shards}
    for generation in generations(shards):
        assert all(set(shard.parents) & listed <= read for shard in generation)
        read |= {shard.id for shard in generation}
    assert read == listed

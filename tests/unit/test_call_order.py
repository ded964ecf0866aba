"""Which records go into the next call: hypothesis against the rules that keep each key's order."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.streams.batcher import MicroBatcher
from penstock.streams.blocked_keys import Rows
from penstock.streams.call_order import CallOrder
from penstock.streams.events import CREATE
from penstock.streams.parcels import Parcel
from tests.publishing import STREAMS, events

pytestmark = pytest.mark.unit
BATCHER = MicroBatcher(4, 1000)


def nothing(_: Parcel, rows: Rows, __: bool) -> Rows:
    return rows[:0]


def parcel(first: int, keys: list[int | None], stream: int = 0, chunk: str = "") -> Parcel:
    rows = [(op, CREATE, None if key is None else b"%d" % key, b"") for op, key in enumerate(keys)]
    ids = np.arange(first, first + len(keys))
    return Parcel.of(events(STREAMS[stream], 1, rows, chunk=chunk), ids, np.ones(len(keys), np.int64))


@settings(deadline=None)
@given(
    parcels=st.lists(
        st.tuples(
            st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=12),
            st.integers(0, 1),
            st.sampled_from(["", "chunk"]),
        ),
        max_size=8,
    ),
    seed=st.integers(0, 1000),
)
def test_every_record_goes_once_and_keys_keep_their_order(
    parcels: list[tuple[list[int | None], int, str]], seed: int
) -> None:
    draw = random.Random(seed)
    order = CallOrder(nothing)
    expected: dict[tuple[str, bytes | None], list[int]] = defaultdict(list)
    sent: dict[tuple[str, bytes | None], list[int]] = defaultdict(list)
    first = 0
    for keys, stream, chunk in parcels:
        added = parcel(first, keys, stream, chunk)
        first += len(keys)
        order.add(added, 0.0)
        for number, key in zip(added.ids.tolist(), added.events.key.to_pylist(), strict=True):
            expected[str(added.events.stream), key].append(number)
    under_way: dict[int, Parcel] = {}
    now = 0.0
    while sum(map(len, sent.values())) < first:
        now += 1
        while len(under_way) < 3 and (chosen := order.next_call(BATCHER, now)) is not None:
            under_way[chosen[0]] = chosen[1]
            busy = [
                (call.events.stream, key)
                for call in under_way.values()
                for key in call.events.key.to_pylist()
                if key is not None
            ]
            assert len(set(busy)) == len(busy), "a key is under way twice"
        if not under_way:
            continue
        call = draw.choice(sorted(under_way))
        made = under_way.pop(call)
        order.ended(call)
        failed = np.array([row for row in range(len(made)) if draw.random() < 0.3], np.intp)
        if len(failed):
            order.again(made.take(failed), now + draw.random() * 3)
        arrived = made.without(failed)
        for number, key in zip(arrived.ids.tolist(), arrived.events.key.to_pylist(), strict=True):
            sent[str(made.events.stream), key].append(number)
    for of, numbers in expected.items():
        assert (sent[of] if of[1] is not None else sorted(sent[of])) == numbers


def test_a_key_that_waits_holds_up_no_other() -> None:
    order = CallOrder(nothing)
    order.add(parcel(0, [1, *[1] * 50, 2, 3]), 0.0)
    chosen = order.next_call(BATCHER, 0.0)
    assert chosen is not None
    assert chosen[1].ids.tolist() == [0, 51, 52]


def test_small_parcels_share_a_call() -> None:
    order = CallOrder(nothing)
    for number in range(6):
        order.add(parcel(number, [number]), 0.0)
    chosen = order.next_call(BATCHER, 0.0)
    assert chosen is not None
    assert chosen[1].ids.tolist() == [0, 1, 2, 3]


def test_a_record_waits_for_others_as_long_as_it_may() -> None:
    order, batcher = CallOrder(nothing), MicroBatcher(4, 1000, linger_s=0.5)
    order.add(parcel(0, [1, 2]), 10.0)
    assert order.next_call(batcher, 10.2) is None
    assert order.wait_s(10.2, 5.0) == pytest.approx(0.3)
    assert order.next_call(batcher, 10.6) is not None


def test_streams_take_turns() -> None:
    order = CallOrder(nothing)
    order.add(parcel(0, list(range(20))), 0.0)
    order.add(parcel(20, list(range(20)), stream=1), 0.0)
    streams = [chosen[1].events.stream for _ in range(4) if (chosen := order.next_call(BATCHER, 0.0))]
    assert streams == [*STREAMS, *STREAMS]

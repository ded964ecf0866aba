"""Bounds, batches, retries and error classes: what both publishers are made of."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.streams.batcher import MicroBatcher
from penstock.streams.error_classes import ErrorClass, ErrorTable
from penstock.streams.inflight import InflightEventQueue, QueueLimits
from penstock.streams.publisher import StoppedError
from penstock.streams.retry import RetryPolicy

pytestmark = pytest.mark.unit


class TestQueue:
    @pytest.mark.parametrize(("count", "size"), [(3, 1), (1, 30)])
    def test_putting_waits_for_room_of_both_kinds(self, count: int, size: int) -> None:
        queue: InflightEventQueue[str] = InflightEventQueue(QueueLimits(4, 40))
        queue.put("first", 2, 20)
        putting = threading.Thread(target=queue.put, args=("second", count, size))
        putting.start()
        assert queue.get() == "first"
        assert queue.get(0.01) is None, "what was taken out still counts"
        queue.task_done(2, 20)
        putting.join(120)
        assert queue.get() == "second"
        assert (queue.count, queue.bytes) == (count, size)

    def test_what_is_larger_than_the_bounds_goes_in_alone(self) -> None:
        queue: InflightEventQueue[str] = InflightEventQueue(QueueLimits(4, 40))
        queue.put("large", 100, 1000)
        assert queue.get() == "large"

    def test_stopping_lets_everybody_go(self) -> None:
        queue: InflightEventQueue[str] = InflightEventQueue(QueueLimits(1, 1))
        queue.put("first", 1, 1)
        queue.get()
        ended: list[str] = []

        def put() -> None:
            with pytest.raises(StoppedError):
                queue.put("second", 1, 1)
            ended.append("put")

        def get() -> None:
            with pytest.raises(StoppedError):
                queue.get(60)
            ended.append("get")

        threads = [threading.Thread(target=put), threading.Thread(target=get)]
        for thread in threads:
            thread.start()
        queue.stop()
        for thread in threads:
            thread.join(120)
        assert sorted(ended) == ["get", "put"]

    def test_a_poke_ends_the_waiting_for_an_item(self) -> None:
        queue: InflightEventQueue[str] = InflightEventQueue(QueueLimits(1, 1))
        queue.poke()
        assert queue.get(60) is None

    def test_who_rests_takes_nothing_and_is_woken_by_a_poke_or_the_end(self) -> None:
        queue = InflightEventQueue[int](QueueLimits())
        queue.put(1, 1, 1)
        queue.rest(0.01)
        queue.poke()
        queue.rest(600.0)
        assert queue.get() == 1
        queue.stop()
        with pytest.raises(StoppedError):
            queue.rest(600.0)


class TestBatcher:
    @given(
        sizes=st.lists(st.integers(0, 50), max_size=30), count=st.integers(1, 20), size=st.integers(1, 200)
    )
    def test_a_call_is_as_large_as_it_may_be(self, sizes: list[int], count: int, size: int) -> None:
        cut = MicroBatcher(count, size).cut(np.array(sizes, np.int64))
        assert cut <= count
        assert cut == 1 or sum(sizes[:cut]) <= size
        assert cut == min(count, len(sizes)) or sum(sizes[: cut + 1]) > size

    def test_records_wait_for_others_until_the_call_is_full_or_the_time_is_up(self) -> None:
        batcher = MicroBatcher(3, 100, linger_s=0.5)
        assert batcher.wait_s(np.array([10, 10]), 0.1) == pytest.approx(0.4)
        assert batcher.wait_s(np.array([10, 10]), 0.6) == 0
        assert batcher.wait_s(np.array([10, 10, 10]), 0.0) == 0
        assert batcher.wait_s(np.array([100]), 0.0) == 0


class TestRetry:
    @given(st.integers(1, 10_000))
    def test_pauses_grow_and_are_bounded(self, attempts: int) -> None:
        policy = RetryPolicy(3, least_s=0.1, most_s=5.0)
        assert 0 <= policy.pause_s(attempts) <= min(5.0, 0.1 * 2 ** min(attempts - 1, 60))

    def test_a_record_is_given_up_after_so_many_attempts(self) -> None:
        policy = RetryPolicy(3)
        assert [policy.is_exhausted(attempts) for attempts in (1, 2, 3, 4)] == [False, False, True, True]


def test_errors_are_told_apart_by_code_and_message() -> None:
    table = ErrorTable(
        {"Invalid": ErrorClass.POISON, "Throttled": ErrorClass.TARGET},
        {("Invalid", "stream not found"): ErrorClass.TARGET},
    )
    assert table.classify("Invalid", "1 MiB exceeded") is ErrorClass.POISON
    assert table.classify("Invalid", "Stream not found: shop") is ErrorClass.TARGET
    assert table.classify("Throttled", "") is ErrorClass.TARGET
    assert table.classify("NeverHeardOf", "") is ErrorClass.RECORD, "tried a few times"

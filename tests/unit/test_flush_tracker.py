"""The flush tracker against a model that remembers every transaction and who has flushed it."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.offset import LogOffset
from penstock.ledger.flush_tracker import FlushTracker, align_offset_to_txn_boundary

pytestmark = pytest.mark.unit
CONSUMERS = ("a", "b", "c", "d")


class Model(RuleBasedStateMachine):
    """`owed`: for each consumer the last offsets of transactions that it was handed and has not flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = FlushTracker(LogOffset(10, 0))
        self.tx = 10
        self.owed: dict[str, list[LogOffset]] = {name: [] for name in CONSUMERS}
        self.flushed: dict[str, LogOffset] = {name: LogOffset(10, 0) for name in CONSUMERS}
        self.reported = 10

    @rule(step=st.integers(1, 5), ops=st.integers(0, 4), given=st.sets(st.sampled_from(CONSUMERS)))
    def hand_out(self, step: int, ops: int, given: set[str]) -> None:
        self.tx += step
        last = LogOffset(self.tx, 2 * ops)
        self.tracker.transaction(last, given)
        for name in given:
            if self.flushed[name] < last:
                self.owed[name].append(last)

    @rule(name=st.sampled_from(CONSUMERS), back=st.integers(0, 4), whole=st.booleans())
    def flush(self, name: str, back: int, whole: bool) -> None:
        owed = self.owed[name]
        if not owed:
            return
        last = owed[min(back, len(owed) - 1)]
        offset = last if whole or not last.op else LogOffset(last.tx, last.op - 2)
        self.notify(name, offset)

    @rule(name=st.sampled_from(CONSUMERS), ahead=st.integers(1, 8))
    def flush_early(self, name: str, ahead: int) -> None:
        """What comes is flushed before it is registered: a transaction that wrote nothing, say."""
        self.notify(name, LogOffset(self.tx + ahead, math.inf))

    def notify(self, name: str, offset: LogOffset) -> None:
        self.tracker.notify_flushed(name, offset)
        self.flushed[name] = max(self.flushed[name], offset)
        self.owed[name] = [last for last in self.owed[name] if last > offset]

    @rule(name=st.sampled_from(CONSUMERS))
    def remove(self, name: str) -> None:
        self.tracker.remove(name)
        self.owed[name] = []
        self.flushed[name] = LogOffset(10, 0)

    @rule(step=st.integers(0, 5))
    def keepalive(self, step: int) -> None:
        self.tracker.keepalive(self.tx + step)
        if not any(self.owed.values()):
            self.tx += step

    @invariant()
    def nothing_owed_is_reported(self) -> None:
        owed = [last.tx for pending in self.owed.values() for last in pending]
        assert self.tracker.flushed < min(owed, default=math.inf)

    @invariant()
    def everything_flushed_is_reported_at_once(self) -> None:
        if not any(self.owed.values()):
            assert self.tracker.is_level
            assert self.tracker.flushed == self.tx

    @invariant()
    def it_never_goes_back(self) -> None:
        assert self.tracker.flushed >= self.reported
        self.reported = self.tracker.flushed

    @invariant()
    def those_behind_are_those_that_owe(self) -> None:
        assert set(self.tracker.behind()) == {name for name, pending in self.owed.items() if pending}


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


def test_half_a_transaction_is_never_reported() -> None:
    tracker = FlushTracker(LogOffset(1, 0))
    tracker.transaction(LogOffset(5, 8), ["a"])
    tracker.notify_flushed("a", LogOffset(5, 6))
    assert tracker.flushed == 4
    tracker.notify_flushed("a", LogOffset(5, 8))
    assert tracker.flushed == 5


def test_a_consumer_known_from_before_holds_until_it_is_level() -> None:
    tracker = FlushTracker(LogOffset(10, 0))
    tracker.hold("slow", LogOffset(4, math.inf))
    tracker.transaction(LogOffset(12, 0), ["slow", "fast"])
    tracker.notify_flushed("fast", LogOffset(12, 0))
    assert tracker.flushed == 10
    assert tracker.behind() == {"slow": LogOffset(4, math.inf)}
    tracker.notify_flushed("slow", LogOffset(12, 0))
    assert tracker.flushed == 12


def test_who_stands_still_is_asked_once_and_then_overdue() -> None:
    tracker = FlushTracker(LogOffset(1, 0))
    tracker.transaction(LogOffset(2, 0), ["a", "b"], now=0)
    assert tracker.challenge(5, now=4) == ([], [])
    assert tracker.challenge(5, now=5) == (["a", "b"], [])
    tracker.notify_flushed("b", LogOffset(2, 0), now=6)
    assert tracker.challenge(5, now=10) == ([], ["a"])
    tracker.remove("a")
    assert tracker.flushed == 2


def test_a_batch_counts_from_its_first_transaction() -> None:
    tracker = FlushTracker(LogOffset(1, 0))
    tracker.transactions(5, LogOffset(9, 4), ["a"])
    assert tracker.flushed == 4
    with pytest.raises(ValueError, match="order"):
        tracker.transactions(9, LogOffset(11, 0), ["a"])


def test_memory_is_bounded_by_the_consumers() -> None:
    tracker = FlushTracker(LogOffset(0, 0))
    for tx in range(1, 10_000):
        tracker.transaction(LogOffset(tx, 2), ["a", "b"])
        tracker.notify_flushed("b", LogOffset(tx, 0))
    assert len(tracker._heap) < 200


def test_flushes_are_told_as_the_ends_of_transactions() -> None:
    ends = {LogOffset(5, 2): LogOffset(5, 9), LogOffset(7, 1): LogOffset(7, 4)}
    assert align_offset_to_txn_boundary(LogOffset(5, 2), ends) == LogOffset(5, 9)
    assert align_offset_to_txn_boundary(LogOffset(7, 0), ends) == LogOffset(7, 0)
    assert align_offset_to_txn_boundary(LogOffset(7, 1), ends) == LogOffset(7, 4)
    assert ends == {}

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
GRACE_S = 5.0


class Model(RuleBasedStateMachine):
    """`owed`: for each consumer the last offsets of what it was handed and has not flushed. `level`: how far
    one that owes something has flushed, or before what it was handed the first of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = FlushTracker(LogOffset(10, 0))
        self.tx = 10
        self.owed: dict[str, list[LogOffset]] = {name: [] for name in CONSUMERS}
        self.flushed: dict[str, LogOffset] = {name: LogOffset(10, 0) for name in CONSUMERS}
        self.level: dict[str, LogOffset] = {}
        self.reported = 10
        self.now = 0.0
        self.still_since: dict[str, tuple[float, bool]] = {}  # and whether it was asked since

    @rule(step=st.integers(1, 5), ops=st.integers(0, 4), given=st.sets(st.sampled_from(CONSUMERS)))
    def hand_out(self, step: int, ops: int, given: set[str]) -> None:
        last = LogOffset(self.tx + step, 2 * ops)
        self.tracker.transaction(last, given, self.now)
        self.handed(last.tx, last, given)

    @rule(
        step=st.integers(1, 3),
        more=st.integers(0, 6),
        ops=st.integers(0, 4),
        given=st.sets(st.sampled_from(CONSUMERS)),
    )
    def hand_out_a_batch(self, step: int, more: int, ops: int, given: set[str]) -> None:
        first, last = self.tx + step, LogOffset(self.tx + step + more, 2 * ops)
        self.tracker.transactions(first, last, given, self.now)
        self.handed(first, last, given)

    def handed(self, first_tx: float, last: LogOffset, given: set[str]) -> None:
        self.tx = int(last.tx)
        for name in given:
            if self.flushed[name] >= last:
                continue
            if not self.owed[name]:
                self.level[name] = max(LogOffset(int(first_tx) - 1, math.inf), self.flushed[name])
                self.still_since[name] = self.now, False
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

    @rule(name=st.sampled_from(CONSUMERS), back=st.integers(1, 9))
    def say_again_what_is_old(self, name: str, back: int) -> None:
        if self.owed[name]:
            self.notify(name, LogOffset(self.level[name].tx - back, 0))

    def notify(self, name: str, offset: LogOffset) -> None:
        self.tracker.notify_flushed(name, offset, self.now)
        self.flushed[name] = max(self.flushed[name], offset)
        self.owed[name] = [last for last in self.owed[name] if last > offset]
        if name in self.level and offset > self.level[name]:
            self.level[name] = offset
            self.still_since[name] = self.now, False
        self.forget_if_level(name)

    @rule(name=st.sampled_from(CONSUMERS), back=st.integers(0, 12))
    def come_back(self, name: str, back: int) -> None:
        """One that was known before says how far it is, which may be less than the others have."""
        if self.owed[name] or self.flushed[name] > LogOffset(self.tx, math.inf):
            return
        held, seen = LogOffset(self.tx - back, math.inf), self.tracker.last_seen_offset
        self.tracker.hold(name, held, self.now)
        if held < seen:
            self.owed[name], self.level[name], self.flushed[name] = [seen], held, held
            self.still_since[name] = self.now, False

    @rule(name=st.sampled_from(CONSUMERS))
    def remove(self, name: str) -> None:
        self.tracker.remove(name)
        self.owed[name] = []
        self.flushed[name] = LogOffset(10, 0)
        self.forget_if_level(name)

    def forget_if_level(self, name: str) -> None:
        if not self.owed[name]:
            self.level.pop(name, None)
            self.still_since.pop(name, None)

    @rule(step=st.integers(0, 5))
    def keepalive(self, step: int) -> None:
        self.tracker.keepalive(self.tx + step)
        if not self.level:
            self.tx += step

    @rule(passed=st.sampled_from([0.5, 2.0, 6.0]))
    def challenge(self, passed: float) -> None:
        """Who stood still for the whole grace is asked, and after as long again is overdue."""
        self.now += passed
        still = [name for name, (since, _) in self.still_since.items() if self.now - since >= GRACE_S]
        expected = {name: self.still_since[name][1] for name in still}
        ask, overdue = self.tracker.challenge(GRACE_S, self.now)
        assert sorted(ask) == sorted(name for name, asked in expected.items() if not asked)
        assert sorted(overdue) == sorted(name for name, asked in expected.items() if asked)
        self.still_since |= dict.fromkeys(still, (self.now, True))

    @rule()
    def excuse(self) -> None:
        self.tracker.excuse(self.now)
        self.still_since = dict.fromkeys(self.still_since, (self.now, False))

    @invariant()
    def nothing_owed_is_reported(self) -> None:
        """But for what was reported before somebody came back with less."""
        held = [self.level[name].tx + 1 for name in self.level]
        owed = [last.tx for pending in self.owed.values() for last in pending]
        assert self.tracker.flushed < max(min(owed, default=math.inf), self.reported + 1)
        assert self.tracker.flushed < max(min(held, default=math.inf), self.reported + 1)

    @invariant()
    def what_is_reported_is_exactly_the_least(self) -> None:
        """The last whole transaction that everybody has, and no less: log would be kept for nothing."""
        least = min((_whole(level) for level in self.level.values()), default=self.tx)
        assert self.tracker.flushed == max(self.reported, least)
        assert self.tracker.is_level == (not self.level)
        self.reported = self.tracker.flushed

    @invariant()
    def those_behind_are_those_that_owe_as_far_as_they_are(self) -> None:
        assert self.tracker.behind() == self.level
        assert set(self.level) == {name for name, pending in self.owed.items() if pending}

    @invariant()
    def the_map_and_the_heap_agree(self) -> None:
        entries = set(self.tracker._heap)
        assert all((flushed, name) in entries for name, flushed in self.tracker.behind().items())
        assert self.tracker._least() == min(self.tracker.behind().values(), default=None)


def _whole(level: LogOffset) -> int:
    return int(level.tx) if level.op == math.inf else int(level.tx) - 1


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

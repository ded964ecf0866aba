"""The tracker against a model that remembers every event and whether it was published."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.position import Lsn
from penstock.streams.ack_tracker import AckTracker

pytestmark = pytest.mark.unit


class Model(RuleBasedStateMachine):
    """`events`: of each number, whether it is published; `ends`: how many events a whole transaction ends."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = AckTracker(Lsn(100))
        self.lsn = 100
        self.events: list[bool] = []
        self.ends: list[tuple[int, int]] = []

    @rule(step=st.integers(0, 5), count=st.integers(0, 2000), is_last=st.booleans())
    def register(self, step: int, count: int, is_last: bool) -> None:
        self.lsn += step
        assert self.tracker.register_many(Lsn(self.lsn), count, is_last=is_last) == len(self.events)
        self.events += [False] * count
        if is_last:
            self.ends.append((len(self.events), self.lsn))

    @rule()
    def register_one(self) -> None:
        assert self.tracker.register(Lsn(self.lsn)) == len(self.events)
        self.events.append(False)
        self.ends.append((len(self.events), self.lsn))

    @rule(start=st.floats(0, 1), count=st.integers(1, 3000), step=st.integers(1, 3))
    def publish(self, start: float, count: int, step: int) -> None:
        chosen = range(int(start * len(self.events)), len(self.events), step)[:count]
        self.tracker.mark_many(np.array(chosen, np.int64)[::-1])
        for number in chosen:
            self.events[number] = True

    @rule()
    def publish_the_oldest(self) -> None:
        if False in self.events:
            oldest = self.events.index(False)
            self.tracker.mark_published_by_id(oldest)
            self.events[oldest] = True

    @invariant()
    def the_frontier_is_the_last_end_before_which_all_is_published(self) -> None:
        published = self.events.index(False) if False in self.events else len(self.events)
        passed = [(count, lsn) for count, lsn in self.ends if count <= published]
        count, lsn = passed[-1] if passed else (0, 100)
        assert self.tracker.frontier_lsn == lsn
        assert self.tracker.frontier_id == count


TestAckTracker = Model.TestCase
TestAckTracker.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_a_keepalive_moves_the_frontier_while_nothing_is_under_way() -> None:
    tracker = AckTracker(Lsn(100))
    tracker.register_many(Lsn(200), 0)
    assert tracker.frontier_lsn == Lsn(200)


def test_the_frontier_stays_before_a_transaction_of_which_more_is_to_come() -> None:
    tracker = AckTracker(Lsn(100))
    tracker.mark_published_by_id(tracker.register(Lsn(200), is_last=False))
    assert tracker.frontier_lsn == Lsn(100)
    tracker.register_many(Lsn(200), 0)
    assert tracker.frontier_lsn == Lsn(200)


def test_what_was_never_registered_cannot_be_published() -> None:
    with pytest.raises(ValueError, match="never registered"):
        AckTracker(Lsn(100)).mark_published_by_id(0)


def test_positions_never_go_back() -> None:
    tracker = AckTracker(Lsn(100))
    with pytest.raises(ValueError, match="comes after"):
        tracker.register(Lsn(99))

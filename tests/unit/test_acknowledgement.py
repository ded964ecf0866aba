"""What is acknowledged, against a model that knows what every lane holds, said or not."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.capture.acknowledgement import NOTHING, AcknowledgementTracker
from penstock.core.position import Lsn

pytestmark = pytest.mark.unit
LANES = st.sampled_from(("lake", "kafka", "live"))


class Model(RuleBasedStateMachine):
    """`held`: what a lane holds in truth; `said`: the lanes that have told so."""

    @initialize(
        lanes=st.dictionaries(LANES, st.tuples(st.integers(0, 40), st.booleans())),
        ahead=st.integers(0, 40),
    )
    def start(self, lanes: dict[str, tuple[int, bool]], ahead: int) -> None:
        self.confirmed, self.end, self.limit = 100, 100 + ahead, None
        self.held = {lane: self.confirmed + more for lane, (more, _) in lanes.items()}
        self.said = {lane for lane, (_, told) in lanes.items() if told}
        given = {lane: Lsn(self.held[lane]) if lane in self.said else None for lane in lanes}
        self.tracker = AcknowledgementTracker(given, Lsn(self.confirmed), Lsn(self.end))

    confirmed: int
    end: int
    limit: int | None
    held: dict[str, int]
    said: set[str]

    @rule(by=st.integers(0, 20))
    def seal(self, by: int) -> None:
        self.end += by
        self.tracker.log_sealed(Lsn(self.end))

    @rule(lane=LANES, by=st.integers(-10, 30))
    def flush(self, lane: str, by: int) -> None:
        if lane in self.held:
            self.tracker.lane_flushed(lane, Lsn(self.held[lane] + by))
            if by >= 0 or lane not in self.said:
                self.held[lane] += by
            self.said.add(lane)

    @rule(lane=LANES)
    def join(self, lane: str) -> None:
        """A new lane: it needs at most what is not acknowledged yet, and says so later."""
        if lane not in self.held:
            self.tracker.add_lane(lane, None)
            self.held[lane] = self.confirmed + 10  # `flush` may yet say that it is 10 less

    @rule(lane=LANES)
    def drop(self, lane: str) -> None:
        self.tracker.drop_lane(lane)
        self.held.pop(lane, None)
        self.said.discard(lane)

    @rule(limit=st.none() | st.integers(0, 60))
    def save_checkpoint(self, limit: int | None) -> None:
        self.limit = None if limit is None else 100 + limit
        self.tracker.limit(None if self.limit is None else Lsn(self.limit))

    @invariant()
    def nothing_is_acknowledged_that_somebody_lacks(self) -> None:
        acknowledged = self.tracker.acknowledged()
        if not self.held or self.said != set(self.held):
            assert acknowledged == NOTHING
            return
        bounds = [*self.held.values(), self.end]
        if self.limit is not None:
            bounds.append(self.limit)
        assert acknowledged == max(self.confirmed, min(bounds)), "as much as may be, and never back"
        self.confirmed = acknowledged

    @invariant()
    def the_log_keeps_what_the_last_lane_lacks(self) -> None:
        known = bool(self.held) and self.said == set(self.held)
        assert self.tracker.least() == (min(self.held.values()) if known else None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_with_acknowledge_log_a_lane_holds_the_log_and_not_the_source() -> None:
    tracker = AcknowledgementTracker({"lake": Lsn(50), "new": None}, confirmed=Lsn(40), log_end=Lsn(100))
    tracker.acknowledge_log(True)
    assert tracker.acknowledged() == 100
    tracker.limit(Lsn(120))
    tracker.log_sealed(Lsn(200))
    assert tracker.acknowledged() == 120, "never beyond the checkpoint"
    assert tracker.least() is None
    tracker.drop_lane("new")
    assert tracker.least() == 50
    tracker.acknowledge_log(False)
    assert tracker.acknowledged() == 120, "never back"
    tracker.limit(None)
    tracker.lane_flushed("lake", Lsn(150))
    assert tracker.acknowledged() == 150


def test_a_lane_that_joins_again_is_unknown_until_it_says_how_far_it_is() -> None:
    tracker = AcknowledgementTracker({"lake": Lsn(500)}, confirmed=Lsn(40), log_end=Lsn(100))
    assert tracker.acknowledged() == 100
    tracker.add_lane("lake", None)
    tracker.log_sealed(Lsn(200))
    assert tracker.acknowledged() == NOTHING
    assert tracker.least() is None
    tracker.lane_flushed("lake", Lsn(120))
    assert tracker.acknowledged() == 120, "where its tables are, not where they once were"
    assert tracker.least() == 120

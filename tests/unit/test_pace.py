"""Reading stays below its rate whatever the blocks are, and is not slowed down otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.pace import Pace, share


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 5)), max_size=30), st.integers(1, 100_000))
def test_no_more_rows_than_the_rate_allows(blocks: list[tuple[int, float]], rate: int) -> None:
    clock = Clock()
    pace = Pace(rate, lambda: clock.now, clock.sleep)
    rows, busy = 0, 0.0
    for count, seconds in blocks:
        clock.now += seconds
        busy += seconds
        rows += count
        pace.read(count)
        assert rows <= rate * clock.now * (1 + 1e-9) + 1e-6
    assert clock.now <= busy + rows / rate + 1e-6, "it waits no longer than it must"


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Pace(None, lambda: clock.now, clock.sleep).read(10**9)
    assert clock.now == 0


def test_readers_at_the_same_time_share_the_rate() -> None:
    assert share(1000, 4) == 250
    assert share(None, 4) is None

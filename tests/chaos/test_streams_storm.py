"""Everything breaks at once: lanes and captures are killed, instances stand still, brokers restart, and the
way to the target loses requests and answers. Each change is at the target once all the same.

What breaks is drawn from the seed alone, which a run prints: it is repeated by `PENSTOCK_CHAOS_SEED`, but for
what depends on the moment. Every kind comes once, then any. What cannot be proved is counted by the lane and
printed.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

from tests.chaos.matrix import LEVEL, SEED
from tests.chaos.stream_chain import Source, lane_of
from tests.chaos.stream_matrix import FOLLOWING, TARGETS, has
from tests.chaos.stream_targets import TAKE_OVER_S, OfKafka, Target, target
from tests.failure_plan import Kind, Plan
from tests.stream_instances import StreamInstance, running

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

STORM_S = {"short": 0.0, "once": 60.0, "full": 300.0}[LEVEL]
_STRIKE_S = 20.0  # in which a lane comes to most failpoints, if it leads
_LONGER = 4
_STANDSTILL_S = 8.0  # longer than it takes the other instance to lead
_Kind = TypeVar("_Kind")
#: Of the requests to a target.
SHARES: dict[str, dict[Kind, float]] = {
    "kafka": {"reset": 0.01, "slow": 0.02, "lost": 0.01, "late": 0.005},
    "kinesis": {
        "reset": 0.03,
        "slow": 0.03,
        "lost": 0.03,
        "late": 0.02,
        "throttled": 0.03,
        "failed": 0.03,
        "partial": 0.05,
    },
}


@pytest.mark.skipif(not STORM_S, reason="only by make chaos-once and make chaos")
@pytest.mark.parametrize(("name", "buckets"), [*((name, 1) for name in TARGETS), ("kafka", 2)])
def test_whatever_breaks_at_once_each_change_is_there_once(
    stream_source: Source, request: pytest.FixtureRequest, tmp_path: Path, name: str, buckets: int
) -> None:
    plan = Plan(SEED, SHARES.get(name), seconds_max=TAKE_OVER_S / 3)
    with (
        target(name, request, tmp_path, plan, buckets) as at,
        lane_of(stream_source, at, tmp_path / "pipeline") as lane,
        running(lane.pipeline, "b") as (other,),
    ):
        pair = [lane.instance, other]
        lane.load()
        other.start()
        storm = Storm(pair, at, random.Random(f"{SEED}/{name}/{buckets}"))
        storm.blow(STORM_S)
        plan.rest()
        storm.calm()
        changes = lane.compare(*pair)
        unproven = sum(instance.lane.unproven() for instance in pair)
        print(f"{name}: {storm}, proxy {plan}; {changes} changes, each once; {unproven} not provable")
        assert not storm.spared, "each kind has come"
        assert storm.failpoints, "some failpoint was struck"
        assert plan.struck or name == "file", "the way to the target has failed"
        if LEVEL == "full":
            assert not storm.left, "every failpoint was struck"


def test_each_kind_comes_once_before_any_comes_again() -> None:
    kinds = "abcde"
    orders = {"".join(islice(drawn(kinds, random.Random(seed)), len(kinds))) for seed in range(20)}
    assert all(sorted(order) == sorted(kinds) for order in orders)
    assert len(orders) > 1, "the seed tells in which order"
    assert {*islice(drawn(kinds, random.Random(1)), 5, 100)} == {*kinds}, "then any"


def drawn(kinds: Sequence[_Kind], chance: random.Random) -> Iterator[_Kind]:
    """Without end."""
    yield from chance.sample(kinds, len(kinds))
    while True:
        yield chance.choice(kinds)


class Storm:
    """Kills, failovers, standstills and broker restarts of one seed, one after the other."""

    def __init__(self, pair: list[StreamInstance], at: Target, chance: random.Random) -> None:
        self._pair = pair
        self._at = at
        self._chance = chance
        self.struck: Counter[str] = Counter()
        self._names = [name for name in FOLLOWING if has(at.name, name)]
        self._kinds: list[Callable[[], None]] = [
            self._kill_lane,
            self._strike,
            self._kill_capture,
            self._freeze,
        ]
        if isinstance(at, OfKafka):
            self._kinds += [self._restart_broker]

    def blow(self, seconds: float) -> None:
        """So long; then until each kind has come and a failpoint was struck, by `make chaos` every one: in
        at most `_LONGER` times as long, since a busy machine takes as many strikes longer.
        """
        begun = time.monotonic()
        kinds = drawn(self._kinds, self._chance)
        while (blown_s := time.monotonic() - begun) < _LONGER * seconds:
            has_blown = blown_s >= seconds and not self.spared
            if has_blown and self.failpoints and not (LEVEL == "full" and self.left):
                return
            self._watch(self._chance.uniform(1, 5))
            kind = self._strike if has_blown else next(kinds)
            kind()
            self.struck[_name(kind)] += 1

    @property
    def failpoints(self) -> Counter[str]:
        """At which lanes were killed, by what they wrote down themselves."""
        return sum((instance.lane.struck for instance in self._pair), Counter())

    @property
    def spared(self) -> list[str]:
        """Kinds that have not come."""
        return [_name(kind) for kind in self._kinds if _name(kind) not in self.struck]

    @property
    def left(self) -> list[str]:
        struck = self.failpoints
        return [name for name in self._names if name not in struck]

    def calm(self) -> None:
        """Nothing is struck any more: a lane may have a failpoint that it has not come to."""
        for instance in self._pair:
            instance.lane.kill()
            instance.watch()

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.struck.items())
        places = ", ".join(f"{count} {name}" for name, count in self.failpoints.items())
        return f"{kinds}; killed at {places}"

    def _watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for instance in self._pair:
                instance.watch()
            time.sleep(0.1)

    def _leader(self) -> StreamInstance:
        return next(
            (instance for instance in self._pair if instance.leads()), self._chance.choice(self._pair)
        )

    def _kill_lane(self) -> None:
        self._leader().lane.kill()

    def _strike(self) -> None:
        """The next kill of the leader's lane is at a failpoint: one of those that were not struck yet."""
        instance = self._leader()
        instance.lane.kill()
        left = self.left
        name, nth = self._chance.choice(left or self._names), 1 if left else self._chance.randint(1, 5)
        instance.watch(f"{name}=kill@{nth}")
        end = time.monotonic() + _STRIKE_S
        while instance.lane.alive and time.monotonic() < end:
            time.sleep(0.1)

    def _kill_capture(self) -> None:
        self._leader().kill_capture()

    def _freeze(self) -> None:
        """The whole instance stands still, then goes on as if nothing had happened."""
        instance = self._leader()
        instance.send(signal.SIGSTOP)
        time.sleep(_STANDSTILL_S)
        instance.send(signal.SIGCONT)

    def _restart_broker(self) -> None:
        assert isinstance(self._at, OfKafka)
        if self._chance.random() < 0.5:
            self._at.server.kill()
            self._at.server.start()
        else:
            self._at.server.restart()


def _name(kind: Callable[[], None]) -> str:
    return kind.__name__.strip("_")

"""From where a stream is read back: what was sent beyond the standing lies behind the checkpoint's bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.streams.kinesis import bounds as bounds_module
from penstock.streams.kinesis.bounds import BEGINNING, Bound, BoundKeeper, Bounds, Call

_STEPS = ["begin", "begin", "answer", "answer", "lose", "refuse", "arrive", "split", "note", "retry"]


@dataclass
class _Stream:
    """Shards that are split, and records in them: the number of each one's event."""

    shards: dict[str, dict[int, int]] = field(default_factory=lambda: {"0": {}, "1": {}})
    open: list[str] = field(default_factory=lambda: ["0", "1"])
    clock: int = 0

    def put(self, events: list[int], chance: random.Random) -> dict[str, int]:
        newest: dict[str, int] = {}
        for event in events:
            self.clock += 1
            shard = chance.choice(self.open)
            self.shards[shard][self.clock] = event
            newest[shard] = self.clock
        return newest

    def split(self, chance: random.Random) -> None:
        shard = chance.choice(self.open)
        children = [f"{shard}a", f"{shard}b"]
        self.open = [*(other for other in self.open if other != shard), *children]
        self.shards.update({child: {} for child in children})

    def read(self, bounds: Bounds) -> set[int]:
        found: set[int] = set()
        for shard, records in self.shards.items():
            bound = bounds.get(shard, BEGINNING)
            assert bound.moment is None
            found |= {event for at, event in records.items() if at > (bound.sequence or 0)}
        return found


@settings(max_examples=1000)
@given(st.integers(0, 2**32), st.integers(5, 60), st.sampled_from([2, 5, 1000]))
def test_everything_beyond_the_standing_is_found_whatever_was_lost_or_split(
    seed: int, steps: int, calls_max: int
) -> None:
    with mock.patch.object(bounds_module, "_CALLS_MAX", calls_max):
        _follow(seed, steps)


def _follow(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    stream, keeper = _Stream(), BoundKeeper({"0": BEGINNING, "1": BEGINNING})
    sent, done, noted = 0, -1, -1
    arrived: set[int] = set()
    under_way: list[tuple[Call, list[int]]] = []
    late: list[list[int]] = []
    checkpoint: Bounds = keeper.done(-1)
    for _ in range(steps):
        match chance.choice(_STEPS):
            case "begin":
                events = list(range(sent, sent + chance.randint(1, 4)))
                sent = events[-1] + 1
                under_way.append((keeper.begin(events[-1]), events))
            case "retry" if missing := [event for event in range(sent) if event not in arrived]:
                under_way.append((keeper.begin(missing[-1]), missing[:3]))
            case "answer" if under_way:
                _, events = under_way.pop(chance.randrange(len(under_way)))
                taken = [event for event in events if chance.random() < 0.8]
                keeper.heard(stream.put(taken, chance))
                arrived |= set(taken)
            case "refuse" if under_way:
                call, _ = under_way.pop(chance.randrange(len(under_way)))
                keeper.forget(call)
            case "lose" if under_way:
                call, events = under_way.pop(chance.randrange(len(under_way)))
                keeper.lose(call)
                late.append(events)
            case "arrive" if late:
                stream.put(late.pop(), chance)  # nobody hears of it
            case "split":
                stream.split(chance)
            case "note":
                while done + 1 in arrived:
                    done += 1
                noted, checkpoint = done, keeper.done(done)
        found = stream.read(checkpoint)
        beyond = {event for records in stream.shards.values() for event in records.values() if event > noted}
        assert beyond <= found


def test_the_call_that_was_lost_first_bounds_what_is_read_again() -> None:
    keeper = BoundKeeper({"0": Bound(1)})
    assert keeper.lost() is None
    first, second = keeper.begin(0), keeper.begin(1)
    keeper.heard({"0": 5})
    keeper.lose(keeper.begin(2))
    keeper.lose(first)
    keeper.forget(second)
    lost = keeper.lost()
    assert lost is not None
    assert lost.bounds == {"0": Bound(1)}
    assert not keeper.is_idle
    assert keeper.done(2) == {"0": Bound(5)}
    assert keeper.lost() is None
    assert keeper.is_idle


def test_calls_beyond_a_record_that_is_held_for_ever_are_remembered_together() -> None:
    """However many there are, and what is lost among them is read for."""
    keeper = BoundKeeper({"0": BEGINNING})
    calls = []
    for number in range(20 * bounds_module._CALLS_MAX):
        calls.append(keeper.begin(number + 1))
        keeper.heard({"0": number + 1})
    assert len(keeper._calls) <= bounds_module._CALLS_MAX
    assert keeper.done(0) == {"0": BEGINNING}
    keeper.lose(calls[12_345])
    lost = keeper.lost()
    assert lost is not None
    assert (lost.bounds["0"].sequence or 0) <= 12_345 < lost.last
    assert keeper.done(20 * bounds_module._CALLS_MAX) == {"0": Bound(20 * bounds_module._CALLS_MAX)}
    assert keeper.is_idle


def test_what_was_sent_must_be_kept_since_the_oldest_call_that_is_not_done_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    monkeypatch.setattr(bounds_module, "_CALLS_MAX", 3)
    keeper = BoundKeeper({"0": BEGINNING})
    for last in range(9):
        keeper.begin(last)
        clock[0] += 1
    keeper.done(-1)
    assert keeper.since == 100.0
    keeper.done(8)
    assert keeper.since == clock[0]


def test_a_shard_without_news_is_read_from_a_moment() -> None:
    keeper = BoundKeeper({"0": Bound(1)})
    keeper.heard({"0": 2})
    keeper._heard["0"] -= bounds_module._NEWS_S + 1  # as if that were long ago
    bound = keeper.done(0)["0"]
    assert bound.sequence is None
    assert bound.moment is not None


def test_bounds_are_read_as_they_were_written() -> None:
    for bound in (BEGINNING, Bound(2**180), Bound(moment=1.5)):
        assert Bound.from_json(bound.to_json()) == bound

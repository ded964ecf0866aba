"""Publishing by commits: once and in order, through failures, refusals, crashes and replays."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import StateError, TargetError, TooManyDeadLettersError
from penstock.core.position import Lsn
from penstock.streams.commit_publisher import CommitLimits, CommitPublisher
from penstock.streams.dead_letters import DeadLetterPolicy, DeadLetters
from penstock.streams.events import CREATE, Batch
from penstock.streams.inflight import QueueLimits
from penstock.streams.publisher import Publisher, Standing, StoppedError
from penstock.streams.retry import RetryPolicy
from tests.conftest import wait_until
from tests.publishing import (
    START,
    STREAMS,
    Crash,
    History,
    MemoryCommitTarget,
    Order,
    Store,
    Trial,
    events,
    in_memory,
    term,
)

pytestmark = pytest.mark.unit
RETRY = RetryPolicy(max_attempts=3, least_s=0.0001, most_s=0.001)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    order=st.sampled_from(["block_key", "skip"]),
    commit_bytes=st.sampled_from([1, 200, 10_000]),
    poison=st.sampled_from([0.0, 0.05, 0.3]),
    crashes=st.sampled_from([0.0, 0.1]),
)
def test_each_event_is_there_once_and_in_order(
    seed: int, order: Order, commit_bytes: int, poison: float, crashes: float
) -> None:
    draw = random.Random(seed)

    def trouble(place: str) -> None:
        if draw.random() < crashes:
            raise Crash
        if place != "after commit" and draw.random() < 0.1:
            raise TargetError("The target is away.")

    def publisher(letters: DeadLetters) -> Publisher:
        target = MemoryCommitTarget(kept, trouble, refuses_late=draw.random() < 0.5)
        return CommitPublisher(
            target,
            letters,
            RETRY,
            QueueLimits(20, 1000),
            CommitLimits(8, commit_bytes),
            requests_every_s=0.002,
        )

    with in_memory() as directory:
        history = History.drawn(draw, poison=poison, keys=4)
        kept = Store(directory / "letters.sqlite", history)
        trial = Trial(kept, draw, publisher, DeadLetterPolicy(order, max_share=1.0))
        trial.publish_all()
        trial.replay_all()
        trial.drop_all()


class _Gated(MemoryCommitTarget):
    """Counts commits; waits in them for `gate`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, lambda _: None)
        self.gate = threading.Event()
        self.gate.set()
        self.commits = 0

    def commit(self, standing: Standing) -> None:
        self.commits += 1
        self.gate.wait(120)
        super().commit(standing)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "letters.sqlite", History([]))


@pytest.fixture
def letters(store: Store) -> Iterator[DeadLetters]:
    with DeadLetters(store.letters, "kafka", DeadLetterPolicy(max_share=0.001)) as letters:
        yield letters


def test_a_lane_with_other_dead_letters_does_not_begin_unless_it_is_ordered_to(
    store: Store, letters: DeadLetters, tmp_path: Path
) -> None:
    target = MemoryCommitTarget(store, lambda _: None)
    with begun(target, letters) as publisher:
        publisher.publish(batch(200, b"value"))
        assert publisher.drain(30)
    assert store.standing is not None
    with DeadLetters(tmp_path / "other.sqlite", "kafka") as others:
        CommitPublisher(target, others).open(term(2))  # nothing is kept anywhere: any instance goes on

        with begun(target, letters, epoch=3) as publisher:
            publisher.publish(batch(300, b"poison"))
            assert publisher.drain(30)
        with pytest.raises(StateError, match="another state directory"):
            CommitPublisher(target, others).open(term(4))
        assert CommitPublisher(target, letters).open(term(5)) is not None

        ordered = CommitPublisher(target, others)
        ordered.open(replace(term(6), leaves_letters=lambda _: True))
        ordered.begin(store.standing)
        ordered.close()
        CommitPublisher(target, others).open(term(7))


def test_letters_of_a_commit_that_never_was_are_not_kept_beside_what_others_sent(
    store: Store, letters: DeadLetters, tmp_path: Path
) -> None:
    def trouble(place: str) -> None:
        if place == "before commit" and letters.mark:
            raise Crash

    with begun(MemoryCommitTarget(store, trouble), letters) as publisher:
        publisher.publish(batch(200, b"value"))
        assert publisher.drain(30)
        publisher.publish(batch(300, b"poison"))
        with pytest.raises(Crash):
            publisher.drain(30)
    target = MemoryCommitTarget(store, lambda _: None)
    with DeadLetters(tmp_path / "other.sqlite", "kafka") as others, begun(target, others, epoch=2) as other:
        other.publish(batch(300, b"taken now"))
        assert other.drain(30)
    with pytest.raises(StateError, match="went on without"):
        CommitPublisher(target, letters).open(term(3))
    CommitPublisher(target, letters).open(replace(term(4), leaves_letters=lambda _: True))


@contextmanager
def begun(
    target: MemoryCommitTarget, letters: DeadLetters, epoch: int = 1, **limits: Any
) -> Iterator[CommitPublisher]:
    publisher = CommitPublisher(target, letters, RETRY, **limits)
    publisher.begin(publisher.open(term(epoch)) or START)
    try:
        yield publisher
    finally:
        publisher.close()


def batch(end: int, *values: bytes, key: bytes | None = b"[1]", is_last: bool = True) -> Batch:
    rows = [(op, CREATE, key, value) for op, value in enumerate(values)]
    return Batch(Lsn(end), [events(STREAMS[0], end - 1, rows)] if rows else [], is_last)


def test_what_came_during_a_commit_goes_into_one(store: Store, letters: DeadLetters) -> None:
    target = _Gated(store)
    with begun(target, letters) as publisher:
        target.gate.clear()
        publisher.publish(batch(200, b"value"))
        wait_until(lambda: target.commits == 2, "the first batch is being committed")
        for end in range(300, 400):
            publisher.publish(batch(end, b"value"))
        target.gate.set()
        assert publisher.drain(30)
        assert target.commits == 3
        assert publisher.standing.position == Lsn(399)


def test_a_source_transaction_is_never_cut(store: Store, letters: DeadLetters) -> None:
    target = _Gated(store)
    with begun(target, letters, queue=QueueLimits(1, 1), commit=CommitLimits(1, 1)) as publisher:
        for _ in range(5):
            publisher.publish(batch(200, b"value", is_last=False))
        assert not publisher.drain(0.05)
        assert publisher.standing.position == START.position
        publisher.publish(batch(200))
        assert publisher.drain(30)
        assert target.commits == 2
        assert len(store.arrived) == 5


def test_a_keepalive_moves_the_position(store: Store, letters: DeadLetters) -> None:
    with begun(MemoryCommitTarget(store, lambda _: None), letters) as publisher:
        publisher.publish(batch(200))
        wait_until(lambda: publisher.standing.position == Lsn(200), "the keepalive is committed")


def test_a_target_that_is_away_is_tried_without_end(store: Store, letters: DeadLetters) -> None:
    failures = iter(range(50))

    def trouble(place: str) -> None:
        if place == "write" and next(failures, None) is not None:
            raise TargetError("The target is away.")

    with begun(MemoryCommitTarget(store, trouble), letters) as publisher:
        publisher.publish(batch(200, b"value"))
        assert publisher.drain(30)
        assert not store.dead()


def test_a_target_that_refuses_too_much_stops_the_lane(store: Store, letters: DeadLetters) -> None:
    with begun(MemoryCommitTarget(store, lambda _: None), letters) as publisher:
        publisher.publish(batch(200, *[b"poison"] * 11, key=None))
        with pytest.raises(TooManyDeadLettersError):
            publisher.drain(30)
        with pytest.raises(TooManyDeadLettersError):
            publisher.publish(batch(300, b"value"))
        assert publisher.standing.position == START.position
    assert store.standing == publisher.standing
    assert not store.arrived


def test_a_refused_key_holds_up_no_other(store: Store, letters: DeadLetters) -> None:
    with begun(MemoryCommitTarget(store, lambda _: None), letters) as publisher:
        publisher.publish(batch(200, b"poison"))
        publisher.publish(batch(300, b"value", b"value"))
        publisher.publish(batch(400, b"value", key=b"[2]"))
        assert publisher.drain(30)
        assert [name[2] for name in store.arrived] == [399]
        assert {name[2] for name in store.dead()} == {199, 299}
        samples = {(name, labels.get("code")): value for name, labels, value in publisher.samples()}
        assert samples["penstock_stream_dead_letters", "poison"] == 1
        assert samples["penstock_stream_dead_letters", "behind"] == 2
        assert samples["penstock_stream_blocked_keys", None] == 1


def test_a_rewound_lane_keeps_the_order_of_a_blocked_key(store: Store, letters: DeadLetters) -> None:
    with begun(MemoryCommitTarget(store, lambda _: None), letters) as publisher:
        publisher.publish(batch(200, b"value"))
        publisher.publish(batch(300, b"poison"))
        assert publisher.drain(30)
    with DeadLetters(store.letters, "kafka") as later:
        publisher = CommitPublisher(MemoryCommitTarget(store, lambda _: None), later, RETRY)
        publisher.open(term(2))
        publisher.begin(START)
        publisher.publish(batch(200, b"value"))
        assert publisher.drain(30)
        publisher.close()
    assert [name[2] for name in store.arrived] == [199, 199], (
        "sent again, not behind a letter that comes later"
    )


def test_whoever_waits_for_room_is_let_go_by_stop(store: Store, letters: DeadLetters) -> None:
    def away(place: str) -> None:
        if place == "write":
            raise TargetError("The target is away.")

    with begun(MemoryCommitTarget(store, away), letters, queue=QueueLimits(1, 1)) as publisher:
        publisher.publish(batch(200, b"value"))
        threading.Thread(target=publisher.stop).start()
        with pytest.raises(StoppedError):
            publisher.publish(batch(300, b"value"))

"""Publishing record by record: once and in order, though calls fail in part, get lost, and crashes happen."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import StaleTermError, UnprovenError
from penstock.core.position import Lsn
from penstock.metrics import STREAM_UNPROVEN
from penstock.streams import letter_requests
from penstock.streams.dead_letters import DeadLetterPolicy, DeadLetters
from penstock.streams.events import CREATE, Batch, Events
from penstock.streams.inflight import QueueLimits
from penstock.streams.lane_measures import StreamMeasures
from penstock.streams.letter_file import LetterFile
from penstock.streams.letter_names import names_of
from penstock.streams.publisher import Publisher, Standing, Term
from penstock.streams.record_flow import AheadLimits
from penstock.streams.record_publisher import RecordPublisher
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import Sent
from penstock.streams.trouble import Trouble
from tests.conftest import wait_until
from tests.publishing import (
    CLASSES,
    START,
    STREAMS,
    History,
    MemoryRecordTarget,
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
    troubles=st.sampled_from([0.0, 0.1, 0.3]),
    poison=st.sampled_from([0.0, 0.05, 0.3]),
    crashes=st.sampled_from([0.0, 0.03]),
)
def test_each_event_is_there_once_and_in_order(
    seed: int, order: Order, troubles: float, poison: float, crashes: float
) -> None:
    draw = random.Random(seed)

    def publisher(letters: DeadLetters) -> Publisher:
        target = MemoryRecordTarget(kept, draw, troubles, crashes)
        queue = QueueLimits(20, 1000)
        return RecordPublisher(
            target, letters, CLASSES.classify, RETRY, queue, note_every_s=0.005, requests_every_s=0.002
        )

    with in_memory() as directory:
        history = History.drawn(draw, poison=poison, keys=4)
        kept = Store(directory / "letters.sqlite", history)
        trial = Trial(kept, draw, publisher, DeadLetterPolicy(order, max_share=1.0))
        trial.publish_all()
        trial.replay_all()
        trial.drop_all()


class _Scripted(MemoryRecordTarget):
    """`answer` decides over each call, before anything of it has arrived."""

    def __init__(self, store: Store, answer: Callable[[Events], Sent]) -> None:
        super().__init__(store, random.Random(0), 0.0, 0.0)
        self.answer = answer
        self.looked = 0

    def send(self, events: Events, last: int) -> Sent:
        sent = self.answer(events)
        names = names_of(events)
        self._store.arrived += [names.name(row) for row in range(len(events)) if row not in sent.failed]
        self._lost.update(names.name(row) for row in sent.unknown)
        return replace(sent, failed={row: why for row, why in sent.failed.items() if row not in sent.unknown})

    def look_again(self, events: Events) -> None:
        self.looked += 1
        super().look_again(events)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "letters.sqlite", History([]))


@contextmanager
def begun(
    store: Store,
    answer: Callable[[Events], Sent],
    queue: QueueLimits | None = None,
    ahead: AheadLimits | None = None,
    calls: int = 3,
) -> Iterator[tuple[RecordPublisher, _Scripted]]:
    with DeadLetters(store.letters, "kinesis") as letters:
        target = _Scripted(store, answer)
        target.limits = replace(target.limits, calls=calls)
        publisher = RecordPublisher(
            target, letters, CLASSES.classify, RETRY, queue, note_every_s=0.001, ahead=ahead
        )
        publisher.open(term(1))
        publisher.begin(START)
        try:
            yield publisher, target
        finally:
            publisher.close()


def batch(end: int, *keys: bytes | None) -> Batch:
    rows = [(op, CREATE, key, b"value") for op, key in enumerate(keys)]
    return Batch(Lsn(end), [events(STREAMS[0], end - 1, rows)] if rows else [])


def failing(code: str, key: bytes, times: float = math.inf) -> Callable[[Events], Sent]:
    """Fails records of a key so many times."""
    left = [times]

    def answer(of: Events) -> Sent:
        failed = {row: (code, "said so") for row, each in enumerate(of.key.to_pylist()) if each == key}
        if not failed or left[0] <= 0:
            return Sent()
        left[0] -= 1
        return Sent(failed)

    return answer


def test_many_small_batches_all_arrive(store: Store) -> None:
    with begun(store, lambda _: Sent()) as (publisher, _):
        for end in range(200, 3200):
            publisher.publish(batch(end, b"[%d]" % end))
        assert publisher.drain(30)
        assert len(store.arrived) == 3000
        assert publisher.standing.position == Lsn(3199)


def test_an_event_is_a_dead_letter_after_so_many_attempts(store: Store) -> None:
    ends = count(400, 100)
    with begun(store, failing("flaky", b"[1]")) as (publisher, _):
        publisher.publish(batch(200, b"[1]", b"[2]"))
        publisher.publish(batch(300, b"[1]", b"[3]"))
        while not publisher.drain(0.01):  # others bear out that it is the record's fault
            publisher.publish(batch(next(ends), b"[2]"))
        assert sorted((name[2], name[3]) for name in store.arrived)[:2] == [(199, b"1 c"), (299, b"1 c")]
    file = LetterFile(store.letters)
    found = [(each.tx, each.code, each.reason, each.attempts) for each in file.letters("true ORDER BY batch")]
    file.close()
    assert found[0] == (199, "flaky", "said so", RETRY.max_attempts)
    assert found[1][:2] == (299, "behind")


def test_what_a_part_of_the_target_in_trouble_refuses_is_tried_without_end(store: Store) -> None:
    """Others are taken by another part all the time, and by the same one until it fails."""
    calls = [0]

    def answer(of: Events) -> Sent:
        places = np.array([key[1] % 2 for key in of.key.to_pylist()])
        calls[0] += 1
        is_down = 1 < calls[0] < 20 * RETRY.max_attempts
        failed = [row for row in np.flatnonzero(places == 1).tolist() if is_down]
        return Sent(dict.fromkeys(failed, ("flaky", "said so")), places=places)

    with begun(store, answer) as (publisher, _):
        publisher.publish(batch(200, b"[1]", b"[2]"))
        assert publisher.drain(30)
        for number in range(3, 1000):
            if calls[0] >= 20 * RETRY.max_attempts:
                break
            publisher.publish(batch(100 * number, b"[1]", b"[2]", b"[3]"))
            taken = calls[0]
            wait_until(lambda taken=taken: calls[0] > taken, "a call")  # type: ignore[misc]
        assert publisher.drain(30)
        assert len(store.arrived) == 2 + 3 * (number - 3)
        assert not store.dead()


def test_a_target_that_refuses_every_record_is_tried_without_end(store: Store) -> None:
    left = [20 * RETRY.max_attempts]

    def answer(of: Events) -> Sent:
        left[0] -= 1
        return Sent(dict.fromkeys(range(len(of)), ("flaky", "said so"))) if left[0] > 0 else Sent()

    with begun(store, answer) as (publisher, _):
        publisher.publish(batch(200, b"[1]", b"[2]", b"[3]"))
        assert publisher.drain(30)
        assert len(store.arrived) == 3
        assert not store.dead()


def test_a_throttled_record_is_tried_without_end(store: Store) -> None:
    with begun(store, failing("slow", b"[1]", times=20 * RETRY.max_attempts)) as (publisher, _):
        publisher.publish(batch(200, b"[1]", b"[2]", b"[1]"))
        assert publisher.drain(30)
        assert [name[3] for name in store.arrived] == [b"1 c", b"0 c", b"2 c"]
        assert not store.dead()


def test_keepalives_behind_a_record_that_is_held_take_no_room(store: Store) -> None:
    is_held = [True]

    def answer(of: Events) -> Sent:
        return Sent(dict.fromkeys(range(len(of)), ("slow", "said so")) if is_held[0] else {})

    with begun(store, answer, QueueLimits(20)) as (publisher, _):
        publisher.publish(batch(200, b"[1]"))
        for end in range(201, 1200):
            publisher.publish(batch(end))
        wait_until(lambda: publisher._queue.count == 1, "only the record is under way")
        assert len(publisher._flow._spans) == len(publisher._flow._tracker._ends) == 1
        assert publisher.standing.position == START.position
        is_held[0] = False
        assert publisher.drain(30)
        assert publisher.standing.position == Lsn(1199)


@pytest.mark.parametrize("ahead", [AheadLimits(events=50), AheadLimits(batches=50)], ids=str)
def test_a_record_that_is_held_for_long_lets_so_many_pass_it_and_no_more(
    store: Store, ahead: AheadLimits
) -> None:
    """Nothing grows then: the queue fills up, the lane waits, and goes on when the record goes through."""
    is_held = [True]

    def answer(of: Events) -> Sent:
        rows = [row for row, key in enumerate(of.key.to_pylist()) if key == b"[1]" and is_held[0]]
        return Sent(dict.fromkeys(rows, ("slow", "said so")))

    batches, taken = 400, [0]
    with begun(store, answer, QueueLimits(20), ahead) as (publisher, _):

        def publish() -> None:
            for number in range(batches):
                keys = [] if number % 2 == 0 and number else [b"[%d]" % (number or 1)]
                publisher.publish(batch(200 + number, *keys))
                taken[0] += 1

        lane = threading.Thread(target=publish, daemon=True)
        lane.start()
        wait_until(lambda: (publisher.trouble or Trouble("", 0.0)).is_full, "as many are past it as may")
        wait_until(lambda: publisher._queue.count == 20 or taken[0] == batches, "the queue is full")
        flow = publisher._flow
        assert flow._tracker.next_id - flow._tracker.open_id <= 51
        assert len(flow._spans) <= 51
        assert len(flow._tracker._ends) <= 51
        assert taken[0] < batches
        assert publisher.standing.position == START.position
        trouble = publisher.trouble
        assert trouble is not None
        assert (trouble.said, trouble.stream) == ("slow", str(STREAMS[0]))
        is_held[0] = False
        lane.join(60)
        assert publisher.drain(30)
        assert publisher.trouble is None
        assert publisher.standing.position == Lsn(200 + batches - 1)
        assert len(store.arrived) == 1 + batches // 2
        assert not store.dead()


def test_letters_that_are_replayed_and_not_taken_hold_the_lane_in_bounds(store: Store) -> None:
    """Nothing is noted meanwhile, so that all that was sent would have to be read back."""
    fates = {b"[1]": "poison"}

    def answer(of: Events) -> Sent:
        keys = enumerate(of.key.to_pylist())
        return Sent({row: (fates[key], "said so") for row, key in keys if key in fates})

    batches, taken = 400, [0]
    with begun(store, answer, QueueLimits(20), AheadLimits(events=50)) as (publisher, _):
        publisher.publish(batch(200, b"[1]"))
        assert publisher.drain(30)
        fates[b"[1]"] = "slow"
        file = LetterFile(store.letters)
        letter_requests.ask(file, "replay")
        file.close()
        wait_until(lambda: publisher.trouble is not None, "the letter to be tried")

        def publish() -> None:
            for number in range(batches):
                publisher.publish(batch(201 + number, b"[%d]" % (2 + number)))
                taken[0] += 1

        lane = threading.Thread(target=publish, daemon=True)
        lane.start()
        wait_until(lambda: publisher._queue.count == 20, "the queue is full")
        wait_until(lambda: len(store.arrived) == 50, "as many as may have gone past it")
        trouble = publisher.trouble
        assert trouble is not None
        assert (trouble.said, trouble.stream, trouble.is_full) == ("slow", str(STREAMS[0]), True)
        assert publisher.standing.position == Lsn(200)
        fates.clear()
        lane.join(60)
        assert publisher.drain(30)
        assert publisher.trouble is None
        assert len(store.arrived) == 1 + batches
        assert not store.dead()


def test_what_had_no_answer_is_read_back_and_only_what_is_missing_sent(store: Store) -> None:
    lost = iter([Sent({1: ("", "")}, frozenset({1, 2}))])
    with begun(store, lambda _: next(lost, Sent())) as (publisher, target):
        publisher.publish(batch(200, b"[1]", b"[2]", b"[3]"))
        assert publisher.drain(30)
        assert target.looked == 1
        assert [name[3] for name in store.arrived] == [b"0 c", b"2 c", b"1 c"]


def test_the_frontier_stays_before_what_is_under_way(store: Store) -> None:
    gate, entered = threading.Event(), threading.Event()

    def answer(of: Events) -> Sent:
        if of.tx[0] == 199:
            entered.set()
            gate.wait(120)
        return Sent()

    with begun(store, answer) as (publisher, _):
        publisher.publish(batch(200, b"[1]"))
        assert entered.wait(120)
        publisher.publish(batch(300, b"[2]"))
        wait_until(lambda: len(store.arrived) == 1, "the second has arrived")
        assert not publisher.drain(0.05)
        assert publisher.standing.position == START.position
        gate.set()
        assert publisher.drain(30)
        assert publisher.standing.position == Lsn(300)


def test_a_later_leader_ends_the_term(store: Store) -> None:
    def answer(_: Events) -> Sent:
        raise StaleTermError("A later leader writes.")

    with begun(store, answer) as (publisher, _):
        publisher.publish(batch(200, b"[1]"))
        with pytest.raises(StaleTermError):
            publisher.drain(30)
        with pytest.raises(StaleTermError):
            publisher.publish(batch(300, b"[1]"))


def test_a_keepalive_moves_the_position(store: Store) -> None:
    with begun(store, lambda _: Sent()) as (publisher, _):
        publisher.publish(batch(200))
        wait_until(lambda: publisher.standing.position == Lsn(200), "the keepalive is noted")


def test_what_was_refused_while_the_target_took_nothing_does_not_count(store: Store) -> None:
    """A target that comes back bit by bit refuses some of them once more."""
    calls = [0]

    def answer(of: Events) -> Sent:
        calls[0] += 1
        away = 5 * RETRY.max_attempts - calls[0]
        refused = range(0 if away > 0 else 1 if away == 0 else len(of), len(of))
        return Sent(dict.fromkeys(refused, ("flaky", "said so")))

    with begun(store, answer) as (publisher, _):
        publisher.publish(batch(200, b"[1]", b"[2]", b"[3]"))
        assert publisher.drain(30)
        assert len(store.arrived) == 3
        assert not store.dead()


def test_a_target_that_takes_more_calls_at_once_than_before_gets_them(store: Store) -> None:
    """As when a shard is split."""
    together = threading.Barrier(3)

    def answer(_: Events) -> Sent:
        together.wait(60)
        return Sent()

    with begun(store, answer, calls=1) as (publisher, target):
        assert target.limits.records == 4
        target.limits = replace(target.limits, calls=3)
        publisher.publish(batch(200, *(b"[%d]" % key for key in range(12))))
        assert publisher.drain(90)


class _Unproved(MemoryRecordTarget):
    def open(self, term: Term) -> Standing | None:
        self.unproven = {"late": int(term.epoch)}
        if term.epoch > Lsn(2):
            raise UnprovenError("What is there cannot be proved.")
        return super().open(term)


def test_what_cannot_be_proved_stays_counted_whatever_becomes_of_the_term(store: Store) -> None:
    counted = []
    measures = StreamMeasures("unproved")
    with DeadLetters(store.letters, "unproved") as letters:
        for epoch in (1, 2, 3):
            target = _Unproved(store, random.Random(0), 0.0, 0.0)
            publisher = RecordPublisher(target, letters, CLASSES.classify, RETRY)
            with suppress(UnprovenError):
                publisher.open(term(epoch))
            counted += [value for name, _, value in measures.samples() if name == STREAM_UNPROVEN.name]
    assert counted == [1, 1 + 2, 1 + 2 + 3]

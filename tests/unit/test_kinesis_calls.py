"""How much goes into one call of Kinesis, by the service's limits, and how many go to a shard at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.position import Lsn
from penstock.streams.dead_letters import DeadLetterPolicy, DeadLetters
from penstock.streams.events import CREATE, Batch, Events
from penstock.streams.kinesis.errors import NOT_SENT, TOO_LARGE, classify
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shard_room import ShardRoom
from penstock.streams.kinesis.target import KinesisTarget
from penstock.streams.record_publisher import RecordPublisher
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import RecordLimits
from tests.conftest import wait_until
from tests.kinesis_service import Service
from tests.publishing import START, STREAMS, events, term

pytestmark = pytest.mark.unit
_MIB = 1 << 20
#: Of PutRecords, as AWS documents them.
_RECORDS_MAX, _BYTES_MAX, _RECORD_BYTES_MAX = 500, 5 * _MIB, _MIB
#: For what was lost to arrive: here it has.
_WAIT_S = 0.7


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr("penstock.streams.kinesis.target.KinesisClient", made)
    return made


def opened(directory: Path, **settings: Any) -> KinesisTarget:
    target = KinesisTarget(KinesisSettings("shop", "eu-west-1", **settings), directory)
    target.open(term(1))
    return target


@pytest.fixture
def target(service: Service, tmp_path: Path) -> Iterator[KinesisTarget]:
    with closing(opened(tmp_path)) as target:
        yield target


def of_sizes(target: KinesisTarget, sizes: Sequence[int]) -> Events:
    """Events that are records of so many bytes."""

    def made(paddings: Sequence[int]) -> Events:
        rows = [
            (op, CREATE, b"[%04d]" % op, b'{"a":"%s"}' % (b"x" * padding))
            for op, padding in enumerate(paddings)
        ]
        return events(STREAMS[0], 1000, rows)

    bare = target.sizes(made([0] * len(sizes))).tolist()
    found = made([size - least for size, least in zip(sizes, bare, strict=True)])
    assert target.sizes(found).tolist() == list(sizes)
    return found


def test_the_limits_of_a_call_are_the_services_own(target: KinesisTarget) -> None:
    assert target.limits == RecordLimits(_RECORDS_MAX, _BYTES_MAX, _RECORD_BYTES_MAX, calls=4)


def test_a_call_has_500_records_at_most(target: KinesisTarget, service: Service) -> None:
    sent = target.send(of_sizes(target, [1000] * 1001), 1000)
    assert not sent.failed
    assert [len(call) for call in service.calls] == [500, 500, 1]


@pytest.mark.parametrize(("last", "calls"), [(_MIB, [5]), (_MIB - 1, [5]), (_MIB, [5, 1])])
def test_a_call_has_5_mib_at_most(
    target: KinesisTarget, service: Service, last: int, calls: list[int]
) -> None:
    more = [400] * (sum(calls) - 5)
    sent = target.send(of_sizes(target, [_MIB, _MIB, _MIB, _MIB, last, *more]), 0)
    assert not sent.failed
    assert [len(call) for call in service.calls] == calls
    assert max(map(sum, service.calls)) <= _BYTES_MAX


def test_a_record_has_1_mib_at_most_with_its_key(target: KinesisTarget, service: Service) -> None:
    sent = target.send(of_sizes(target, [_MIB, _MIB + 1, 400]), 0)
    assert {row: code for row, (code, _) in sent.failed.items()} == {1: TOO_LARGE}
    assert service.calls == [[_MIB, 400]]


def test_calls_of_aggregates_have_5_mib_at_most(service: Service, tmp_path: Path) -> None:
    with closing(opened(tmp_path, aggregation=True)) as target:
        target.send(of_sizes(target, [40_000] * 200), 0)
    assert len(service.calls) == 2
    assert _BYTES_MAX - 51_200 < sum(service.calls[0]) <= _BYTES_MAX


def test_what_had_an_answer_is_not_unknown_when_a_later_call_has_none(
    target: KinesisTarget, service: Service
) -> None:
    service.lost = frozenset({2})
    sent = target.send(of_sizes(target, [1000] * 1001), 1000)
    assert sent.unknown == frozenset(range(500, 1000))
    assert {row: code for row, (code, _) in sent.failed.items()} == {1000: NOT_SENT}


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_each_event_is_there_once_whichever_answer_of_a_halved_call_is_lost(
    service: Service, tmp_path: Path, lost: int
) -> None:
    service.invalid, service.lost = "[6]", frozenset({lost})
    rows = [(op, CREATE, b"[%d]" % op, b'{"a":1}') for op in range(8)]
    with DeadLetters(tmp_path / "letters.sqlite", "kinesis", DeadLetterPolicy(max_share=1.0)) as letters:
        target = KinesisTarget(KinesisSettings("shop", "eu-west-1", take_over_wait_s=_WAIT_S), tmp_path)
        publisher = RecordPublisher(
            target, letters, classify, RetryPolicy(10, 0.001, 0.01), note_every_s=0.01
        )
        publisher.open(term(1))
        publisher.begin(START)
        publisher.publish(Batch(Lsn(2000), [events(STREAMS[0], 1000, rows)]))
        assert publisher.drain(30)
        publisher.close()
        assert letters.counts == {(str(STREAMS[0]), "ValidationException"): 1}
    told = [json.loads(content)["penstock"]["id"] for content in service.contents]
    assert sorted(told) == [f"1000_{op}" for op in range(8) if op != 6]


def test_a_shard_has_so_many_calls_under_way_at_once_and_no_more(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    under_way = most = 0
    held = set[int]()
    has_room = ShardRoom._has_room

    def watched(self: ShardRoom, shards: Sequence[str]) -> bool:
        there_is = has_room(self, shards)
        if not there_is:
            held.add(threading.get_ident())
        return there_is

    def taking() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        wait_until(lambda: len(held) == 3 or most > 2, "the others to wait for room")
        with lock:
            under_way -= 1

    monkeypatch.setattr(ShardRoom, "_has_room", watched)
    service.taking = taking
    with closing(opened(tmp_path, per_shard_in_flight=2)) as target, ThreadPoolExecutor(5) as pool:
        assert target.limits.calls == 2
        parts = of_sizes(target, [400] * 5)
        sent = [pool.submit(target.send, parts.slice(row, row + 1), row) for row in range(5)]
        assert not any(each.result().failed for each in sent)
    assert (most, len(service.calls)) == (2, 5)

"""How much goes into one call of Kinesis, by the service's limits, and how many go to a shard at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.streams.events import CREATE, Events
from penstock.streams.kinesis.errors import TOO_LARGE
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shard_room import ShardRoom
from penstock.streams.kinesis.target import KinesisTarget
from penstock.streams.target import RecordLimits
from tests.conftest import wait_until
from tests.kinesis_service import Service
from tests.publishing import STREAMS, events, term

pytestmark = pytest.mark.unit
_MIB = 1 << 20
#: Of PutRecords, as AWS documents them.
_RECORDS_MAX, _BYTES_MAX, _RECORD_BYTES_MAX = 500, 5 * _MIB, _MIB


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

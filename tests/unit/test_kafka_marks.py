"""What the positions topic says: after any crash between buckets' commits, nothing is left out or doubled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import DestinationError
from penstock.core.position import Lsn
from penstock.streams.events import Events
from penstock.streams.kafka.group import Group
from penstock.streams.kafka.marks import (
    TERM,
    WHOLE,
    Held,
    Mark,
    bucket_key,
    load_key,
    load_record,
    loading,
    partitions_key,
    partitions_record,
    read_records,
    term_record,
)
from penstock.streams.kafka.producer import Failure
from penstock.streams.kafka.target import KafkaTarget
from tests.kafka_writer import changes, number_at, position, standing

pytestmark = pytest.mark.unit

_BUCKETS = 3
_Records = list[tuple[bytes | None, bytes | None]]


def test_nothing_is_held_before_the_first_term() -> None:
    assert read_records([]) == Held()
    assert Held().standing() is None


def test_the_last_record_of_each_key_holds() -> None:
    records: _Records = [
        (TERM, term_record(Lsn(5), "system", 1)),
        (WHOLE, Mark(1, standing(1, 5)).to_bytes()),
        (partitions_key("a"), partitions_record(3)),
        (load_key("s"), load_record({"next": 1})),
        (load_key("gone"), load_record({"next": 1})),
        (WHOLE, Mark(2, standing(4, 5, loads={"s": {"next": 2}}, batches=9)).to_bytes()),
        (load_key("s"), load_record({"next": 2})),
        (load_key("gone"), load_record(None)),
    ]
    held = read_records(records)
    assert (held.epoch, held.buckets, held.partitions, held.last_commit) == (Lsn(5), 1, {"a": 3}, 2)
    assert held.standing() == standing(4, 5, loads={"s": {"next": 2}}, batches=9)
    assert held.ahead() == {}


def test_marks_that_have_all_of_the_loads_are_read_as_they_were_written() -> None:
    loads = {"public.t": {"behind": True, "point": "0/64"}}
    before = json.loads(Mark(2, standing(4, 5)).to_bytes())
    before["format"], before["standing"]["loads"] = 1, loads
    records: _Records = [(TERM, term_record(Lsn(5), "system", 1)), (WHOLE, json.dumps(before).encode())]
    held = read_records(records)
    assert held.standing() == standing(4, 5, loads=loads)
    assert held.loads == {}, "they are yet to be written"
    before["format"] = 3
    with pytest.raises(DestinationError, match="another version"):
        read_records([(WHOLE, json.dumps(before).encode())])


def test_dead_letters_that_a_bucket_has_passed_are_known_before_all_buckets_are_there() -> None:
    records: _Records = [
        (TERM, term_record(Lsn(1), "system", 2)),
        (WHOLE, Mark(1, standing(0, 1, letters="")).to_bytes()),
        (bucket_key(1), Mark(2, standing(9, 1, letters="file", batches=3)).to_bytes()),
    ]
    assert read_records(records).standing() == standing(0, 1, letters="file")


def test_a_later_whole_commit_overrules_what_buckets_said_before() -> None:
    records: _Records = [
        (TERM, term_record(Lsn(1), "system", 2)),
        (WHOLE, Mark(1, standing(0, 1)).to_bytes()),
        *((bucket_key(bucket), Mark(2, standing(9, 1)).to_bytes()) for bucket in range(2)),
        (WHOLE, Mark(3, standing(5, 1)).to_bytes()),
    ]
    held = read_records(records)
    assert held.standing() == standing(5, 1)
    assert held.ahead() == {}


class _Kafka:
    """What committed transactions have left: positions, and the numbers of changes that are there."""

    def __init__(self) -> None:
        self.records: _Records = [(TERM, term_record(Lsn(1), "system", _BUCKETS))]
        self.numbers: list[int] = []

    def commit(self, key: bytes, mark: Mark, parts: list[Events]) -> None:
        self.records.append((key, mark.to_bytes()))
        self.numbers += [int(value.as_py()) for events in parts for value in events.value]


def _one_commit(kafka: _Kafka, size: int, is_whole: bool, survivors: set[int]) -> None:
    """As the target does it after it was opened; only the survivors' transactions are committed."""
    held = read_records(kafka.records)
    last, ahead = held.standing(), held.ahead()
    assert last is not None
    first = number_at(last.position) + 1
    events = changes(range(first, first + size), "t")
    after, number = standing(first + size - 1, 1), held.last_commit + 1
    group = Group(_BUCKETS, last.position, ahead)
    if is_whole:
        group.gather()
    sent: dict[int, list[Events]] = {}
    for bucket, rows in group.shares(events):
        sent.setdefault(bucket, []).append(events if rows is None else events.take(rows))
    if is_whole:
        left = {bucket: to for bucket, to in ahead.items() if to > after.position}
        if 0 in survivors:
            kafka.commit(WHOLE, Mark(number, after, left), sent.get(0, []))
        return
    for bucket in survivors:
        own = replace(after, position=max(after.position, ahead.get(bucket, Lsn(0))))
        kafka.commit(bucket_key(bucket), Mark(number, own), sent.get(bucket, []))


_COMMITS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.booleans(),
        st.sets(st.integers(0, _BUCKETS - 1)) | st.just(set(range(_BUCKETS))),
    ),
    max_size=8,
)


@given(_COMMITS)
def test_each_change_is_there_once_whichever_buckets_were_committed(
    commits: list[tuple[int, bool, set[int]]],
) -> None:
    kafka = _Kafka()
    kafka.commit(WHOLE, Mark(1, standing(0, 1)), [])
    for size, is_whole, survivors in commits:
        _one_commit(kafka, size, is_whole, survivors)
    while read_records(kafka.records).ahead():
        _one_commit(kafka, 3, False, set(range(_BUCKETS)))
    last = read_records(kafka.records).standing()
    assert last is not None
    assert sorted(kafka.numbers) == list(range(1, number_at(last.position) + 1))


def test_loaded_rows_and_old_changes_are_no_part_of_a_divided_commit() -> None:
    group = Group(_BUCKETS, position(5))
    assert group.is_of_tail(changes([6, 7], "t"))
    assert not group.is_of_tail(changes([5, 6], "t"))
    assert not group.is_of_tail(changes([6], "t", chunk="c"))
    assert not Group(_BUCKETS).is_divided


def test_streams_that_loaded_are_not_taken_for_sent_by_a_bucket_that_is_ahead() -> None:
    loads = {"public.t": {"behind": True}}
    records: _Records = [
        (TERM, term_record(Lsn(1), "system", 2)),
        (load_key("public.t"), load_record(loads["public.t"])),
        (WHOLE, Mark(1, standing(0, 1, loads=loads)).to_bytes()),
        (bucket_key(1), Mark(2, standing(9, 1, loads=loads)).to_bytes()),
        (WHOLE, Mark(3, standing(5, 1), {1: position(9)}, loading(loads)).to_bytes()),
    ]
    before, after = read_records(records[:4]), read_records(records)
    assert before.ahead() == after.ahead() == {1: position(9)}
    assert before.apart() == after.apart() == {"public.t"}
    group = Group(2, position(5), after.ahead(), after.apart())
    assert not group.is_of_tail(changes([7], "t"))


def test_refused_records_are_found_by_what_was_sent() -> None:
    group = Group(1)
    group.add(changes([1, 2, 3], "a"))
    group.add(changes([2], "b"))
    found = group.find([Failure("a", b"[2]", b"2", "X"), Failure("a", b"[3]", b"other", "X")])
    assert [(suspect.part, suspect.row, suspect.code) for suspect in found] == [(0, 1, "X")]


def test_what_arrived_is_no_longer_kept_when_it_is_much() -> None:
    group = Group(1)
    many = changes(range(8), "t", [b" " * (10 << 20)] * 8)
    group.add(many)
    before = group.is_full, group.is_complete
    group.forget_arrived()
    assert before == (True, True)
    assert (group.is_full, group.is_complete) == (False, False)
    assert group.add(changes([9], "t")) == 1


def test_every_row_has_one_bucket() -> None:
    events = changes(range(1, 100), "t")
    shares: Mapping[int, np.ndarray] = {
        bucket: rows for bucket, rows in Group(_BUCKETS, position(0)).shares(events) if rows is not None
    }
    assert sorted(np.concatenate(list(shares.values())).tolist()) == list(range(99))
    assert len(shares) == _BUCKETS


class _Producer:
    """Takes records; what is committed goes to `kafka`."""

    def __init__(self, kafka: list[bytes]) -> None:
        self._kafka = kafka
        self._under_way: list[bytes] = []
        self.records: _Records = []
        self._put: _Records = []

    def send(self, events: Events, _places: Sequence[int]) -> list[tuple[int, str]]:
        self._under_way += [value.as_py().strip() for value in events.value]
        return []

    def put(self, _: str, key: bytes, value: bytes) -> None:
        self._put.append((key, value))

    def commit(self) -> None:
        self._kafka += self._under_way
        self.records += self._put
        self.abort()

    def abort(self) -> None:
        self._under_way, self._put = [], []


class _Writers(list[_Producer]):
    positions = "positions"
    committed = 0

    def flush(self) -> None: ...

    def abort(self) -> None:
        for producer in self:
            producer.abort()


def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaTarget, _Writers, list[bytes]]:
    kafka: list[bytes] = []
    writers = _Writers(_Producer(kafka) for _ in range(_BUCKETS))
    target = KafkaTarget(KafkaLaneConfig(bootstrap="localhost:1", buckets=_BUCKETS))
    monkeypatch.setattr(target, "_open_writers", writers)
    monkeypatch.setattr(target._topics, "partitions", lambda _: 3)
    return target, writers, kafka


def test_a_commit_says_what_has_changed_of_loads_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams there are: no record grows with them, and most commits have none of theirs."""
    target, writers, _ = opened(monkeypatch)
    loads: dict[str, Any] = {f"public.t{number:05}": {"since": "0/64"} for number in range(20_000)}
    target.commit(standing(0, 1, loads=loads))
    records = writers[0].records
    assert len(records) == 1 + 20_000
    for number in (1, 2):
        target.write(changes([number], "t"))
        target.commit(standing(number, 1, loads=loads))
    assert [key for key, _ in records[20_001:]] == [bucket_key(0)] * 2, "divided commits"
    changed = {**loads, "public.t00007": {"behind": True}}
    del changed["public.t00008"]
    target.commit(standing(3, 1, loads=changed))
    assert {key for key, _ in records[20_003:]} == {
        WHOLE,
        load_key("public.t00007"),
        load_key("public.t00008"),
    }
    assert max(len(value or b"") for _, value in records) < 1_000
    held = read_records([(TERM, term_record(Lsn(1), "system", _BUCKETS)), *records])
    assert held.standing() == standing(3, 1, loads=changed)


def test_what_is_too_large_to_be_kept_may_end_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as with a stream that stands still from there on, which only a whole commit says."""
    monkeypatch.setattr("penstock.streams.kafka.group.KEPT_BYTES_MAX", 1000)
    target, _, kafka = opened(monkeypatch)
    target.commit(standing(0, 1))
    for first in range(1, 100, 10):
        numbers = range(first, first + 10)
        target.write(changes(numbers, "t", [b"%d" % each + b" " * 100 for each in numbers]))
    target.commit(standing(100, 1, loads={"public.t": {"point": "0/1"}}))
    assert sorted(map(int, kafka)) == list(range(1, 101))

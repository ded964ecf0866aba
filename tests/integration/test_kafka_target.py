"""Kafka: each event exactly once, whatever dies, comes back late or is lost on the way."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import ConfigError, DestinationError, StaleTermError, TargetError
from penstock.streams.events import CREATE, DELETE, TOMBSTONE, Events
from penstock.streams.kafka.check import check
from penstock.streams.kafka.producer import LostError, TransactionalProducer
from penstock.streams.kafka.target import KafkaTarget
from penstock.streams.publisher import StoppedError
from penstock.streams.target import RefusedEventsError
from tests.conftest import wait_until
from tests.failure_plan import Fault, Plan
from tests.failure_proxy import FailureProxy
from tests.kafka_server import PASSWORD, STRANGER, USER, KafkaServer
from tests.kafka_writer import STALE, STREAM, changes, standing, term, write_on

pytestmark = pytest.mark.integration


class Lane:
    """A lane of one test: its name, its topic, and targets for it, closed at the end."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka = kafka
        self.identity = f"lane-{secrets.token_hex(4)}"
        self.topic = f"{self.identity}.public.t"
        self._targets: list[KafkaTarget] = []

    def config(self, **settings: Any) -> dict[str, Any]:
        return {"bootstrap": self.kafka.bootstrap, "partitions": 3, **settings}

    def target(self, **settings: Any) -> KafkaTarget:
        self._targets.append(KafkaTarget(KafkaLaneConfig.model_validate(self.config(**settings))))
        return self._targets[-1]

    def begun(self, epoch: int = 1, **settings: Any) -> KafkaTarget:
        """Open, with a standing to go on from."""
        target = self.target(**settings)
        if target.open(term(self.identity, epoch)) is None:
            target.commit(standing(0, epoch))
        return target

    def shut_out(self) -> None:
        """As somebody does who uses the same id."""
        told = {"bootstrap.servers": self.kafka.bootstrap, "log_level": 0}
        Producer(told | {"transactional.id": f"{self.identity}.kafka.0"}).init_transactions(30)

    def process(
        self, epoch: int, until: int, environment: dict[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        told = {
            "config": self.config(**settings),
            "identity": self.identity,
            "epoch": epoch,
            "until": until,
            "route": self.topic,
        }
        command = [sys.executable, "-m", "tests.kafka_writer", json.dumps(told)]
        return subprocess.Popen(command, env={**os.environ, **(environment or {})})

    def assert_told(self, until: int) -> None:
        """Each change once, those of a key in their order and in one partition."""
        records = self.kafka.read(self.topic)
        numbers = sorted(int(record.value or b"-1") for record in records)
        assert numbers == list(range(1, until + 1))
        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        for record in records:
            by_key[record.key].append(int(record.value or b"-1"))
        assert all(told == sorted(told) for told in by_key.values())
        assert len({(record.key, record.partition) for record in records}) == len(by_key)

    def close(self) -> None:
        for target in self._targets:
            target.close()


@pytest.fixture
def lane(kafka: KafkaServer) -> Iterator[Lane]:
    made = Lane(kafka)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("failpoint", "buckets"),
    [
        ("streams.kafka_committed=kill@3", 1),
        ("streams.kafka_committed=kill@3", 3),
        pytest.param("streams.kafka_sent=kill@3", 1, marks=pytest.mark.slow),
        pytest.param("streams.kafka_sent=kill@3", 3, marks=pytest.mark.slow),
        pytest.param("streams.kafka_committed=kill@5", 3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_writer_leaves_each_change_once(
    lane: Lane, tmp_path: Path, failpoint: str, buckets: int
) -> None:
    report = tmp_path / "struck"
    environment = {"PENSTOCK_FAILPOINT": failpoint, "PENSTOCK_FAILPOINT_REPORT": str(report)}
    killed = lane.process(1, 40, environment, buckets=buckets)
    assert killed.wait(60) == -signal.SIGKILL
    assert report.read_text() == f"{failpoint.partition('@')[0]}\n"
    target = lane.target(buckets=buckets)
    held = target.open(term(lane.identity, 2))
    assert held is not None
    write_on(target, held, 2, 40, lane.topic, 5)
    lane.assert_told(40)


def test_what_was_not_committed_is_seen_by_nobody(lane: Lane) -> None:
    target = lane.begun()
    target.write(changes(range(1, 6), lane.topic))
    target.abort()
    target.write(changes(range(1, 3), lane.topic))
    target.commit(standing(2, 1))
    lane.assert_told(2)


def test_the_standing_comes_back_as_it_was_committed(lane: Lane) -> None:
    assert lane.target().open(term(lane.identity, 1)) is None
    target = lane.begun(2)
    told = standing(3, 2, loads={"public.t": {"next": 4}}, batches=7, replays=1)
    target.write(changes(range(1, 4), lane.topic))
    target.commit(told)
    assert lane.target().open(term(lane.identity, 3)) == told


def test_a_stopped_leader_that_wakes_up_writes_nothing_more(lane: Lane, tmp_path: Path) -> None:
    report, gate = tmp_path / "struck", tmp_path / "gate"
    environment = {
        "PENSTOCK_FAILPOINT": "streams.kafka_sent=pause@3",
        "PENSTOCK_FAILPOINT_REPORT": str(report),
        "PENSTOCK_FAILPOINT_GATE": str(gate),
    }
    stopped = lane.process(1, 40, environment)
    try:
        wait_until(report.exists, "the first leader to be about to commit")
        stopped.send_signal(signal.SIGSTOP)
        target = lane.target()
        held = target.open(term(lane.identity, 2))
        write_on(target, held, 2, 20, lane.topic, 5)
        gate.touch()
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(60) == STALE
        write_on(target, standing(20, 2), 2, 40, lane.topic, 5)
    finally:
        stopped.kill()
        stopped.wait()
    lane.assert_told(40)


def test_an_earlier_term_that_opens_late_ends_without_shutting_out_the_later(lane: Lane) -> None:
    later = lane.begun(2)
    with pytest.raises(StaleTermError, match="later leader"):
        lane.target().open(term(lane.identity, 1))
    write_on(later, standing(0, 2), 2, 10, lane.topic, 5)
    lane.assert_told(10)


def test_another_server_has_epochs_of_its_own(lane: Lane) -> None:
    lane.begun(5)
    target = lane.target()
    assert target.open(replace(term(lane.identity, 1), system_id="another")) is not None
    target.commit(replace(standing(0, 1), system_id="another"))


def test_the_same_term_shut_out_by_accident_goes_on(lane: Lane) -> None:
    """Such as by somebody who used the same id, or after the broker had given up its transaction."""
    target = lane.begun()
    target.write(changes(range(1, 6), lane.topic))
    lane.shut_out()
    with pytest.raises(TargetError):
        target.commit(standing(5, 1))
    write_on(target, standing(0, 1), 1, 10, lane.topic, 5)
    lane.assert_told(10)


def test_a_producer_that_is_shut_out_while_it_sends_is_replaced(lane: Lane) -> None:
    """The client tells of it wherever it is asked next: while records are handed over, too."""
    target = lane.begun()
    target.write(changes(range(1, 6), lane.topic))
    lane.shut_out()

    def is_noticed() -> bool:
        try:
            target.write(changes(range(6, 11), lane.topic))
        except TargetError:
            return True
        return False

    wait_until(is_noticed, "the producer to be shut out")
    write_on(target, standing(0, 1), 1, 10, lane.topic, 5)
    lane.assert_told(10)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_broker_that_comes_back_in_the_middle_of_a_transaction(lane: Lane, end: str) -> None:
    target = lane.begun()
    target.write(changes(range(1, 6), lane.topic))
    if end == "restart":
        lane.kafka.restart()
    else:
        lane.kafka.kill()
        lane.kafka.start()
    try:
        target.write(changes(range(6, 11), lane.topic))
        target.commit(standing(10, 1))
        first = 10
    except TargetError:
        first = 0
    write_on(target, standing(first, 1), 1, 30, lane.topic, 5)
    lane.assert_told(30)


@pytest.mark.parametrize("operation", ["EndTxn", "Produce", "AddPartitionsToTxn"])
def test_a_lost_answer_neither_loses_nor_doubles(lane: Lane, operation: str) -> None:
    """The third one of a kind is applied, and nobody is told."""
    plan = Plan(exactly={(operation, ordinal): Fault("lost") for ordinal in (3, 4)})
    with FailureProxy(behind=lane.kafka.behind, plan=plan, port=lane.kafka.proxied) as proxy:
        target = lane.begun(bootstrap=proxy.address)
        write_on(target, standing(0, 1), 1, 30, lane.topic, 5)
        target.close()
    assert plan.struck
    lane.assert_told(30)


def test_a_commit_whose_producer_is_lost_is_found_out(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: what has happened is not sent again, and what has not is."""
    target = lane.begun()
    real = TransactionalProducer.commit

    def loses_answer(of: TransactionalProducer) -> None:
        real(of)
        raise LostError("_TIMED_OUT")

    def loses_question(of: TransactionalProducer) -> None:
        raise LostError("_TIMED_OUT")

    target.write(changes(range(1, 6), lane.topic))
    monkeypatch.setattr(TransactionalProducer, "commit", loses_answer)
    target.commit(standing(5, 1))
    target.write(changes(range(6, 11), lane.topic))
    monkeypatch.setattr(TransactionalProducer, "commit", loses_question)
    with pytest.raises(TargetError):
        target.commit(standing(10, 1))
    monkeypatch.setattr(TransactionalProducer, "commit", real)
    write_on(target, standing(5, 1), 1, 15, lane.topic, 5)
    lane.assert_told(15)


def test_a_bucket_that_was_committed_is_not_taken_for_its_next_try(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two buckets the second fails; then, with more to send, the first one's question is lost."""
    target = lane.begun(buckets=2)
    real, fates = TransactionalProducer.commit, ["kept", "lost", "lost", "kept"]

    def commit(of: TransactionalProducer) -> None:
        if fates and fates.pop(0) == "lost":
            raise LostError("_TIMED_OUT")
        real(of)

    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    for last in (10, 20, 20):
        target.write(changes(range(1, last + 1), lane.topic))
        with contextlib.suppress(TargetError):
            target.commit(standing(last, 1))
            break
    assert not fates
    lane.assert_told(20)


def test_a_bucket_whose_answer_is_lost_is_found_out_whatever_the_others_have_under_way(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of all buckets lie in one topic, whose readers see nothing behind a transaction that is open."""
    buckets, times = 3, 10
    target = lane.begun(buckets=buckets)
    real = TransactionalProducer.commit
    fates: list[str] = []

    def commit(of: TransactionalProducer) -> None:
        real(of)
        if fates and fates.pop() == "lost":
            raise LostError("_TIMED_OUT")

    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    for time in range(times):
        fates.append("lost")  # the first bucket's answer, while the others' transactions are open
        write_on(target, standing(time * 20, 1), 1, (time + 1) * 20, lane.topic, 20)
        assert not fates
    lane.assert_told(times * 20)


def test_records_say_what_they_are(lane: Lane) -> None:
    target = lane.begun()
    deleted = Events(
        STREAM,
        lane.topic,
        np.array([16, 16, 16], np.int64),
        np.array([0, 2, 2], np.int64),
        np.array([CREATE, DELETE, TOMBSTONE], np.uint8),
        np.array([77, 77, 77], np.int64),
        pa.array([b"[1]", b"[2]", b"[2]"], pa.binary()),
        pa.array([b"{}", b"{}", None], pa.binary()),
        headers={"type": pa.array(["made", None, None])},
    )
    target.write(deleted)
    target.write(changes([3], lane.topic, chunk="c1"))
    target.commit(standing(1, 1))
    told = {record.headers["penstock.offset"]: record for record in lane.kafka.read(lane.topic)}
    created, loaded = told[b"16_0"], told[b"0_3"]
    assert created.headers == {
        "penstock.offset": b"16_0",
        "penstock.xid": b"77",
        "penstock.op": b"c",
        "penstock.stream": b"public.t",
        "type": b"made",
    }
    assert told[b"16_2"].value is None
    assert told[b"16_2"].headers["penstock.op"] == b"n"
    assert loaded.headers["penstock.chunk"] == b"c1"


def test_keys_are_where_other_clients_look_for_them(lane: Lane) -> None:
    keys = [secrets.token_bytes(size) for size in range(1, 60)]
    lane.kafka.create_topic(lane.topic, 13)
    other = Producer({"bootstrap.servers": lane.kafka.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(lane.topic, b"theirs", key)
    other.flush()
    target = lane.begun()
    count = len(keys)
    ours = changes(range(1, count + 1), lane.topic)
    target.write(
        Events(
            STREAM, lane.topic, ours.tx, ours.op, ours.kind, ours.xid, pa.array(keys, pa.binary()), ours.value
        )
    )
    target.commit(standing(count, 1))
    places = defaultdict(set)
    for record in lane.kafka.read(lane.topic):
        places[record.key].add(record.partition)
    assert sorted(map(len, places.values())) == [1] * count


def test_a_record_too_large_for_the_producer_is_named(lane: Lane) -> None:
    target = lane.begun()
    target.write(changes([1], lane.topic))
    with pytest.raises(RefusedEventsError) as refused:
        target.write(changes([2, 3, 4], lane.topic, [b"2", b"x" * 2_000_000, b"4"]))
    assert [(each.part, each.row, each.code) for each in refused.value.refused] == [
        (1, 1, "MSG_SIZE_TOO_LARGE")
    ]
    target.abort()
    write_on(target, standing(0, 1), 1, 4, lane.topic, 5)
    lane.assert_told(4)


def test_of_a_batch_that_the_broker_refuses_only_the_culprits_are_named(lane: Lane) -> None:
    lane.kafka.create_topic(lane.topic, 1, **{"max.message.bytes": "5000"})
    target = lane.begun(compression="none")
    numbers = range(1, 41)
    values = [secrets.token_bytes(6000) if number in (7, 30) else b"%d" % number for number in numbers]
    target.write(changes(numbers[:20], lane.topic, values[:20]))
    target.write(changes(numbers[20:], lane.topic, values[20:]))
    with pytest.raises(RefusedEventsError) as refused:
        target.commit(standing(40, 1))
    named = {(each.part, each.row, each.code) for each in refused.value.refused}
    assert named  # the other one, if its batch was not sent yet, the next time
    assert named <= {(0, 6, "MSG_SIZE_TOO_LARGE"), (1, 9, "MSG_SIZE_TOO_LARGE")}
    target.abort()
    write_on(target, standing(0, 1), 1, 40, lane.topic, 20)
    lane.assert_told(40)


def test_a_culprit_is_named_before_a_large_transaction_is_forgotten(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.streams.kafka.group.KEPT_BYTES_MAX", 1000)
    lane.kafka.create_topic(lane.topic, 1, **{"max.message.bytes": "5000"})
    target = lane.begun(compression="none")
    target.write(changes([1], lane.topic, [b"1" + b" " * 2000]))
    with pytest.raises(RefusedEventsError) as refused:
        target.write(changes([2, 3], lane.topic, [b"2", secrets.token_bytes(6000)]))
    assert [(each.part, each.row) for each in refused.value.refused] == [(1, 1)]
    target.write(changes([1], lane.topic, [b"1" + b" " * 2000]))
    target.write(changes([2], lane.topic))
    target.commit(standing(2, 1))
    lane.assert_told(2)


def test_batches_that_are_too_large_as_a_whole_become_smaller(lane: Lane) -> None:
    lane.kafka.create_topic(lane.topic, 1, **{"max.message.bytes": "300000"})
    target = lane.begun(compression="none")
    values = [b"%d" % number + b" " * 10_000 for number in range(1, 101)]
    for _ in range(5):
        try:
            target.write(changes(range(1, 101), lane.topic, values))
            target.commit(standing(100, 1))
            break
        except TargetError:
            target.abort()
    lane.assert_told(100)


def test_a_compacted_topic_refuses_what_has_no_key(lane: Lane) -> None:
    target = lane.begun(topic_config={"cleanup.policy": "compact"})
    events = changes([1, 2], lane.topic)
    keyless = Events(
        STREAM,
        lane.topic,
        events.tx,
        events.op,
        events.kind,
        events.xid,
        pa.array([b"[1]", None], pa.binary()),
        events.value,
    )
    target.write(keyless)
    with pytest.raises(RefusedEventsError) as refused:
        target.commit(standing(2, 1))
    assert [(each.part, each.row, each.code) for each in refused.value.refused] == [(0, 1, "INVALID_RECORD")]


def test_a_route_that_is_no_topic_name_is_refused_row_by_row(lane: Lane) -> None:
    target = lane.begun()
    with pytest.raises(RefusedEventsError) as refused:
        target.write(changes([1, 2], "no topic"))
    assert [each.row for each in refused.value.refused] == [0, 1]


def test_a_missing_topic_is_waited_for_unless_it_is_to_be_created(lane: Lane) -> None:
    target = lane.begun(create_topics=False)
    with pytest.raises(TargetError, match="does not exist") as missing:
        target.write(changes([1], lane.topic))
    assert "create_topics" in missing.value.remedy
    lane.kafka.create_topic(lane.topic, 2)
    write_on(target, standing(0, 1), 1, 3, lane.topic, 5)
    lane.assert_told(3)


def test_topics_are_made_as_asked_where_a_broker_makes_any_that_is_asked_for(lane: Lane) -> None:
    target = lane.begun(topic_config={"cleanup.policy": "compact", "segment.bytes": 1 << 20})
    write_on(target, standing(0, 1), 1, 3, lane.topic, 5)
    assert lane.kafka.topics()[lane.topic] == 3
    assert lane.kafka.topic_config(lane.topic)["segment.bytes"] == str(1 << 20)
    assert lane.kafka.topic_config(f"{lane.identity}.penstock.positions")["cleanup.policy"] == "compact"
    lane.begun(2).close()  # nor is its own positions topic in the way of the next term


def test_a_changed_number_of_partitions_stops_the_lane_or_is_accepted(lane: Lane) -> None:
    write_on(lane.begun(), standing(0, 1), 1, 20, lane.topic, 5)
    lane.kafka.grow_topic(lane.topic, 6)
    stopping = lane.begun(2)
    with pytest.raises(DestinationError, match="6 partitions now, and had 3") as changed:
        stopping.write(changes([21], lane.topic))
    assert not isinstance(changed.value, TargetError)
    accepting = lane.begun(3, on_partition_change="accept")
    write_on(accepting, standing(20, 3), 3, 40, lane.topic, 5)
    assert len(lane.kafka.read(lane.topic)) == 40
    lane.begun(4).write(changes([41], lane.topic))


def test_keys_stay_where_they_are_while_a_topic_grows(lane: Lane) -> None:
    target = lane.begun()
    write_on(target, standing(0, 1), 1, 20, lane.topic, 5)
    lane.kafka.grow_topic(lane.topic, 6)
    write_on(target, standing(20, 1), 1, 40, lane.topic, 5)
    lane.assert_told(40)


def test_another_number_of_buckets_is_refused(lane: Lane) -> None:
    lane.begun(buckets=2)
    with pytest.raises(ConfigError, match="created with 2 buckets"):
        lane.begun(2, buckets=3)


def test_loaded_rows_and_changes_of_several_buckets_in_one_commit(lane: Lane) -> None:
    target = lane.begun(buckets=3)
    target.write(changes(range(1, 8), lane.topic))
    target.write(changes(range(8, 11), lane.topic, chunk="c1"))
    target.write(changes(range(11, 15), lane.topic))
    target.commit(standing(14, 1, loads={"public.t": {"next": 1}}))
    again = lane.target(buckets=3)
    held = again.open(term(lane.identity, 2))
    assert held == standing(14, 1, loads={"public.t": {"next": 1}})
    write_on(again, held, 2, 30, lane.topic, 5)
    numbers = sorted(int(record.value or b"-1") for record in lane.kafka.read(lane.topic))
    assert numbers == list(range(1, 31))


def test_a_transaction_larger_than_what_is_kept_may_end_with_other_loads_or_loaded_rows(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that stands still from there on is said so with it; the same would come again and again."""
    monkeypatch.setattr("penstock.streams.kafka.group.KEPT_BYTES_MAX", 1000)
    target = lane.begun(buckets=3)
    write_on(target, standing(0, 1), 1, 20, lane.topic, 5)

    def write_many(first: int, last: int) -> None:
        for number in range(first, last + 1, 10):
            numbers = range(number, number + 10)
            target.write(changes(numbers, lane.topic, [b"%d" % each + b" " * 100 for each in numbers]))

    stopped = {"public.t": {"point": "0/1", "gap": "0/2"}}
    write_many(21, 60)
    target.commit(standing(60, 1, loads=stopped))
    write_many(61, 100)
    target.write(changes([101], lane.topic, chunk="c1"))
    target.commit(standing(101, 1, loads=stopped))
    write_on(target, standing(101, 1, loads=stopped), 1, 120, lane.topic, 5)
    lane.assert_told(120)


def test_a_lane_that_is_set_back_sends_again_on_purpose(lane: Lane) -> None:
    target = lane.begun()
    write_on(target, standing(0, 1), 1, 10, lane.topic, 5)
    target.commit(standing(5, 1))
    write_on(target, standing(5, 1), 1, 10, lane.topic, 5)
    numbers = sorted(int(record.value or b"-1") for record in lane.kafka.read(lane.topic))
    assert numbers == sorted([*range(1, 11), *range(6, 11)])


def test_a_property_that_librdkafka_does_not_know_is_named(lane: Lane) -> None:
    with pytest.raises(ConfigError, match=r"no property `batch\.sizes`"):
        lane.target(properties={"batch.sizes": 3})


def test_a_positions_topic_that_forgets_is_refused(lane: Lane) -> None:
    lane.kafka.create_topic(f"{lane.identity}.penstock.positions", 1, **{"cleanup.policy": "delete"})
    with pytest.raises(ConfigError, match="not compacted"):
        lane.begun()


def test_tls_and_a_password(lane: Lane) -> None:
    target = lane.begun(**secured(lane.kafka))
    write_on(target, standing(0, 1), 1, 5, lane.topic, 5)
    lane.assert_told(5)


def secured(kafka: KafkaServer, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    security = {
        "protocol": "sasl_ssl",
        "mechanism": "PLAIN",
        "username": user,
        "password": password,
        "ca": str(kafka.authority),
    }
    return {"bootstrap": kafka.secured_bootstrap, "security": security}


@pytest.mark.parametrize("fault", ["password", "rights"])
def test_who_may_not_write_is_told_so_and_tried_again(lane: Lane, fault: str) -> None:
    who = {"password": (USER, "wrong"), "rights": (STRANGER, PASSWORD)}[fault]
    with pytest.raises(TargetError) as refused:
        lane.begun(**secured(lane.kafka, *who))
    assert {"password": "_AUTHENTICATION", "rights": "AUTHORIZATION_FAILED"}[fault] in str(refused.value)
    assert "wrong" not in str(refused.value)


def test_check_says_what_is_missing(lane: Lane) -> None:
    def found(**settings: Any) -> dict[str, str]:
        config = KafkaLaneConfig.model_validate(lane.config(**settings))
        return {each.name: each.level for each in check(config, lane.identity, [lane.topic])}

    every = ("brokers", "positions topic", "topic", "transactions")
    assert found() == dict.fromkeys(every, "ok")
    assert found(create_topics=False)["topic"] == "error"
    assert found(**secured(lane.kafka)) == dict.fromkeys(every, "ok")
    assert found(**secured(lane.kafka, USER, "wrong")) == {"brokers": "error"}
    stranger = found(**secured(lane.kafka, STRANGER))
    assert (stranger["positions topic"], stranger["transactions"]) == ("error", "error")
    assert lane.topic not in lane.kafka.topics()
    write_on(lane.begun(), None, 1, 5, lane.topic, 5)
    assert found() == dict.fromkeys(every, "ok")


def test_a_stop_is_heard_while_the_broker_does_not_answer(lane: Lane) -> None:
    target = lane.begun()
    target.write(changes(range(1, 6), lane.topic))
    lane.kafka.pause()
    try:
        ended: list[type[BaseException]] = []
        waiting = threading.Thread(target=_noting(lambda: target.commit(standing(5, 1)), ended))
        waiting.start()
        target.stop()
        waiting.join(120)
        assert ended == [StoppedError]
    finally:
        lane.kafka.resume()


def _noting(call: Callable[[], None], ended: list[type[BaseException]]) -> Callable[[], None]:
    def run() -> None:
        try:
            call()
        except BaseException as error:
            ended.append(type(error))

    return run


@pytest.mark.slow
def test_a_transaction_larger_than_what_is_kept(lane: Lane) -> None:
    target = lane.begun(transaction_timeout="120s")
    for part in range(12):
        numbers = range(part * 1000 + 1, part * 1000 + 1001)
        target.write(changes(numbers, lane.topic, [b"%d" % number + b" " * 10_000 for number in numbers]))
    target.commit(standing(12_000, 1))
    lane.assert_told(12_000)

"""Kinesis: whatever fails, each event is in the stream once, and those of a key are in their order."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from penstock.config.streams import KinesisLaneConfig
from penstock.core.errors import StaleTermError, StateError, TargetError, UnprovenError
from penstock.core.position import Lsn
from penstock.failpoints import FAILPOINTS
from penstock.streams import letter_requests
from penstock.streams.blocked_keys import BEHIND
from penstock.streams.events import Batch, Events
from penstock.streams.kinesis.check import check
from penstock.streams.kinesis.errors import TOO_LARGE
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.target import KinesisTarget
from penstock.streams.letter_file import LetterFile
from penstock.streams.publisher import Standing, StoppedError, Term
from penstock.streams.target import Sent
from tests.conftest import wait_until
from tests.failure_plan import KINDS, Fault, Kind, Plan
from tests.kinesis_proxy import HttpFailureProxy
from tests.kinesis_publisher import RETRY, History, Leader, publish, publisher, settings, start, term
from tests.kinesis_server import CREDENTIALS, REGION, Kinesalite, KinesisServer, Moto, Record

pytestmark = pytest.mark.timeout(600)
_KILLS = ["streams.kinesis_sent=kill@2"] + [
    f"{name}=kill@{1 if name.endswith('read_back') else 2}"
    for name in sorted(FAILPOINTS)
    if name.startswith(("streams.kinesis_", "streams.record_"))
]
_SECOND_SHARD = 2**127  # of two: the first hash that it takes
_FAULTS: dict[Kind, float] = {
    "reset": 0.03,
    "lost": 0.04,
    "late": 0.03,
    "halved": 0.02,
    "throttled": 0.05,
    "failed": 0.03,
    "partial": 0.2,
    "slow": 0.05,
}


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def kinesalite() -> Iterator[KinesisServer]:
    with Kinesalite() as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisServer]:
    with Moto(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture(params=["kinesalite", "moto"])
def server(request: pytest.FixtureRequest) -> KinesisServer:
    chosen: KinesisServer = request.getfixturevalue(request.param)
    return chosen


def _parts(history: History) -> Iterator[Events]:
    for batch in history.batches(_standing()):
        yield from batch.events


def _standing(position: int = 0) -> Standing:
    return Standing(Lsn(position), Lsn(1), "system", 1)


@pytest.mark.parametrize("aggregation", [False, True])
def test_every_event_is_there_once_and_in_order(
    server: KinesisServer, tmp_path: Path, aggregation: bool
) -> None:
    stream, history = server.create_stream(4), History(loaded=100)
    chosen = settings(stream, server.endpoint, aggregation=aggregation)
    assert publish(history, chosen, tmp_path, 1) == {}
    history.assert_told_once_and_in_order(server.read(stream))


@pytest.mark.parametrize(
    "kills", [_KILLS[:1], pytest.param(_KILLS, marks=pytest.mark.slow)], ids=["one", "all"]
)
@pytest.mark.parametrize("aggregation", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_killed_publishers_sent_is_not_sent_again(
    kinesalite: KinesisServer, tmp_path: Path, kills: list[str], aggregation: bool
) -> None:
    stream, history = kinesalite.create_stream(2), History(transactions=40 * len(kills), loaded=30)
    chosen = settings(stream, kinesalite.endpoint, aggregation=aggregation)
    _publish_killed(history, chosen, tmp_path, kills)
    history.assert_told_once_and_in_order(kinesalite.read(stream))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_failing_calls_and_other_shards_all_at_once(
    kinesalite: KinesisServer, tmp_path: Path, seed: int
) -> None:
    stream, history = kinesalite.create_stream(2), History(seed, 100, loaded=30)
    plan = Plan(seed, _FAULTS, seconds_max=0.4)
    kills = ["streams.kinesis_sent=kill@3", "streams.kinesis_noting=kill@4", "streams.kinesis_sending=kill@9"]
    with HttpFailureProxy(kinesalite.port, plan) as proxy, ThreadPoolExecutor(1) as pool:
        chosen = settings(stream, proxy.endpoint, aggregation=seed == 2)
        changed = threading.Event()

        def paced(batches: Iterable[Batch]) -> Iterator[Batch]:
            *most, last = batches
            yield from most
            assert changed.wait(120)
            yield last

        publishing = pool.submit(_publish_killed, history, chosen, tmp_path, kills, paced)
        for change in (kinesalite.split, kinesalite.merge, kinesalite.split):
            _wait_for_more(kinesalite, stream, len(kinesalite.read(stream)), publishing)
            change(stream)
        changed.set()
        publishing.result()
        proxy.settle()
    assert plan.struck, plan
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def _publish_killed(
    history: History,
    chosen: KinesisSettings,
    directory: Path,
    kills: list[str],
    paced: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
) -> None:
    """By publishers of which each is killed somewhere, and one that is not."""
    for epoch, kill in enumerate(kills, start=1):
        with start(history, chosen, directory, epoch, kill) as publishing:
            assert publishing.wait(60) == -signal.SIGKILL
    assert publish(history, chosen, directory, len(kills) + 1, paced=paced) == {}


@pytest.mark.parametrize(
    ("seed", "transactions", "aggregation"),
    [
        (1, 12, False),
        pytest.param(2, 60, False, marks=pytest.mark.slow),
        pytest.param(3, 60, True, marks=pytest.mark.slow),
    ],
)
def test_calls_that_fail_in_any_way_lose_and_double_nothing(
    kinesalite: KinesisServer, tmp_path: Path, seed: int, transactions: int, aggregation: bool
) -> None:
    stream, history = kinesalite.create_stream(3), History(seed, transactions)
    plan = Plan(seed, _FAULTS, seconds_max=0.4)
    with HttpFailureProxy(kinesalite.port, plan) as proxy:
        chosen = settings(stream, proxy.endpoint, aggregation=aggregation)
        unproven = publish(history, chosen, tmp_path, 1)
        proxy.settle()
        assert unproven == {}, plan
    assert plan.struck, plan
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def test_each_kind_of_failure_strikes_and_nothing_is_lost_or_doubled(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    faults = {("PutRecords", 1 + n): Fault(kind, 0.2, seed=n) for n, kind in enumerate(KINDS)}
    stream, history = kinesalite.create_stream(3), History(12, 40)
    with HttpFailureProxy(kinesalite.port, Plan(exactly=faults)) as proxy:
        publish(history, settings(stream, proxy.endpoint), tmp_path, 1)
        proxy.settle()
        assert {struck.fault.kind for struck in proxy.plan.struck} == set(KINDS)
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def test_a_lost_answer_is_read_back(server: KinesisServer, tmp_path: Path) -> None:
    stream, history = server.create_stream(2), History(4, 20)
    faults = {("PutRecords", 1): Fault("lost"), ("PutRecords", 2): Fault("late", 0.8)}
    with HttpFailureProxy(server.port, Plan(exactly=faults)) as proxy:
        publish(history, settings(stream, proxy.endpoint), tmp_path, 1)
        proxy.settle()
    history.assert_told_once_and_in_order(server.read(stream))


@pytest.mark.parametrize("aggregation", [False, True])
def test_shards_may_be_split_and_merged_under_way(
    kinesalite: KinesisServer, tmp_path: Path, aggregation: bool
) -> None:
    stream, history = kinesalite.create_stream(2), History(5, 200)
    chosen = settings(stream, kinesalite.endpoint, aggregation=aggregation)
    go_on = threading.Semaphore(0)

    def paced(batches: Iterable[Batch]) -> Iterator[Batch]:
        """Something is left to publish behind each change, however slow the changes are."""
        for number, batch in enumerate(batches):
            if number % 50 == 0:
                assert go_on.acquire(timeout=120)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish, history, chosen, tmp_path, 1, paced=paced)
        for change in (kinesalite.split, kinesalite.merge, kinesalite.split):
            already = len(kinesalite.read(stream))
            go_on.release()
            _wait_for_more(kinesalite, stream, already, publishing)
            change(stream)
        go_on.release()
        assert publishing.result() == {}
    records = kinesalite.read(stream)
    assert len({record.shard for record in records}) > 2
    history.assert_told_once_and_in_order(records)


def _wait_for_more(server: KinesisServer, stream: str, already: int, publishing: Future[Any]) -> None:
    wait_until(lambda: publishing.done() or len(server.read(stream)) > already, "more records", timeout_s=90)
    assert not publishing.done(), publishing.result()


def test_a_successor_reads_the_children_of_shards_that_its_predecessor_knew(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(1), History(6, 16)
    chosen = settings(stream, kinesalite.endpoint)
    target = KinesisTarget(chosen, tmp_path)
    assert target.open(term(1)) is None
    target.note(_standing(), -1)
    batches = history.batches(_standing())
    for number, batch in enumerate(batches):
        if number in (4, 8):
            kinesalite.split(stream)
        if number == 12:
            kinesalite.merge(stream)
        for events in batch.events:
            _, firsts = np.unique(events.key.to_pylist(), return_index=True)
            target.send(events.take(np.sort(firsts)), number)
    successor = KinesisTarget(chosen, tmp_path)
    assert successor.open(term(2)) == _standing()
    for batch in batches:
        for events in batch.events:
            _, firsts = np.unique(events.key.to_pylist(), return_index=True)
            there = np.flatnonzero(successor.is_there(events))
            assert there.tolist() == sorted(firsts.tolist())
    assert successor.unproven == {}


def test_what_was_found_is_known_to_the_next_term_although_more_was_sent_behind_it(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, chosen = kinesalite.create_stream(1), settings("", kinesalite.endpoint, wait_s=1.5)
    chosen = replace(chosen, stream=stream)
    earlier, later = (part.slice(0, 1) for part in list(_parts(History(6, 16)))[:4:3])
    assert earlier.tx[0] < later.tx[0]
    first, second, third = (KinesisTarget(chosen, tmp_path) for _ in range(3))
    first.open(term(1))
    first.note(_standing(), -1)
    first.send(later, 1)  # and killed before the earlier one is sent
    second.open(term(2))
    assert (second.is_there(earlier), second.is_there(later)) == ([False], [True])
    second.send(earlier, 0)
    second.note(_standing(int(earlier.tx[0]) + 1), 0)  # and killed
    third.open(term(3))
    assert third.is_there(later) == [True]
    third.note(_standing(int(later.tx[0]) + 1), 1)
    assert "true" not in next(tmp_path.rglob("*3.json")).read_text()


class _SetBack:
    """Two events of one key, sent by a term that was killed, or ended although an answer was lost."""

    def __init__(self, server: KinesisServer, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.chosen = settings(server.create_stream(1), server.endpoint, wait_s=1.5)
        first, *others = (part.slice(0, 1) for part in _parts(History(6, 16, keys=1)))
        self.first, self.second = first, next(each for each in others if each.stream == first.stream)
        self.ends = [int(each.tx[0]) + 1 for each in (self.first, self.second)]

    def send(self, end: str) -> None:
        plan = Plan(exactly={("PutRecords", 2): Fault("lost")} if end == "in order" else {})
        with HttpFailureProxy(self.server.port, plan) as proxy:
            target = KinesisTarget(replace(self.chosen, endpoint=proxy.endpoint), self.directory)
            target.open(term(1))
            target.note(_standing(), -1)
            target.send(self.first, 0)
            target.note(_standing(self.ends[0]), 0)
            if target.send(self.second, 1).unknown:
                target.look_again(self.second)
                target.note(_standing(self.ends[1]), 1)
                target.close()

    def told(self) -> list[str]:
        return [record.value["penstock"]["id"] for record in self.server.read(self.chosen.stream)]


@pytest.mark.parametrize("end", ["in order", "by a kill"])
def test_a_lane_that_is_set_back_sends_all_of_it_again_in_order(
    kinesalite: KinesisServer, tmp_path: Path, end: str
) -> None:
    lane = _SetBack(kinesalite, tmp_path)
    lane.send(end)
    already = lane.told()
    assert len(already) == 2
    with closing(publisher(KinesisTarget(lane.chosen, tmp_path), tmp_path)) as publishing:
        publishing.open(term(2))
        publishing.begin(replace(_standing(), epoch=Lsn(2)))
        for event, at in zip((lane.first, lane.second), lane.ends, strict=True):
            publishing.publish(Batch(Lsn(at), [event]))
        assert publishing.drain(60)
    assert lane.told() == already * 2


@pytest.mark.parametrize("end", ["in order", "by a kill"])
def test_what_was_there_before_a_lane_was_set_back_is_not_taken_for_sent_again(
    kinesalite: KinesisServer, tmp_path: Path, end: str
) -> None:
    """Neither by a call whose answer is lost, nor by the term after a kill."""
    lane = _SetBack(kinesalite, tmp_path)
    lane.send(end)
    with HttpFailureProxy(kinesalite.port, Plan(exactly={("PutRecords", 2): Fault("reset")})) as proxy:
        target = KinesisTarget(replace(lane.chosen, endpoint=proxy.endpoint), tmp_path)
        target.open(term(2))
        target.note(replace(_standing(), epoch=Lsn(2)), -1)
        assert target.send(lane.first, 0) == Sent()
        assert target.send(lane.second, 1).unknown
        target.look_again(lane.second)
        assert target.is_there(lane.second) == [False]
    successor = KinesisTarget(lane.chosen, tmp_path)
    assert successor.open(term(3)) == replace(_standing(), epoch=Lsn(2))
    assert (successor.is_there(lane.first), successor.is_there(lane.second)) == ([True], [False])


def test_a_record_that_makes_a_call_invalid_is_found(kinesalite: KinesisServer, tmp_path: Path) -> None:
    stream = kinesalite.create_stream(1)
    events = next(part for part in _parts(History(8, 5, keys=1000)) if len(part) >= 5).slice(0, 5)
    with HttpFailureProxy(kinesalite.port) as proxy:
        target = KinesisTarget(settings(stream, proxy.endpoint), tmp_path)
        target.open(term(1))
        proxy.invalid = events.key[3].as_py().decode()
        sent = target.send(events, 4)
        target.close()
    assert {row: code for row, (code, _) in sent.failed.items()} == {3: "ValidationException"}
    assert len(kinesalite.read(stream)) == 4


def test_a_record_that_fails_time_and_again_waits_as_a_dead_letter_while_others_flow_on(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(2), History(11, 60)
    with (
        HttpFailureProxy(kinesalite.port) as proxy,
        closing(LetterFile(tmp_path / "dead_letters.sqlite")) as file,
    ):
        chosen = settings(stream, proxy.endpoint)
        proxy.failing = "[7]"

        def paced(batches: Iterable[Batch]) -> Iterator[Batch]:
            """One after the other, so that there are others while it fails."""
            for batch in batches:
                tried = proxy.refused["[7]"]
                yield batch
                if tried:
                    again = partial(_is_tried_again_or_kept, proxy, tried, file)
                    wait_until(again, "the record to be tried again, or to be a letter")

        publish(history, chosen, tmp_path, 1, paced=paced)
        assert "[7]" not in {record.partition_key for record in kinesalite.read(stream)}
        letters = file.letters("true ORDER BY stream, batch, place")
        assert {letter.key for letter in letters} == {b"[7]"}
        for _, group in groupby(letters, lambda letter: letter.stream):
            first, *behind = group
            assert (first.code, first.attempts) == ("InternalFailure", RETRY.max_attempts)
            assert first.reason == "InternalFailure: Not taken."
            assert {letter.code for letter in behind} == {BEHIND}
        told = [record.value["penstock"] for record in kinesalite.read(stream)]
        names = Counter((each["stream"], "", each["id"]) for each in told)
        kept = Counter((letter.stream, "", f"{letter.tx}_{letter.op}") for letter in letters)
        assert names + kept == history.expected()

        proxy.failing = None
        with closing(publisher(KinesisTarget(chosen, tmp_path), tmp_path)) as publishing:
            standing = publishing.open(term(2))
            assert standing is not None
            publishing.begin(standing)
            letter_requests.ask(file, "replay")
            wait_until(lambda: file.count("true") == 0, "the letters to be delivered")
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def _is_tried_again_or_kept(proxy: HttpFailureProxy, tried: int, file: LetterFile) -> bool:
    """Of each of both streams."""
    return proxy.refused["[7]"] > tried + 1 or file.count("code <> ?", (BEHIND,)) > 1


def test_a_shard_in_trouble_holds_its_records_while_others_take_theirs(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(2), History(12, 40)
    hashes = [int(hashlib.md5(key).hexdigest(), 16) for key in history.told_keys()]
    of_others = sum(each < _SECOND_SHARD for each in hashes)
    with HttpFailureProxy(kinesalite.port) as proxy:
        publishing = publisher(KinesisTarget(settings(stream, proxy.endpoint), tmp_path), tmp_path)
        with closing(publishing):
            publishing.open(term(1))
            publishing.begin(_standing())
            first, *rest = history.batches(_standing())
            publishing.publish(first)
            assert publishing.drain(60)
            proxy.failing_hashes = range(_SECOND_SHARD, 2**128)
            for batch in rest:
                publishing.publish(batch)
            wait_until(
                lambda: (
                    len(kinesalite.read(stream)) >= of_others
                    and max(proxy.refused.values(), default=0) > 4 * RETRY.max_attempts
                ),
                "the other shard to have all of its records, and those of this one to be tried often",
            )
            assert not publishing.drain(0.1)
            proxy.failing_hashes = range(0)
            assert publishing.drain(60)
    with closing(LetterFile(tmp_path / "dead_letters.sqlite")) as file:
        assert file.count("true") == 0
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def test_an_aggregate_that_went_nobody_knows_where_is_looked_for(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream = kinesalite.create_stream(1)
    keyed = next(part for part in _parts(History(8, 5, keys=1000)) if len(part) >= 12)
    _, firsts = np.unique(keyed.key.to_pylist(), return_index=True)
    events = keyed.take(np.sort(firsts))
    with HttpFailureProxy(kinesalite.port) as proxy:
        target = KinesisTarget(settings(stream, proxy.endpoint, aggregation=True), tmp_path)
        target.open(term(1))
        target.note(_standing(), -1)
        target._stream._tries_max = 1
        kinesalite.split(stream)
        proxy.plan = Plan(0, {"throttled": 1.0}, only={"ListShards"})
        sent = target.send(events, 1)
        assert (sent.failed, sent.unknown) == ({}, frozenset(range(len(events))))
        proxy.plan = Plan()
        target.look_again(events)
        missing = np.flatnonzero(~np.array(target.is_there(events)))
        assert 0 < len(missing) < len(events), "the half whose keys belong to the other shard"
        assert target.send(events.take(missing), 2) == Sent()
        target.close()
    assert len(kinesalite.read(stream)) == len(events)


def test_whoever_waits_is_let_go(kinesalite: KinesisServer, tmp_path: Path) -> None:
    chosen = settings(kinesalite.create_stream(1), kinesalite.endpoint, wait_s=600)
    first, second = KinesisTarget(chosen, tmp_path), KinesisTarget(chosen, tmp_path)
    first.open(term(1))
    first.note(_standing(), -1)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(second.open, term(2))
        second.stop()
        with pytest.raises(StoppedError):
            opening.result(120)


def test_expired_credentials_and_a_missing_stream_hold_the_position(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(1), History(7, 5)
    events = next(_parts(history)).slice(0, 1)
    with HttpFailureProxy(kinesalite.port) as proxy:
        target = KinesisTarget(settings(stream, proxy.endpoint), tmp_path)
        target.open(term(1))
        target.note(_standing(), -1)
        for code in ("ExpiredTokenException", "AccessDeniedException", "ResourceNotFoundException"):
            proxy.answering = code
            with pytest.raises(TargetError, match=code):
                target.send(events, 0)
        proxy.answering = None
        assert target.send(events, 0).failed == {}
        target.close()
    assert len(kinesalite.read(stream)) == 1


def test_an_event_that_is_too_large_is_refused_alone(server: KinesisServer, tmp_path: Path) -> None:
    stream = server.create_stream(1)
    target = KinesisTarget(settings(stream, server.endpoint), tmp_path)
    target.open(term(1))
    events = next(part for part in _parts(History(8, 5)) if len(part) >= 3).slice(0, 3)
    values = [b'{"a":1}', b'{"a":"' + b"x" * target.limits.record_bytes + b'"}', b'{"a":3}']
    sent = target.send(replace(events, value=pa.array(values, pa.binary())), 2)
    assert [(row, code) for row, (code, _) in sent.failed.items()] == [(1, TOO_LARGE)]
    assert len(server.read(stream)) == 2


def test_a_leader_that_was_replaced_notes_nothing_more(kinesalite: KinesisServer, tmp_path: Path) -> None:
    stream = kinesalite.create_stream(1)
    chosen = settings(stream, kinesalite.endpoint, wait_s=1.5)
    former, later = KinesisTarget(chosen, tmp_path), KinesisTarget(chosen, tmp_path)
    former.open(term(1))
    former.note(_standing(), -1)
    later.open(term(2))
    with pytest.raises(StaleTermError):
        former.note(_standing(50), 0)
    with pytest.raises(StaleTermError):
        KinesisTarget(chosen, tmp_path).open(term(1))


@pytest.mark.slow
def test_a_leader_that_was_stopped_and_wakes_up_sends_nothing_more(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(2), History(12, 400)
    chosen, leader = settings(stream, kinesalite.endpoint), Leader(tmp_path / "leader")
    leader.lead(1)
    with start(history, chosen, tmp_path, 1, leader=leader) as former:
        try:
            wait_until(lambda: len(kinesalite.read(stream)) > 500, "the leader to send")
            former.send_signal(signal.SIGSTOP)
            leader.lead(2)
            assert publish(history, chosen, tmp_path, 2) == {}
            there = len(kinesalite.read(stream))
            of_former = [record for record in kinesalite.read(stream) if _epoch(record) == "0/1"]
            assert len(of_former) < there, "it was stopped before it was done"
            former.send_signal(signal.SIGCONT)
            wait_until(leader.asked.exists, "the woken leader to ask whether it leads")
            with pytest.raises(subprocess.TimeoutExpired):
                former.wait(2.0)  # it has many more events to send, if it may
        finally:
            former.kill()
    assert len(kinesalite.read(stream)) == there
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def _epoch(record: Record) -> str:
    return str(record.value["penstock"]["epoch"])


@pytest.mark.parametrize("on_unproven", ["publish", "stop"])
def test_a_late_write_of_a_former_leader_is_counted(
    kinesalite: KinesisServer, tmp_path: Path, on_unproven: Literal["publish", "stop"]
) -> None:
    stream, history = kinesalite.create_stream(1), History(9, 5)
    chosen = settings(stream, kinesalite.endpoint, wait_s=1.5)
    former, later = KinesisTarget(chosen, tmp_path), KinesisTarget(chosen, tmp_path)
    event = next(_parts(history)).slice(0, 1)
    former.open(term(1))
    former.note(_standing(), -1)
    later.open(term(2))
    assert not any(later.is_there(event))
    later.send(event, 0)
    former.send(event, 0)
    third = KinesisTarget(replace(chosen, on_unproven=on_unproven), tmp_path)
    if on_unproven == "stop":
        with pytest.raises(UnprovenError):
            third.open(term(3))
    else:
        third.open(term(3))
    assert third.unproven == {"late": 1}


@pytest.mark.parametrize(("hours", "reason"), [(25, "retention"), (1, "made_anew")])
def test_a_tail_that_the_stream_does_not_keep_is_counted(
    kinesalite: KinesisServer, tmp_path: Path, hours: int, reason: str
) -> None:
    stream = kinesalite.create_stream(1)
    chosen = settings(stream, kinesalite.endpoint, wait_s=1.5)
    target = KinesisTarget(chosen, tmp_path)
    target.open(term(1))
    target.note(_standing(), -1)
    (path,) = tmp_path.rglob("*.json")
    told = json.loads(path.read_bytes())
    path.write_text(json.dumps(told | {"written_at": told["written_at"] - hours * 3600}))
    successor = KinesisTarget(chosen, tmp_path)
    successor.open(term(2))
    assert successor.unproven == {reason: 1}


def test_what_went_past_an_event_that_is_held_must_be_kept_since_then(
    kinesalite: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However lately the checkpoint was written: of two calls of 25 hours ago one is not done with."""
    stream = kinesalite.create_stream(1)
    chosen = settings(stream, kinesalite.endpoint, wait_s=1.5)
    target, ago = KinesisTarget(chosen, tmp_path), time.time() - 25 * 3600
    target.open(term(1))
    target.note(_standing(), -1)
    with monkeypatch.context() as patched:
        patched.setattr("time.time", lambda: ago)
        for last in (0, 7):
            target._bounds.begin(last)
    target.note(_standing(), 0)
    successor = KinesisTarget(chosen, tmp_path)
    successor.open(term(2))
    assert successor.unproven == {"retention": 1}


def test_a_place_that_is_none_any_more_is_counted_and_the_shard_read_from_its_beginning(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream = kinesalite.create_stream(1)
    chosen = settings(stream, kinesalite.endpoint, wait_s=1.5)
    event = next(_parts(History(9, 5))).slice(0, 1)
    target = KinesisTarget(chosen, tmp_path)
    target.open(term(1))
    target.note(_standing(), -1)
    target.send(event, 0)
    (path,) = tmp_path.rglob("*.json")
    told = json.loads(path.read_bytes())
    nowhere = {shard: {"sequence": str(2**185)} for shard in told["shards"]}
    path.write_text(json.dumps(told | {"shards": nowhere}))
    successor = KinesisTarget(chosen, tmp_path)
    successor.open(term(2))
    assert successor.unproven == {"place": 1}
    assert all(successor.is_there(event))


def test_another_state_directory_does_not_begin_unless_it_is_ordered_to(
    server: KinesisServer, tmp_path: Path
) -> None:
    stream, shared, own = server.create_stream(1), tmp_path / "shared", tmp_path / "own"
    chosen = settings(stream, server.endpoint, wait_s=1.5)

    def begin(directory: Path, of: Term) -> Standing | None:
        with closing(KinesisTarget(chosen, directory)) as target:
            standing = target.open(of)
            target.note(standing or _standing(), -1)
            return standing

    assert begin(shared, term(1)) is None
    assert begin(shared, term(2)) == _standing(), "an instance that shares the state goes on"
    with pytest.raises(StateError, match="another state directory"):
        begin(own, term(3))
    assert begin(shared, term(4)) == _standing()
    assert begin(own, replace(term(5), is_ordered=True)) is None, "somebody wants it so"
    assert begin(own, term(6)) == _standing()
    with pytest.raises(StateError, match="another state directory"):
        begin(shared, term(7))


def test_answers_that_are_cut_off_are_not_taken_for_empty_ones(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    """Neither records that are there nor another one's claim are overlooked."""
    stream, shared = kinesalite.create_stream(1), tmp_path / "shared"
    event = next(_parts(History(9, 5))).slice(0, 1)
    every = ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords", "ListTagsForStream")
    with HttpFailureProxy(kinesalite.port) as proxy:
        chosen = settings(stream, proxy.endpoint, wait_s=1.5)
        former = KinesisTarget(chosen, shared)
        former.open(term(1))
        former.note(_standing(), -1)
        former.send(event, 0)
        proxy.plan = Plan(exactly={(operation, 1): Fault("halved") for operation in every})
        successor = KinesisTarget(chosen, shared)
        successor.open(term(2))
        assert {struck.operation for struck in proxy.plan.struck} == set(every)
        assert all(successor.is_there(event))
        proxy.plan = Plan(exactly={("ListTagsForStream", 1): Fault("halved")})
        with pytest.raises(StateError, match="another state directory"):
            KinesisTarget(chosen, tmp_path / "own").open(term(3))


def test_a_stream_whose_tags_may_not_be_used_is_written_to_all_the_same(
    kinesalite: KinesisServer, tmp_path: Path
) -> None:
    stream, history = kinesalite.create_stream(1), History(13, 3)
    with HttpFailureProxy(kinesalite.port) as proxy:
        proxy.denied = {"ListTagsForStream", "AddTagsToStream"}
        publish(history, settings(stream, proxy.endpoint), tmp_path, 1)
        section = KinesisLaneConfig(stream=stream, region=REGION, endpoint=proxy.endpoint)
        assert [finding.level for finding in check(section)] == ["ok", "ok", "ok", "warning"]
    history.assert_told_once_and_in_order(kinesalite.read(stream))


def test_check_tells_whether_the_stream_can_be_used(kinesalite: KinesisServer) -> None:
    stream = kinesalite.create_stream(3)

    def levels(name: str, endpoint: str) -> list[str]:
        section = KinesisLaneConfig(stream=name, region=REGION, endpoint=endpoint)
        return [finding.level for finding in check(section)]

    assert levels(stream, kinesalite.endpoint) == ["ok"] * 4
    assert levels("no-such-stream", kinesalite.endpoint) == ["error"]
    with HttpFailureProxy(kinesalite.port) as proxy:
        proxy.answering = "AccessDeniedException"
        assert levels(stream, proxy.endpoint) == ["error"]

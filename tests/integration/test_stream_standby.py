"""A lane that stands by goes on when the other is killed, or stands still and wakes later: each change is at
the target once, and those of a key are in their order.

Instances are a capture and the lane, without the lake; writers never stop. They share their state directory,
or have one each, as on machines without a common disk: then all that a new leader knows is what the target
says. Checkpoints of Kinesis are in the state directory, so lanes of Kinesis share it.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.reader import ChangeLog
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.stream_chain import Source, lane_of, writing
from tests.chaos.stream_targets import target
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer
from tests.kinesis_server import Kinesalite
from tests.stream_instances import StreamPipeline, running

pytestmark = pytest.mark.timeout(600)

_TAKEN_BYTES = 200_000
SHARED, OWN = "shared", "own"
_CASES = [
    (name, state, strike)
    for name in ("kafka", "kinesis", "file")
    for state in (SHARED, OWN)
    for strike in (signal.SIGKILL, signal.SIGSTOP)
    if (name, state) != ("kinesis", OWN)
]
#: Nothing but the broker shuts a leader out that wakes and knows of nobody else.
_TELLING = ("kafka", OWN, signal.SIGSTOP)


def _case(case: tuple[str, str, signal.Signals]) -> object:
    name, state, strike = case
    marks = [] if case == _TELLING else [pytest.mark.slow]
    return pytest.param(*case, id=f"{name}-{state}-{strike.name}", marks=marks)


@pytest.fixture(scope="module")
def source(server: EmbeddedPostgres) -> Iterator[Source]:
    with writing(server) as source:
        yield source


@pytest.fixture(scope="module")
def kinesis() -> Iterator[Kinesalite]:
    with Kinesalite() as running:
        yield running


@pytest.mark.parametrize(("name", "state", "strike"), [_case(case) for case in _CASES])
def test_a_lane_that_stands_by_goes_on_and_each_change_is_there_once(
    source: Source,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    name: str,
    state: str,
    strike: signal.Signals,
) -> None:
    with target(name, request, tmp_path) as at, lane_of(source, at, tmp_path / "a") as lane:
        standby = lane.pipeline if state == SHARED else lane.pipeline.elsewhere(tmp_path / "b")
        with running(standby, "b") as (b,):
            a = lane.instance
            lane.load()
            b.start()
            b.lane.wait_until_it_stands_by()
            lane.wait_for_writes()

            a.send(strike)
            if name == "file":  # whoever stands still in the midst of a commit keeps its lock
                wait_until(b.leads, "the other one to lead", WAIT_S)
            else:
                b.lane.wait_until_running()
            lane.wait_for_writes()
            if strike is signal.SIGSTOP:
                a.send(signal.SIGCONT)
            else:
                a.start()
            b.lane.wait_until_running()
            wait_until(lambda: not a.leads(), "the old leader to know that it is none", WAIT_S)
            a.lane.wait_until_it_stands_by()
            changes = lane.compare(a, b)
            assert b.leads()
            assert standby.dead_letters() == []
            print(f"{name}, {state} state, {strike.name}: {changes} changes, each once")
            assert changes > 0


@pytest.mark.slow
def test_a_lane_does_not_pass_over_dead_letters_that_are_elsewhere_unless_it_is_ordered_to(
    database: Database, kafka: KafkaServer, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, body text)")
    section = {
        "bootstrap": kafka.bootstrap,
        "compression": "none",
        "topic_config": {"max.message.bytes": str(_TAKEN_BYTES)},
        "properties": {"message.max.bytes": "8000000"},
        "dead_letter": {"max_share": 1.0},
    }
    pipeline = StreamPipeline(database, tmp_path / "a", "kafka", section, ["public.items"])
    elsewhere = pipeline.elsewhere(tmp_path / "b")
    with running(pipeline, "a") as (a,), running(elsewhere, "b") as (b,):
        a.start()
        a.lane.wait_until_running()
        database.execute("INSERT INTO items VALUES (1, 'small')")
        database.execute(f"UPDATE items SET body = repeat(md5('x'), {2 * _TAKEN_BYTES // 32}) WHERE id = 1")
        pipeline.wait_until_level(a)
        assert [letter["code"] for letter in pipeline.dead_letters()] == ["MSG_SIZE_TOO_LARGE"]
        a.send(signal.SIGKILL)

        b.start()
        wait_until(lambda: not b.lane.alive, "the other lane to end", WAIT_S)
        assert "dead letters in another state directory" in b.lane.told()
        ordered = re.search(r"penstock (lane rewind kafka --to [0-9A-F]+/[0-9A-F]+)", b.lane.told())
        assert ordered is not None, b.lane.told()
        database.execute("UPDATE items SET body = 'after' WHERE id = 1")
        wait_until(lambda: _has_log(elsewhere), "its capture to have a log", WAIT_S)
        elsewhere.command(*ordered[1].split())
        b.lane.start()
        b.lane.wait_until_running()
        elsewhere.wait_until_level(b)
        told = [json.loads(each.value or b"")["op"] for each in kafka.read(f"{pipeline.name}.public.items")]
        assert told == ["c", "u"], "what came behind the letter, on purpose"
        assert elsewhere.dead_letters() == []


def _has_log(pipeline: StreamPipeline) -> bool:
    return ChangeLog(pipeline.state / "log").start() is not None

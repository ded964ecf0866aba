"""Dead letters on real targets: what they refuse, what a format cannot say, and what people do with them."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cli.main import main
from penstock.config import Config
from penstock.config.streams import KafkaLaneConfig
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.commit_publisher import CommitPublisher
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.events import UPDATE, Batch, Events
from penstock.streams.kafka.target import KafkaTarget
from penstock.streams.publisher import Standing, Term
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer
from tests.kinesis_proxy import HttpFailureProxy
from tests.kinesis_publisher import History, publish, settings
from tests.kinesis_server import CREDENTIALS, Kinesalite
from tests.stream_lane import LaneThread, pipeline_file, stream_capture

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TAKEN_BYTES, REFUSED_BYTES = 200_000, 400_000
_LARGE = f"(SELECT string_agg(md5(n::text), '') FROM generate_series(1, {REFUSED_BYTES // 32}) n)"


def test_later_events_pass_by_choice_and_letters_are_shown_and_dropped(
    database: Database, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, body text, price numeric(8,2))")
    section = {
        "bootstrap": kafka.bootstrap,
        "format": "debezium",
        "compression": "none",
        "topic_config": {"max.message.bytes": str(TAKEN_BYTES)},
        "properties": {"message.max.bytes": "8000000"},
        "dead_letter": {"order": "skip", "max_share": 1.0},
    }
    path = pipeline_file(tmp_path, database, "kafka", section)
    topic = f"slot_{database.name}.public.items"

    def told() -> list[tuple[int, str]]:
        records = kafka.read(topic) if topic in kafka.topics() else []
        return [(json.loads(each.key or b"")["id"], json.loads(each.value or b"")["op"]) for each in records]

    def dlq(*arguments: str) -> Any:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(path), "--json", "dlq", *arguments])
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    def codes() -> list[str]:
        return [each["code"] for each in dlq("list", "--lane", "kafka")]

    with stream_capture(Config.load(path), database) as capture:
        wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
        with LaneThread(path, capture.capture.address) as lane:
            lane.wait_until_running()
            database.execute("INSERT INTO items VALUES (1, 'small', 1)")
            database.execute(f"UPDATE items SET body = {_LARGE} WHERE id = 1")
            database.execute("UPDATE items SET body = 'after' WHERE id = 1")
            database.execute("INSERT INTO items VALUES (2, 'small', 'NaN')")
            database.execute("UPDATE items SET price = 2 WHERE id = 2")
            wait_until(lambda: len(told()) >= 3, "what can be sent to be there", WAIT_S)
            assert told() == [(1, "c"), (1, "u"), (2, "u")], "later events of both keys pass"

            shown = dlq("show", "--lane", "kafka", "public.items", "--values")["shown"]
            found = {each["code"]: each for each in shown}
            assert found.keys() == {"MSG_SIZE_TOO_LARGE", "unencodable"}
            assert [found[code]["op"] for code in ("MSG_SIZE_TOO_LARGE", "unencodable")] == ["u", "c"]
            assert "NaN" in found["unencodable"]["value"], "what the format cannot say is kept all the same"
            assert all(each["why"] for each in shown)

            letter = str(found["unencodable"]["letter"])
            dlq("drop", "--lane", "kafka", "--letter", letter, "--yes")
            wait_until(lambda: codes() == ["MSG_SIZE_TOO_LARGE"], "the letter to be dropped", WAIT_S)
            kafka.configure_topic(topic, {"max.message.bytes": "8000000"})
            dlq("replay", "--lane", "kafka", "--yes")
            wait_until(lambda: codes() == [], "the other to be delivered", WAIT_S)
            assert told() == [(1, "c"), (1, "u"), (2, "u"), (1, "u")]


#: A machine that has other work to do varies by that much; a lane that waited for the key would not end.
_SLOWER_MAX = 1.5
_RUNS = 3
_BATCHES, _EVENTS = 3000, 100


def test_a_refused_key_leaves_all_others_at_full_speed_on_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    """The same backlog with and without an event that is too large, run about."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for run in range(2 * _RUNS):
        is_refusing = bool(run % 2)
        seconds[is_refusing].append(_to_kafka(kafka, tmp_path / str(run), is_refusing))
    _assert_as_fast("kafka", seconds)


def _to_kafka(kafka: KafkaServer, directory: Path, is_refusing: bool) -> float:
    identity = f"speed-{secrets.token_hex(4)}"
    topic, system = f"{identity}.public.items", "system"
    config = KafkaLaneConfig(bootstrap=kafka.bootstrap)
    with DeadLetters(directory / "dead_letters.sqlite", "kafka") as letters:
        publishing = CommitPublisher(KafkaTarget(config), letters)
        try:
            assert publishing.open(Term(identity, Lsn(1), system, 1)) is None
            publishing.begin(Standing(Lsn(1), Lsn(1), system, 1))
            publishing.publish(_batch(topic, 0, b"first"))  # makes the topic
            assert publishing.drain(60)
            began = time.perf_counter()
            for number in range(1, _BATCHES):
                large = b"x" * 2_000_000 if is_refusing and number == _BATCHES // 10 else b"small"
                publishing.publish(_batch(topic, number, large))
            assert publishing.drain(120)
            seconds = time.perf_counter() - began
        finally:
            publishing.close()
        waiting = _BATCHES - _BATCHES // 10 if is_refusing else 0
        assert sum(letters.counts.values()) == waiting, "the key's events wait, from the refused one on"
    assert len(kafka.read(topic)) == _BATCHES * _EVENTS - waiting
    return seconds


def _batch(topic: str, number: int, first: bytes) -> Batch:
    end = 100 * (number + 1)
    events = Events(
        StreamId("public", "items"),
        topic,
        np.full(_EVENTS, end - 1, np.int64),
        np.arange(_EVENTS, dtype=np.int64),
        np.full(_EVENTS, UPDATE, np.uint8),
        np.zeros(_EVENTS, np.int64),
        pa.array([b"[%d]" % key for key in range(_EVENTS)], pa.binary()),
        pa.array([first, *[b"x" * 200] * (_EVENTS - 1)], pa.binary()),
        "",
    )
    return Batch(Lsn(end), [events])


def test_a_refused_key_leaves_all_others_at_full_speed_on_kinesis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    history = History(21, 300)
    with Kinesalite() as server, HttpFailureProxy(server.port) as proxy:
        for run in range(2 * _RUNS):
            is_refusing = bool(run % 2)
            proxy.failing = "[7]" if is_refusing else None
            chosen = settings(server.create_stream(2), proxy.endpoint)
            began = time.perf_counter()
            publish(history, chosen, tmp_path / str(run), 1)
            seconds[is_refusing].append(time.perf_counter() - began)
            keys = {record.partition_key for record in server.read(chosen.stream)}
            assert ("[7]" in keys) != is_refusing
    _assert_as_fast("kinesis", seconds)


def _assert_as_fast(target: str, seconds: dict[bool, list[float]]) -> None:
    ratio = median(seconds[True]) / median(seconds[False])
    print(f"{target}: {ratio:.2f} times as long beside a refused key ({seconds})")
    assert ratio < _SLOWER_MAX, seconds

"""Tables are looked after beside rounds, one process and one table at a time, and in the end they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.core.report import CompactedStream, TableHealth
from penstock.core.stream import StreamId
from penstock.lake import upkeep
from penstock.lake.maintenance import PASS_BYTES
from penstock.lake.upkeep import LOST_MAX, SHORT_PASS_BYTES, Upkeep, after_sync, looking_after
from tests.conftest import wait_until
from tests.pipelines import Notes

STREAMS = [StreamId("public", "a"), StreamId("public", "b")]
BEFORE = TableHealth(9, 9, 1.0, 0, 0.0, 0, 1, 0.0)
AFTER = replace(BEFORE, data_files=5)


class Work:
    """Stands in for what is done to tables; `loses`: somebody else is always first."""

    asked: list[tuple[StreamId, int, bool]]
    gate = threading.Event()
    loses = False
    rounds = threading.Lock()
    gave_way = False

    def __init__(self, *_: object) -> None: ...

    def compact(
        self, stream: StreamId, *, pass_bytes: int, alone: AbstractContextManager[Any], **_: object
    ) -> CompactedStream:
        with alone:
            Work.asked.append((stream, pass_bytes, Work.rounds.locked()))
            assert Work.gate.wait(60)
        self.gave_way = Work.loses and not isinstance(alone, type(Work.rounds))
        return CompactedStream(str(stream), ("data files",), BEFORE, AFTER)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    monkeypatch.setattr(upkeep, "Maintenance", Work)
    monkeypatch.setattr(Work, "asked", [], raising=False)
    monkeypatch.setattr(Work, "loses", False)
    Work.gate.set()
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "source: {type: postgres, url: postgresql://nobody@localhost/none}\n"
        "destination: {type: iceberg, warehouse: ./lake}\nstate: ./state\n"
        "streams: [public.a, public.b]\nmaintenance: {every: 0s}\n"
    )
    monkeypatch.setattr(upkeep, "destination_of", lambda _: _Iceberg())
    monkeypatch.setattr(upkeep, "IcebergDestination", _Iceberg)
    yield Config.load(file)
    Work.gate.set()


class _Iceberg: ...


def spark() -> Any:
    raise AssertionError("nobody needs Spark here")


def turn(looks: Upkeep, streams: list[StreamId] = STREAMS) -> None:
    looks.begin(streams)
    assert looks._thread is not None
    looks._thread.join()


def test_nobody_waits_for_a_table_that_is_looked_after(config: Config) -> None:
    Work.gate.clear()
    looks = Upkeep(config, spark, Notes(), Work.rounds)
    looks.begin(STREAMS)
    wait_until(lambda: len(Work.asked) == 1, "a table to be looked after")
    looks.begin(STREAMS)  # it is at work, and nothing is begun twice
    assert not Work.rounds.locked()
    after_sync(config, spark, STREAMS, Notes())  # another process of the same pipeline
    with looking_after(config.state) as alone:
        assert not alone
    assert len(Work.asked) == 1
    Work.gate.set()


def test_tables_take_turns(config: Config) -> None:
    looks = Upkeep(config, spark, Notes(), Work.rounds)
    for _ in range(4):
        turn(looks)
    assert [stream for stream, _, _ in Work.asked] == [*STREAMS, *STREAMS]


def test_a_table_that_loses_again_and_again_is_merged_between_two_rounds(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Work, "loses", True)
    looks = Upkeep(config, spark, Notes(), Work.rounds)
    for _ in range(LOST_MAX):
        turn(looks, STREAMS[:1])
    assert [(size, held) for _, size, held in Work.asked] == [
        (PASS_BYTES, False),
        (PASS_BYTES // 4, False),
        (SHORT_PASS_BYTES, False),
    ]
    turn(looks, STREAMS[:1])
    assert Work.asked[-1] == (STREAMS[0], SHORT_PASS_BYTES, True)
    assert not Work.rounds.locked()
    turn(looks)
    assert Work.asked[-1] == (STREAMS[1], PASS_BYTES, False), "others are not kept waiting"
    turn(looks)
    assert Work.asked[-1] == (STREAMS[0], SHORT_PASS_BYTES, False), "less than a whole pass leaves more to do"
    monkeypatch.setattr(Work, "loses", False)
    for _ in range(LOST_MAX + 1):
        turn(looks, STREAMS[:1])
    assert Work.asked[-1] == (STREAMS[0], PASS_BYTES, False), "and it begins with whole ones again"


def test_what_fails_is_told_and_keeps_nobody_from_the_next_table(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Java is gone")

    monkeypatch.setattr(Work, "compact", fail)
    told: list[str] = []
    monkeypatch.setattr("penstock.logs.log_unexpected", lambda what, _: told.append(what))
    looks = Upkeep(config, spark, Notes(), Work.rounds)
    turn(looks)
    assert told == ["looking after tables"]
    looks.end()
    turn(looks)
    assert told == ["looking after tables"]

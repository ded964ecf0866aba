"""Tables are looked after beside rounds, one process and one table at a time, and in the end they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock import Pipeline
from penstock.config import Config
from penstock.core.errors import SourceBusyError
from penstock.core.report import CompactedStream, TableHealth
from penstock.core.stream import StreamId
from penstock.lake import upkeep
from penstock.lake.maintenance import PASS_BYTES, Alone, GaveWayError
from penstock.lake.upkeep import (
    LOST_MAX,
    SHORT_PASS_BYTES,
    Times,
    Timetable,
    Upkeep,
    after_sync,
    compact,
    held,
    looking_after,
)
from penstock.locking import only_one
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
    leads = True
    went_on: list[bool]
    gave_way = has_swept = False
    sweeps = False

    def __init__(self, *_: object) -> None: ...

    look_at = None  # that is for a dry run

    def compact(
        self,
        stream: StreamId,
        *,
        pass_bytes: int = PASS_BYTES,
        alone: Alone = nullcontext,
        goes_on: Callable[[], bool] = lambda: True,
        **_: object,
    ) -> CompactedStream:
        self.gave_way = True
        with suppress(GaveWayError), alone():
            Work.asked.append((stream, pass_bytes, Work.rounds.locked()))
            assert Work.gate.wait(60)
            self.gave_way = Work.loses and alone is nullcontext
        Work.went_on.append(goes_on())
        self.has_swept = Work.sweeps
        return CompactedStream(str(stream), ("data files", "orphans"), BEFORE, AFTER)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    monkeypatch.setattr(upkeep, "Maintenance", Work)
    monkeypatch.setattr(Work, "asked", [], raising=False)
    monkeypatch.setattr(Work, "went_on", [], raising=False)
    monkeypatch.setattr(Work, "loses", False)
    monkeypatch.setattr(Work, "sweeps", False)
    monkeypatch.setattr(Work, "leads", True)
    Work.gate.set()
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "source: {type: postgres, url: postgresql://nobody@localhost/none}\n"
        "destination: {type: iceberg, warehouse: ./lake}\nstate: ./state\n"
        "streams: [public.a, public.b]\nmaintenance: {every: 0s}\n"
    )
    monkeypatch.setattr(upkeep, "destination_of", lambda _: _Iceberg())
    monkeypatch.setattr(upkeep, "IcebergDestination", _Iceberg)
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.0)
    yield Config.load(file)
    Work.gate.set()
    for thread in threading.enumerate():
        if thread.name == "lake-upkeep":  # what it is about to say is of no concern to the next test
            thread.join()


class _Iceberg:
    def __init__(self) -> None:
        self.forgotten: list[StreamId] = []

    def forget(self, stream: StreamId) -> None:
        self.forgotten.append(stream)


def spark() -> Any:
    raise AssertionError("nobody needs Spark here")


def turn(looks: Upkeep, streams: list[StreamId] = STREAMS) -> None:
    looks.begin(streams)
    assert looks._thread is not None
    looks._thread.join()


def test_nobody_waits_for_a_table_that_is_looked_after(config: Config) -> None:
    Work.gate.clear()
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    looks.begin(STREAMS)
    wait_until(lambda: len(Work.asked) == 1, "a table to be looked after")
    looks.begin(STREAMS)  # it is at work, and nothing is begun twice
    assert not Work.rounds.locked()
    after_sync(config, spark, STREAMS, Notes())  # another process of the same pipeline
    with looking_after(config.state) as alone:
        assert not alone
    assert len(Work.asked) == 1
    Work.gate.set()


@pytest.mark.parametrize("is_end", [False, True], ids=["leadership", "the run"])
def test_nothing_more_is_begun_when_leadership_or_the_run_has_ended(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, is_end: bool
) -> None:
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    Work.gate.clear()
    looks.begin(STREAMS)
    wait_until(lambda: len(Work.asked) == 1, "a table to be looked after")
    if is_end:
        looks.end()
    else:
        monkeypatch.setattr(Work, "leads", False)
    Work.gate.set()
    turn(looks)
    assert Work.went_on == [False], "neither a step of this table nor another table"
    if not is_end:
        monkeypatch.setattr(Work, "leads", True)
        turn(looks)
        assert Work.went_on == [False, True, True]


def test_a_catalog_is_opened_once_and_not_before_it_is_needed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables in it are opened anew: one may have been dropped and made again."""
    opened: list[str] = []
    catalog = _Iceberg()

    def open_catalog(_: Config) -> _Iceberg:
        opened.append(threading.current_thread().name)
        return catalog

    monkeypatch.setattr(upkeep, "destination_of", open_catalog)
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    assert opened == []
    for _ in range(2):
        turn(looks)
    assert (opened, len(Work.asked)) == (["lake-upkeep"], 4)
    assert catalog.forgotten == [stream for stream, _, _ in Work.asked]


def test_every_table_that_is_due_is_looked_after_in_one_go_and_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in each go, of which there is one in a minute, would leave `every: 1h` unkept beyond 60 tables."""
    many = [StreamId("public", f"t{number}") for number in range(100)]
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    turn(looks, many)
    assert [stream for stream, _, _ in Work.asked] == many
    monkeypatch.setattr(Work, "loses", True)  # all stay due
    turn(looks, many)
    assert [stream for stream, _, _ in Work.asked] == [*many, *many]


def test_who_waits_for_the_tables_has_them_before_the_next_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PAUSE_S", 3600.0)
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    looks.begin(STREAMS)
    compact(config, spark, STREAMS[1:], Notes(), dry_run=False)
    assert [stream for stream, _, _ in Work.asked][-1] == STREAMS[1]
    assert len(Work.asked) <= 2
    looks.end()


def test_a_table_that_loses_again_and_again_is_merged_between_two_rounds(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Work, "loses", True)
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
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
    assert Work.asked[-2] == (STREAMS[1], PASS_BYTES, False), "others are not kept waiting"
    assert Work.asked[-1] == (STREAMS[0], SHORT_PASS_BYTES, False), "less than a whole pass leaves more to do"
    monkeypatch.setattr(Work, "loses", False)
    for _ in range(LOST_MAX + 1):
        turn(looks, STREAMS[:1])
    assert Work.asked[-1] == (STREAMS[0], PASS_BYTES, False), "and it begins with whole ones again"


def that_lost(config: Config, monkeypatch: pytest.MonkeyPatch) -> Upkeep:
    """So often that the next pass is made between two rounds."""
    monkeypatch.setattr(Work, "loses", True)
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    for _ in range(LOST_MAX):
        turn(looks, STREAMS[:1])
    return looks


def test_a_round_that_goes_on_for_long_is_not_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn may load for hours, and others that look after tables would wait as long."""
    looks = that_lost(config, monkeypatch)
    monkeypatch.setattr(upkeep, "ALONE_WAIT_S", 0.0)
    with Work.rounds:
        turn(looks, STREAMS[:1])
    assert len(Work.asked) == LOST_MAX, "it gave way"
    turn(looks, STREAMS[:1])
    assert Work.asked[-1] == (STREAMS[0], SHORT_PASS_BYTES, False), "and is tried beside rounds meanwhile"
    turn(looks, STREAMS[:1])
    assert Work.asked[-1] == (STREAMS[0], SHORT_PASS_BYTES, True), "and again between two"


def test_the_end_does_not_wait_for_a_round(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = that_lost(config, monkeypatch)
    monkeypatch.setattr(upkeep, "ALONE_WAIT_S", 3600.0)
    with Work.rounds:
        looks.begin(STREAMS[:1])
        looks.end()
        wait_until(lambda: len(Work.went_on) > LOST_MAX, "the pass to be given up")
    assert len(Work.asked) == LOST_MAX


def test_a_lock_that_is_no_longer_wanted_is_not_waited_for() -> None:
    lock = threading.Lock()
    with held(lock, lambda: False, GaveWayError):
        assert lock.locked(), "nobody has it: then it is not asked for how long"
        with pytest.raises(GaveWayError), held(lock, lambda: False, GaveWayError):
            pass
    assert not lock.locked()


@pytest.mark.parametrize("loses", [False, True], ids=["it is done", "it stays due"])
@pytest.mark.parametrize("sweeps", [False, True], ids=["orphans stay", "orphans went"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["by schedule", "by hand"])
def test_orphans_are_looked_for_again_exactly_if_that_was_not_done(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, loses: bool, sweeps: bool, by_hand: bool
) -> None:
    monkeypatch.setattr(Work, "loses", loses)
    monkeypatch.setattr(Work, "sweeps", sweeps)
    timetable = Timetable(config.state / "maintenance.json")
    long_ago = Times(1.0, 1.0)
    config.state.mkdir()
    timetable.write({str(stream): long_ago for stream in STREAMS})
    if by_hand:
        compact(config, spark, STREAMS[:1], Notes(), dry_run=False)
    else:
        turn(Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads), STREAMS[:1])
    [(stream, _, _)] = Work.asked
    found = timetable.read()[str(stream)]
    assert (found.orphans > long_ago.orphans, found.looked_at == long_ago.looked_at) == (sweeps, loses)


@pytest.mark.parametrize("catalog", ["sqlite", "hadoop"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["for good", "dry run"])
def test_where_two_processes_cannot_both_commit_one_is_refused(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, catalog: Literal["sqlite", "hadoop"], dry_run: bool
) -> None:
    monkeypatch.setattr(Work, "look_at", Work.compact)
    held_by = config.destination.catalog.model_copy(update={"type": catalog})
    destination = config.destination.model_copy(update={"catalog": held_by})
    pipeline = Pipeline(config.model_copy(update={"destination": destination}))
    is_refused = catalog == "hadoop" and not dry_run
    with only_one(config.state), pytest.raises(SourceBusyError) if is_refused else nullcontext():
        pipeline.compact(dry_run=dry_run)
    assert bool(Work.asked) != is_refused
    pipeline.compact(dry_run=dry_run)
    assert Work.asked


def test_what_fails_is_told_and_keeps_nobody_from_the_next_table(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Java is gone")

    monkeypatch.setattr(Work, "compact", fail)
    told: list[str] = []
    monkeypatch.setattr("penstock.logs.log_unexpected", lambda what, _: told.append(what))
    looks = Upkeep(config, spark, Notes(), Work.rounds, lambda: Work.leads)
    turn(looks)
    assert told == ["looking after tables"]
    looks.end()
    turn(looks)
    assert told == ["looking after tables"]

"""kill -9 at every failpoint, with writers that never stop: afterwards every value is right.

A link of the chain: a sync in a process of its own is killed at the named place, and proves it by its exit
status and by the failpoint's own report. The writers go on. The next sync recovers, while they write or not
(`matrix` says when); then they pause, a sync catches up, and the oracle compares all values and every change.

Places that following the log reaches are struck one after the other in one pipeline, so that each crash meets
the traces of those before it; so are those that a full refresh reaches. Places that only a first load reaches
get a pipeline of their own each. Beyond `short` pipelines that follow the log have filtered streams too, and
streams of `strict_cdc` (`parts`). What is struck of that, and on which tables, is in `matrix`; all of it runs
under two mixes of writes, with many places in pairs: killed, and killed again while recovering.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.chain import Chain
from tests.chaos.databases import new_database
from tests.chaos.killing import assert_struck, kill_and_recover
from tests.chaos.matrix import (
    ASKED,
    FOLLOWING,
    FULL,
    LOADED_BY,
    LOADING,
    REFRESHING,
    SEED,
    pairs,
)
from tests.chaos.parts import STREAMS as PARTS
from tests.chaos.parts import Parts
from tests.conftest import wait_until
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.workload import APPEND, UPSERT, Workload

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

#: Beside whole tables, where there is time for it: filtered ones, and some that begin without a load.
WITH_PARTS = ASKED != "short"
FOLLOWED = (PARTS if WITH_PARTS else []) + streams_of(UPSERT, APPEND)
Pipelines = Chain[PipelineUnderTest]
REFRESHED = [{"table": stream, "mode": "full_refresh"} for stream in (*UPSERT, *APPEND)]


@dataclass
class Source:
    """A database with writers at work."""

    url: str
    workload: Workload
    parts: Parts

    def is_about_to_follow(self, pipeline: PipelineUnderTest) -> None:
        """Let the writers rest for as long as it takes to see how far they are."""
        if WITH_PARTS:
            self.workload.stop()
            self.parts.is_about_to_begin(pipeline)
            self.workload.start()

    def compare(self, pipeline: PipelineUnderTest) -> None:
        """Let the writers rest, catch up, and compare every value and every change."""
        self.workload.stop()
        try:
            pipeline.sync()
            pipeline.assert_same(*UPSERT)
            if pipeline.streams == FOLLOWED:
                pipeline.assert_history(*APPEND)
                if WITH_PARTS:
                    self.parts.compare(pipeline)
            else:
                pipeline.assert_same(*APPEND)
        finally:
            self.workload.start()

    def wait_for_writes(self) -> None:
        enough = self.workload.transactions + 30
        wait_until(lambda: self.workload.transactions > enough, "the writers to go on")

    def assert_acknowledged_no_more_than_committed(self, pipeline: PipelineUnderTest) -> None:
        """What Postgres may forget, the state says is in the tables."""
        file = pipeline.state / "state.json"
        if not file.exists():
            return
        state = json.loads(file.read_text())
        positions = [state.get("global", {}).get("state", {}).get("lsn")]
        positions += [stream["state"].get("cdc_from") for stream in state["streams"]]
        with psycopg.connect(pipeline.url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT confirmed_flush_lsn, least FROM pg_replication_slots, "
                "(SELECT min(p::pg_lsn) AS least FROM unnest(%s::text[]) p) WHERE slot_name = %s "
                "AND confirmed_flush_lsn > least",
                (positions, pipeline.name),
            ).fetchall()
        assert rows == [], "acknowledged, and where the state is"


@pytest.fixture(scope="module", params=["upsert_heavy", "append_heavy"] if FULL else ["mixed"])
def source(request: pytest.FixtureRequest, server: EmbeddedPostgres) -> Iterator[Source]:
    heavy = request.param == "append_heavy"
    with new_database(server) as database:
        workload = Workload(database.url, SEED, pause_s=0.04, append_heavy=heavy).setup(800)
        parts = Parts(database.url)
        if WITH_PARTS:
            parts.setup()
        with workload.start():
            yield Source(database.url, workload, parts)


@pytest.fixture(scope="module")
def all_following(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    yield from _chain(source, FOLLOWED, lambda: tmp_path_factory.mktemp("following"))


@pytest.fixture
def following(request: pytest.FixtureRequest, all_following: Pipelines) -> PipelineUnderTest:
    """A pipeline that has loaded its tables."""
    return all_following.of(request.param)


@pytest.fixture(scope="module")
def all_refreshing(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    yield from _chain(source, REFRESHED, lambda: tmp_path_factory.mktemp("refreshing"))


@pytest.fixture
def refreshing(request: pytest.FixtureRequest, all_refreshing: Pipelines) -> PipelineUnderTest:
    """A pipeline that has loaded its tables, and does so anew at each sync."""
    return all_refreshing.of(request.param)


def _chain(source: Source, streams: list[Any], new_directory: Callable[[], Path]) -> Iterator[Pipelines]:
    @contextmanager
    def caught_up(destination: str) -> Iterator[PipelineUnderTest]:
        pipeline = _pipeline(source, streams, new_directory(), destination)
        source.is_about_to_follow(pipeline)
        pipeline.sync()
        source.compare(pipeline)
        yield pipeline
        pipeline.drop()

    with Chain(caught_up) as chain:
        yield chain


@pytest.fixture
def loading(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    """A pipeline that has not begun."""
    pipeline = _pipeline(source, FOLLOWED, tmp_path, request.param)
    source.is_about_to_follow(pipeline)
    yield pipeline
    pipeline.drop()


def _pipeline(source: Source, streams: list[Any], directory: Path, destination: str) -> PipelineUnderTest:
    # Several chunks per table; log steps that go as soon as nobody needs them.
    settings: dict[str, Any] = {
        "load": {"rows_per_chunk": 300, **LOADED_BY[destination]},
        "log": {"retention": "0s"},
        "readers": {"grace": "5s"},
        "destination": DESTINATIONS[destination],
    }
    return PipelineUnderTest(directory, source.url, streams, settings)


@pytest.mark.parametrize(("following", "rule"), FOLLOWING.cases(), indirect=["following"])
def test_killed_while_following_it_ends_with_every_value_right(
    source: Source, following: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(source, following, rule)


@pytest.mark.parametrize(("loading", "rule"), LOADING.cases(), indirect=["loading"])
def test_killed_while_loading_it_ends_with_every_value_right(
    source: Source, loading: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(source, loading, rule)
    if WITH_PARTS:  # what begins without a load has begun by now, and must hold everything from here on
        source.wait_for_writes()
        source.compare(loading)


@pytest.mark.parametrize(("refreshing", "rule"), REFRESHING.cases(), indirect=["refreshing"])
def test_killed_during_a_full_refresh_it_ends_with_every_value_right(
    source: Source, refreshing: PipelineUnderTest, rule: str
) -> None:
    kill_and_recover(source, refreshing, rule)


@pytest.mark.parametrize(("following", "first", "second"), pairs(), indirect=["following"])
def test_killed_again_while_recovering_it_ends_with_every_value_right(
    source: Source, following: PipelineUnderTest, first: str, second: str
) -> None:
    assert_struck(following.sync_apart(f"{first}=kill"), f"{first}=kill")
    source.wait_for_writes()
    kill_and_recover(source, following, f"{second}=kill", beside_writers=True)


@pytest.mark.parametrize(
    ("following", "failpoint"),
    [
        *(("parquet", name) for name in ("log.file_write", "destination.file_write") if ASKED != "rest"),
        pytest.param("iceberg", "destination.file_write", marks=pytest.mark.slow),
    ],
    indirect=["following"],
)
def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    source: Source, following: PipelineUnderTest, failpoint: str
) -> None:
    source.wait_for_writes()
    ended = following.sync_apart(f"{failpoint}=enospc")
    assert set(ended.struck) == {f"{failpoint}=enospc"}, str(ended)
    assert ended.answer["error"]["code"] == "storage", str(ended)
    assert "disk is full" in ended.answer["error"]["message"]
    assert ended.status == 8
    source.compare(following)


@pytest.mark.slow
@pytest.mark.parametrize("following", list(DESTINATIONS), indirect=True)
def test_the_command_itself_recovers_and_leaves_nothing_running(
    source: Source, following: PipelineUnderTest
) -> None:
    """The other tests recover in this process, to save Spark starts."""
    assert_struck(following.sync_apart("cdc.committed=kill"), "cdc.committed=kill")
    source.wait_for_writes()
    ended = following.sync_apart()
    assert ended.status == 0, str(ended)
    followed = {each if isinstance(each, str) else each["table"] for each in FOLLOWED}
    assert {stream["stream"] for stream in ended.answer["streams"]} == followed
    source.compare(following)

"""kill -9 of the publisher, with writers that never stop: afterwards each change is at the target once.

A link of the chain: the lane's process is killed at the named place, and proves it by its exit status and by
the failpoint's own report. The writers go on. Another process of the lane recovers while they write; then
they pause until the source is told that everything is at the target, and the judge compares what a consumer
reads with the history that the source has kept itself: every change once, in the order of its key, and all of
them together the rows that the source has.

Places are struck one after the other in one pipeline, so that each crash meets the traces of those before it;
those that only a load reaches get a pipeline of their own each. What is struck of that is in `stream_matrix`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.failpoints import FAILPOINTS
from tests.chaos.chain import Chain
from tests.chaos.matrix import LEVEL, SEED
from tests.chaos.stream_chain import TABLES, Followed, Source, lane_of, skip_unless, was_struck
from tests.chaos.stream_matrix import FOLLOWING, LETTERS, LOADING, ORDERED, TARGETS, UNKNOWN, cases, has
from tests.chaos.stream_targets import target
from tests.oracle_history import audit_end
from tests.stream_reader import assert_folds

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: Truncates have no key, and so no place among the rows of a load that was begun again.
LOADED = tuple(table for table in TABLES if table not in ("public.scratch", "public.signals"))
#: Kills between a commit at the target and the acknowledgement at the source.
WINDOW = {"short": 0, "once": 10, "full": 100}[LEVEL]


@pytest.fixture(scope="module")
def all_following(
    request: pytest.FixtureRequest, stream_source: Source, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain[Followed]]:
    @contextmanager
    def loaded(name: str) -> Iterator[Followed]:
        directory = tmp_path_factory.mktemp(name)
        with (
            target(name, request, directory) as at,
            lane_of(stream_source, at, directory / "pipeline") as followed,
        ):
            followed.load()
            yield followed

    with Chain(loaded) as chain:
        yield chain


@pytest.fixture
def following(request: pytest.FixtureRequest, all_following: Chain[Followed]) -> Followed:
    """A lane that has loaded its tables."""
    return all_following.of(request.param)


@pytest.mark.parametrize("level", ["once", "full"])
def test_every_failpoint_of_streams_is_struck_on_every_target_that_has_it(level: str) -> None:
    struck = {
        (where, rule.partition("=")[0])
        for names in (FOLLOWING, LOADING, LETTERS, ORDERED)
        for where, rule in cases(names, level)
    }
    names = [name for name in FAILPOINTS if name.startswith("streams.")]
    assert struck == {(where, name) for where in TARGETS for name in names if has(where, name)}


@pytest.mark.parametrize(("following", "rule"), cases(FOLLOWING), indirect=["following"])
def test_killed_while_following_each_change_is_there_once(following: Followed, rule: str) -> None:
    following.instance.lane.start(rule)
    struck = was_struck(following.instance.lane, rule)
    following.wait_for_writes()
    following.instance.lane.start()
    assert following.compare() > 0
    skip_unless(struck, rule)


@pytest.mark.skipif(LEVEL == "short", reason="only by make chaos-once and make chaos")
@pytest.mark.parametrize(("name", "rule"), cases(LOADING), ids=str)
def test_killed_while_loading_each_row_and_change_is_there_once(
    stream_source: Source, request: pytest.FixtureRequest, tmp_path: Path, name: str, rule: str
) -> None:
    with (
        target(name, request, tmp_path) as at,
        lane_of(stream_source, at, tmp_path / "pipeline", LOADED) as loading,
    ):
        loading.instance.start(rule)
        struck = was_struck(loading.instance.lane, rule)
        loading.wait_for_writes()
        loading.instance.lane.start()
        loading.instance.lane.wait_until_running()
        loading.pipeline.wait_until_level(loading.instance)
        loading.since = audit_end(loading.source.database.url)
        loading.compare(resumed=True)
    skip_unless(struck, rule)


@pytest.mark.skipif(not WINDOW, reason="only by make chaos-once and make chaos")
@pytest.mark.timeout(3600)  # a kill on Kinesis costs ten seconds: its successor waits before it reads back
@pytest.mark.parametrize("following", TARGETS, indirect=True)
def test_killed_between_publishing_and_acknowledging_nothing_is_there_twice(following: Followed) -> None:
    name = UNKNOWN[following.target.name]
    chance = random.Random(f"{SEED}/window")
    struck = 0
    for _ in range(WINDOW):
        rule = f"{name}=kill@{chance.randint(1, 4)}"
        following.instance.lane.start(rule)
        struck += following.instance.lane.wait_until_struck(rule)
    assert struck == WINDOW
    following.instance.lane.start()
    changes = following.compare()
    print(f"{following.target.name}: killed {struck} times in the window, {changes} changes, none twice")


@pytest.mark.skipif(LEVEL == "short", reason="only by make chaos-once and make chaos")
@pytest.mark.parametrize(("name", "rule"), cases(ORDERED), ids=str)
def test_killed_when_it_begins_anew_by_order_all_rows_are_there_again(
    stream_source: Source, request: pytest.FixtureRequest, tmp_path: Path, name: str, rule: str
) -> None:
    """What was sent before is sent again, on purpose: so it is the outcome that is judged."""
    with (
        target(name, request, tmp_path) as at,
        lane_of(stream_source, at, tmp_path / "pipeline", LOADED) as lane,
    ):
        lane.instance.start(rule)
        lane.instance.lane.wait_until_running()
        lane.pipeline.wait_until_level(lane.instance)
        lane.pipeline.command("resync", "--lane", name, "--yes")
        struck = was_struck(lane.instance.lane, rule)
        lane.wait_for_writes()
        lane.instance.lane.start()
        lane.instance.lane.wait_until_running()
        lane.pipeline.wait_until_level(lane.instance)  # so the load that goes on has its new snapshot,
        lane.wait_for_writes()  # and what is written now comes behind it
        stream_source.workload.stop()
        try:
            lane.pipeline.wait_until_level(lane.instance)
            told = lane.read()
            for table in LOADED:
                assert_folds(stream_source.database.url, table, told, resynced=True)
        finally:
            stream_source.workload.start()
    skip_unless(struck, rule)

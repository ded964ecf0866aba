"""A link of a chain of crashes, whatever the source: killed at a named place, resumed, and compared."""

from __future__ import annotations

from typing import Protocol

import pytest

from tests.chaos.matrix import FULL, ONCE
from tests.pipelines import Ended, PipelineUnderTest

#: Reached by Spark tasks, each in a process of its own, or by the sync itself in a round that is small.
IN_A_TASK = {"destination.file_write"}
#: Reached by capture or by a Spark task: the sync's own process lives on, and must say what happened.
IN_ANOTHER_PROCESS = IN_A_TASK | {
    "capture.slot_created",
    "log.file_write",
    "log.files_written",
    "log.manifest_written",
    "checkpoint.write",
}


class WrittenTo(Protocol):
    """A source with writers at work."""

    def compare(self, pipeline: PipelineUnderTest) -> None:
        """Let the writers rest, catch up, and compare every value and every change."""

    def wait_for_writes(self) -> None: ...

    def assert_acknowledged_no_more_than_committed(self, pipeline: PipelineUnderTest) -> None: ...


class ToldNothing:
    """A source that keeps its log, if it is read at all, for nobody in particular."""

    def assert_acknowledged_no_more_than_committed(self, pipeline: PipelineUnderTest) -> None:
        """Nothing is acknowledged to it."""


def kill_and_recover(
    source: WrittenTo, pipeline: PipelineUnderTest, rule: str, *, beside_writers: bool = not ONCE
) -> None:
    ended = pipeline.sync_apart(rule)
    if not struck_nothing(ended, rule):
        assert_struck(ended, rule)
    source.assert_acknowledged_no_more_than_committed(pipeline)
    source.wait_for_writes()
    if beside_writers:
        pipeline.sync()
    source.compare(pipeline)
    assert pipeline.running() == []
    skip_if_nothing_was_struck(ended, rule)


def struck_nothing(ended: Ended, rule: str) -> bool:
    """Whether the whole matrix asked for a later time than the place has: nobody was killed there."""
    return FULL and int(rule.partition("@")[2] or 1) > 1 and not ended.struck


def skip_if_nothing_was_struck(ended: Ended, rule: str) -> None:
    """At the end of a test that compared all the same: it must not pass for one that killed somebody."""
    if struck_nothing(ended, rule):
        pytest.skip(f"{rule} struck nothing: the place is reached less often")


def assert_struck(ended: Ended, rule: str) -> None:
    name = rule.partition("=")[0]
    times = len(ended.struck) if name in IN_A_TASK else 1  # several tasks may come there at once
    assert ended.struck == (f"{name}=kill",) * max(times, 1), f"{name} did not strike, or not once: {ended}"
    if name not in IN_ANOTHER_PROCESS or (name in IN_A_TASK and ended.killed):
        assert ended.killed, f"the process that reached {name} should be gone: {ended}"
        return
    assert not ended.killed, f"the sync should have survived: {ended}"
    if ended.status != 0:
        error = ended.answer["error"]
        assert error["message"], f"it should say what happened: {ended}"
        assert error["remedy"], f"it should say what to do: {ended}"

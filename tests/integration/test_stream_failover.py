"""Two instances of `penstock run` with a stream lane: when the leader is gone, or only stands still and wakes
later, the other one goes on from what the target holds, and each change is there once.

Whole instances, with capture and the lake beside the lane, as people run them; writers never stop. The target
is a file, which has no broker to shut the old leader out: if it wrote one line too many, it would be there.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Database, wait_until
from tests.oracle_history import audit_end
from tests.pipelines import PipelineUnderTest, streams_of
from tests.running import Instance, flushed_position, instances, is_acknowledged
from tests.stream_reader import assert_told, read_file
from tests.traps import MakePipeline
from tests.workload import APPEND, UPSERT, Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LANE = "file"
_LEVEL_S = 180.0


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_standby_goes_on_with_the_stream_and_each_change_is_there_once(
    make: MakePipeline, database: Database, tmp_path: Path, strike: signal.Signals
) -> None:
    events = tmp_path / "events.ndjson"
    pipeline = make(
        streams_of(UPSERT, APPEND),
        log={"seal_every": "1s"},
        lanes={"lake": {"every": "1s"}, LANE: {"path": str(events)}},
        run={"restarts_max": 50},
    )
    a, b = Instance(pipeline, "a"), Instance(pipeline, "b")
    workload = Workload(database.url, pause_s=0.02).setup(300, audited=(*UPSERT, *APPEND))
    with instances(a, b), workload.start():
        a.start()
        a.wait_until(lambda: a.state_of(LANE) == "running", "the leader's lane to run")
        _wait_until_level(pipeline)
        since, led_by_a = audit_end(database.url), _epoch(events)
        b.start()
        b.wait_until(lambda: b.role == "standby", "the other one to stand by")
        b.wait_until(lambda: b.state_of(LANE) == "waiting", "its lane to wait")

        a.send(strike)
        b.wait_until(lambda: _epoch(events) != led_by_a, "the standby's lane to write")
        if strike is signal.SIGSTOP:
            a.send(signal.SIGCONT)
            a.wait_until(lambda: a.role == "standby", "the woken leader to stand by")
            a.wait_until(lambda: a.state_of(LANE) == "waiting", "its lane to wait")
        written = workload.transactions
        wait_until(lambda: workload.transactions > written + 100, "the writers to go on")
        workload.stop()
        _wait_until_level(pipeline)
        told = read_file(events)
        changes = sum(
            assert_told(database.url, table, told, since=since).changes for table in (*UPSERT, *APPEND)
        )
        assert changes > 0
        print(f"{strike.name}: {changes} changes, each once")
        assert b.stop() == 0, b.said()


def _wait_until_level(pipeline: PipelineUnderTest) -> None:
    """Both lanes hold what is committed now, as the source is told."""
    position = flushed_position(pipeline.url)
    level = partial(is_acknowledged, pipeline.url, pipeline.name, position)
    wait_until(level, f"the source to be told that {position} is everywhere", _LEVEL_S)


def _epoch(path: Path) -> str:
    """The term of the last commit line."""
    lines = path.read_bytes().splitlines(keepends=True)
    commits = [line for line in lines if line.startswith(b'{"commit"') and line.endswith(b"\n")]
    return str(json.loads(commits[-1])["commit"]["epoch"])

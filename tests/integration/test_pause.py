"""A paused stream stands still, holds nobody up, and misses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Pipeline
from penstock.core.errors import ConfigError
from penstock.core.report import StreamStatus
from tests.conftest import Database
from tests.oracle import source_rows
from tests.pipelines import PipelineUnderTest
from tests.traps import STREAMS, MakePipeline, assert_exact


def opened(pipeline: PipelineUnderTest) -> Pipeline:
    return Pipeline.from_yaml(pipeline.file)


def stream_status(pipeline: PipelineUnderTest, stream: str) -> StreamStatus:
    return next(each for each in opened(pipeline).status().streams if each.stream == stream)


def state(pipeline: PipelineUnderTest) -> Any:
    return json.loads((pipeline.state / "state.json").read_text())


@pytest.mark.slow
def test_a_paused_stream_stands_still_while_the_others_go_on_and_then_catches_up(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS, log={"retention": "0s"})
    pipeline.sync()
    opened(pipeline).pause(["public.history"], "a migration")
    before = pipeline.version("public.history")
    for value in ("one", "two"):
        tables.execute(f"UPDATE state SET v = '{value}'; UPDATE history SET v = '{value}'")
        pipeline.sync()
        pipeline.assert_same("public.state")
        assert pipeline.version("public.history") == before
    assert state(pipeline)["global"]["streams"] == ["public.state"]

    status = stream_status(pipeline, "public.history")
    assert status.state == "paused"
    assert status.paused is not None
    assert status.paused.reason == "a migration"
    assert status.paused.since
    assert status.paused.log_steps_kept >= 2
    assert status.paused.log_bytes_kept > 0
    assert any("public.history is paused since" in note for note in opened(pipeline).status().notes)
    held = tables.query(
        "SELECT confirmed_flush_lsn <= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        (status.committed_to, pipeline.name),
    )
    assert held == [(True,)], "what the paused stream has not read is not given up"

    opened(pipeline).resume(["public.history"])
    tables.execute("DELETE FROM state WHERE id = 1; DELETE FROM history WHERE id = 1")
    pipeline.sync()
    assert_exact(pipeline)
    assert stream_status(pipeline, "public.history").state == "following"
    assert set(state(pipeline)["global"]["streams"]) == {"public.state", "public.history"}


@pytest.mark.slow
def test_a_stream_paused_before_its_first_load_is_loaded_when_it_is_resumed(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    opened(pipeline).pause(["public.history"])
    pipeline.sync()
    pipeline.assert_same("public.state")
    assert stream_status(pipeline, "public.history").state == "paused"
    tables.execute("UPDATE state SET v = 'x'; UPDATE history SET v = 'x'")
    pipeline.sync()
    opened(pipeline).resume(["public.history"])
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
def test_a_stream_paused_in_the_middle_of_a_round_that_was_killed_is_in_the_round_and_then_stands_still(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'round'; UPDATE history SET v = 'round'")
    assert pipeline.sync_apart("cdc.committed=kill").killed
    opened(pipeline).pause(["public.state"])
    tables.execute("UPDATE state SET v = 'after'; UPDATE history SET v = 'after'")
    pipeline.sync()
    pipeline.assert_history("public.history")
    values = {row["v"] for row in opened(pipeline).table("public.state").to_arrow().to_pylist()}
    assert values == {"round"}
    opened(pipeline).resume(["public.state"])
    pipeline.sync()
    assert_exact(pipeline)


def test_a_paused_stream_that_dropped_out_of_the_publication_is_loaded_again_once_it_is_resumed(
    tables: Database, make: MakePipeline
) -> None:
    """Only the sync that publishes it again can know of the gap; it must not forget it."""
    pipeline = make(STREAMS)
    pipeline.sync()
    opened(pipeline).pause(["public.state"])
    tables.execute(f"ALTER PUBLICATION {pipeline.name} DROP TABLE state")
    tables.execute("UPDATE state SET v = 'nobody heard'; UPDATE history SET v = 'heard'")
    pipeline.sync()
    pipeline.sync()
    opened(pipeline).resume(["public.state"])
    assert {report.stream: report.rows_loaded for report in pipeline.sync().streams} == {
        "public.state": len(source_rows(tables.url, "public.state").rows),
        "public.history": 0,
    }
    assert_exact(pipeline)


def test_only_streams_of_the_pipeline_can_be_paused_and_a_resync_is_a_way_out(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STREAMS)
    with pytest.raises(ConfigError, match="not part of the pipeline") as caught:
        opened(pipeline).pause(["public.stat"])
    assert "public.state" in caught.value.remedy
    opened(pipeline).pause(["public.state"])
    planned = {each.stream: each.action for each in opened(pipeline).plan()}
    assert planned == {"public.state": "stand still", "public.history": "load"}
    pipeline.sync()
    opened(pipeline).resync(["public.state"])
    assert_exact(pipeline)

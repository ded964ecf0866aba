"""Pipelines, and places where a sync in this process stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoints
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline, Pause, PauseAt, make_tables


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Iterator[MakePipeline]:
    made: list[PipelineUnderTest] = []

    def make_pipeline(streams: list[Any], url: str | None = None, **settings: Any) -> PipelineUnderTest:
        directory = tmp_path / f"pipeline{len(made)}"
        made.append(PipelineUnderTest(directory, url or database.url, streams, settings))
        return made[-1]

    yield make_pipeline
    for pipeline in made:
        pipeline.drop()


@pytest.fixture
def tables(database: Database) -> Database:
    make_tables(database.url)
    return database


@pytest.fixture
def pause_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PauseAt:
    def set_up(rule: str) -> Pause:
        monkeypatch.setattr(failpoints, "_reached", {})
        monkeypatch.setenv("PENSTOCK_FAILPOINT", rule)
        monkeypatch.setenv("PENSTOCK_FAILPOINT_GATE", str(tmp_path / "gate"))
        monkeypatch.setenv("PENSTOCK_FAILPOINT_REPORT", str(tmp_path / "report"))
        return Pause(rule, tmp_path)

    return set_up

"""Log lines are JSON or for people, from every process, and bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from penstock import logs
from penstock.cli.run_output import RunLines
from penstock.cli.settings import Settings
from penstock.supervisor.events import Event


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_json_line_is_one_object_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", logging.INFO)
    structlog.get_logger().debug("unheard")
    structlog.get_logger().warning("slot lags", bytes=5)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["bytes"]) == ("slot lags", "warning", 5)
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_value(form: logs.LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form)
    hidden = "a row's value"
    try:
        raise RuntimeError
    except RuntimeError:
        structlog.get_logger().exception("failed")
    err = capsys.readouterr().err
    assert "RuntimeError" in err
    assert hidden not in err


def test_what_a_process_wrote_is_handed_on_with_its_name() -> None:
    line = '{"event": "sealed", "level": "info", "timestamp": "2026-11-15T12:00:00Z", "step": 3}\n'
    assert json.loads(logs.handed_on("capture", line, "json")) == {**json.loads(line), "process": "capture"}
    shown = logs.handed_on("capture", line, "console")
    assert "sealed" in shown
    assert "process=capture" in shown


@given(st.text())
def test_whatever_is_written_becomes_one_bounded_line(line: str) -> None:
    handed_on = logs.handed_on("lake", line, "json")
    assert len(handed_on.splitlines()) == 1 or "\n" not in handed_on
    fields = json.loads(handed_on)
    assert fields["process"] == "lake"
    assert "event" in fields
    long = json.loads(logs.handed_on("lake", "x" * 100_000, "json"))
    assert len(long["event"]) == logs.LINE_CHARACTERS_MAX


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "line",
    [
        '{"event": 5, "exception": 7, "level": [], "timestamp": {}}',
        '{"event": "a", "exc_info": true, "stack": 1}',
        "[" * 8000,
        '{"event": "\\ud800"}',
    ],
)
def test_a_line_that_only_looks_like_ours_is_handed_on_too(line: str, form: logs.LogFormat) -> None:
    assert logs.handed_on("lake", line, form)


def test_events_of_a_run_are_lines_of_the_same_form(capfd: pytest.CaptureFixture[str]) -> None:
    lines = RunLines(Settings(log_format="json"))
    unwatched: Any = None
    with lines.showing(unwatched):
        lines.event(Event("died", "lake", "ended with exit code 1", {"restarts": 2}))
        lines.log("lake", "what a library prints\n")
    died, printed = map(json.loads, capfd.readouterr().err.splitlines())
    assert (died["event"], died["kind"], died["level"]) == ("ended with exit code 1", "died", "error")
    assert (died["restarts"], died["process"], printed["process"]) == (2, "lake", "lake")
    assert died.keys() & printed.keys() == {"timestamp", "level", "event", "process"}


def test_the_form_follows_the_option_and_then_json() -> None:
    assert Settings().log_form == "console"
    assert Settings(json=True).log_form == "json"
    assert Settings(json=True, log_format="console").log_form == "console"
    assert Settings(log_format="json").log_form == "json"

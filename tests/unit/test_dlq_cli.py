"""`penstock dlq --lane`: letters of a stream lane are listed, shown, replayed and dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cli.main import main
from penstock.streams.commit_publisher import CommitPublisher
from penstock.streams.dead_letters import Dead, DeadLetters, dead_letters_path
from penstock.streams.events import CREATE
from penstock.streams.letter_file import LetterFile
from tests.publishing import START, STREAMS, History, MemoryCommitTarget, Store, events, term

pytestmark = pytest.mark.unit
ROWS = [(0, CREATE, b"[1]", b'{"secret": 1}'), (1, CREATE, b"[1]", b"{}"), (2, CREATE, b"[2]", b"{}")]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        "source: {type: postgres, url: postgresql://app@db/shop}\n"
        f"destination: {{type: parquet, path: {tmp_path / 'lake'}}}\n"
        f"state: {tmp_path / 'state'}\n"
        "streams: [{table: public.one}]\n"
        "lanes:\n  kafka: {bootstrap: 'localhost:9092'}\n"
    )
    return path


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    path = dead_letters_path(tmp_path / "state", "kafka")
    with DeadLetters(path, "kafka") as letters:
        letters.begin(term(1), None)
        why = [("too_large", "is too large", 1), ("behind", "", 0), ("too_large", "is too large", 1)]
        letters.write([Dead(events(STREAMS[0], 7, ROWS), why, np.ones(3, np.int64), np.arange(3))])
    return path


def dlq(capsys: pytest.CaptureFixture[str], pipeline: Path, *arguments: str, fails: bool = False) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(pipeline), "--json", "dlq", *arguments])
    assert bool(ended.value.code) == fails
    return json.loads(capsys.readouterr().out)


def test_letters_are_counted_by_stream_and_code(
    capsys: pytest.CaptureFixture[str], pipeline: Path, letters: Path
) -> None:
    found = dlq(capsys, pipeline, "list", "--lane", "kafka")
    assert [(each["stream"], each["code"], each["dead_letters"], each["dead_keys"]) for each in found] == [
        ("public.one", "behind", 1, 1),
        ("public.one", "too_large", 2, 2),
    ]


def test_values_are_shown_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], pipeline: Path, letters: Path
) -> None:
    shown = dlq(capsys, pipeline, "show", "--lane", "kafka", "--limit", "2")
    assert shown["dead_letters"] == 3
    assert [(each["offset"], each["op"], each["code"]) for each in shown["shown"]] == [
        ("7_2", "c", "too_large"),
        ("7_1", "c", "behind"),
    ]
    assert "secret" not in json.dumps(dlq(capsys, pipeline, "show", "--lane", "kafka"))
    shown = dlq(capsys, pipeline, "show", "public.one", "--lane", "kafka", "--values")
    assert shown["shown"][-1]["value"] == '{"secret": 1}'
    assert dlq(capsys, pipeline, "show", "public.two", "--lane", "kafka")["dead_letters"] == 0


def test_a_lane_that_never_had_a_letter_has_none(capsys: pytest.CaptureFixture[str], pipeline: Path) -> None:
    assert dlq(capsys, pipeline, "list", "--lane", "kafka") == []
    assert "has no dead letters" in json.dumps(
        dlq(capsys, pipeline, "replay", "--lane", "kafka", "--yes", fails=True)
    )
    assert not dead_letters_path(pipeline.parent / "state", "kafka").exists()


def test_a_letter_that_is_not_there_cannot_be_replayed(
    capsys: pytest.CaptureFixture[str], pipeline: Path, letters: Path
) -> None:
    said = dlq(capsys, pipeline, "replay", "--lane", "kafka", "--letter", "99", "--yes", fails=True)
    assert "no such dead letters" in json.dumps(said)


def test_a_lane_that_is_not_configured_is_an_error(
    capsys: pytest.CaptureFixture[str], pipeline: Path
) -> None:
    said = dlq(capsys, pipeline, "list", "--lane", "kinesis", fails=True)
    assert "Stream lanes there: kafka" in json.dumps(said)


def test_dropping_needs_a_yes(capsys: pytest.CaptureFixture[str], pipeline: Path, letters: Path) -> None:
    assert "Add --yes" in json.dumps(dlq(capsys, pipeline, "drop", "--lane", "kafka", fails=True))


def test_without_a_running_lane_a_request_waits_for_it(
    capsys: pytest.CaptureFixture[str], pipeline: Path, letters: Path, tmp_path: Path
) -> None:
    asked = dlq(capsys, pipeline, "replay", "--lane", "kafka", "--yes")
    assert (asked["finished"], asked["done"]) == (False, 0)
    with pytest.raises(SystemExit):
        main(["--config", str(pipeline), "dlq", "drop", "--lane", "kafka", "--letter", "2", "--yes"])
    assert "does not run" in capsys.readouterr().out

    store = Store(letters, History([]))
    with DeadLetters(letters, "kafka") as served:
        target = MemoryCommitTarget(store, lambda _: None)
        publisher = CommitPublisher(target, served, requests_every_s=0.001)
        publisher.open(term(2))
        publisher.begin(START)
        file = LetterFile(letters)
        try:
            while file.rows("SELECT 1 FROM requests WHERE finished_at IS NULL"):
                publisher.drain(0.01)
            assert file.rows("SELECT action, done, kept FROM requests ORDER BY number") == [
                ("replay", 3, 0),
                ("drop", 0, 0),
            ]
        finally:
            file.close()
            publisher.close()
    assert [name[3] for name in store.arrived] == [b"0 c", b"1 c", b"2 c"]
